"""A workspace's history: what agent code does to its files is undone, copied and counted, whatever it builds there."""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import stat
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.errors import InfraError, UserError
from datapm_rl.sandbox import files, tree
from datapm_rl.sandbox.content import await_tick
from datapm_rl.sandbox.files import FileHistory
from datapm_rl.sandbox.tree import MAX_DEPTH, remove_tree, usage

pytestmark = pytest.mark.unit

NOBODY = 65534
MB = 1 << 20


class Case:
    """A workspace with a history; files outside; branches."""

    def __init__(self, base: Path, owner: int | None = None):
        self.base, self.owner = base, owner
        self.workspace, self.store, self.outside = base / "workspace", base / "store", base / "outside"
        self.workspace.mkdir()
        self.outside.mkdir()
        (self.outside / "secret").write_text("secret")
        self.history = FileHistory(self.workspace, self.store, owner)

    def branch(self, manifest) -> Path:
        target = Path(tempfile.mkdtemp(dir=self.base))
        FileHistory(target, self.base / "other store", self.owner).restore(manifest)
        return target

    def copies(self) -> int:
        return len(os.listdir(self.store))

    def outside_is_untouched(self) -> bool:
        secret = self.outside / "secret"
        return os.listdir(self.outside) == ["secret"] and secret.read_text() == "secret"


@pytest.fixture
def case(tmp_path):
    case = Case(tmp_path)
    yield case
    remove_tree(tmp_path)


@pytest.fixture(params=["root", "unprivileged"])
def users_case(request):
    """Modes mean nothing to root."""
    base = Path(tempfile.mkdtemp())
    drop = os.getuid() == 0 and request.param == "unprivileged"
    if os.getuid() != 0 and request.param == "root":
        pytest.skip("needs root")
    if drop:
        os.chown(base, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield Case(base)
    finally:
        if drop:
            os.seteuid(0)
        remove_tree(base)


def contents(folder: Path) -> dict[bytes, bytes | str]:
    """Everything below a folder by its path; bytes of files, the kind of the rest."""
    found: dict[bytes, bytes | str] = {}
    top = os.fsencode(folder)
    for where, folders, names in os.walk(top):
        for name in folders + names:
            path = os.path.join(where, name)
            mode = os.lstat(path).st_mode
            kind = "folder" if stat.S_ISDIR(mode) else "other"
            found[os.path.relpath(path, top)] = Path(os.fsdecode(path)).read_bytes() if stat.S_ISREG(mode) else kind
    return found


def nest(top: Path, depth: int, name: str = "d") -> None:
    """Folders below each other, far beyond what a path can say."""
    folder = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)


# what a step may do to a path: names collide on purpose, so kinds change

NAMES = st.sampled_from([b"a", b"b", b"\xff\xfe", b"a\nb", b"c d", "ü".encode()])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
EDITS = st.lists(
    st.tuples(st.sampled_from(["write", "append", "folder", "remove", "link", "pipe", "rename"]), PATHS, PATHS),
    max_size=8,
)


def edit(top: bytes, edits) -> None:
    for kind, one, two in edits:
        path, other = os.path.join(top, one), os.path.join(top, two)
        with contextlib.suppress(OSError):
            if kind in ("write", "append"):
                mode = os.O_TRUNC if kind == "write" else os.O_APPEND
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | mode)
                os.write(descriptor, two)
                os.close(descriptor)
            elif kind == "folder":
                os.makedirs(path)
            elif kind == "remove":
                remove_tree(Path(os.fsdecode(path)))
            elif kind == "link":
                os.symlink(other, path)
            elif kind == "pipe":
                os.mkfifo(path)
            else:
                os.rename(path, other)


def plain(found):
    """Without links and pipes: they are left alone or removed, never made."""
    return {path: what for path, what in found.items() if what != "other"}


@settings(max_examples=60, deadline=None)
@given(st.lists(EDITS, min_size=1, max_size=4), EDITS, st.data())
def test_any_state_comes_back_and_goes_into_a_branch(steps, stray, data):
    with tempfile.TemporaryDirectory() as base:
        case = Case(Path(base))
        states = []
        for step in steps:
            edit(os.fsencode(case.workspace), step)
            states.append((case.history.commit(), contents(case.workspace)))
        edit(os.fsencode(case.workspace), stray)
        manifest, expected = data.draw(st.sampled_from(states))
        case.history.restore(manifest)
        restored = contents(case.workspace)
        assert plain(restored) == plain(expected)
        assert restored.items() <= expected.items()
        assert case.history.unchanged(case.history.commit())
        assert contents(case.branch(manifest)) == plain(expected)
        case.history.restore(states[-1][0])
        assert plain(contents(case.workspace)) == plain(states[-1][1])


def test_a_step_that_changes_nothing_costs_no_copy_and_no_new_manifest(case):
    (case.workspace / "a").write_text("1")
    (case.workspace / "folder").mkdir()
    (case.workspace / "folder" / "b").write_text("1")
    manifest = case.history.commit()
    assert case.history.commit() is manifest
    (case.workspace / "c").write_text("1")
    assert case.history.commit() is not manifest
    assert case.copies() == 3
    case.history.restore(manifest)
    assert case.copies() == 2


def test_what_a_step_removed_stays_removed(case):
    (case.workspace / "a").write_text("1")
    before = case.history.commit()
    (case.workspace / "a").unlink()
    after = case.history.commit()
    case.history.restore(before)
    case.history.restore(after)
    assert contents(case.workspace) == {}


def test_data_files_are_restored_from_the_originals_which_stay_as_they_are(case):
    original = case.outside / "secret"
    os.chmod(original, 0o444)
    manifest = case.history.start([original])
    assert case.copies() == 0
    copy = case.workspace / "secret"
    copy.write_text("changed by the step")
    case.history.restore(manifest)
    assert copy.read_text() == "secret"
    copy.unlink()
    case.history.restore(manifest)
    assert copy.read_text() == "secret"
    assert case.history.commit() is case.history.commit()
    assert case.copies() == 0
    assert case.outside_is_untouched()
    assert (case.branch(manifest) / "secret").read_text() == "secret"


def test_a_data_file_that_is_gone_is_the_users_error(case):
    with pytest.raises(UserError, match="nowhere"):
        case.history.start([case.outside / "nowhere.csv"])


def test_restore_touches_only_what_differs(case):
    (case.workspace / "same").write_text("1")
    (case.workspace / "other").write_text("1")
    manifest = case.history.commit()
    before = (case.workspace / "same").stat()
    (case.workspace / "other").write_text("2")
    (case.workspace / "stray").mkdir()
    assert not case.history.unchanged(manifest)
    case.history.restore(manifest)
    assert case.history.unchanged(manifest)
    assert (case.workspace / "same").stat() == before
    assert contents(case.workspace) == {b"same": b"1", b"other": b"1"}


def test_a_change_with_a_forged_time_is_seen(case):
    file = case.workspace / "a"
    file.write_text("1")
    manifest = case.history.commit()
    before = file.stat()
    file.write_text("2")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert case.history.commit() is not manifest
    case.history.restore(manifest)
    assert file.read_text() == "1"


def test_an_open_file_of_an_earlier_state_stays_valid(case):
    with open(case.workspace / "log", "a+") as log:
        log.write("first\n")
        log.flush()
        manifest = case.history.commit()
        (case.workspace / "log").write_bytes(b"\0" * 3 * MB)
        case.history.restore(manifest)
        log.write("second\n")
        log.flush()
    assert (case.workspace / "log").read_text() == "first\nsecond\n"


def test_a_descriptor_that_is_still_open_cannot_change_the_past(case):
    with open(case.workspace / "a", "w+") as file:
        file.write("1")
        file.flush()
        manifest = case.history.commit()
        file.seek(0)
        file.write("2")
    assert (case.branch(manifest) / "a").read_text() == "1"


def test_links_are_never_followed(case):
    (case.workspace / "file").write_text("1")
    (case.workspace / "folder").mkdir()
    (case.workspace / "folder" / "secret").write_text("ours")
    manifest = case.history.commit()
    (case.workspace / "file").unlink()
    (case.workspace / "file").symlink_to(case.outside / "secret")
    remove_tree(case.workspace / "folder")
    (case.workspace / "folder").symlink_to(case.outside)
    (case.workspace / "stray").symlink_to(case.outside)
    leaked = case.branch(case.history.commit())
    assert contents(leaked) == {}
    case.history.restore(manifest)
    assert contents(case.workspace) == {b"file": b"1", b"folder": "folder", b"folder/secret": b"ours"}
    assert case.outside_is_untouched()


@pytest.mark.parametrize("instead", ["link", "pipe", "folder", "nothing"])
def test_a_file_that_is_swapped_while_it_is_copied(case, monkeypatch, instead):
    file = case.workspace / "a"
    file.write_text("1")

    def listing_then_swap(folder):
        found = tree.listing(folder)
        file.unlink()
        if instead == "link":
            file.symlink_to(case.outside / "secret")
        elif instead == "pipe":
            os.mkfifo(file)
        elif instead == "folder":
            file.mkdir()
        return found

    monkeypatch.setattr(files, "listing", listing_then_swap)
    manifest = case.history.commit()
    monkeypatch.undo()
    assert contents(case.branch(manifest)) == {}
    assert ("a" in manifest.entries) == (instead != "nothing")
    assert case.copies() == 0


def test_a_link_that_was_there_survives_but_goes_into_no_branch(case):
    link = case.workspace / "link"
    link.symlink_to("nowhere")
    manifest = case.history.commit()
    (case.workspace / "stray").symlink_to("nowhere")
    case.history.restore(manifest)
    assert os.listdir(case.workspace) == ["link"]
    assert case.history.unchanged(manifest)
    link.unlink()
    link.symlink_to(case.outside)
    case.history.restore(manifest)
    assert os.listdir(case.workspace) == []
    assert contents(case.branch(manifest)) == {}


def test_pipes_and_sockets_block_nothing_and_are_removed(case):
    (case.workspace / "a").write_text("1")
    manifest = case.history.commit()
    (case.workspace / "a").unlink()
    os.mkfifo(case.workspace / "a")
    os.mkfifo(case.workspace / "stray")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(case.workspace / "socket"))
    assert contents(case.branch(case.history.commit())) == {}
    case.history.restore(manifest)
    assert contents(case.workspace) == {b"a": b"1"}


def test_a_file_under_a_lease_is_waited_for_by_nobody(case):
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with open(case.workspace / "a", "w") as file:
            file.write("1")
            file.flush()
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            manifest = case.history.commit()
            assert contents(case.branch(manifest)) == {}
            case.history.restore(manifest)
            assert os.listdir(case.workspace) == ["a"]
    finally:
        signal.signal(signal.SIGIO, before)


def test_folders_nested_thousands_deep_break_nothing(case):
    (case.workspace / "a").write_text("1")
    manifest = case.history.commit()
    nest(case.workspace, 2100)
    deep, depth = case.history.commit(), 0
    while "d" in deep.entries:
        deep, depth = deep.entries["d"], depth + 1
    assert depth == MAX_DEPTH + 1
    case.history.restore(manifest)
    assert contents(case.workspace) == {b"a": b"1"}


def test_a_path_too_long_for_the_kernel_comes_back(case):
    nest(case.workspace, MAX_DEPTH - 1, "n" * 200)
    assert usage(case.workspace, 1 << 40, 10**6) == (0, MAX_DEPTH)
    manifest = case.history.commit()
    remove_tree(case.workspace / ("n" * 200))
    case.history.restore(manifest)
    assert usage(case.workspace, 1 << 40, 10**6) == (0, MAX_DEPTH)
    assert case.history.unchanged(manifest)


def test_files_and_folders_without_any_permission(users_case):
    case = users_case
    file, folder = case.workspace / "file", case.workspace / "folder"
    file.write_text("1")
    folder.mkdir()
    (folder / "inner").write_text("2")
    (folder / "deep").mkdir()
    (folder / "deep" / "down").write_text("3")

    def close_all():
        for path in (file, folder / "inner", folder / "deep" / "down", folder / "deep", folder):
            os.chmod(path, 0)

    close_all()
    assert usage(case.workspace, MB, 100) == (3, 5)
    manifest = case.history.commit()
    expected = {b"file": b"1", b"folder": "folder", b"folder/inner": b"2"}
    expected |= {b"folder/deep": "folder", b"folder/deep/down": b"3"}
    file.chmod(0o600)
    file.write_text("changed")
    folder.chmod(0o700)
    (folder / "inner").unlink()
    (folder / "stray").mkdir()
    (folder / "stray" / "x").mkdir()
    (folder / "stray" / "x").chmod(0)
    (folder / "stray").chmod(0)
    folder.chmod(0o500)
    case.history.restore(manifest)
    target = case.branch(manifest)
    for top in (case.workspace, target):
        for path in (top / "file", top / "folder" / "inner", top / "folder" / "deep" / "down"):
            path.chmod(0o600)
        assert contents(top) == expected
    close_all()
    remove_tree(case.workspace)
    assert not case.workspace.exists()


def test_a_script_stays_executable(case):
    script = case.workspace / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o750)
    manifest = case.history.commit()
    script.unlink()
    case.history.restore(manifest)
    assert script.stat().st_mode & 0o7777 == 0o750
    assert (case.branch(manifest) / "run.sh").stat().st_mode & 0o7777 == 0o750


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_files_of_the_sessions_own_user(tmp_path):
    case = Case(tmp_path, owner=12345)
    os.chown(case.workspace, 12345, 12345)
    manifest = case.history.start([case.outside / "secret"])
    (case.workspace / "folder").mkdir(0o700)
    (case.workspace / "folder" / "a").write_text("1")
    (case.workspace / "folder" / "a").chmod(0)
    newer = case.history.commit()
    case.history.restore(manifest)
    case.history.restore(newer)
    for top in (case.workspace, case.branch(newer)):
        for path in ("secret", "folder", "folder/a"):
            assert (os.lstat(top / path).st_uid, os.lstat(top / path).st_gid) == (12345, 12345)
    assert (case.outside / "secret").stat().st_uid == 0
    assert case.store.stat().st_mode & 0o077 == 0


def test_holes_are_not_filled(case):
    file = case.workspace / "sparse"
    with open(file, "wb") as sparse:
        sparse.truncate(40 * MB)
        sparse.seek(20 * MB)
        sparse.write(b"middle")
    manifest = case.history.commit()
    with open(file, "r+b") as sparse:
        sparse.write(b"old bytes must not show through")
    case.history.restore(manifest)
    for path in (file, case.branch(manifest) / "sparse"):
        assert path.stat().st_size == 40 * MB
        assert path.stat().st_blocks * 512 < 4 * MB
        with open(path, "rb") as copy:
            assert copy.read(10) == bytes(10)
            copy.seek(20 * MB)
            assert copy.read(7) == b"middle\0"


def test_hard_links_lead_no_write_elsewhere(case):
    (case.workspace / "a").write_text("1")
    manifest = case.history.commit()
    os.link(case.workspace / "a", case.outside / "second")
    (case.workspace / "a").write_text("2")
    case.history.restore(manifest)
    assert (case.outside / "second").read_text() == "2"
    assert (case.workspace / "a").read_text() == "1"
    os.link(case.workspace / "a", case.workspace / "b")
    both = case.history.commit()
    (case.workspace / "b").write_text("3")
    case.history.restore(both)
    assert contents(case.workspace) == {b"a": b"1", b"b": b"1"}
    assert contents(case.branch(both)) == {b"a": b"1", b"b": b"1"}


def test_a_step_may_be_running_meanwhile(case):
    stop = threading.Event()

    def churn():
        names = [os.path.join(os.fsencode(case.workspace), name) for name in (b"a", b"b", b"c/d")]
        while not stop.is_set():
            for index, name in enumerate(names):
                other = names[index - 1]
                edit(b"/", [("folder", name, b""), ("link", other, os.fsencode(case.outside))])
                edit(b"/", [("remove", name, b""), ("write", name, b"x" * 1000), ("rename", name, other)])
                edit(b"/", [("remove", other, b""), ("pipe", other, b""), ("remove", name, b"")])

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            manifest = case.history.commit()
            assert b"secret" not in contents(case.branch(manifest)).values()
            usage(case.workspace, MB, 100)
    finally:
        stop.set()
        thread.join()
    case.history.restore(manifest)
    assert plain(contents(case.workspace)) == contents(case.branch(manifest))
    assert case.outside_is_untouched()


def test_no_descriptor_stays_open(case):
    before = os.listdir("/proc/self/fd")
    (case.workspace / "a" / "b" / "c").mkdir(parents=True)
    (case.workspace / "a" / "b" / "file").write_text("1")
    manifest = case.history.commit()
    (case.workspace / "a" / "b" / "file").write_text("2")
    assert not case.history.unchanged(manifest)
    case.history.restore(manifest)
    case.branch(manifest)
    assert os.listdir("/proc/self/fd") == before


def test_a_copy_lives_as_long_as_a_manifest_that_refers_to_it(case):
    file = case.workspace / "a"
    file.write_text("1")
    manifest = case.history.commit()
    file.write_text("2")
    case.history.commit()
    assert case.copies() == 2
    case.history.close()
    assert case.copies() == 1
    assert (case.branch(manifest) / "a").read_text() == "1"
    child = os.fork()
    if child == 0:
        del manifest
        os._exit(0)
    os.waitpid(child, 0)
    assert case.copies() == 1
    del manifest
    assert case.copies() == 0


def test_a_closed_history_writes_nothing_into_a_workspace_that_was_given_back(case):
    (case.workspace / "a").write_text("1")
    manifest = case.history.commit()
    case.history.close()
    remove_tree(case.workspace / "a")
    for call in (case.history.commit, lambda: case.history.restore(manifest)):
        with pytest.raises(InfraError, match="session_closed"):
            call()
    assert contents(case.workspace) == {}


def test_no_descriptors_left_is_an_error_not_an_empty_folder(case, monkeypatch):
    (case.workspace / "folder").mkdir()
    (case.workspace / "folder" / "a").write_text("1")
    manifest = case.history.commit()
    (case.workspace / "folder" / "b").write_text("1")
    really = os.open

    def fail(name, *arguments, **keywords):
        if name in ("folder", "b"):
            raise OSError(errno.EMFILE, "too many open files")
        return really(name, *arguments, **keywords)

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="too many"):
        case.history.commit()
    monkeypatch.undo()
    case.history.restore(manifest)
    assert contents(case.workspace) == {b"folder": "folder", b"folder/a": b"1"}


@pytest.mark.parametrize("instead", ["nothing", "link", "file"])
def test_a_workspace_that_a_step_removed_is_made_again(case, instead):
    (case.workspace / "a").write_text("1")
    manifest = case.history.commit()
    remove_tree(case.workspace)
    if instead == "link":
        case.workspace.symlink_to(case.outside)
    elif instead == "file":
        case.workspace.write_text("x")
    assert usage(case.workspace, MB, 10) == (0, 0)
    case.history.restore(manifest)
    assert contents(case.workspace) == {b"a": b"1"}
    assert case.outside_is_untouched()


def test_waiting_for_the_clock_ends_even_if_a_servers_clock_is_ahead():
    await_tick(time.time_ns() + 3600 * 10**9)
    now = time.time_ns()
    await_tick(now)
    assert time.time_ns() > now
