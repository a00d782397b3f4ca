"""Counting and removing what agent code built: a bomb must neither hide from the count nor outlive its workspace."""

import ctypes
import itertools
import os

import pytest

from datapm_rl.sandbox.tree import remove_tree, usage

pytestmark = pytest.mark.unit

MB = 1 << 20
PLENTY = 1 << 40


@pytest.fixture
def top(tmp_path):
    folder = tmp_path / "top"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "outside")
    yield folder
    assert os.listdir(tmp_path / "outside") == ["secret"]


def nest(folder: int, depth: int) -> None:
    for _ in range(depth):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)


def test_everything_counts_as_an_entry_and_only_files_have_a_size(top):
    (top / "folder").mkdir()
    (top / "folder" / "a").write_text("12345")
    os.link(top / "folder" / "a", top / "folder" / "b")
    os.mkfifo(top / "pipe")
    assert usage(top, PLENTY, 100) == (10, 5)


def test_the_count_stops_at_the_limit(top):
    (top / "link").unlink()
    for number in range(300):
        (top / str(number)).write_text("12345")
    assert usage(top, PLENTY, 1000) == (1500, 300)
    assert usage(top, PLENTY, 10)[1] == 11
    assert usage(top, 12, 1000) == (15, 3)


def test_holes_count(top):
    with open(top / "sparse", "wb") as sparse:
        sparse.truncate(1000 * MB)
    assert usage(top, PLENTY, 10) == (1000 * MB, 2)


def test_space_behind_the_end_of_a_file_counts(top):
    keep_size = 1
    with open(top / "empty", "w") as file:
        if ctypes.CDLL(None).fallocate(file.fileno(), keep_size, ctypes.c_long(0), ctypes.c_long(20 * MB)) != 0:
            pytest.skip("the file system cannot")
    assert usage(top, PLENTY, 10)[0] >= 20 * MB


def test_a_folder_that_is_not_there_is_empty_and_a_link_is_no_folder(top):
    assert usage(top / "nothing", MB, 10) == usage(top / "link", MB, 10) == (0, 0)


def test_folders_nested_thousands_deep_are_over_the_limit_and_can_be_removed(top):
    nest(os.open(top, os.O_RDONLY), 99)
    assert usage(top, PLENTY, 1000) == (0, 100)
    nest(os.open(top / "/".join("d" * 99), os.O_RDONLY), 2000)
    assert usage(top, PLENTY, 10_000) == (0, 10_001)
    remove_tree(top)
    assert not top.exists()


def test_a_wide_tree_is_removed_and_no_descriptor_stays_open(top):
    before = os.listdir("/proc/self/fd")
    for path in itertools.product("01234", repeat=3):
        top.joinpath(*path).mkdir(parents=True)
        top.joinpath(*path, "link").symlink_to(top.parent / "outside")
    assert usage(top, PLENTY, 1000) == (0, 281)
    usage(top, PLENTY, 50)
    remove_tree(top)
    assert not top.exists()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("kind", ["file", "link", "link to nothing", "pipe", "nothing"])
def test_what_is_no_folder_is_removed_too(top, kind):
    path = top / "path"
    if kind == "file":
        path.write_text("")
    elif kind.startswith("link"):
        path.symlink_to(top.parent / "outside" if kind == "link" else "nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    remove_tree(path)
    assert not os.path.lexists(path)
