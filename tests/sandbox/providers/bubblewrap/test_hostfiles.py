from __future__ import annotations

import os

from b4run.sandbox.providers.bubblewrap.hostfiles import Etc, Link, etc, materialise, program_mounts


def test_programs_are_bound_or_linked_as_on_the_host():
    arguments = program_mounts()
    assert arguments[:3] == ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib"):
        if os.path.islink(f"/{name}"):
            position = arguments.index(f"/{name}")
            assert arguments[position - 2 : position] == ["--symlink", os.readlink(f"/{name}")]


def test_etc_holds_nothing_of_the_hosts_users_keys_or_names():
    content = etc(1000, 1000, network=False)
    assert {name.split("/")[0] for name in content.entries}.isdisjoint(
        {"shadow", "gshadow", "sudoers", "ssh", "machine-id", "resolv.conf", "environment", "pam.d", "apt", "npmrc", "pip.conf", "netrc"}
    )
    assert not any("private" in name for name in (*content.entries, *content.bound))
    passwd = content.entries["passwd"]
    assert passwd == b"agent:x:1000:1000:agent:/workspace:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    assert content.entries["hostname"] == b"sandbox\n"


def test_a_resolver_is_named_only_when_there_is_a_network():
    assert etc(1000, 1000, network=True).entries["resolv.conf"] == b"nameserver 169.254.53.53\n"


def test_root_inside_is_called_root():
    assert bytes(etc(0, 0, network=False).entries["passwd"]).startswith(b"root:x:0:0:root:/workspace:/bin/sh\n")  # type: ignore[arg-type]


def test_a_folder_is_made_once_per_content_and_readable_whatever_the_umask(tmp_path):
    content = Etc({"a/b": b"x", "c": Link("a/b")}, ("bound/here",))
    before = os.umask(0o077)
    try:
        made = materialise(content, tmp_path)
    finally:
        os.umask(before)
    assert materialise(content, tmp_path) == made
    assert (made / "a/b").stat().st_mode & 0o777 == 0o644
    assert (made / "a").stat().st_mode & 0o777 == 0o755
    assert os.readlink(made / "c") == "a/b"
    assert (made / "bound/here").is_dir()
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
    assert materialise(Etc({"a/b": b"y"}, ()), tmp_path) != made
