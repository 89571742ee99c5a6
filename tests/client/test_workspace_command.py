"""`b4 workspace`: a folder captured, uploaded to a server, and read back as what a thread made of it."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from b4run.cli.main import main
from b4run.sandbox.testing import fake_sandbox
from b4run.testing import script

from ..server.conftest import ROUTE
from ..server.test_lifecycle import FILES

DIGEST = "deedbddc57d3f71a4ba6b2eba2d742007de1b9deb26caf56409e3b54bc1d4b8a"
"""Of the two files below: the vector of `formats.md`."""


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "project"
    (found / "bin").mkdir(parents=True)
    (found / "README.md").write_text("# hi\n")
    (found / "bin" / "run.sh").write_text("#!/bin/sh\necho ok\n")
    (found / "bin" / "run.sh").chmod(0o755)
    return found


def test_capture_writes_the_bundle_of_all_files(folder, tmp_path, capfd):
    assert main(["workspace", "capture", str(folder), "-o", str(tmp_path / "b.json")]) == 0
    assert json.loads((tmp_path / "b.json").read_text())["digest"] == DIGEST
    assert "2 files, 23 B" in capfd.readouterr().err
    assert main(["workspace", "capture", str(folder)]) == 0
    assert json.loads(capfd.readouterr().out)["digest"] == DIGEST


def test_capture_leaves_folders_out_and_refuses_links(folder, capfd):
    (folder / "node_modules" / "x").mkdir(parents=True)
    (folder / "node_modules" / "x" / "y").write_text("")
    assert main(["workspace", "capture", str(folder), "--exclude", "node_modules"]) == 0
    assert json.loads(capfd.readouterr().out)["digest"] == DIGEST
    (folder / "link").symlink_to("README.md")
    assert main(["workspace", "capture", str(folder), "--exclude", "node_modules"]) == 1
    assert "link" in capfd.readouterr().err
    assert main(["workspace", "capture", str(folder / "none")]) == 2


def test_what_is_missing_is_said(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("B4_URL", raising=False)
    (tmp_path / "b.json").write_text('{"version":1,"digest":"3d9d0af9e730ee18680a9e2bf15ccdf8f17a192782f6829efa157e95d9da7b06","files":[]}')
    assert main(["workspace", "upload", str(tmp_path / "b.json")]) == 2
    assert "--url" in capfd.readouterr().err
    assert main(["workspace", "upload", str(tmp_path / "none"), "--url", "http://127.0.0.1:1"]) == 2
    assert main(["workspace", "upload", str(tmp_path / "b.json"), "--url", "http://127.0.0.1:1"]) == 1
    assert "the connection failed" in capfd.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["workspace", "read", "t-1", "--url", "x", "--header", "nonsense"])
    assert ended.value.code == 2


async def command(*arguments: str) -> tuple[int, str, str]:
    """Run `b4 workspace` as a process; return its exit code and what it said."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "b4run.cli", "workspace", *arguments, stdout=pipe, stderr=pipe, env=environment
    )
    output, errors = await asyncio.wait_for(child.communicate(), 30)
    return child.returncode or 0, output.decode(), errors.decode()


async def test_upload_and_read(serve, folder, tmp_path):
    (folder / "bin" / "run.sh").unlink()
    server = await serve(FILES, model=script().user("go").replies("done").model(), provider=fake_sandbox())
    there = ["--url", server.url, "--header", "x-user: alice"]
    bundle, out = str(tmp_path / "b.json"), str(tmp_path / "out")
    assert (await command("capture", str(folder), "-o", bundle))[0] == 0
    digest = json.loads((tmp_path / "b.json").read_text())["digest"]
    assert (await command("upload", bundle, *there))[:2] == (0, f"{digest}\n")
    code, output, _ = await command("upload", bundle, "--json", *there)
    assert (code, json.loads(output)) == (0, {"digest": digest, "status": "held"})
    code, _, errors = await command("upload", bundle, "--url", server.url)
    assert code == 1
    assert "thread_access_denied" in errors
    headers = {"x-user": "alice"}
    made = await server.http.post("/threads", json={"workspace": {"sourceDigest": digest}}, headers=headers)
    thread = made.json()["thread_id"]
    await server.http.post(f"/threads/{thread}/runs/wait", json={"route": ROUTE, "input": "go"}, headers=headers)
    assert (await command("read", thread, *there))[:2] == (0, "README.md\n")
    code, output, _ = await command("read", thread, "--json", *there)
    assert (code, json.loads(output)["files"]) == (0, {"README.md": "# hi\n"})
    assert (await command("read", thread, "-o", out, *there))[0] == 0
    assert (tmp_path / "out" / "README.md").read_text() == "# hi\n"
    assert (await command("read", thread, "-o", out, *there))[0] == 2
