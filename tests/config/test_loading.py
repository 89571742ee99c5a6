"""`b4_config.py` as a person writes it: every mistake is named with its key, and all of them in one run."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from b4run.config import ConfigInvalid, LoadedConfig, find_root, load_config
from b4run.errors import AppFileBroken, AppInvalid, B4Error

HEADER = """\
from b4run.config import *

class Provider:
    name = "mine"
    capabilities = frozenset()
    async def acquire(self, thread_id, policy): ...
    async def release(self, thread_id): ...
    async def destroy(self, thread_id): ...
    async def aclose(self): ...

"""


def write(root: Path, body: str) -> Path:
    (root / "b4_config.py").write_text(HEADER + dedent(body))
    return root


def load(root: Path, body: str) -> LoadedConfig:
    return load_config(write(root, body))


def faults(root: Path, body: str) -> dict[str, str]:
    with pytest.raises(ConfigInvalid) as refused:
        load(root, body)
    assert refused.value.code == "B4_E1002"
    assert all(issue.file == "b4_config.py" for issue in refused.value.issues)
    return {issue.key: issue.message for issue in refused.value.issues}


def test_defaults(tmp_path: Path) -> None:
    loaded = load(tmp_path, "config = Config(sandbox=Sandbox(provider=Provider(), network=Deny()))")
    assert loaded.warnings == ()
    assert loaded.config.app_dir == "app"
    assert loaded.config.permissions.mode == "interactive"
    sandbox = loaded.config.sandbox
    assert sandbox is not None
    assert (sandbox.idle_timeout_ms, sandbox.workspace_read_timeout_ms) == (600_000, 120_000)
    assert sandbox.policy.security.pids_limit == 512


def test_a_plain_dict_with_the_same_keys(tmp_path: Path) -> None:
    body = """
    config = {
        "sandbox": {
            "provider": Provider(),
            "network": {"mode": "deny", "allowlist": ["10.0.0.0/8"]},
            "resources": {"memory_mb": "2GiB", "cpus": 2, "timeout_ms": 1500},
            "security": {"run_as_non_root": {"uid": 7, "gid": 8}},
        }
    }
    """
    sandbox = load(tmp_path, body).config.sandbox
    assert sandbox is not None
    assert sandbox.policy.network.model_dump() == {"mode": "deny", "allowlist": ("10.0.0.0/8",)}
    assert sandbox.resources.memory_mb == 2048
    assert sandbox.resources.cpus == 2.0


def test_time_spans_and_amounts(tmp_path: Path) -> None:
    body = """
    from datetime import timedelta
    config = Config(sandbox=Sandbox(
        provider=Provider(), network=Deny(), idle_timeout_ms=timedelta(minutes=2),
        resources=Resources(timeout_ms=timedelta(seconds=1.5), disk_gb="512MiB"),
    ))
    """
    sandbox = load(tmp_path, body).config.sandbox
    assert sandbox is not None
    assert (sandbox.idle_timeout_ms, sandbox.resources.timeout_ms, sandbox.resources.disk_gb) == (120_000, 1_500, 0.5)


@pytest.mark.parametrize(
    ("body", "key", "message"),
    [
        ("config = Config(app_dri='x')", "app_dri", "unknown key; known: app_dir, permissions, sandbox, server (did you mean app_dir?)"),
        ("config = {'sandbx': {}}", "sandbx", "unknown key; known: app_dir, permissions, sandbox, server (did you mean sandbox?)"),
        (
            "config = Config(sandbox={'provider': Provider(), 'resources': {'memoryMb': 512}})",
            "sandbox.resources.memoryMb",
            "unknown key; known: memory_mb, cpus, timeout_ms, disk_gb (did you mean memory_mb?)",
        ),
        (
            "config = Config(sandbox=Sandbox(provider=Provider(), resources=Resources(memory_gb=1)))",
            "sandbox.resources.memory_gb",
            "unknown key; known: memory_mb, cpus, timeout_ms, disk_gb (did you mean memory_mb?)",
        ),
        (
            "config = {'sandbox': {'provider': Provider(), 'security': {'drop_all_capability': True}}}",
            "sandbox.security.drop_all_capability",
            (
                "unknown key; known: drop_all_capabilities, no_new_privileges, read_only_root_filesystem, run_as_non_root, pids_limit"
                " (did you mean drop_all_capabilities?)"
            ),
        ),
        (
            "config = {'sandbox': {'provider': Provider(), 'network': {'mode': 'deny', 'denylist': []}}}",
            "sandbox.network.denylist",
            "unknown key; known: mode, allowlist",
        ),
        (
            "config = {'permissions': {'allow': {'Bash': ['ls']}}}",
            "permissions.allow.Bash",
            "unknown key; known: bash, readFile, writeFile, listDir, tool, subagent (did you mean bash?)",
        ),
        (
            "config = {'sandbox': {'provider': Provider(), 'staged_workspaces': {'ttl_ms': 1}}}",
            "sandbox.staged_workspaces.ttl_ms",
            "unknown key; known: max_upload_bytes, upload_timeout_ms, max_staged_bytes, max_uploader_bytes, retention_ms",
        ),
        (
            "config = {'sandbox': {'provider': Provider(), 'network': {'mod': 'deny'}}}",
            "sandbox.network.mode",
            "is required: 'allow' or 'deny'; got `mod` (did you mean mode?)",
        ),
    ],
)
def test_unknown_keys_are_named_at_every_depth(tmp_path: Path, body: str, key: str, message: str) -> None:
    assert faults(tmp_path, body) == {key: message}


@pytest.mark.parametrize(
    ("block", "key", "message"),
    [
        ("resources={'timeout_ms': '120'}", "sandbox.resources.timeout_ms", "must be a whole number, got '120' (str)"),
        ("resources={'timeout_ms': 0}", "sandbox.resources.timeout_ms", "must be at least 1, got 0"),
        ("resources={'memory_mb': 1.5}", "sandbox.resources.memory_mb", "must be a whole number, got 1.5"),
        ("resources={'memory_mb': True}", "sandbox.resources.memory_mb", "must be a whole number, got True"),
        ("resources={'memory_mb': '1 GB'}", "sandbox.resources.memory_mb", "must be a whole number, got '1 GB' (str)"),
        ("resources={'cpus': 0}", "sandbox.resources.cpus", "must be more than 0, got 0"),
        ("resources={'cpus': float('nan')}", "sandbox.resources.cpus", "must be a finite number, got nan"),
        ("resources={'disk_gb': float('inf')}", "sandbox.resources.disk_gb", "must be a finite number, got inf"),
        ("resources=512", "sandbox.resources", "must be a block of keys (memory_mb, cpus, timeout_ms, disk_gb), got 512"),
        ("security={'pids_limit': 0}", "sandbox.security.pids_limit", "must be at least 1, got 0"),
        ("security={'pids_limit': 2**40}", "sandbox.security.pids_limit", "must be at most 4,194,304, got 1099511627776"),
        ("security={'drop_all_capabilities': 1}", "sandbox.security.drop_all_capabilities", "must be True or False, got 1"),
        ("security={'run_as_non_root': 1000}", "sandbox.security.run_as_non_root", "must be True, False or {uid, gid}, got 1000"),
        ("security={'run_as_non_root': {'uid': -1, 'gid': 0}}", "sandbox.security.run_as_non_root.uid", "must be at least 0, got -1"),
        ("security={'run_as_non_root': {'uid': 1}}", "sandbox.security.run_as_non_root.gid", "is required"),
        ("network={'mode': 'closed'}", "sandbox.network.mode", "must be 'allow' or 'deny', got 'closed'"),
        ("network={'mode': 'deny', 'allowlist': '10.0.0.0/8'}", "sandbox.network.allowlist", "must be a list, got '10.0.0.0/8' (str)"),
        ("network='deny'", "sandbox.network", "must be `Allow(...)` or `Deny(...)`, got 'deny' (str)"),
        ("idle_timeout_ms=0", "sandbox.idle_timeout_ms", "must be at least 1, got 0"),
        ("workspace_read='ftp'", "sandbox.workspace_read", "must be 'http', got 'ftp' (str)"),
        ("workspace_read_timeout_ms=999", "sandbox.workspace_read_timeout_ms", "must be at least 1,000, got 999"),
        ("workspace_read_timeout_ms=1_800_001", "sandbox.workspace_read_timeout_ms", "must be at most 1,800,000, got 1800001"),
        (
            "staged_workspaces={'max_upload_bytes': 96 * 2**20 + 1}",
            "sandbox.staged_workspaces.max_upload_bytes",
            "must be at most 100,663,296, got 100663297",
        ),
        ("staged_workspaces={'retention_ms': 59_999}", "sandbox.staged_workspaces.retention_ms", "must be at least 60,000, got 59999"),
        ("staged_workspaces={'upload_timeout_ms': 999}", "sandbox.staged_workspaces.upload_timeout_ms", "must be at least 1,000, got 999"),
        (
            "staged_workspaces={'upload_timeout_ms': 1_800_001}",
            "sandbox.staged_workspaces.upload_timeout_ms",
            "must be at most 1,800,000, got 1800001",
        ),
        ("staged_workspaces=1", "sandbox.staged_workspaces", "must be True, False or a block of limits, got 1"),
        ("thread=lambda thread: None", "sandbox.thread", "must be an `async def` function of the thread"),
        (
            "workspace='app'",
            "sandbox.workspace",
            "must be a workspace definition or an `async def` function of the thread, got 'app' (str)",
        ),
        ("workspace={'source': {'directory': '.'}}", "sandbox.workspace.source.include", "is required"),
    ],
)
def test_types_and_bounds_are_named_with_the_value(tmp_path: Path, block: str, key: str, message: str) -> None:
    assert faults(tmp_path, f"config = Config(sandbox=dict(provider=Provider(), {block}))") == {key: message}


def test_rules_that_could_never_match_are_named(tmp_path: Path) -> None:
    found = faults(
        tmp_path, "config = {'permissions': {'allow': {'readFile': ['etc/'], 'bash': ['', 'npm test']}, 'deny': {'tool': [' ']}}}"
    )
    assert list(found) == ["permissions.allow", "permissions.deny"]
    assert "readFile[0]: 'etc/' must be absolute" in found["permissions.allow"]
    assert "bash[0]: '' is blank" in found["permissions.allow"]
    assert found["permissions.deny"] == "tool[0]: ' ' is blank"


def test_values_of_the_environment_are_never_shown(tmp_path: Path) -> None:
    found = faults(tmp_path, "config = {'sandbox': {'provider': Provider(), 'env': {'TOKEN': 12345}}}")
    assert found == {"sandbox.env.TOKEN": "must be text, got a value of type int"}
    found = faults(tmp_path, "config = {'sandbox': {'provider': Provider(), 'env': {'A': 'x', '1B': 'hush'}}}")
    assert list(found) == ["sandbox.env"]
    assert "'1B'" in found["sandbox.env"] and "hush" not in found["sandbox.env"]


def test_all_mistakes_of_one_file_come_together_with_their_lines(tmp_path: Path) -> None:
    body = """\
    limits = Resources(memory_gb=1, cpus="2")
    hard = Security(pids_limit=0)
    config = Config(
        app_dir="../elsewhere",
        permissions=Permissions(mode="ask"),
        sandbox=Sandbox(provider=object(), network=Deny(allow=[]), resources=limits, security=hard, bogus=1),
    )
    """
    with pytest.raises(ConfigInvalid) as refused:
        load(tmp_path, body)
    first = HEADER.count("\n") + 1
    assert {(issue.key, issue.line) for issue in refused.value.issues} == {
        ("sandbox.resources.memory_gb", first),
        ("sandbox.resources.cpus", first),
        ("sandbox.security.pids_limit", first + 1),
        ("app_dir", first + 2),
        ("permissions.mode", first + 4),
        ("sandbox.network.allow", first + 5),
        ("sandbox.provider", first + 5),
        ("sandbox.bogus", first + 5),
    }
    assert f"b4_config.py:{first + 1}: sandbox.security.pids_limit: must be at least 1, got 0" in str(refused.value)


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("object()", "an object of type object has no acquire, release, destroy, aclose, capabilities, name; "),
        ("Provider", "is `Provider` itself, not a provider; call it: `Provider(...)`"),
        ("None", "an object of type NoneType has no acquire, "),
    ],
)
def test_what_is_no_provider(tmp_path: Path, provider: str, message: str) -> None:
    found = faults(tmp_path, f"config = Config(sandbox=Sandbox(provider={provider}))")
    assert found["sandbox.provider"].startswith(message)


def test_a_half_provider_is_named(tmp_path: Path) -> None:
    found = faults(tmp_path, "p = Provider()\np.destroy = None\nconfig = Config(sandbox=Sandbox(provider=p))")
    assert found["sandbox.provider"].startswith("provider 'mine' has no destroy; ")


def test_thread_and_workspace_exclude_each_other(tmp_path: Path) -> None:
    body = """
    async def decide(thread): ...
    config = Config(sandbox=Sandbox(provider=Provider(), workspace=decide, thread=decide))
    """
    assert "cannot stand beside `workspace`" in faults(tmp_path, body)["sandbox.thread"]


@pytest.mark.parametrize("key", ["workspace", "thread"])
def test_managed_workspaces_are_refused_where_they_would_be_ignored(tmp_path: Path, key: str) -> None:
    found = faults(
        tmp_path,
        f"async def decide(thread): raise AssertionError('called')\nconfig = Config(sandbox=Sandbox(provider=Provider(), {key}=decide))",
    )
    assert found[f"sandbox.{key}"] == "provider 'mine' has no managed workspaces, so it would be ignored"


@pytest.mark.parametrize("option", ["workspace_read='http'", "staged_workspaces=True", "staged_workspaces=Staging(retention_ms=60_000)"])
def test_http_options_need_a_policy_and_a_provider(tmp_path: Path, option: str) -> None:
    body = f"config = Config(sandbox=Sandbox(provider=Provider(), network=Deny(), {option}))"
    with pytest.raises(ConfigInvalid) as refused:
        load(tmp_path, body)
    without = [issue.message for issue in refused.value.issues]
    assert without[0] == "needs an access policy, and there is no thread_access.py beside b4_config.py"
    assert without[1].startswith("provider 'mine' ")
    (tmp_path / "thread_access.py").write_text("")
    with pytest.raises(ConfigInvalid) as refused:
        load(tmp_path, body)
    assert [issue.message for issue in refused.value.issues] == without[1:]


def test_an_omitted_network_is_open_and_warned_about(tmp_path: Path) -> None:
    loaded = load(tmp_path, "config = Config(sandbox=Sandbox(provider=Provider()))")
    assert loaded.config.sandbox is not None
    assert loaded.config.sandbox.policy.network.mode == "allow"
    assert [(warning.severity, warning.key) for warning in loaded.warnings] == [("warning", "sandbox.network")]
    assert "169.254.169.254" in loaded.warnings[0].message
    assert load(tmp_path, "config = Config(sandbox=Sandbox(provider=Provider(), network=Allow()))").warnings == ()


@pytest.mark.parametrize(
    ("body", "line", "reason"),
    [
        ("import nowhere_to_be_found", 1, "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("x = 1\nconfig = Config(", 2, "SyntaxError: '(' was never closed"),
        ("\n\nraise RuntimeError('no key')", 3, "RuntimeError: no key"),
        ("import sys\nsys.exit(3)", 2, "SystemExit: 3"),
        ("import helper", 1, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_raising_file_gives_file_line_and_reason(tmp_path: Path, body: str, line: int, reason: str) -> None:
    (tmp_path / "helper.py").write_text("\n1 / 0\n")
    (tmp_path / "b4_config.py").write_text(body + "\n")
    with pytest.raises(AppFileBroken) as broken:
        load_config(tmp_path)
    place = "helper.py, line 2" if "helper" in body else f"b4_config.py, line {line}"
    assert (broken.value.code, broken.value.message) == ("B4_E5001", f"{place}: {reason}")


def test_a_provider_that_refuses_its_options_is_a_finding_with_its_line(tmp_path: Path) -> None:
    body = "from b4run.sandbox import bubblewrap_sandbox\nconfig = Config(sandbox=Sandbox(provider=bubblewrap_sandbox(scope=' ')))\n"
    with pytest.raises(ConfigInvalid) as refused:
        load(tmp_path, body)
    (issue,) = refused.value.issues
    assert (issue.code, issue.file, issue.line) == ("B4_E1002", "b4_config.py", HEADER.count("\n") + 2)
    assert issue.message.startswith("`scope` must not be blank")


def test_paths_of_a_provider_are_relative_to_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    body = """
    from pathlib import Path
    from b4run.sandbox.paths import provider_path
    config = Config(app_dir=provider_path(Path(".b4")).parent.name)
    """
    assert load(tmp_path, body).config.app_dir == tmp_path.name


@pytest.mark.parametrize(
    ("body", "found"),
    [("", "binds no `config`"), ("config = 3", "`config` is of type int"), ("config = {1: 2}", "`config` is of type dict")],
)
def test_a_file_without_a_config(tmp_path: Path, body: str, found: str) -> None:
    assert faults(tmp_path, body)["config"].startswith(found)


def test_an_app_folder_that_links_out_of_the_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "app").symlink_to(outside)
    assert faults(root, "config = Config()") == {"app_dir": "'app' leads out of the app's root"}


def test_two_apps_never_share_a_module(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        load(tmp_path / name, f"config = Config(app_dir={name!r})")
    assert load_config(tmp_path / "one").config.app_dir == "one"
    assert load_config(tmp_path / "two").config.app_dir == "two"


def test_the_root_is_found_from_beneath(tmp_path: Path) -> None:
    write(tmp_path, "config = Config()")
    deep = tmp_path / "app" / "fix" / "tools"
    deep.mkdir(parents=True)
    assert find_root(deep) == tmp_path.resolve()


def test_a_missing_root_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(AppInvalid) as missing:
        find_root(tmp_path)
    assert str(tmp_path) in missing.value.message and missing.value.code == "B4_E1006"
    with pytest.raises(B4Error, match="there is no folder"):
        find_root(tmp_path / "nowhere")
