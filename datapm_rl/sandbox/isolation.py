"""Isolation levels: which kernel mechanisms confine a session, and what each level promises.

    4  root: a user per session, namespaces, Landlock, seccomp, resource limits
    3  any user: user and pid namespace per session, Landlock, seccomp, resource limits
    2  Landlock, seccomp, resource limits (as root also a user per session): no namespaces needed
    1  seccomp, resource limits: the files of the trainer's user stay readable and writable
    0  resource limits
Which one holds is decided by attempted attacks, not by this table: `datapm_rl.sandbox.selfcheck`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapm_rl.sandbox.inside import landlock, syscalls
from datapm_rl.sandbox.workspace import font_cache

_FIRST_UID = 1_000_000_000
_UIDS_PER_ZYGOTE = 256
_NICE_WITHOUT_NAMESPACES = 10  # a fork bomb must not starve the thread that stops it


@dataclass(frozen=True)
class Isolation:
    """What a level consists of. `namespaces`: "root", "user" or "none"."""

    level: int
    namespaces: str
    uid_per_session: bool
    landlock: bool
    seccomp: bool

    def missing(self) -> str | None:
        """What this machine certainly lacks for it, None if nothing: one phrase."""
        if self.uid_per_session and not _uids_exist():
            return f"user ids from {_FIRST_UID} (the container maps fewer)"
        if self.landlock and landlock.abi() == 0:
            return "Landlock (Linux 5.13 or later, enabled at boot)"
        if self.seccomp and syscalls.machine() not in syscalls.AUDIT_ARCH:
            return f"a seccomp table for {syscalls.machine()}"
        return None

    def request(
        self, zygote_pid: int, number: int, slots: Sequence[Path], data: Iterable[Path], read_only: Sequence[Path]
    ) -> dict[str, Any]:
        """The wire form for one session (`inside.confine.confine`); `number` counts a zygote's sessions."""
        rights = {}
        if self.landlock:
            readable = (*_interpreter(), font_cache(), *read_only)
            rights = {**_READABLE, **{str(path): _reading(path) for path in readable}}
            # a data folder may be listed; what is below it and no data file of the session may not be read
            rights |= {str(path): landlock.READ_DIR if path.is_dir() else landlock.READ_ONE_FILE for path in data}
            rights |= {str(slot): landlock.WRITE for slot in slots}
        return {
            "uid": self.uid(zygote_pid, number),
            "user_namespace": self.namespaces == "user",
            "landlock": rights if self.landlock else None,
            "seccomp": self.seccomp,
            "nice": _NICE_WITHOUT_NAMESPACES if self.namespaces == "none" else 0,
        }

    def uid(self, zygote_pid: int, number: int) -> int | None:
        """A session's own user and group id; unique on this machine among at most 256 live sessions of a zygote."""
        if not self.uid_per_session:
            return None
        return _FIRST_UID + zygote_pid * _UIDS_PER_ZYGOTE + number % _UIDS_PER_ZYGOTE


def candidates(max_level: int) -> list[Isolation]:
    """What to try, best first."""
    root = os.geteuid() == 0
    table = [
        Isolation(4, "root", True, True, True),
        Isolation(3, "user", False, True, True),
        Isolation(2, "none", root and _uids_exist(), True, True),
        Isolation(1, "none", False, False, True),
        Isolation(0, "none", False, False, False),
    ]
    # as root, level 3 would leave the sessions' files root's: it is for containers whose root has no other user ids
    return [
        entry
        for entry in table
        if entry.level <= max_level
        and not (entry.level == 4 and not root)
        and not (entry.level == 3 and root and _uids_exist())
    ]


def _uids_exist() -> bool:
    try:
        with open("/proc/self/uid_map") as file:
            return any(
                int(start) <= _FIRST_UID and int(start) + int(count) >= 2**31 - 1
                for start, _outside, count in map(str.split, file)
            )
    except OSError:
        return False


@functools.cache  # asked for at each session's start
def _interpreter() -> list[Path]:
    """Folders of the interpreter and its packages, and of libraries that the environment names."""
    names = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    names += [name for name in os.environ.get("LD_LIBRARY_PATH", "").split(":") if os.path.isabs(name)]
    return [Path(name) for name in dict.fromkeys(map(os.path.realpath, names)) if name != "/"]


_FOLDERS = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sys/devices/system/cpu")
# of /etc only this: secrets live there
_ETC = (
    *(
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "localtime",
        "timezone",
        "passwd",
        "group",
        "nsswitch.conf",
        "hosts",
    ),
    *("fonts", "mime.types", "os-release", "debian_version", "locale.alias", "alternatives", "matplotlibrc"),
    *("ssl/openssl.cnf", "ssl/certs"),
)
_FILES = ("/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/proc/loadavg", "/dev/zero", "/dev/urandom", "/dev/random")


def _readable() -> dict[str, int]:
    rights = dict.fromkeys(_FOLDERS, landlock.READ)
    for path in [*(f"/etc/{name}" for name in _ETC), *_FILES]:
        rights[path] = _reading(Path(path))
    return {**rights, os.devnull: landlock.WRITE_ONE_FILE}


def _reading(path: Path) -> int:
    return landlock.READ if path.is_dir() else landlock.READ_ONE_FILE


_READABLE = _readable()
