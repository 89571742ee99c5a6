"""Runs one Python file of an app by its path, and says file, line and reason when it fails."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType, TracebackType

from b4run.errors import AppFileBroken


def load_source(path: Path, root: Path) -> ModuleType:
    """Run `path` as a module of its own name, so that two files called alike never clash; `root` is importable from it.

    What it prints goes to stderr, for stdout belongs to the command's data.

    Raises:
        AppFileBroken: it did not run to its end.
    """
    name = f"b4run_app_{hashlib.sha256(bytes(path)).hexdigest()[:16]}_{path.stem}"
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        file, line = _place(error, root) or (path.relative_to(root), 1)
        raise AppFileBroken(file=str(file), line=line, reason=_reason(error)) from error
    return module


def _place(error: BaseException, root: Path) -> tuple[Path, int] | None:
    """Return the innermost file of the app that the error passed through, relative to the root, and the line."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(root):
        return Path(error.filename).relative_to(root), error.lineno or 1
    found = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(root):
            found = file.relative_to(root), trace.tb_lineno
        trace = trace.tb_next
    return found


def _reason(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
