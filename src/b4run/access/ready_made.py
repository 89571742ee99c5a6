"""Policies that most apps need."""

from __future__ import annotations

from collections.abc import Callable

from b4run.access.authentication import Principal
from b4run.access.policy import AccessAnswer, AccessRequest, Action, ThreadAccess, allow, deny

OWNER = "ownerId"


def owned_threads(
    *, owner: Callable[[Principal], str | None] | None = None, admins_read: Callable[[Principal], bool] | None = None
) -> ThreadAccess:
    """Every thread belongs to who created it, and is there for nobody else. Anonymous callers may do nothing.

    `owner` gives what a principal's threads are stamped with (default: its id; None: it may own nothing). Whoever `admins_read` says
    yes to may read all threads, also unstamped ones, and neither change nor delete them.
    """

    def owner_of(principal: Principal) -> str | None:
        return principal.id if owner is None else owner(principal)

    def decide(request: AccessRequest) -> AccessAnswer:
        if request.principal is None:
            return deny()
        own = owner_of(request.principal)
        if request.thread_id is None:
            return _without_thread(request, own)
        if request.action is Action.CREATE:
            return allow({OWNER: own}) if own else deny()
        if request.thread is None:
            return deny()
        stamped = (request.thread.access or {}).get(OWNER)
        if own and stamped == own:
            return allow()
        if request.action is Action.READ and admins_read is not None and admins_read(request.principal):
            return allow()
        return deny()

    def _without_thread(request: AccessRequest, own: str | None) -> AccessAnswer:
        if not own:
            return deny()
        uploaded_by = (request.requested_workspace or {}).get("uploadedBy")
        if uploaded_by and {OWNER: own} not in [dict(stamp) for stamp in uploaded_by]:
            # Somebody else's upload is as good as none.
            return deny()
        if request.operation.value.startswith("permission."):
            # What would hold for everybody's threads is nobody's to give.
            return deny()
        return allow({OWNER: own})

    return ThreadAccess(fallback=decide)
