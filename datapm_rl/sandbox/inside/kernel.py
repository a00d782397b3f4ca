"""The few kernel calls of the sandbox: process flags, namespaces, credentials, resource limits, the process tree."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct

libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 4, 8
_PR_SET_CHILD_SUBREAPER, _PR_CAP_AMBIENT, _AMBIENT_RAISE = 36, 47, 2
_CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_READ_SEARCH = 2
_PF_EXITING = 0x4

NEW_IPC, NEW_USER, NEW_PID, NEW_NET = 0x08000000, 0x10000000, 0x20000000, 0x40000000


def set_subreaper(on: bool) -> None:
    """Orphans below this process become its children (and can be found and killed) instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def die_with_parent(on: bool) -> None:
    """SIGKILL for this process when its parent ends. A fork clears it, and so does a change of user."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if on else 0)


def set_dumpable(on: bool) -> None:
    """Whether processes of the same user may read this one's memory and environment."""
    _prctl(_PR_SET_DUMPABLE, int(on))


def _prctl(option: int, value: int, *more: int) -> None:
    if libc.prctl(option, value, *(*more, 0, 0, 0)[:3]) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")


def unshare(namespaces: int) -> None:
    """New namespaces for this process (NEW_PID: for its children to come)."""
    if libc.unshare(namespaces) != 0:
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")


def set_namespace(descriptor: int, kind: int) -> None:
    """Enter a namespace by its descriptor."""
    if libc.setns(descriptor, kind) != 0:
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


def new_user_namespace(others: int = 0) -> None:
    """A user namespace (and `others`) in which this user and group are the only ones, with all capabilities in it."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(NEW_USER | others)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def become(uid: int) -> None:
    """As root: be another user for good, able to read any file (Landlock bounds that) and capable of nothing else."""
    _prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    keep = 1 << CAP_DAC_READ_SEARCH
    _set_capabilities(keep)
    _prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, CAP_DAC_READ_SEARCH)  # programs that are started may read too


def drop_capabilities() -> None:
    """All of them."""
    _set_capabilities(0)


def _set_capabilities(mask: int) -> None:
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = struct.pack("6I", low, low, low, high, high, high)  # effective, permitted, inheritable; twice
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), f"capset: {os.strerror(ctypes.get_errno())}")


def children(pid: int) -> list[int]:
    """Direct children of a process (of all its threads), zombies included; [] when it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process or one of its threads ended meanwhile
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/children", "rb", buffering=0) as file:
                found += map(int, file.read().split())
    return found


def thread_count(pid: int) -> int:
    """Threads of a process, 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def sleeps(pid: int) -> bool:
    """Whether a process waits for something other than a core; True when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rsplit(b")", 1)[1].split()[0] != b"R"
    except OSError:
        return True


def is_dying(pid: int) -> bool:
    """Whether a process has been killed or is ending; True when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            if int(file.read().rsplit(b")", 1)[1].split()[6]) & _PF_EXITING:
                return True
        with open(f"/proc/{pid}/status", "rb") as file:
            pending = [int(line.split()[1], 16) for line in file if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    except OSError:
        return True
    return any(mask >> (signal.SIGKILL - 1) & 1 for mask in pending)


def descendants(pid: int) -> set[int]:
    """All processes below a process, zombies included; itself not."""
    found: set[int] = set()
    pending = [pid]
    while pending:
        new = set(children(pending.pop())) - found
        found |= new
        pending += new
    return found


def give_back_memory() -> None:
    """Return what the C library holds free to the kernel: about 2 MB of a parked state."""
    if hasattr(libc, "malloc_trim"):  # glibc
        libc.malloc_trim(ctypes.c_size_t(0))


def set_nice(value: int) -> None:
    """Be less important to the scheduler."""
    with contextlib.suppress(OSError):
        os.nice(value)


def die_first_when_memory_is_short() -> None:
    """The kernel's OOM killer prefers this process and its children to the trainer."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("800")


def apply_limits(limits: dict[str, int]) -> None:
    """Set resource limits by name ("DATA", "CPU", ...), soft and hard, clamped to the present hard limits."""
    for name, wanted in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))
