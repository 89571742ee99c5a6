"""Programs that run other programs. A rule that names one says little about what will run.

Names are compared by the last part of a path. The tables err on the side of too many: a program listed without need only asks once more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "rbash"})
"""Take a script from `-c`, a file, or standard input."""

_RUNTIMES = re.compile(
    r"(?:python|pypy|node|nodejs|deno|bun|perl|ruby|php|lua|luajit|tclsh|wish|guile|julia|Rscript|osascript|pwsh)[0-9.]*"
)

EVALUATORS = frozenset({"eval", "trap", "alias", "su", "ssh", "watch", "script", "flock", "parallel", "at", "batch", "entr"})
"""Read some argument as shell text."""

WRAPPERS = EVALUATORS | frozenset(
    [
        "builtin",
        "chroot",
        "chrt",
        "command",
        "coproc",
        "doas",
        "env",
        "exec",
        "fd",
        "fdfind",
        "ionice",
        "ld-linux-x86-64.so.2",
        "ltrace",
        "nice",
        "nohup",
        "nsenter",
        "numactl",
        "prlimit",
        "runuser",
        "setarch",
        "setpriv",
        "setsid",
        "stdbuf",
        "strace",
        "sudo",
        "taskset",
        "time",
        "timeout",
        "unbuffer",
        "unshare",
        "xargs",
        "bwrap",
        "busybox",
        "toybox",
    ]
)
"""Run the command that some of their arguments are."""

_SHELL_STATE = frozenset(
    [
        "source",
        ".",
        "bind",
        "compgen",
        "complete",
        "declare",
        "enable",
        "export",
        "getopts",
        "hash",
        "let",
        "local",
        "mapfile",
        "popd",
        "pushd",
        "read",
        "readarray",
        "readonly",
        "set",
        "shopt",
        "typeset",
        "unalias",
        "unset",
    ]
)
"""Change what later words of the same shell mean, or read commands from a file."""

_INLINE = frozenset(
    {"awk", "gawk", "mawk", "nawk", "sed", "gsed", "ed", "ex", "vi", "vim", "nvim", "emacs", "gdb", "m4", "bc", "dc", "expect"}
)
"""Their script, an argument, can run commands."""

_FIND = frozenset({"find", "gfind"})
_FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls"})

_RUNNING_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "tar": ("-F", "-I", "--checkpoint-action", "--info-script", "--new-volume-script", "--rmt-command", "--rsh-command", "--to-command",
            "--use-compress-program"),
    "git": ("--config-env", "--exec", "--exec-path", "--ext-diff", "--extcmd", "--open-files-in-pager", "--output",
            "--receive-pack", "--tool", "--upload-pack"),
    "go": ("-exec", "-toolexec", "-vettool", "--exec", "--toolexec", "--vettool"),
    "cargo": ("--config",),
    "npm": ("--script-shell",),
    "rg": ("--hostname-bin", "--pre"),
    "rsync": ("-e", "--rsh", "--rsync-path"),
    "sort": ("-o", "--compress-program", "--output"),
    "zip": ("-TT", "--unzip-command"),
}  # fmt: skip
"""Options of common programs whose value is run, loaded or written. Their long ones may be cut short."""

DIRECTORY_CHANGERS = frozenset({"cd", "pushd", "popd"})


def base_name(name: str) -> str:
    """Return the last part of a program's path."""
    return name.rstrip("/").rpartition("/")[2]


def is_shell(name: str) -> bool:
    return base_name(name) in SHELLS


def is_runtime(name: str) -> bool:
    return bool(_RUNTIMES.fullmatch(base_name(name)))


def is_find(name: str) -> bool:
    return base_name(name) in _FIND


def runs_text(name: str) -> bool:
    """Whether the program takes code in its arguments that is not shell text."""
    return is_runtime(name) or base_name(name) in _INLINE


def only_exact(rule: tuple[str, ...]) -> bool:
    """Return whether a rule's first words leave open what runs, so that it can cover nothing but itself.

    An interpreter's rule is closed once it names a script, or a module by `-m`, as its first argument.
    """
    name, rest = rule[0], rule[1:]
    program = base_name(name)
    if program in WRAPPERS or program in _SHELL_STATE or program in _INLINE:
        return True
    if is_shell(name) or is_runtime(name):
        script = rest[:1] if rest[:1] != ("-m",) else rest[1:2]
        return not script or script[0].startswith(("-", "+"))
    return False


def acts(name: str, arguments: tuple[str, ...]) -> bool:
    """Return whether these arguments make a harmless-looking program run, write or evaluate something."""
    if is_find(name):
        return any(argument in _FIND_ACTIONS for argument in arguments)
    if base_name(name) in ("test", "[", "printf"):
        evaluates = any("[" in argument and ("$(" in argument or "`" in argument) for argument in arguments)
        return evaluates or (base_name(name) == "printf" and any(argument.startswith("-v") for argument in arguments))
    if base_name(name) == "git" and arguments[:1] == ("-c",):
        return True
    options = _RUNNING_OPTIONS.get(base_name(name), ())
    return any(_is_option(argument, option) for option in options for argument in arguments)


def _is_option(argument: str, option: str) -> bool:
    """Whether an argument could be that option: with its value behind it, cut short, or among other letters."""
    if option.startswith("--"):
        given = argument.partition("=")[0]
        return len(given) > 3 and option.startswith(given)
    if len(option) > 2:
        return argument.partition("=")[0] == option
    return argument.startswith("-") and not argument.startswith("--") and option[1] in argument
