"""Walking and removing folders whose names and shape were chosen by agent code, possibly while it still runs.

Everything goes through the descriptor of the folder above and never through a link, so a folder that is swapped for a
link meanwhile leads nowhere. Nothing here recurses, and no path is ever joined: neither Python's stack nor the
kernel's limit on a path's length depends on what the agent built.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

MAX_DEPTH = 100  # folders below each other that are looked at; more is over any quota

Context = TypeVar("Context")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ESTALE)
_SLACK = 1 << 16  # bytes that file systems allocate beyond a small file's end


def open_folder(name: str | Path, above: int | None = None) -> int | None:
    """A descriptor of a folder, which its owner may read and change from now on. None: there is none, or not for us.

    Raises OSError if the failure is ours, such as no descriptors left.
    """
    try:
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=above)
        except PermissionError:
            if not allow(name, above):
                return None
            descriptor = os.open(name, _FOLDER, dir_fd=above)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return None
        raise
    mode = os.fstat(descriptor).st_mode
    if mode & 0o700 != 0o700:
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, stat.S_IMODE(mode) | 0o700)
    return descriptor


def allow(name: str | Path, above: int | None) -> bool:
    """Give the owner the right to read and write a file or folder of ours, to enter a folder. Never through a link."""
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=above)
    except OSError:
        return False
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            return False
        # there is no chmod by a descriptor without rights, but by this name of it there is
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | (0o700 if stat.S_ISDIR(mode) else 0o600))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def descend(root: int, context: Context) -> Iterator[tuple[int, Context, list[tuple[str, Context]]]]:
    """Visit a folder and those below it, above ones first: (descriptor, context, below).

    The caller appends to `below` which folders in it to visit, each with a context to get back. What is deeper than
    `MAX_DEPTH` or has vanished is not visited. Takes over `root`, and closes each descriptor after the visits below.
    """
    levels: list[tuple[int, list[tuple[str, Context]]]] = [(root, [])]
    try:
        yield root, context, levels[0][1]
        while levels:
            above, below = levels[-1]
            if not below or len(levels) > MAX_DEPTH:
                levels.pop()
                os.close(above)
                continue
            name, context = below.pop()
            folder = open_folder(name, above)
            if folder is not None:
                levels.append((folder, []))
                yield folder, context, levels[-1][1]
    finally:
        for folder, _below in levels:
            os.close(folder)


def listing(folder: int) -> dict[str, os.stat_result]:
    """What is in a folder, links as themselves. Names that are not UTF-8 hold surrogates."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                found[entry.name] = entry.stat(follow_symlinks=False)
    return found


def usage(workspace: Path, max_bytes: int, max_files: int) -> tuple[int, int]:
    """(bytes, entries) in a folder: logical sizes of its files; files, folders, links, everything counts as an entry.

    Stops as soon as one is over its limit. Folders nested deeper than `MAX_DEPTH` are over the limit, however few.
    Deleted files that a process has still open are not seen. (0, 0) for a folder that does not exist.
    """
    size = entries = 0
    root = open_folder(workspace)
    if root is None:
        return size, entries
    for folder, depth, below in descend(root, 1):
        with os.scandir(folder) as found:
            for entry in found:
                entries += 1
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        size += _size(status)
                    elif stat.S_ISDIR(status.st_mode):
                        below.append((entry.name, depth + 1))
                        if depth > MAX_DEPTH:
                            entries = max_files + 1
                if entries > max_files or size > max_bytes:
                    return size, entries
    return size, entries


def _size(status: os.stat_result) -> int:
    """fallocate can put gigabytes behind the end of an empty file; some file systems double what grows."""
    allocated = status.st_blocks * 512
    return allocated if allocated > 2 * status.st_size + _SLACK else status.st_size


def remove_tree(name: str | Path, above: int | None = None) -> None:
    """Remove a folder with all that is in it, or a file, or a link and not what it leads to. Never raises OSError.

    `above`: descriptor of the folder in which the name is. What is not ours to remove, or what a living process
    makes meanwhile, may remain.
    """
    if _removed(name, above):
        return
    with contextlib.suppress(OSError):
        top = open_folder(name, above)
        if top is not None:
            try:
                _empty(top)
            finally:
                os.close(top)
            os.rmdir(name, dir_fd=above)


def _empty(top: int) -> None:
    """Folders that are not empty are moved up into the top first: so there is only one level, ever."""
    names = os.listdir(top)
    while names:
        name = names.pop()
        if not _removed(name, top):
            with contextlib.suppress(OSError):
                names += _flatten(name, top)
                os.rmdir(name, dir_fd=top)


def _flatten(name: str, top: int) -> list[str]:
    """Remove what is in a folder; what cannot be, move into the top. Returns its names there."""
    moved: list[str] = []
    folder = open_folder(name, top)
    if folder is None:
        return moved
    try:
        for inner in os.listdir(folder):
            if _removed(inner, folder):
                continue
            allow(inner, folder)  # a folder must be writable itself to be moved
            with contextlib.suppress(OSError):
                there = secrets.token_hex(8)
                os.rename(inner, there, src_dir_fd=folder, dst_dir_fd=top)
                moved.append(there)
    finally:
        os.close(folder)
    return moved


def _removed(name: str | Path, above: int | None) -> bool:
    """Whether an entry is gone now: anything but a folder that is not empty."""
    try:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        return True
    except OSError:
        try:
            os.rmdir(name, dir_fd=above)
        except FileNotFoundError:
            return True
        except OSError:
            return False
    return True
