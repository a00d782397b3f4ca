"""Folders of a sandbox: one root with one folder per session, removed even after a kill -9.

Each root has a lock file beside it, locked as long as its owner lives. Whoever starts a sandbox removes the roots
whose lock can be had: their owner died and so did its zygote.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from datapm_rl.errors import UserError
from datapm_rl.sandbox.tree import remove_tree

_SLOTS = 16  # branches of a session that are alive at the same time; one more is rebuilt from the code log


def font_cache() -> Path:
    """Matplotlib scans all fonts (seconds) when its cache is missing. The zygote makes it; sessions only read it.

    Matplotlib warns of a folder that it may not write to; as root, a session is another user, for whom this one looks
    writable, and Landlock says no when it comes to it.
    """
    path = _own_folder() / "matplotlib"
    path.mkdir(exist_ok=True)
    if os.getuid() == 0:
        path.chmod(0o1777)
    return path


def _own_folder() -> Path:
    """Others may pass through it, for as root a session is another user, but not look into it."""
    path = Path(tempfile.gettempdir()) / f"datapm-sandbox-{os.getuid()}"
    path.mkdir(mode=0o711, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise UserError(f"{path} belongs to another user; set TMPDIR to a folder of your own")
    path.chmod(0o711)
    return path


class WorkspaceRoot:
    """The folder that holds everything of one zygote. Thread-safe."""

    def __init__(self, parent: Path | None):
        base = parent or _own_folder()
        try:
            base.mkdir(mode=0o711, parents=True, exist_ok=True)
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
        self.path.mkdir(mode=0o711)
        self._numbers = itertools.count()
        self._making = threading.Lock()  # nothing is made while all is removed

    def folder(self, uid: int | None) -> SessionFolder:
        """A new folder for one session and its branches. Raises OSError."""
        with self._making:
            return SessionFolder(self.path / f"s{next(self._numbers)}", uid)

    def remove(self) -> None:
        """Remove everything and give up the lock."""
        with self._making:
            remove_tree(self.path)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)


class SessionFolder:
    """The workspaces of a session and of its branches, made in advance: Landlock's rules cannot be added to later.

    A workspace's name cannot be guessed and their folder cannot be listed from inside, so a step knows its own
    workspace and those that its process lived in before, and of these a branch can only read. Thread-safe.
    """

    def __init__(self, path: Path, uid: int | None):
        self.path = path
        self.uid = uid
        self._lock = threading.Lock()
        path.mkdir(mode=0o711)
        self.slots = frozenset(path / secrets.token_hex(12) for _ in range(_SLOTS))
        for slot in self.slots:
            self._make(slot)
        self._free = set(self.slots)
        self._stores = itertools.count()

    def take(self, among: frozenset[Path]) -> Path | None:
        """An empty workspace, None if none of these is free."""
        with self._lock:
            slot = next(iter(self._free & among), None)
            if slot is not None:
                self._free.discard(slot)
        return slot

    def give_back(self, slot: Path) -> None:
        """Empty a workspace for the next branch. Its folder stays the same: Landlock's rule names the folder."""
        try:
            if not slot.is_dir():  # without Landlock, a step may have removed it
                self._make(slot)
            for name in os.listdir(slot):
                remove_tree(slot / name)
        except OSError:  # its zygote was lost, and the folders with it
            return
        with self._lock:
            self._free.add(slot)

    def store(self) -> Path:
        """A folder of its own, out of the steps' reach, for the history of a workspace's files."""
        return self.path / f"history{next(self._stores)}"

    def remove(self) -> None:
        """Remove everything. A dying process may still make a file: try again."""
        for _ in range(3):
            remove_tree(self.path)
            if not self.path.exists():
                return

    def _make(self, slot: Path) -> None:
        slot.mkdir(mode=0o700)
        if self.uid is not None:
            os.chown(slot, self.uid, self.uid)


def data_files(data_dir: str | os.PathLike[str], files: Sequence[str] | None) -> list[Path]:
    """The files that a session sees: the named ones, or every regular file directly in the folder.

    Raises UserError for a folder or file that is not there, a name that leaves the folder, two files of one name.
    """
    folder = Path(data_dir)
    if not folder.is_dir():
        raise UserError(f"data folder {folder} does not exist or is not a folder; check data_dir")
    if isinstance(files, str):
        raise UserError(f"data files are a list of names, got {files!r}; write [{files!r}]")
    if files is None:
        try:
            return sorted(path for path in folder.iterdir() if path.is_file())
        except OSError as error:
            raise UserError(f"data folder {folder} cannot be read ({error.strerror}); check its permissions") from None
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
            remove_tree(lock_path.with_suffix(""))
            lock_path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
