"""Lists of rules: what is refused, and that it says where."""

import pytest

from b4run.errors import ConfigurationError
from b4run.permissions import Key, PermissionMode, mode_in_force, read_rules


def test_lists_are_kept_by_key():
    lists = read_rules({"bash": ["ls", "npm test"], "readFile": ("/etc/",)}, where="permissions.allow")
    assert lists.of(Key.BASH) == ("ls", "npm test")
    assert lists.of(Key.READ_FILE) == ("/etc/",)
    assert lists.of(Key.TOOL) == ()


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (["ls"], "permissions.deny: must be a mapping of keys to lists, got list"),
        ({"shell": ["ls"]}, "permissions.deny.shell: unknown key; known: bash, readFile, writeFile, listDir, tool, subagent"),
        ({"bash": "ls"}, "permissions.deny.bash: must be a list of texts, got str"),
        ({"bash": [1]}, "permissions.deny.bash[0]: 1 must be text, not int"),
        ({"bash": ["ls", " "]}, "permissions.deny.bash[1]: ' ' is blank"),
        ({"tool": ["a\0"]}, "permissions.deny.tool[0]: 'a\\x00' has a NUL or more than 4,096 characters"),
        ({"bash": ["npm *"]}, "permissions.deny.bash[0]: 'npm *' ends in `*`; leave it out"),
        ({"bash": ["npm:*"]}, "permissions.deny.bash[0]: 'npm:*' ends in `*`"),
        ({"bash": ["ls; rm"]}, "permissions.deny.bash[0]: 'ls; rm' is no simple command"),
        ({"bash": ["$x"]}, "permissions.deny.bash[0]: '$x' is no simple command"),
        ({"readFile": ["etc"]}, "permissions.deny.readFile[0]: 'etc' must be absolute"),
        ({"readFile": ["/a/../b"]}, "must have no '.', '..' or empty segments"),
        ({"readFile": ["//a"]}, "must have no '.', '..' or empty segments"),
        ({"writeFile": ["/a/*"]}, "has a `*` or `?`"),
        ({"subagent": ["review"]}, "must be a JSON pair of parent route and name"),
        ({"subagent": ['["a"]']}, "must be a JSON pair of parent route and name"),
    ],
)
def test_a_bad_list_names_the_key_and_the_reason(block, message):
    with pytest.raises(ConfigurationError) as refused:
        read_rules(block, where="permissions.deny", denies=True)
    assert message in refused.value.message


@pytest.mark.parametrize("pattern", ["sh -c 'a; b'", "ls | cat", "$x"])
def test_an_allowed_command_may_be_any_text(pattern):
    assert read_rules({"bash": [pattern]}, where="permissions.allow").of(Key.BASH) == (pattern,)


@pytest.mark.parametrize("mode", ["interactive", "non-interactive", "bypass"])
def test_the_environment_overrides_the_mode(mode):
    assert mode_in_force("interactive", {"B4_PERMISSIONS_MODE": mode}) is PermissionMode(mode)
    assert mode_in_force(mode, {}) is PermissionMode(mode)


@pytest.mark.parametrize("value", ["", "Bypass", "yolo"])
def test_a_bad_mode_is_refused_with_those_allowed(value):
    with pytest.raises(ConfigurationError, match=r"B4_PERMISSIONS_MODE is .*; allowed: interactive, non-interactive, bypass"):
        mode_in_force("bypass", {"B4_PERMISSIONS_MODE": value})


def test_the_process_environment_is_read(monkeypatch):
    monkeypatch.setenv("B4_PERMISSIONS_MODE", "bypass")
    assert mode_in_force(PermissionMode.INTERACTIVE) is PermissionMode.BYPASS
