"""The root of a session: its first process, which runs no code, and the folder of its workspaces.

A session and all branches of it share one root, which ends with the last of them: in a pid namespace, nothing
outlives the first process.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datapm_rl.errors import InfraError
from datapm_rl.sandbox.inside import kernel
from datapm_rl.sandbox.isolation import Isolation
from datapm_rl.sandbox.process import Lost, Process, meet, new_socket
from datapm_rl.sandbox.result import Limits
from datapm_rl.sandbox.sweep import sweep
from datapm_rl.sandbox.zygote import Zygote

_BOUND = {"pandas": "pd", "numpy": "np"}
_SNAPSHOTS = 72  # processes of a session beside those of its running steps
_DYING_S = 0.5  # between the ends of processes that end together
_COUNT_S = 10  # how long the count of the user's processes is good for


class StateLost(Exception):
    """The snapshot to go on from is gone. `ours`: with the session's first process, which no agent's code can end."""

    def __init__(self, detail: str, ours: bool = False):
        super().__init__(detail)
        self.ours = ours


class Root:
    """Held by each chain of the session. Raises InfraError when no process can be had. Thread-safe."""

    def __init__(
        self,
        zygote: Zygote,
        isolation: Isolation,
        limits: Limits,
        preload: Sequence[str],
        seed: int,
        data: Sequence[Path],
        read_only: Sequence[Path],
    ):
        self.zygote = zygote
        self.is_safe = isolation.seccomp  # from the session's own signals
        number = zygote.next_number()
        try:
            self.folder = zygote.workspaces.folder(isolation.uid(zygote.pid, number))
        except OSError as error:
            raise InfraError("disk" if zygote.alive else "sandbox_lost", str(error)) from None
        self._lock = threading.Lock()
        self._holders = 0
        slots = sorted(self.folder.slots)
        self.first = slots[0]  # the workspace in which the root process is
        # the kernel counts a session's processes exactly if it has a user or user namespace of its own
        exact = isolation.uid_per_session or isolation.namespaces == "user"
        others = 0 if exact else _processes_of_this_user(int(time.monotonic() / _COUNT_S))
        request = {
            "cwd": str(self.first),
            "seed": seed,
            "limits": {**limits.resources(), "NPROC": others + limits.processes + _SNAPSHOTS},
            "names": {_BOUND[name]: name for name in preload if name in _BOUND},
            "isolation": isolation.request(zygote.pid, number, slots, data, read_only),
        }
        try:
            self.process = zygote.fork_root(request)
        except Lost as error:
            self.folder.remove()
            if error.cause == "gone":
                zygote.wait_end(_DYING_S)
            raise InfraError(
                {"refused": "isolation_refused", "gone": "sandbox_lost"}.get(error.cause, error.cause), str(error)
            ) from None

    def hold(self) -> None:
        """One more chain uses it."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """One chain less; after the last the process is killed and the folder removed."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
        self.zygote.forget(self.process)
        self.folder.remove()

    def fork(self, source: Process, request: dict[str, Any], fds: tuple[int, ...]) -> Process:
        """Have a parked process fork and run (`inside.snapshot`). Raises StateLost, InfraError("fork_failed").

        `fds`: for its output, and for its calls if it has any.
        """
        for patience_s in (0.0, 0.5, 2.5):
            time.sleep(patience_s)
            ours, theirs = new_socket()
            with self.process.forking:
                try:
                    with theirs:
                        source.ask(request, (theirs.fileno(), *fds))
                    process = meet(ours, source.pid)
                except Lost as error:
                    ours.close()
                    failure = error
                else:
                    self.zygote.register(process)
                    return process
            if failure.cause != "fork_failed":
                raise StateLost(str(failure), ours=self.lost())
            self.sweep()  # no process to be had: it may be a bomb's doing
        if source is not self.process and self._forks(fds[0]):
            raise StateLost("it says that it cannot fork")
        raise InfraError("fork_failed", "the kernel refuses another process")

    def _forks(self, output: int) -> bool:
        """Whether the first process, which no agent's code ran in, can fork."""
        nothing = {"op": "run", "code": "", "number": 0, "keep": 0, "calls": False}
        request = {**nothing, "cwd": None, "changeable": None, "check": False}
        try:
            self.zygote.forget(self.fork(self.process, request, (output,)))
        except (StateLost, InfraError):
            return False
        return True

    def lost(self) -> bool:
        """Whether it ends or has ended. A step that dies with it may be seen to die first."""
        return not self.process.alive() or kernel.is_dying(self.process.pid) or not self.zygote.alive

    def sweep(self) -> None:
        """Kill what a step has left. (What a dead root has left, the zygote kills.)"""
        sweep(self.process, self.zygote.living)


@functools.lru_cache(maxsize=1)
def _processes_of_this_user(_moment: int) -> int:
    """Processes and threads, which the kernel's limit counts together; and some more to come."""
    count = 32
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue  # it ended
    return count
