"""Folders of a sandbox: one root with one workspace per session, removed even after a kill -9.

Each root has a lock file beside it, locked as long as its owner lives. Whoever starts a sandbox removes the roots
whose lock can be had: their owner died and so did its zygote.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from datapm_rl.errors import UserError

_CHUNK = 1 << 20


class WorkspaceRoot:
    """The folder that holds all workspaces of one sandbox. Thread-safe."""

    def __init__(self, parent: Path | None):
        base = parent or Path(tempfile.gettempdir()) / f"datapm-sandbox-{os.getuid()}"
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_stale(base)
            descriptor, name = tempfile.mkstemp(prefix="zygote-", suffix=".lock", dir=base)
        except OSError as error:
            raise UserError(
                f"sandbox workspace_root {base} cannot be written ({error.strerror}); name another"
            ) from None
        self._lock = descriptor
        self._lock_path = Path(name)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.path = self._lock_path.with_suffix("")
        self.path.mkdir(mode=0o700)
        self._numbers = itertools.count()

    def create(self, sources: list[Path]) -> Path:
        """A new workspace with copies of the files under their base names."""
        workspace = self._new()
        for source in sources:
            with open(source, "rb") as file:
                _copy(file.fileno(), workspace / source.name)
        return workspace

    def duplicate(self, workspace: Path) -> Path:
        """A new workspace with the regular files and folders of another; links, pipes and devices are left out."""
        copy = self._new()
        descriptor = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _copy_folder(descriptor, copy)
        finally:
            os.close(descriptor)
        return copy

    def remove(self) -> None:
        """Remove everything and give up the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)

    def _new(self) -> Path:
        workspace = self.path / f"w{next(self._numbers)}"
        workspace.mkdir(mode=0o700)
        return workspace


def remove_workspace(workspace: Path) -> None:
    """Remove a workspace whose session is dead or dying (a dying process may still create a file: try again)."""
    for _ in range(3):
        shutil.rmtree(workspace, ignore_errors=True)
        if not workspace.exists():
            return


def data_files(data_dir: str | os.PathLike[str], files: Sequence[str] | None) -> list[Path]:
    """The files that a session sees: the named ones, or every regular file directly in the folder.

    Raises UserError for a folder or file that is not there, a name that leaves the folder, two files of one name.
    """
    folder = Path(data_dir)
    if not folder.is_dir():
        raise UserError(f"data folder {folder} does not exist or is not a folder; check data_dir")
    if files is None:
        return sorted(path for path in folder.iterdir() if path.is_file())
    chosen: dict[str, Path] = {}
    for name in files:
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UserError(f"data file {name!r} is not below {folder}; give names below data_dir")
        if not path.is_file():
            raise UserError(f"data file {path} does not exist; check the task's files")
        if path.name in chosen:
            raise UserError(f"two data files are called {path.name!r} in {folder}; rename one, a workspace is flat")
        chosen[path.name] = path
    return list(chosen.values())


def _copy(source: int, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        while chunk := os.read(source, _CHUNK):
            while chunk:
                chunk = chunk[os.write(descriptor, chunk) :]
    finally:
        os.close(descriptor)


def _copy_folder(folder: int, target: Path) -> None:
    """By descriptors and without following links, for the names were chosen by agent code."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            elif entry.is_file(follow_symlinks=False):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            else:
                continue
            with contextlib.suppress(FileNotFoundError):  # a step of the session may be running
                descriptor = os.open(entry.name, flags, dir_fd=folder)
                try:
                    mode = os.fstat(descriptor).st_mode
                    if stat.S_ISDIR(mode):
                        (target / entry.name).mkdir(mode=0o700)
                        _copy_folder(descriptor, target / entry.name)
                    elif stat.S_ISREG(mode):
                        _copy(descriptor, target / entry.name)
                finally:
                    os.close(descriptor)


def _remove_stale(base: Path) -> None:
    for lock_path in base.glob("zygote-*.lock"):
        try:
            descriptor = os.open(lock_path, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its owner lives
        else:
            shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
            lock_path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
