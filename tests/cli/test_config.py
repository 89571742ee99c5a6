"""`b4 config`."""

from __future__ import annotations

from pathlib import Path

from .conftest import B4

CONFIG = """
from b4run.config import Config, Deny, Resources, Sandbox
from b4run.sandbox.testing import fake_sandbox
config = Config(sandbox=Sandbox(
    provider=fake_sandbox(), network=Deny(allowlist=["10.0.0.0/8"]), env={"TOKEN": "hush"}, resources=Resources(memory_mb=64),
))
"""


def test_show_names_each_value_and_its_source(b4: B4, tmp_path: Path) -> None:
    (tmp_path / "b4_config.py").write_text(CONFIG)
    outcome = b4("config", "show", "--json")
    assert outcome.code == 0
    shown = outcome.json
    assert shown["sandbox.provider"] == {"value": "fake", "source": "b4_config.py"}
    assert shown["sandbox.network.mode"] == {"value": "deny", "source": "b4_config.py"}
    assert shown["sandbox.network.allowlist"] == {"value": ["10.0.0.0/8"], "source": "b4_config.py"}
    assert shown["sandbox.resources.memory_mb"] == {"value": 64, "source": "b4_config.py"}
    assert shown["sandbox.resources.cpus"] == {"value": None, "source": "default"}
    assert shown["sandbox.idle_timeout_ms"] == {"value": 600_000, "source": "default"}
    assert shown["sandbox.env"] == {"value": ["TOKEN"], "source": "b4_config.py"}
    assert "hush" not in outcome.out + b4("config", "show").out


def test_show_refuses_a_bad_file_with_every_finding(b4: B4, tmp_path: Path) -> None:
    (tmp_path / "b4_config.py").write_text("config = {'app_dri': 'x', 'permissions': {'mode': 'ask'}}")
    outcome = b4("config", "show")
    assert (outcome.code, outcome.out) == (1, "")
    first, second, hint = outcome.err.splitlines()
    assert first == "b4_config.py: permissions.mode: must be 'interactive', 'non-interactive' or 'bypass', got 'ask' (str)"
    assert second == "b4_config.py: app_dri: unknown key; known: app_dir, permissions, sandbox, server (did you mean app_dir?)"
    assert hint == "    [B4_E1002] Correct the key, then run `b4 check`."


def test_schema_refuses_what_the_models_refuse(b4: B4) -> None:
    schema = b4("config", "schema").json
    assert set(schema["properties"]) == {"app_dir", "permissions", "sandbox", "server"}
    assert schema["additionalProperties"] is False
    resources = schema["$defs"]["Resources"]
    assert set(resources["properties"]) == {"memory_mb", "cpus", "timeout_ms", "disk_gb"}
    assert resources["additionalProperties"] is False
