from __future__ import annotations

import os

from b4run.sandbox.providers.bubblewrap.files import remove_tree, tree_bytes, write_atomically


def test_a_tree_deeper_than_any_limit_is_removed(tmp_path):
    root = tmp_path / "deep"
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_tree(root)
    assert not root.exists()


def test_folders_without_permissions_are_removed(tmp_path):
    root = tmp_path / "closed"
    (root / "a/b/c").mkdir(parents=True)
    (root / "a/b/file").write_text("x")
    (root / "a/b").chmod(0)
    (root / "a").chmod(0o500)
    remove_tree(root)
    assert not root.exists()


def test_symlinks_are_removed_and_not_followed(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    root = tmp_path / "links"
    root.mkdir()
    (root / "to-folder").symlink_to(kept)
    (root / "dangling").symlink_to("/nowhere")
    (root / "inner").mkdir()
    (root / "inner/up").symlink_to("..")
    remove_tree(root)
    assert not root.exists()
    assert (kept / "file").read_text() == "x"


def test_names_that_are_not_utf8_and_odd_kinds_are_removed(tmp_path):
    root = tmp_path / "odd"
    root.mkdir()
    os.mkdir(os.fsencode(root) + b"/\xff\n")
    os.mkfifo(root / "fifo")
    remove_tree(root)
    assert not root.exists()


def test_removing_what_is_not_there_is_fine(tmp_path):
    remove_tree(tmp_path / "never")


def test_a_write_replaces_in_one_step_and_leaves_nothing_beside(tmp_path):
    target = tmp_path / "record"
    write_atomically(target, b"one")
    write_atomically(target, b"two")
    assert target.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["record"]


def test_size_counts_disk_blocks_and_skips_what_links_lead_to(tmp_path):
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/file").write_bytes(b"x" * 100_000)
    (tmp_path / "tree/out").symlink_to("/usr")
    assert 100_000 <= tree_bytes(tmp_path / "tree") <= 200_000
