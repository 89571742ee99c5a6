"""The environment inside every sandbox, for any image and any uid.

`HOME` is the workspace, as in the original; caches and user installs go to a private tmpfs that allows execution, so that an empty
workspace stays empty until the agent writes. Reasons: T69, T70, T109, T120 of the survey of faults.
"""

from __future__ import annotations

from collections.abc import Mapping

from b4run.sandbox.contract import WORKSPACE_ROOT

GUEST_PATH = "/b4/bin/b4-guest"
"""Where a provider puts the guest, read-only."""

PRIVATE_HOME = "/b4/home"
"""A tmpfs of the sandbox's user: caches and user installs."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def sandbox_environment(extra: Mapping[str, str] | None = None, *, path: str = SYSTEM_PATH) -> dict[str, str]:
    """Return the variables that commands start from; `extra` (the policy's) is laid over them."""
    home = PRIVATE_HOME
    variables = {
        "HOME": WORKSPACE_ROOT,
        "PATH": f"{home}/.local/bin:{home}/npm/bin:{home}/cargo/bin:{path}",
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "TMPDIR": "/tmp",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_DATA_HOME": f"{home}/.local/share",
        "XDG_STATE_HOME": f"{home}/.local/state",
        "PYTHONUSERBASE": f"{home}/.local",
        "PYTHONPYCACHEPREFIX": f"{home}/.cache/pycache",
        "npm_config_cache": f"{home}/.cache/npm",
        "npm_config_prefix": f"{home}/npm",
        "CARGO_HOME": f"{home}/cargo",
        "GIT_AUTHOR_NAME": "agent",
        "GIT_AUTHOR_EMAIL": "agent@localhost",
        "GIT_COMMITTER_NAME": "agent",
        "GIT_COMMITTER_EMAIL": "agent@localhost",
    }
    return variables | dict(extra or {})
