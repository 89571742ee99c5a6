"""Names of a thread's resources: the same thread of the same scope is found again by any process, and by the original.

The digest is over text as JavaScript's `JSON.stringify` writes it, so every detail of that spelling counts.
"""

from __future__ import annotations

import hashlib
import json
import re

from b4run.errors import ConfigurationError

_VERSION = "b4-sandbox-scope-v1"
_ID_LENGTH = 40
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_JAVASCRIPT_SPACE = (
    "\t\n\v\f\r \xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
)


def resource_id(scope: str, thread_id: str) -> str:
    """Return the 40 hex digits that name the resources of `thread_id` within `scope`. Case and punctuation count.

    Raises:
        ConfigurationError: the scope is no string, or blank.
    """
    digest = hashlib.sha256(_javascript_json([_VERSION, check_scope(scope), thread_id]).encode())
    return digest.hexdigest()[:_ID_LENGTH]


def check_scope(scope: object) -> str:
    """Return `scope` as it is.

    Raises:
        ConfigurationError: it is no string, or blank.
    """
    if not isinstance(scope, str):
        raise ConfigurationError(reason=f"`scope` must be a string, not {type(scope).__name__}")
    if not scope.strip(_JAVASCRIPT_SPACE):
        raise ConfigurationError(reason="`scope` must not be blank: it keeps the sandboxes of several apps on one host apart")
    return scope


def _javascript_json(values: list[str]) -> str:
    """JavaScript joins a pair of surrogates to one character and escapes a lone one."""
    joined = [value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass") for value in values]
    text = json.dumps(joined, ensure_ascii=False, separators=(",", ":"))
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
