"""The one error tree: every refusal that a user, a client or the model sees.

A class stands for one refusal. Its docstring is the message (`str.format` fields are filled from the keyword arguments), `code` is
the stable category of the registry (`B4_E1xxx` configuration, `2xxx` sandbox, `3xxx` permissions, `4xxx` models, `5xxx` run time) and
`hint` says what to do. Callers tell errors apart by class or by `code`, never by text.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar


class B4Error(Exception):
    """{reason}"""

    code: ClassVar[str] = "B4_E5000"
    hint: ClassVar[str] = ""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        template = inspect.cleandoc(type(self).__doc__ or "")
        super().__init__(template.format_map(_Known(fields)))

    @property
    def message(self) -> str:
        """What was refused and why, one sentence or more, without the code."""
        return str(self)

    @property
    def remedy(self) -> str:
        """What to do about it; empty when there is nothing to say."""
        return type(self).hint.format_map(_Known(self.fields))

    def as_dict(self) -> dict[str, str]:
        """Return `code`, `message` and `hint` for JSON output."""
        return {"code": self.code, "message": self.message, "hint": self.remedy}


class _Known(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return f"<{key}>"


class ConfigurationError(B4Error):
    """{reason}"""

    code = "B4_E1002"
    hint = "Correct the key, then run `b4 check`."


class AppInvalid(B4Error):
    """{reason}"""

    code = "B4_E1006"
    hint = "An app is a folder with `b4_config.py` and `app/<route>/agent.py`."


class SandboxUnavailable(B4Error):
    """The sandbox of thread {thread_id!r} could not be made: {reason}"""

    code = "B4_E2001"
    hint = "Run `b4 doctor` to see what this host can enforce."


class SandboxMissing(SandboxUnavailable):
    """Thread {thread_id!r} has no sandbox."""

    hint = "`b4 sandbox ls` lists the threads that have one."


class SandboxHeld(SandboxUnavailable):
    """The sandbox of thread {thread_id!r} is in use: {reason}"""

    hint = "Release it there first, or use another thread."


class PolicyConflict(SandboxUnavailable):
    """The sandbox of thread {thread_id!r} is held with another launch policy ({reason})."""

    hint = "Release the sandbox before asking for other settings."


class SandboxLost(SandboxUnavailable):
    """The sandbox of thread {thread_id!r} was lost: {reason}. Its files are kept; its processes are gone."""

    hint = "Try again: the next command starts fresh compute on the same workspace."

    @property
    def cause(self) -> str:
        """`oom` when the sandbox ended for its memory limit, else `lost`."""
        return str(self.fields.get("cause", "lost"))


class WorkspaceMissing(SandboxUnavailable):
    """Thread {thread_id!r} has no workspace here."""

    hint = "A workspace appears with the thread's first sandbox; check the scope and the thread's id."


class ImageRefused(SandboxUnavailable):
    """The image {reference!r} is not one that this provider may run: {reason}"""

    hint = "Name an image that the provider's `images` admits, or its own `image`."


class ReaderLost(SandboxLost):
    """The workspace reader of thread {thread_id!r} was lost: {reason}."""

    hint = "Open another one; the files are as they were."


class GuestMissing(SandboxUnavailable):
    """The guest program for {architecture} cannot be used: {reason}"""

    hint = "Run `make guest`, which needs cargo, or install a wheel of b4run that carries it."


class PreflightFailed(B4Error):
    """Provider {provider!r} cannot run here: {reason}"""

    code = "B4_E2002"
    hint = "{remedy}"


class CommandRefused(B4Error):
    """The command could not be started: {reason}"""

    code = "B4_E2003"


class FileRefused(B4Error):
    """{reason}: {path!r}"""

    code = "B4_E2004"

    @property
    def kind(self) -> str:
        """The file error's name in `docs/reference/guest-protocol.md`, such as `not_found` or `outside`."""
        return str(self.fields.get("kind", "io"))


class JobUnknown(B4Error):
    """There is no job {job} in this sandbox."""

    code = "B4_E2005"
    hint = "List the jobs; a finished job is kept until 64 newer ones have finished."


class DeadlinePassed(B4Error):
    """{operation} did not answer within {seconds:g} s."""

    code = "B4_E2006"
    hint = "Ask for a longer deadline, or look at what the sandbox is doing."


class ReaderClosed(B4Error):
    """The workspace reader of thread {thread_id!r} is closed."""

    code = "B4_E2007"
    hint = "Open another one."


class ReaderUnsupported(B4Error):
    """Provider {provider!r} cannot read a workspace beside its sandbox."""

    code = "B4_E2007"
    hint = "Use a provider with the capability `reader`, or read through the thread's sandbox."


class InspectionRefused(B4Error):
    """The workspace cannot be inspected: {reason}"""

    code = "B4_E2008"

    @property
    def kind(self) -> str:
        """`refused`, `root_missing`, `changed` or `invalid_options`."""
        return str(self.fields["kind"])


class WorkspaceInvalid(B4Error):
    """The workspace is not valid: {reason}"""

    code = "B4_E2009"
    hint = "`docs/guide/workspaces.md` tells what a workspace may hold."


class CaptureRefused(WorkspaceInvalid):
    """The workspace's source cannot be captured: {reason}"""

    hint = "`include` names every file under `directory`, outside `exclude_directories`; there are no symbolic links."


class ResolverFailed(SandboxUnavailable):
    """The workspace of thread {thread_id!r} was not resolved: {reason}"""

    hint = "Correct the resolver, or what the thread was created with; nothing was recorded."


class WorkspaceUnusable(SandboxUnavailable):
    """The workspace of thread {thread_id!r} cannot be used: {reason}"""

    hint = "{remedy}"

    @property
    def lifecycle(self) -> str:
        """`lost`, `expired`, `conflict`, `unsupported`, `retryable` or `uncertain`."""
        return str(self.fields["lifecycle"])


class PermissionRefused(B4Error):
    """{reason}"""

    code = "B4_E3001"
    hint = "{remedy}"


class AppFileBroken(B4Error):
    """{file}, line {line}: {reason}"""

    code = "B4_E5001"
    hint = "Correct the file; a missing module must be installed where `b4` runs."


class RouteUnrecognised(AppInvalid):
    """{file} binds neither an `Agent` to `agent` nor a graph to `graph`."""

    code = "B4_E1007"
    hint = "Bind `agent = Agent(...)`, or `graph` to a compiled LangGraph graph."


class RouteAmbiguous(AppInvalid):
    """{file} binds both `agent` and `graph`."""

    code = "B4_E1008"
    hint = "Keep one of them; a second agent goes into a route of its own."


class ToolFileInvalid(AppInvalid):
    """{file}: {reason}"""

    code = "B4_E5002"
    hint = "A tool file holds one public function with type hints and a docstring."


class DispatchRefused(PermissionRefused):
    """{reason}"""

    code = "B4_E3002"


class StorageUnusable(B4Error):
    """The app's records cannot be used: {reason}"""

    code = "B4_E5301"
    hint = "Look at the app's `.b4/b4.sqlite`, or at the database that was configured."


class GrantUnknown(B4Error):
    """There is no permission with the id {grant_id}."""

    code = "B4_E3001"
    hint = "`b4 permissions ls` lists them."


class ThreadBusy(B4Error):
    """Thread {thread_id!r} is in use: {reason}"""

    code = "B4_E5008"
    hint = "Wait for its run to end, cancel it, or ask for `enqueue`."


class SlotLost(B4Error):
    """Thread {thread_id!r} was taken from this run, which may not write to it any more."""

    code = "B4_E5009"
    hint = "The process was not heard of for too long, or the run did not end when it was cancelled."


class RunCancelled(B4Error):
    """The run of thread {thread_id!r} was cancelled by another process."""

    code = "B4_E5013"
    hint = "The thread can go on from here."


class RunTimedOut(B4Error):
    """The run was ended after {seconds:g} s, as was asked."""

    code = "B4_E5010"
    hint = "Ask for a longer `timeout_ms`; the thread can go on from here."


class IdempotencyKeyReused(B4Error):
    """The idempotency key was used for another request."""

    code = "B4_E5008"
    hint = "Send a new key with a new request."


class ShuttingDown(B4Error):
    """The server is shutting down."""

    code = "B4_E5011"
    hint = "Send the request again; another process will serve it."


class AccessPolicyInvalid(AppInvalid):
    """{file}: {reason}"""

    code = "B4_E3003"
    hint = "It binds `policy` to a ThreadAccess, such as `owned_threads()`."


class AuthInvalid(AppInvalid):
    """{file}: {reason}"""

    code = "B4_E3005"
    hint = "It binds `authenticate`, an `async def` function that returns a Principal, a Rejected or None."


class ToolScopeInvalid(AppInvalid):
    """Route {route}: `tools.{field}` names {names}, which this agent does not have."""

    code = "B4_E1001"
    hint = "Its tools: {known}."


class DelegationInvalid(AppInvalid):
    """Route {route}: {reason}"""

    code = "B4_E1004"
    hint = "Register each subagent once, under a name of letters, digits, `_` and `-`; `task` is no tool of theirs."


class RouteUnknown(AppInvalid):
    """There is no route {route!r}."""

    hint = "The app's routes: {known}."


class InputInvalid(B4Error):
    """The input of the run is not usable: {reason}"""

    code = "B4_E5014"
    hint = "Give a text, a list of messages such as {{'role': 'user', 'content': 'hello'}}, or another JSON value."


class ModelProviderMissing(B4Error):
    """The model {model!r} cannot be used: package {package} is not installed."""

    code = "B4_E4001"
    hint = "Install it: pip install {package}"


class ModelUnknown(B4Error):
    """The model {model!r} cannot be used: {reason}"""

    code = "B4_E4002"
    hint = "Name it as `provider:model`, such as `openai:gpt-5-mini`."


class ModelFailed(B4Error):
    """The model did not answer ({attempts} attempts): {reason}"""

    code = "B4_E4003"
    hint = "Look at the provider's status, the key in the environment, and the model's name."


class ScriptMismatch(B4Error):
    """The scripted model has no answer: {reason}"""

    code = "B4_E4004"
    hint = "Correct the script, or the turn that departs from it."


class SubagentFailed(B4Error):
    """Subagent {subagent!r} {reason}"""

    code = "B4_E5003"
    hint = "Go on without it, or hand it the work in another way."


class StepLimitReached(B4Error):
    """The run of {route} was ended after {steps} steps."""

    code = "B4_E5004"
    hint = "Raise `recursion_limit` of the agent, or ask for less in one turn; the thread can go on from here."


class ResumeRefused(B4Error):
    """The run cannot be resumed: {reason}"""

    code = "B4_E5005"
    hint = "Answer every pending prompt of the thread once, with `once`, `always` or `deny`."


class ArgumentsRefused(B4Error):
    """The arguments of {tool} are not valid: {reason}"""

    code = "B4_E5006"
    hint = "Correct them and call the tool again."


class ToolFailed(B4Error):
    """{tool} failed: {reason}"""

    code = "B4_E5007"
    hint = "Correct the call if the cause is in it; otherwise find another way."


class EditRefused(B4Error):
    """{path!r} was not changed: {reason}"""

    code = "B4_E2007"
    hint = "{remedy}"
