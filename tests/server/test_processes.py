"""Server processes that die, share a database, drain and reload."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent

import httpx
import pytest

from ..databases import BOTH, database, needs_postgres
from .conftest import ROUTE, code_of
from .processes import process

CONFIG = """
from b4run.config import Config, Deny, Permissions, Sandbox
from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox

config = Config(
    sandbox=Sandbox(provider=bubblewrap_sandbox(scope="processes", state_dir="sandboxes"), network=Deny()),
    permissions=Permissions(mode="bypass"),
)
"""
AGENT = """
from b4run.agents import Agent
from b4run.testing import script

told = script()
for _ in range(20):
    told = told.user("slow").calls("runBash", command="echo kept > kept; sleep 60").replies("done")
    told = told.user("short").calls("runBash", command="sleep 1; echo rested").replies("done")
    told = told.user("go").calls("runBash", command="cat kept 2>/dev/null; echo here").replies("done")
agent = Agent(model=told.model(), prompt="Help.")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    folder = tmp_path / "app"
    for name, text in {"b4_config.py": CONFIG, "app/fix/agent.py": AGENT}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))
    return folder


LOCAL = ("--host", "127.0.0.1", "--port", "0", "--drain", "5")


def post(server, path, **body):
    return httpx.post(server.url + path, json=body or None, timeout=30)


def begin(server, root, thread="t-1"):
    """Begin a run that goes on; returns once its command is under way."""
    given = httpx.post(
        f"{server.url}/threads/{thread}/runs/wait", json={"route": ROUTE, "input": "slow"}, headers={"prefer": "wait=0"}, timeout=30
    )
    assert given.status_code == 202, given.text
    deadline = time.monotonic() + 20
    while not list((root / "sandboxes").glob("*/workspace/kept")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return given.json()["run_id"]


def answer(server, text="go", thread="t-1"):
    done = post(server, f"/threads/{thread}/runs/wait", route=ROUTE, input=text)
    assert done.status_code == 200, done.text
    tools = [message["content"] for message in done.json()["messages"] if message["type"] == "tool"]
    return json.loads(tools[-1])["stdout"]


@pytest.mark.parametrize("kind", BOTH)
def test_a_server_killed_in_the_middle_of_a_run_is_up_again_within_seconds(root, kind):
    with database(kind, root.parent) as url:
        with process(root, *LOCAL, url=url) as server:
            run_id = begin(server, root)
            server.kill()
        with process(root, *LOCAL, url=url) as server:
            up = time.monotonic()
            while code_or_status(server) == (409, "run_in_flight"):
                assert time.monotonic() - up < 5
                time.sleep(0.1)
            assert time.monotonic() - up < 5
            # The files of the run that died are there, and the run itself is recorded as lost.
            assert answer(server) == "kept\nhere\n"
            run = httpx.get(f"{server.url}/threads/t-1/runs/{run_id}").json()
            assert (run["status"], run["error"]) == ("lost", "the process that ran it ended")
            assert httpx.get(f"{server.url}/threads/t-1").json()["status"] == "idle"
            assert httpx.delete(f"{server.url}/threads/t-1", timeout=30).status_code == 204


def code_or_status(server):
    got = post(server, "/threads/t-1/runs/wait", route=ROUTE, input="go")
    return got.status_code if got.status_code == 200 else code_of(got)


@needs_postgres
def test_two_processes_share_threads(root):
    with database("postgres", root.parent) as url, process(root, *LOCAL, url=url) as one, process(root, *LOCAL, url=url, log="two") as two:
        begin(one, root)
        assert code_of(post(two, "/threads/t-1/runs/wait", route=ROUTE, input="go")) == (409, "run_in_flight")
        assert code_of(httpx.delete(f"{two.url}/threads/t-1")) == (409, "run_in_flight")
        with httpx.stream("GET", f"{two.url}/threads/t-1/runs/stream", timeout=30) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: state"
            state = json.loads(next(lines).removeprefix("data: "))
            assert state["live"] is True
            assert post(two, "/threads/t-1/cancel").json() == {"thread_id": "t-1", "status": "interrupted"}
            rest = [*lines]
        told = [part["event"] for part in state["turn"]] + [line.removeprefix("event: ") for line in rest if line.startswith("event: ")]
        assert told == ["tool_call", "done"]
        assert json.loads(rest[-2].removeprefix("data: ")) == {"output": {"cancelled": True}}
        # The sandbox that the first process holds warm goes to the second, and back.
        assert answer(two) == "kept\nhere\n"
        assert answer(one) == "kept\nhere\n"
        assert httpx.delete(f"{two.url}/threads/t-1", timeout=30).status_code == 204
        assert code_of(httpx.get(f"{one.url}/threads/t-1")) == (404, "thread_not_found")


@needs_postgres
def test_of_many_starters_on_two_processes_one_runs(root):
    with database("postgres", root.parent) as url, process(root, *LOCAL, url=url) as one, process(root, *LOCAL, url=url, log="two") as two:
        got = []

        def start(server):
            got.append(post(server, "/threads/t-1/runs/wait", route=ROUTE, input="short"))

        threads = [threading.Thread(target=start, args=(server,)) for server in (one, two) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(answer.status_code for answer in got) == [200] + [409] * 7


def test_a_drain_lets_a_run_finish(root):
    with process(root, *LOCAL) as server:
        got = []
        waiting = threading.Thread(target=lambda: got.append(post(server, "/threads/t-1/runs/wait", route=ROUTE, input="short")))
        waiting.start()
        while not httpx.get(f"{server.url}/threads").json()["threads"]:
            time.sleep(0.05)
        time.sleep(0.3)
        assert server.end() == 0
        waiting.join(10)
        assert got[0].status_code == 200, got[0].text


def test_a_drain_ends_what_takes_too_long(root):
    with process(root, "--host", "127.0.0.1", "--port", "0", "--drain", "1") as server:
        begin(server, root)
        began = time.monotonic()
        assert server.end(signal.SIGINT) == 0
        assert time.monotonic() - began < 15
    with process(root, *LOCAL) as server:
        assert answer(server) == "kept\nhere\n"


def test_a_second_signal_ends_runs_at_once(root):
    with process(root, "--host", "127.0.0.1", "--port", "0", "--drain", "120") as server:
        run_id = begin(server, root)
        server.child.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert server.child.poll() is None
        began = time.monotonic()
        assert server.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < 15
    with process(root, *LOCAL) as server:
        run = httpx.get(f"{server.url}/threads/t-1/runs/{run_id}").json()
        assert (run["status"], run["error"]) == ("error", "The server is shutting down.")
        assert answer(server) == "kept\nhere\n"


def test_b4_run_and_a_server_have_a_thread_one_after_the_other(root):
    def b4_run(text):
        command = [sys.executable, "-m", "b4run.cli", "run", "/fix", text, "--thread", "t-1", "--json", "--app", str(root)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    with process(root, *LOCAL) as server:
        begin(server, root)
        refused = json.loads(b4_run("go").communicate(timeout=30)[0])
        assert refused["error"]["kind"] == "B4_E5008"
        assert post(server, "/threads/t-1/cancel").status_code == 200
        under_way = b4_run("slow")
        while (got := code_of(post(server, "/threads/t-1/runs/wait", route=ROUTE, input="none"))) != (409, "run_in_flight"):
            assert got == (500, "run_failed")
        # It ends when the server is asked to end what the thread has.
        assert post(server, "/threads/t-1/cancel").status_code == 200
        cancelled = json.loads(under_way.communicate(timeout=30)[0])
        assert cancelled["error"]["kind"] == "B4_E5013"
        assert under_way.returncode == 1
        assert answer(server) == "kept\nhere\n"


def test_an_open_server_beyond_this_machine_is_refused(root):
    done = subprocess.run(
        [sys.executable, "-m", "b4run.cli", "start", "--app", str(root), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "thread_access.py" in done.stderr
    assert "--open" in done.stderr
    with process(root, "--host", "0.0.0.0", "--port", "0", "--open"):
        pass


def test_dev_restarts_for_changes_and_outlives_a_broken_edit(root):
    with process(root, "--port", "0", command="dev") as server:
        assert answer(server) == "here\n"
        before = answer(server, thread="t-2")
        agent = root / "app/fix/agent.py"
        good = agent.read_text()
        agent.write_text("this is no Python")
        wait_for(server, "it starts again when a file changes")
        agent.write_text(good.replace("echo here", "echo there"))
        wait_for(server, "Ready: /fix", times=2)
        assert before == "here\n"
        assert answer(server, thread="t-3") == "there\n"
        (root / ".b4" / "touched").write_text("")
        (root / "workspace").mkdir()
        (root / "workspace" / "agents-file").write_text("")
        time.sleep(1)
        assert server.log.read_text().count("Restarting") == 2


def wait_for(server, text, times=1):
    deadline = time.monotonic() + 20
    while server.log.read_text().count(text) < times:
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.05)
