"""Decisions: denials first in every mode, then rules, grants and the mode; prompts and refusals."""

import json
import re

import pytest

from b4run.errors import DispatchRefused, PermissionRefused
from b4run.permissions import (
    CommandRequest,
    Decision,
    Grant,
    GrantNotRecorded,
    GrantScope,
    Key,
    MemoryGrantStore,
    Outcome,
    PathRequest,
    PermissionGate,
    PermissionMode,
    Reason,
    SubagentRequest,
    ThreadRules,
    ToolRequest,
    always_means,
    interrupt_payload,
    read_rules,
    refusal,
)

ALLOW = read_rules(
    {"bash": ["npm test"], "readFile": ["/etc/ssl/"], "tool": ["export"], "subagent": ['["/fix","review"]']}, where="permissions.allow"
)
DENY = read_rules(
    {"bash": ["rm"], "readFile": ["/workspace/.env", "/root"], "tool": ["wipe"], "subagent": ['["/fix", "boss"]']},
    where="permissions.deny",
    denies=True,
)
DISPATCH = SubagentRequest(parent_route="/fix", subagent="review", subagent_route="/fix/review", input="look")

UNKNOWN = [CommandRequest("make"), PathRequest("readFile", "/etc/passwd"), ToolRequest("mail"), SubagentRequest("/x", "y", "/x/y")]
ALLOWED = [CommandRequest("npm test -q"), PathRequest("readFile", "/etc/ssl/cert.pem"), ToolRequest("export", "{}"), DISPATCH]
DENIED = [
    CommandRequest("npm test; rm x"),
    PathRequest("readFile", "/root/x"),
    PathRequest("readFile", "/workspace/.env", inside=True),
    ToolRequest("wipe"),
    SubagentRequest("/fix", "boss", "/fix/boss"),
]


def gate(mode, **more):
    return PermissionGate(mode=PermissionMode(mode), allow=ALLOW, deny=DENY, **more)


async def outcome(mode, request, **more):
    return (await gate(mode, grants=MemoryGrantStore()).decide(request, thread_id="t-1", **more)).outcome


@pytest.mark.parametrize("mode", list(PermissionMode))
@pytest.mark.parametrize("request_", DENIED)
async def test_denials_hold_in_every_mode(mode, request_):
    decision = await gate(mode).decide(request_, thread_id="t-1")
    assert (decision.outcome, decision.reason) == (Outcome.DENY, Reason.DENIED)
    assert decision.rule in ("rm", "/root", "/workspace/.env", "wipe", '["/fix", "boss"]')


@pytest.mark.parametrize("mode", list(PermissionMode))
@pytest.mark.parametrize("request_", ALLOWED)
async def test_what_a_rule_allows_is_allowed_in_every_mode(mode, request_):
    assert await outcome(mode, request_) is Outcome.ALLOW


@pytest.mark.parametrize("request_", UNKNOWN)
async def test_the_mode_decides_what_no_rule_knows(request_):
    assert await outcome("interactive", request_) is Outcome.ASK
    assert await outcome("non-interactive", request_) is Outcome.DENY
    assert await outcome("bypass", request_) is Outcome.ALLOW


@pytest.mark.parametrize("mode", list(PermissionMode))
async def test_files_of_the_workspace_are_free_unless_denied(mode):
    assert await outcome(mode, PathRequest("writeFile", "/workspace/a", inside=True)) is Outcome.ALLOW


async def test_a_command_that_hides_what_it_runs_is_never_let_past_denials():
    hidden = CommandRequest("$x")
    assert await outcome("interactive", hidden) is Outcome.ASK
    assert await outcome("non-interactive", hidden) is Outcome.DENY
    assert await outcome("bypass", hidden) is Outcome.DENY
    without = PermissionGate(mode=PermissionMode.BYPASS)
    assert await without.decide(hidden, thread_id="t-1") == Decision(Outcome.ALLOW, Reason.BYPASS)


@pytest.mark.parametrize(
    ("path", "covered"),
    [("/etc/ssl/a", True), ("/etc/ssl/a/b", True), ("/etc/ssl", False), ("/etc/ssl2/a", False), ("/etc", False), ("/x/etc/ssl/a", False)],
)
async def test_a_folder_rule_covers_what_is_below(path, covered):
    assert (await outcome("non-interactive", PathRequest("readFile", path)) is Outcome.ALLOW) == covered


@pytest.mark.parametrize(("path", "hit"), [("/root", True), ("/root/a", True), ("/rooted", False)])
async def test_a_path_rule_ends_at_a_segment(path, hit):
    assert (await outcome("bypass", PathRequest("readFile", path)) is Outcome.DENY) == hit


async def test_rules_of_one_operation_say_nothing_of_another():
    assert await outcome("non-interactive", PathRequest("writeFile", "/etc/ssl/cert.pem")) is Outcome.DENY


async def test_names_of_tools_and_subagents_match_whole():
    assert await outcome("non-interactive", ToolRequest("exporter")) is Outcome.DENY
    assert await outcome("non-interactive", SubagentRequest("/fix", "reviewer", "/r")) is Outcome.DENY


async def test_always_means_this_command_and_no_more():
    permissions = gate("interactive", grants=MemoryGrantStore())
    assert await permissions.remember(CommandRequest("make all"), thread_id="t-1", granted_by="ada") is None
    granted = await permissions.decide(CommandRequest("make all"), thread_id="t-1")
    assert granted == Decision(Outcome.ALLOW, Reason.GRANT, "make all")
    for command in ("make all -j8", "make", "make all; make all", " make all"):
        assert (await permissions.decide(CommandRequest(command), thread_id="t-1")).outcome is Outcome.ASK
    [grant] = await permissions.grants.list()
    assert (grant.exact, grant.thread_id, grant.granted_by) == (True, "t-1", "ada")


async def test_a_wider_pattern_works_as_a_rule():
    permissions = gate("interactive", grants=MemoryGrantStore())
    await permissions.remember(CommandRequest("make all"), thread_id="t-1", pattern="make all")
    assert (await permissions.decide(CommandRequest("make all -j8 | npm test"), thread_id="t-1")).reason is Reason.GRANT
    assert (await permissions.decide(CommandRequest("make all; ls"), thread_id="t-1")).outcome is Outcome.ASK


async def test_a_grant_is_the_threads_unless_given_to_the_app():
    permissions = gate("interactive", grants=MemoryGrantStore())
    await permissions.remember(CommandRequest("make"), thread_id="t-1")
    assert (await permissions.decide(CommandRequest("make"), thread_id="t-2")).outcome is Outcome.ASK
    await permissions.remember(CommandRequest("make"), thread_id="t-1", scope=GrantScope.APP)
    assert (await permissions.decide(CommandRequest("make"), thread_id="t-2")).outcome is Outcome.ALLOW


async def test_a_granted_path_is_this_path():
    permissions = gate("interactive", grants=MemoryGrantStore())
    await permissions.remember(PathRequest("readFile", "/srv/a"), thread_id="t-1")
    assert (await permissions.decide(PathRequest("readFile", "/srv/a"), thread_id="t-1")).outcome is Outcome.ALLOW
    assert (await permissions.decide(PathRequest("readFile", "/srv/a/b"), thread_id="t-1")).outcome is Outcome.ASK


async def test_only_interactive_runs_use_grants():
    grants = MemoryGrantStore()
    await grants.add(Grant(Key.BASH, "make", thread_id="t-1"))
    decision = await gate("non-interactive", grants=grants).decide(CommandRequest("make"), thread_id="t-1")
    assert decision == Decision(Outcome.DENY, Reason.UNKNOWN)


async def test_a_grant_does_not_beat_a_denial_but_may_settle_a_doubt():
    grants = MemoryGrantStore()
    permissions = gate("interactive", grants=grants)
    for command in ("rm x", "$x"):
        await permissions.remember(CommandRequest(command), thread_id="t-1")
    assert (await permissions.decide(CommandRequest("rm x"), thread_id="t-1")).outcome is Outcome.DENY
    assert (await permissions.decide(CommandRequest("$x"), thread_id="t-1")).reason is Reason.GRANT


class TestThreadRules:
    """A thread with lists of its own: P-5 to P-7."""

    OWN = ThreadRules(allow=read_rules({"bash": ["ls"]}, where="a"), deny=read_rules({"bash": ["cat"]}, where="d", denies=True))

    async def test_its_allow_stands_in_place_of_the_apps(self):
        assert await outcome("non-interactive", CommandRequest("ls -l"), thread=self.OWN) is Outcome.ALLOW
        assert await outcome("non-interactive", CommandRequest("npm test"), thread=self.OWN) is Outcome.DENY

    @pytest.mark.parametrize("command", ["cat x", "rm x", "ls | cat"])
    async def test_its_denials_add_to_the_apps(self, command):
        assert await outcome("bypass", CommandRequest(command), thread=self.OWN) is Outcome.DENY

    async def test_grants_to_the_app_do_not_widen_it_and_its_own_stay_with_it(self):
        grants = MemoryGrantStore()
        permissions = gate("interactive", grants=grants)
        await grants.add(Grant(Key.BASH, "make"))
        assert (await permissions.decide(CommandRequest("make"), thread_id="t-1", thread=self.OWN)).outcome is Outcome.ASK
        await permissions.remember(CommandRequest("make"), thread_id="t-1", thread=self.OWN, scope=GrantScope.APP)
        assert (await permissions.decide(CommandRequest("make"), thread_id="t-1", thread=self.OWN)).outcome is Outcome.ALLOW
        assert [grant.thread_id for grant in await grants.list()] == [None, "t-1"]


async def test_an_always_that_cannot_be_kept_holds_once_with_a_warning():
    permissions = gate("interactive", grants=MemoryGrantStore())
    warning = await permissions.remember(CommandRequest("x" * 4_097), thread_id="t-1")
    assert warning == "The permission could not be kept: it is longer than 4,096 characters; it is allowed once."
    assert await gate("interactive").remember(CommandRequest("make"), thread_id="t-1") is not None
    assert list(await permissions.grants.list()) == []


async def test_a_store_that_fails_only_costs_the_memory():
    class Broken(MemoryGrantStore):
        async def add(self, grant):
            raise GrantNotRecorded(reason="the disk is full")

    assert "the disk is full" in await gate("interactive", grants=Broken()).remember(CommandRequest("make"), thread_id="t-1")


@pytest.mark.parametrize(
    ("request_", "kind", "detail"),
    [
        (CommandRequest("npm run x -q"), "command", {"command": "npm run x -q", "suggestedPattern": "npm run"}),
        (CommandRequest("ls; rm x"), "command", {"command": "ls; rm x", "suggestedPattern": "ls; rm x"}),
        (CommandRequest("sh -c 'x y'"), "command", {"command": "sh -c 'x y'", "suggestedPattern": "sh -c 'x y'"}),
        (PathRequest("readFile", "/etc/a/b"), "path", {"operation": "readFile", "path": "/etc/a/b", "suggestedPattern": "/etc/a/"}),
        (PathRequest("listDir", "/etc"), "path", {"operation": "listDir", "path": "/etc", "suggestedPattern": "/etc"}),
        (ToolRequest("mail", "x" * 501), "tool", {"toolName": "mail", "argsPreview": "x" * 500 + "…", "suggestedPattern": "mail"}),
        (
            DISPATCH,
            "subagent",
            {
                "parentRouteId": "/fix",
                "subagentName": "review",
                "subagentRouteId": "/fix/review",
                "inputPreview": "look",
                "suggestedPattern": '["/fix","review"]',
            },
        ),
    ],
)
def test_the_prompt(request_, kind, detail):
    payload = interrupt_payload(request_, extra={"threadId": "t-1"})
    assert re.fullmatch(r"perm-\d{13}-[0-9a-z]{6}", payload.pop("interruptId"))
    assert payload == {"type": "permission-request", "kind": kind, "detail": detail, "threadId": "t-1"}
    assert json.loads(json.dumps(payload)) == payload


def test_prompts_have_ids_of_their_own():
    assert interrupt_payload(DISPATCH)["interruptId"] != interrupt_payload(DISPATCH)["interruptId"]


@pytest.mark.parametrize("request_", [*UNKNOWN, *ALLOWED, CommandRequest("CI=1 sh x"), CommandRequest("a && a b")])
async def test_a_suggested_pattern_would_have_covered_its_request(request_):
    allow = read_rules({request_.key: [request_.suggested_pattern]}, where="x")
    decision = await PermissionGate(mode=PermissionMode.NON_INTERACTIVE, allow=allow).decide(request_, thread_id="t-1")
    assert decision.outcome is Outcome.ALLOW


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (CommandRequest("make all"), "this exact command, and nothing joined to it by `;`, `|` or `&&`"),
        (PathRequest("readFile", "/etc/hosts"), "readFile of exactly /etc/hosts"),
        (ToolRequest("export", "{}"), "every call of export, whatever its arguments"),
        (SubagentRequest("/fix", "reviewer", "/r"), "every dispatch from /fix to reviewer"),
    ],
)
def test_always_is_explained(request_, words):
    assert always_means(interrupt_payload(request_)) == words


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (Reason.DENIED, "is denied by the rule 'rm' (`permissions.deny.bash`)"),
        (Reason.USER, "was denied by the user"),
        (Reason.UNKNOWN, "is not allowed by any rule, and nobody can be asked"),
        (Reason.NO_PROMPT, "needs the user's approval, and this run has no way to ask"),
        (Reason.UNCLEAR, "hides what it runs, so it cannot be checked against the denied commands"),
    ],
)
def test_refusals_differ_and_carry_a_code(reason, says):
    error = refusal(CommandRequest("npm run build"), reason, rule="rm")
    assert (error.code, error.message) == ("B4_E3001", f"This command {says}")
    assert type(error) is PermissionRefused
    assert error.remedy


@pytest.mark.parametrize("reason", [Reason.UNKNOWN, Reason.NO_PROMPT])
def test_a_refusal_names_the_rule_to_add(reason):
    assert refusal(CommandRequest("npm run build"), reason).remedy == "Add 'npm run' to `permissions.allow.bash` in b4_config.py."


def test_a_refused_dispatch_has_its_own_code():
    error = refusal(DISPATCH, Reason.UNKNOWN)
    assert isinstance(error, DispatchRefused)
    assert error.code == "B4_E3002"
