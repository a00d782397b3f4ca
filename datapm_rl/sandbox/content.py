"""The bytes of one file: telling whether they changed, opening and copying what agent code may have prepared."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import tempfile
import time
import weakref
from pathlib import Path

from datapm_rl.sandbox.tree import allow

Identity = tuple[int, int, int, int]  # inode, size in bytes, mtime_ns, ctime_ns

_CHUNK = 1 << 20
_LONGEST_TICK_S = 0.02  # the clock of file times advances at 100 Hz or faster
_CLOCK_REALTIME_COARSE = 5  # that clock; `time` has no name for it
# a link that took the file's place, no right, somebody's lease on it, a pipe without a reader, a running program
_NOT_TO_BE_OPENED = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.EAGAIN, errno.ENXIO, errno.ETXTBSY, errno.EISDIR)


class Content:
    """Where a file's bytes are kept. A private copy is deleted when nothing refers to it any more."""

    def __init__(self, path: Path, private: bool):
        self.path = path
        if private:
            weakref.finalize(self, _delete, path, os.getpid()).atexit = False  # then the whole store is removed


def _delete(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child of the trainer forgets its copies of our objects, too
        with contextlib.suppress(OSError):
            path.unlink()


def identity(status: os.stat_result) -> Identity:
    """Differs after every change of a file's bytes or mode: agent code cannot set the time of the last change."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def every_change_shows(folder: Path) -> bool:
    """Whether two changes always get different times, if somebody looked in between (Linux 6.13, most file systems).

    Elsewhere, two changes within a tick of the kernel's clock may look like one: see `await_tick`.
    """
    with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
        times = set()
        for size in range(1, 5):
            os.ftruncate(probe.fileno(), size)
            times.add(os.fstat(probe.fileno()).st_ctime_ns)
    return len(times) == 4


def await_tick(ctime_ns: int) -> None:
    """Until a change would get a later time than `ctime_ns`. Milliseconds at most; a server's clock may be ahead."""
    give_up = time.monotonic() + _LONGEST_TICK_S
    while time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) <= ctime_ns and time.monotonic() < give_up:
        time.sleep(0.001)


def open_regular(name: str, folder: int, write: bool = False) -> io.FileIO | None:
    """A regular file in a folder, None if it is none or cannot be opened; never waits for it.

    Raises FileNotFoundError, or OSError if the failure is ours.
    """
    flags = (os.O_WRONLY if write else os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        try:
            descriptor = os.open(name, flags, dir_fd=folder)
        except PermissionError:
            if not allow(name, folder):
                return None
            descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in _NOT_TO_BE_OPENED:
            return None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return io.FileIO(descriptor, "wb" if write else "rb")


def fill(target: io.FileIO, source: io.FileIO, size: int) -> None:
    """Copy `size` bytes, fewer if the source ends before (it may change meanwhile), and no holes."""
    done = 0
    hole = False
    while chunk := source.read(min(_CHUNK, size - done)):
        done += len(chunk)
        hole = not chunk.strip(b"\0")
        if hole:
            target.seek(len(chunk), os.SEEK_CUR)
            continue
        rest = memoryview(chunk)
        while rest:
            rest = rest[target.write(rest) :]
    if hole:  # at the end
        target.truncate(done)
