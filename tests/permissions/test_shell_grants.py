"""What a rule about commands lets through: never more than the commands it names."""

import os
import shutil
import subprocess
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from b4run.permissions.shell import covering_rule

RULES = ("npm test", "ls", "cat", "echo", "cd", "true", "[", "python -m pytest", "bash run.sh", "find", "printf", "git status", "./build")


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("npm test", "npm test"),
        ("  npm   test -- --watch ", "npm test"),
        ("npm 'test' \"--watch\"", "npm test"),
        ("ls *.py ~/x {a,b}", "ls"),
        ('ls "$x" $HOME ${y} "a b $z" "cost: 5$"', "ls"),
        ("npm test && ls || true", "npm test"),
        ("ls | cat | cat", "ls"),
        ("ls; cat x & ls", "ls"),
        ("ls\ncat x\n", "ls"),
        ("ls \\\n  -l \\\n  x", "ls"),
        ("! ls", "ls"),
        ("(ls; cat x) | cat", "ls"),
        ("{ ls; }", "ls"),
        ("if [ -f x ]; then npm test; elif ls; then cat y; else true; fi", "["),
        ('for f in a *.c "$b"; do cat $f; done', "cat"),
        ("while true; do ls; done", "true"),
        ("until ls; do true; done", "ls"),
        ("case $x in a*|'b') ls;; *) true;; esac", "ls"),
        ("ls # and nothing else", "ls"),
        ("ls 'a; rm' \"b && rm\" c\\;rm", "ls"),
        ("ls > out 2>&1", "ls"),
        ("ls >>/workspace/log 2>/dev/null < in", "ls"),
        ("cat > f <<'EOF'\n$(rm) `rm`; rm\nEOF", "cat"),
        ("cat <<-EOF > f && ls\n\tplain $text\n\tEOF\nls", "cat"),
        ("python -m pytest -q tests", "python -m pytest"),
        ("bash run.sh --all", "bash run.sh"),
        ("find . -name '*.py' -type f", "find"),
        ("cd sub && ls", "cd"),
        ("./build all", "./build"),
        ("echo é 名前 ~x", "echo"),
    ],
)
def test_covered(command, rule):
    assert covering_rule(command, RULES) == rule


@pytest.mark.parametrize(
    "command",
    [
        "",
        "   ",
        "npm testing",
        "npm",
        "npm run test",
        "npm test; rm -rf /",
        "npm test\nrm",
        "npm test && rm",
        "npm test & rm",
        "ls | rm",
        "(rm)",
        "! rm",
        "if ls; then rm; fi",
        "while rm; do ls; done",
        "case x in a) rm;; esac",
        "/tmp/ls",
        "./npm test",
        "*ls",
        "{ls,-l}",
        "ls $(rm)",
        "ls `rm`",
        'ls "$(rm)"',
        'ls "`rm`"',
        "ls <(rm)",
        "ls $((x[$(rm)]))",
        "ls ${x:-$(rm)}",
        "ls ${PATH:=/evil}",
        "ls ${x@P}",
        "ls > $(rm)",
        "cat <<EOF\n$(rm)\nEOF",
        "cat <<EOF\n`rm`\nEOF",
        "cat <<EOF\na\\\nEOF\nls\nEOF",
        "cat <<A <<B\nx\nA\ny\nB",
        "cat <<< x",
        "x=$(rm)",
        "PATH=/evil ls",
        "LD_PRELOAD=./e.so ls",
        "PATH=/evil; ls",
        "export PATH=/evil; ls",
        "for PATH in /evil; do ls; done",
        "read PATH < f; ls",
        "$x",
        "$x ls",
        "${x}ls",
        "l$x",
        "eval ls",
        "source ls",
        ". ls",
        "alias ls=rm\nls",
        "ls() { rm; }; ls",
        "function ls { rm; }",
        "env ls",
        "sudo ls",
        "command ls",
        "exec ls",
        "nohup ls",
        "timeout 5 ls",
        "time ls",
        "xargs ls",
        "sh -c ls",
        "bash -c ls",
        "python -c x",
        "python -m other",
        "bash other.sh",
        "ls > /etc/passwd",
        "ls > ../x",
        "ls > a/../../x",
        "ls > ~/x",
        'ls > "$x"',
        "ls > *",
        "ls >&file",
        "ls &> x",
        "ls |& cat",
        "ls <> x",
        "cd /etc && ls > passwd",
        "cd /evil && ./build",
        "find . -exec rm {} +",
        "find . -delete",
        "find . $x",
        "find *",
        "printf -v PATH x",
        "[ -v 'x[$(rm)]' ]",
        "[[ -f x ]] && ls",
        "((x)) && ls",
        "ls $'a'",
        "ls $'\\'; rm #'",
        'ls $"a"',
        "ls !(a)",
        "ls 'unclosed",
        "ls (",
        "ls\\\n -l",
        "ls\r",
        "ls\x0brm",
        "ls\0rm",
        "ls\u00a0rm",
        "ls \udc80",
        "> x",
        "# nothing",
        "coproc ls",
        "ls > f a",
    ],
)
def test_not_covered(command):
    assert covering_rule(command, RULES) is None


@pytest.mark.parametrize(
    "rule", ["sh -c ls", "python -c 'print(1)'", "env A=1 ls", "ls | cat", "eval x", "awk '{print}'", "node -e 1", "sudo ls"]
)
def test_a_rule_that_is_open_covers_only_its_very_text(rule):
    assert covering_rule(rule, [rule]) == rule
    for more in (" x", "; ls", " && true", "\nls", "\r"):
        assert covering_rule(rule + more, [rule, "ls", "true"]) is None


@pytest.mark.parametrize(
    "name",
    [
        "sh",
        "bash",
        "/bin/sh",
        "dash",
        "zsh",
        "busybox",
        "python",
        "python3",
        "python3.12",
        "pypy3",
        "node",
        "deno",
        "perl",
        "ruby",
        "php",
        "lua",
        "xargs",
        "env",
        "sudo",
        "doas",
        "nohup",
        "timeout",
        "nice",
        "setsid",
        "stdbuf",
        "command",
        "builtin",
        "exec",
        "eval",
        "source",
        ".",
        "trap",
        "alias",
        "time",
        "watch",
        "ssh",
        "su",
        "strace",
        "awk",
        "gawk",
        "sed",
        "parallel",
        "flock",
        "script",
    ],
)
def test_a_program_that_runs_others_gets_no_prefix(name):
    assert covering_rule(f"{name} -x -c ls", [name, f"{name} -x", "ls"]) is None


def test_a_rule_may_name_its_assignments():
    assert covering_rule("CI=1 npm test -q", ["CI=1 npm test"]) == "CI=1 npm test"
    assert covering_rule("CI=1 npm test", ["npm test", "CI=1"]) is None
    assert covering_rule("CI=1 sh x", ["CI=1", "CI=1 sh"]) is None


def test_parts_may_be_covered_by_different_rules():
    assert covering_rule("a 1 | b 2", ["b", "a"]) == "a"
    assert covering_rule("a 1 | c 2", ["b", "a"]) is None


def test_redirections_know_where_the_workspace_is():
    assert covering_rule("ls > /srv/app/x", ["ls"], "/srv/app") == "ls"
    assert covering_rule("ls > /workspace/x", ["ls"], "/srv/app") is None


@pytest.mark.parametrize(
    "command",
    [
        "ls " + "a" * 65_534,
        "(" * 100 + "ls" + ")" * 100,
        "ls " + "|" * 65_000,
        "a=(" * 20_000,
        "${a" * 20_000,
        "{ " * 30_000,
        "<<a " * 16_000,
    ],
    ids=["long", "deep", "pipes", "arrays", "expansions", "braces", "heredocs"],
)
def test_what_is_too_big_to_read_is_unknown_soon(command):
    started = time.monotonic()
    assert covering_rule(command, ["ls", "a"]) is None
    assert time.monotonic() - started < 5


def test_a_long_command_within_the_bound_is_read():
    assert covering_rule("cat > f <<'EOF'\n" + "x = (1, [2])\n" * 4_500 + "EOF\n", ["cat"]) == "cat"


@given(st.text(max_size=30), st.sampled_from([";", "|", "&", "&&", "||", "\n", "|&", ";;", "\n\n"]), st.text(max_size=30))
def test_a_rule_never_crosses_an_operator(before, operator, after):
    assert covering_rule(f"ls {before}'{operator}rm {after}", ["ls"]) is None or "'" in before + after or "#" in before
    assert covering_rule(f"ls{operator}rm {after}", ["ls"]) is None
    assert covering_rule(f"ls {operator} rm {after}", ["ls"]) is None


SHELLS = [path for name in ("dash", "bash", "sh") if (path := shutil.which(name))]
PIECES = [
    "ok",
    "evil",
    ";",
    "|",
    "&",
    "&&",
    "||",
    "(",
    ")",
    "{",
    "}",
    "#",
    "$(",
    "`",
    "'",
    '"',
    "\\",
    "$'",
    '$"',
    "${",
    "$x",
    "x=",
    ">",
    "<",
    ">f",
    "<f",
    "2>&1",
    "[",
    "]",
    "[[",
    "]]",
    "*",
    "~",
    "!",
    "if",
    "then",
    "else",
    "fi",
    "for",
    "x",
    "in",
    "do",
    "done",
    "case",
    "esac",
    ";;",
    ")",
    "f()",
    "<<E",
    "<<'E'",
    "<<-E",
    "E",
    "<<<",
    "|&",
    "&>",
    "<(",
    "((",
    "))",
    "{a,b}",
    "time",
    "eval",
    "coproc",
    "function",
    "é",
]


@pytest.fixture(scope="module")
def marker(tmp_path_factory):
    """A folder with two programs: `ok` does nothing, `evil` leaves a mark."""
    folder = tmp_path_factory.mktemp("marker")
    (folder / "bin").mkdir()
    (folder / "work").mkdir()
    for name, body in (("ok", "exit 0"), ("evil", f": > {folder}/mark")):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


def runs_evil(command, folder):
    """Whether any shell of this machine runs `evil` when it is given the command."""
    mark = folder / "mark"
    for shell in SHELLS:
        environment = {"PATH": os.fspath(folder / "bin")}
        try:
            subprocess.run(
                [shell, "-c", command], check=False, cwd=folder / "work", env=environment, capture_output=True, stdin=-3, timeout=2
            )
        except subprocess.TimeoutExpired:
            continue
        if mark.exists():
            mark.unlink()
            return True
    return False


def test_the_oracle_sees_evil(marker):
    assert runs_evil("ok; evil", marker)
    assert not runs_evil("ok 'evil'", marker)


@settings(max_examples=1_500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(["", " ", "\n", " \\\n"])), min_size=1, max_size=8))
@example([("$'", ""), ("\\", ""), ("'", ""), (";", ""), ("evil", ""), ("#", ""), ("'", "")])
@example([("<<E", "\n"), ("\\", "\n"), ("E", "\n"), ("evil", "\n"), ("E", "")])
def test_real_shells_run_nothing_that_no_rule_covers(marker, pieces):
    command = "ok " + "".join(piece + gap for piece, gap in pieces)
    if "evil" in command and covering_rule(command, ["ok", "["]) is not None:
        assert not runs_evil(command, marker)


@pytest.mark.parametrize(
    ("rule", "harmless", "acting"),
    [
        ("tar", "tar -xzf a.tgz", "tar --to-command=sh -xf a"),
        ("tar", "tar --directory=out -xf a", "tar --to-c sh -xf a"),
        ("tar", "tar -cf a.tar src", "tar -xIf 'sh -c x' a"),
        ("tar", "tar tf a", "tar -xf a --checkpoint=1 --checkpoint-action=exec=sh"),
        ("rg", "rg -n pattern src", "rg --pre=./x pattern"),
        ("sort", "sort -n f", "sort --compress-program=./x f"),
        ("sort", "sort f", "sort -o /etc/x f"),
        ("git", "git switch -c new", "git -c alias.x='!sh' x"),
        ("git log", "git log --oneline -n 5", "git log -p --ext-diff"),
        ("go test", "go test ./... -run X", "go test -exec ./x ./..."),
        ("cargo test", "cargo test --release", "cargo test --config ./x"),
        ("npm test", "npm test -- --watch", "npm test --script-shell=./x"),
    ],
)
def test_a_prefix_does_not_cover_options_that_run_something(rule, harmless, acting):
    assert covering_rule(harmless, [rule]) == rule
    assert covering_rule(acting, [rule]) is None
    assert covering_rule(acting, [acting]) == acting
