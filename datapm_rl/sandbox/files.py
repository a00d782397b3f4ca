"""The files of a session's workspace after each step: a stopped step's changes are undone, a branch gets a copy."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

from datapm_rl.errors import InfraError, UserError
from datapm_rl.sandbox.content import Content, await_tick, every_change_shows, fill, identity, open_regular
from datapm_rl.sandbox.manifest import Entry, File, Manifest, Other, in_place, inside, same
from datapm_rl.sandbox.tree import descend, listing, open_folder, remove_tree

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class FileHistory:
    """The history of one workspace's files.

    Methods raise OSError when the disk is full or a data file is gone, InfraError("session_closed") after `close`.
    What a process changes that still runs may be seen by the next call only. Thread-safe.
    """

    def __init__(self, workspace: Path, store: Path, owner: int | None):
        """`store`: a folder that the session cannot reach, on the same file system; it is made if missing.

        `owner`: user and group id of what is written into the workspace, None: ours.
        """
        self._workspace, self._store, self._owner = workspace, store, owner
        self._newest = Manifest({})  # what is known to be in the workspace
        self._copies = 0
        self._closed = False
        self._lock = threading.Lock()
        store.mkdir(mode=0o700, exist_ok=True)
        self._every_change_shows = every_change_shows(store)

    def start(self, sources: Sequence[Path]) -> Manifest:
        """Copy data files into the empty workspace, under their base names.

        The originals are what is restored later, so they must stay. Raises UserError for one that cannot be read.
        """
        entries: dict[str, Entry] = {}
        for source in sources:
            if not os.access(source, os.R_OK):
                raise UserError(f"data file {source} cannot be read; check the task's files and their permissions")
            entries[source.name] = File((0, 0, 0, 0), 0o600, Content(source, private=False))
        self.restore(Manifest(entries))
        return self._newest

    def commit(self) -> Manifest:
        """What is in the workspace now, with copies of what is new or changed; the same object if nothing is."""
        entries: dict[str, Entry] = {}
        fresh: list[File] = []
        changed = False
        with self._lock:
            for folder, (old, new), below in descend(self._open(), (self._newest.entries, entries)):
                for name, status in listing(folder).items():
                    before = old.get(name)
                    if stat.S_ISDIR(status.st_mode):
                        inner: dict[str, Entry] = {}
                        new[name] = Manifest(inner)
                        below.append((name, (inside(before), inner)))
                        changed = changed or not isinstance(before, Manifest)
                    elif isinstance(before, File | Other) and before.identity == identity(status):
                        new[name] = before
                    else:
                        changed = True
                        with contextlib.suppress(FileNotFoundError):
                            new[name] = self._save(folder, name, status, fresh)
                changed = changed or len(new) != len(old)
            if changed:
                self._know(entries, fresh)
            return self._newest

    def restore(self, manifest: Manifest) -> None:
        """Make the workspace what a manifest says, of this history or (for a branch) of another; touch nothing else.

        A file that was changed in place is put back in place: a state before may have it open. Links, pipes and the
        like that are gone are not made again.
        """
        entries: dict[str, Entry] = {}
        fresh: list[File] = []
        with self._lock:
            start = (manifest.entries, self._newest.entries, entries)
            for folder, (wanted, known, new), below in descend(self._open(), start):
                found = listing(folder)
                kept = {name for name in found if same(found[name], wanted.get(name), known.get(name))}
                for name in found.keys() - kept:
                    if not in_place(found[name], wanted.get(name)):
                        remove_tree(name, folder)
                for name, entry in wanted.items():
                    if isinstance(entry, Manifest):
                        inner: dict[str, Entry] = {}
                        new[name] = Manifest(inner)
                        below.append((name, (entry.entries, inside(known.get(name)), inner)))
                        if name not in kept:
                            self._make_folder(folder, name)
                    elif name in kept:
                        new[name] = known[name] if isinstance(entry, File) else entry
                    elif isinstance(entry, File):
                        new[name] = self._put(folder, name, entry, fresh)
            self._know(entries, fresh)

    def unchanged(self, manifest: Manifest) -> bool:
        """Whether `restore` would find nothing to do."""
        with self._lock:
            start = (manifest.entries, self._newest.entries)
            for folder, (wanted, known), below in descend(self._open(), start):
                found = listing(folder)
                if found.keys() != wanted.keys():
                    return False
                for name, entry in wanted.items():
                    if not same(found[name], entry, known.get(name)):
                        return False
                    if isinstance(entry, Manifest):
                        below.append((name, (entry.entries, inside(known.get(name)))))
            return True

    def close(self) -> None:
        """Wait for a call that is under way and refuse others. Manifests stay usable, for branches."""
        with self._lock:
            self._closed = True
            self._newest = Manifest({})

    def _open(self) -> int:
        if self._closed:
            raise InfraError("session_closed", "the session was closed")
        root = open_folder(self._workspace)
        if root is None:  # without Landlock, a step may have removed it
            remove_tree(self._workspace)
            self._make_folder(None, self._workspace)
            root = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        return root

    def _know(self, entries: dict[str, Entry], fresh: list[File]) -> None:
        if fresh and not self._every_change_shows:
            await_tick(max(file.identity[3] for file in fresh))
        self._newest = Manifest(entries)

    def _make_folder(self, above: int | None, name: str | Path) -> None:
        os.mkdir(name, 0o700, dir_fd=above)
        folder = open_folder(name, above)
        if folder is not None:
            self._give(folder)
            os.close(folder)

    def _give(self, descriptor: int) -> None:
        if self._owner is not None:
            os.fchown(descriptor, self._owner, self._owner)

    def _save(self, folder: int, name: str, status: os.stat_result, fresh: list[File]) -> File | Other:
        """From the workspace into the store. Raises FileNotFoundError: it has vanished."""
        source = open_regular(name, folder) if stat.S_ISREG(status.st_mode) else None
        if source is None:
            return Other(identity(status))
        with source:
            status = os.fstat(source.fileno())
            content = Content(self._store / str(self._copies), private=True)
            self._copies += 1
            with io.FileIO(os.open(content.path, _CREATE, 0o600), "wb") as target:
                fill(target, source, status.st_size)
        fresh.append(File(identity(status), stat.S_IMODE(status.st_mode) & 0o777, content))
        return fresh[-1]

    def _put(self, folder: int, name: str, entry: File, fresh: list[File]) -> File:
        """From the store, or an original, into the workspace."""
        with io.FileIO(os.open(entry.content.path, os.O_RDONLY), "rb") as source:
            target = _existing(folder, name, entry)
            if target is None:
                remove_tree(name, folder)
                target = io.FileIO(os.open(name, _CREATE, 0o600, dir_fd=folder), "wb")
                self._give(target.fileno())
            with target:
                fill(target, source, os.fstat(source.fileno()).st_size)
                os.fchmod(target.fileno(), entry.mode)
                fresh.append(File(identity(os.fstat(target.fileno())), entry.mode, entry.content))
        return fresh[-1]


def _existing(folder: int, name: str, wanted: File) -> io.FileIO | None:
    """The wanted file to be written in place, None if it must be a new one."""
    with contextlib.suppress(FileNotFoundError):
        target = open_regular(name, folder, write=True)
        if target is not None:
            if in_place(os.fstat(target.fileno()), wanted):
                target.truncate(0)  # zeroes are not written, they would leave old bytes
                return target
            target.close()
    return None
