"""Landlock: which files a session's processes may reach. Rules stack; none is ever taken back."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping

from .kernel import libc

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15  # since ABI 2, 3, 5
_CHANGES = 0x1FF0 | WRITE_FILE | _REFER | _TRUNCATE  # REMOVE_*, MAKE_*
_TCP = 0b11  # bind, connect; since ABI 4
_SCOPES = 0b11  # abstract UNIX sockets, signals; since ABI 6

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = READ | _CHANGES
READ_ONE_FILE = EXECUTE | READ_FILE  # for a rule on a file, which takes no rights of folders
WRITE_ONE_FILE = READ_FILE | WRITE_FILE | _TRUNCATE | _IOCTL_DEV


def abi() -> int:
    """The kernel's Landlock version, 0 when it has none."""
    return max(0, libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1))


def confine(allowed: Mapping[str, int]) -> None:
    """Allow this process and its children these rights below these paths, and no other file, port or signal.

    A path that does not exist is no rule. Raises OSError when the kernel has no Landlock.
    """
    version = abi()
    handled = READ | _CHANGES | _IOCTL_DEV
    _restrict(version, _known(version, handled), allowed, _TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)


def confine_changes(folders: list[str]) -> None:
    """One more layer: of what could be changed before, only what is below these folders and /dev/null still can.

    Raises OSError (E2BIG after 16 layers).
    """
    allowed = dict.fromkeys(folders, _CHANGES)
    _restrict(abi(), _known(abi(), _CHANGES), {**allowed, os.devnull: WRITE_FILE | _TRUNCATE}, 0, 0)


def _known(version: int, rights: int) -> int:
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if version < since:
            rights &= ~right
    return rights


def _restrict(version: int, files: int, allowed: Mapping[str, int], ports: int, scopes: int) -> None:
    attributes = struct.pack("QQQ", files, ports, scopes)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _call(_CREATE, attributes[:size], ctypes.c_size_t(size), 0)
    try:
        for path, rights in allowed.items():
            _add(ruleset, path, rights & files)
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        _call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _add(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _call(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
