"""Who may do what with which thread: what an app's `thread_access.py` and `auth.py` are written with.

`thread_access.py` binds `policy`, a `ThreadAccess` or `owned_threads()`; `auth.py` binds `authenticate`, which tells who calls.
"""

from b4run.access.authentication import Authenticator, AuthRequest, Principal, Rejected
from b4run.access.policy import AccessAnswer, AccessRequest, Action, Allowed, Denied, Operation, ThreadAccess, ThreadView, allow, deny
from b4run.access.ready_made import owned_threads

__all__ = [
    "AccessAnswer",
    "AccessRequest",
    "Action",
    "Allowed",
    "AuthRequest",
    "Authenticator",
    "Denied",
    "Operation",
    "Principal",
    "Rejected",
    "ThreadAccess",
    "ThreadView",
    "allow",
    "deny",
    "owned_threads",
]
