"""Killing what a step has left behind, a fork bomb included.

A step's processes cannot leave the tree below their session's root (every process of ours adopts orphans, and the
root is the first process of its pid namespace where there is one), nor, under seccomp, the root's process group. So:
freeze the group, in one system call that no fork escapes; kill what is not ours; thaw.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping

from datapm_rl.sandbox.inside import kernel
from datapm_rl.sandbox.process import Process, ended, open_pidfd, send_kill

_PATIENCE_S = 5.0


def sweep(root: Process, live: Callable[[], Mapping[int, Process]]) -> None:
    """Kill all below `root` that are neither `live` nor below a live process that runs a step. Gives up after 5 s.

    `root.forking` is held by whoever forks below it until the child is among `live`.
    """
    give_up = time.monotonic() + _PATIENCE_S
    with root.forking:
        freeze(root)
        try:
            while time.monotonic() < give_up:
                strays = _strays(root.pid, live())
                if not strays:  # the kernel's list of children may skip some while others end: look twice
                    time.sleep(0.002)
                    strays = _strays(root.pid, live())
                if not strays:
                    return
                _kill(strays, give_up)
        finally:
            thaw(root)


def freeze(root: Process) -> None:
    """Stop all processes of a session, in one system call that no fork escapes (without seccomp, some may)."""
    _signal_group(root, signal.SIGSTOP)


def thaw(root: Process) -> None:
    """Undo `freeze`."""
    _signal_group(root, signal.SIGCONT)


def _strays(root_pid: int, live: Mapping[int, Process]) -> set[int]:
    found: set[int] = set()
    pending = [root_pid]
    while pending:
        for child in kernel.children(pending.pop()):
            process = live.get(child)
            if process is None:
                found.add(child)
            if (process is None or not process.running) and child not in pending:
                pending.append(child)
    return found


def _kill(pids: set[int], give_up: float) -> None:
    """All at once, then wait: each may have gigabytes to give back."""
    for pid in pids:
        pidfd = open_pidfd(pid)
        if pidfd >= 0:
            send_kill(pidfd)
            ended(pidfd, 0.0 if len(pids) > 8 else max(0.0, give_up - time.monotonic()))
            os.close(pidfd)


def _signal_group(root: Process, number: int) -> None:
    if root.alive():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(root.pid, number)
