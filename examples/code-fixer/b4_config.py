"""The app: where its agent works, and what it may do there."""

from b4run.config import Config, Deny, Permissions, Resources, Rules, Sandbox
from b4run.sandbox import bubblewrap_sandbox

config = Config(
    sandbox=Sandbox(
        provider=bubblewrap_sandbox(scope="code-fixer"),
        network=Deny(),
        resources=Resources(memory_mb=512, timeout_ms=60_000),
    ),
    # Nobody is asked: what no rule allows is refused, and the agent is told which rule is missing.
    permissions=Permissions(
        mode="non-interactive",
        allow=Rules(bash=("python3 -m unittest", "cat", "grep", "ls")),
        deny=Rules(bash=("rm",)),
    ),
)
