"""What was in a workspace at one time, and whether it is still there.

A manifest holds no bytes: they are private copies in a store that the session cannot reach, or the original data files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from datapm_rl.sandbox.content import Content, Identity, identity


@dataclass(frozen=True, slots=True)
class File:
    """A regular file. `mode`: its permission bits."""

    identity: Identity
    mode: int
    content: Content


@dataclass(frozen=True, slots=True)
class Other:
    """A link, pipe, socket, or a file that cannot be read: left alone while it stays the same, never copied."""

    identity: Identity


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was in a folder. Nested, because a table of paths would take gigabytes if an agent wanted it to."""

    entries: Mapping[str, Entry]


Entry = File | Other | Manifest


def inside(entry: Entry | None) -> Mapping[str, Entry]:
    """What is in a folder; nothing, if it is none."""
    return entry.entries if isinstance(entry, Manifest) else {}


def same(found: os.stat_result, wanted: Entry | None, known: Entry | None) -> bool:
    """Whether what is there needs no work (a folder as such) to be what is wanted. `known`: what it was last."""
    if isinstance(wanted, Manifest):
        return stat.S_ISDIR(found.st_mode)
    if isinstance(wanted, File):
        return isinstance(known, File) and known.content is wanted.content and known.identity == identity(found)
    return wanted is not None and wanted.identity == identity(found)


def in_place(found: os.stat_result, wanted: Entry | None) -> bool:
    """Whether it is the wanted file with other bytes; with a second name, other files might be changed through it."""
    inode = wanted.identity[0] if isinstance(wanted, File) else None
    return found.st_ino == inode and found.st_nlink == 1 and stat.S_ISREG(found.st_mode)
