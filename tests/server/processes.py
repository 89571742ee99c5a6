"""Real server processes: `b4 start` and `b4 dev` on a free port, ended by signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

START_S = 30.0


@dataclass
class Process:
    child: subprocess.Popen[str]
    url: str
    log: Path

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait(10)

    def end(self, number: int = signal.SIGTERM, seconds: float = 40) -> int:
        self.child.send_signal(number)
        return self.child.wait(seconds)


@contextmanager
def process(root: Path, *arguments: str, command: str = "start", url: str | None = None, log: str = "log") -> Iterator[Process]:
    """A server of the app in `root`, up and answering."""
    path = root.parent / log
    with path.open("a") as output:
        begin = path.stat().st_size
        child = subprocess.Popen(
            [sys.executable, "-m", "b4run.cli", command, "--app", str(root), *arguments],
            stdout=output,
            stderr=output,
            text=True,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
            | ({} if url is None else {"B4_DATABASE_URL": url}),
        )
    try:
        yield Process(child, _address(child, path, begin), path)
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(40)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(10)


def _address(child: subprocess.Popen[str], path: Path, begin: int) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert child.poll() is None, path.read_text()
        text = path.read_text()[begin:]
        if " on http://" in text:
            url = "http://" + text.split(" on http://", 1)[1].split(";")[0].split()[0]
            try:
                if httpx.get(f"{url}/healthz", timeout=1).status_code == 200:
                    return url
            except httpx.HTTPError:
                pass
        time.sleep(0.05)
    raise AssertionError(f"it does not serve:\n{path.read_text()}")
