"""The few kernel calls of the sandbox: process control flags, children, resource limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def set_subreaper(on: bool) -> None:
    """Orphans below this process become its children (and can be found and killed) instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def die_with_parent(on: bool) -> None:
    """SIGKILL for this process when its parent ends. A fork clears it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if on else 0)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def children(pid: int) -> list[int]:
    """Direct children of a process (of all its threads), zombies included; [] when it is gone."""
    found: list[int] = []
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/children", "rb", buffering=0) as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # the process or one of its threads ended meanwhile
    return found


def tree_size(pid: int) -> int:
    """Processes and threads of `pid` and all its descendants."""
    total, pending = 0, [pid]
    while pending:
        current = pending.pop()
        try:
            total += len(os.listdir(f"/proc/{current}/task"))
        except OSError:
            continue
        pending += children(current)
    return total


def kill_children(patience_s: float = 1.0) -> None:
    """Kill this process's children, and the orphans that their deaths bring, until none.

    Children that ended are reaped here, or by the kernel when SIGCHLD is ignored. Gives up after `patience_s`.
    """
    give_up = time.monotonic() + patience_s
    while True:
        doomed = children(os.getpid())
        for child in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in doomed:
            with contextlib.suppress(ChildProcessError):  # what it raises when SIGCHLD is ignored, once the child ended
                os.waitpid(child, 0)
        if not doomed or time.monotonic() > give_up:
            return


def apply_limits(limits: dict[str, int]) -> None:
    """Set resource limits by name ("DATA", "CPU", ...), soft and hard, clamped to the present hard limits."""
    for name, wanted in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))
