"""The zygote as the trainer holds it: start, fork a session's root, end; and every live process that came from it.

It is a freshly executed interpreter with a whitelisted environment, so nothing of the trainer (keys in its
environment, weights, CUDA, threads) is in the memory that agent code can read. A zygote is never restarted: a lost
one is replaced by another, and the sessions of the old one are rebuilt in it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datapm_rl.errors import InfraError, UserError
from datapm_rl.sandbox.inside import kernel, wire
from datapm_rl.sandbox.process import Lost, Process, meet, new_socket
from datapm_rl.sandbox.workspace import WorkspaceRoot, font_cache

_BOOT_S = 120.0  # importing pandas from a cold network file system takes a minute
_CLOSE_S = 10.0
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH")
_START = "import sys; sys.path.insert(0, {here!r}); import inside.zygote as z; del sys.path[0]; z.main(*{arguments!r})"


class NamespacesRefused(Exception):
    """The kernel does not let this user have the namespaces asked for."""


class Zygote:
    """A running zygote and its processes. Thread-safe.

    `namespaces`: see `isolation.Isolation`. Raises UserError, InfraError("sandbox_lost") or NamespacesRefused at start.
    """

    def __init__(self, preload: Sequence[str], workspace_root: Path | None, namespaces: str):
        self.workspaces = WorkspaceRoot(workspace_root)
        self._lock = threading.Lock()  # guards the fields below and the order on the control socket
        self._forking = threading.Lock()
        self._live: dict[int, Process] = {}
        self._begun = 0
        self._control, theirs = socket.socketpair()
        with theirs, open(self.workspaces.path / "zygote.log", "wb") as log:
            arguments = (theirs.fileno(), os.getpid(), str(self.workspaces.path), list(preload), namespaces)
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-c", _START.format(here=str(Path(__file__).parent), arguments=arguments)],
                env=_environment(),
                cwd=self.workspaces.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        try:
            self._await_ready()
            # with namespaces the zygote is a child of the process that made them
            self.pid = self._child.pid if namespaces == "none" else kernel.children(self._child.pid)[0]
        except BaseException:
            self.close()
            raise

    def _await_ready(self) -> None:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        message = wire.receive(self._control) if poller.poll(_BOOT_S * 1000) else None
        if message is None:
            log = (self.workspaces.path / "zygote.log").read_text(errors="replace")[-500:]
            raise InfraError("sandbox_lost", f"the zygote did not start: {log}")
        if "refused" in message[0]:
            raise NamespacesRefused(str(message[0]["refused"]))
        if "error" in message[0]:
            raise UserError(f"sandbox preload failed: {message[0]['error']}; install the module or remove it")

    @property
    def alive(self) -> bool:
        """False once the zygote has ended; all its processes end with it."""
        return self._child.poll() is None

    def wait_end(self, seconds: float) -> bool:
        """Whether it ends within the time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)
        return not self.alive

    @property
    def sessions_begun(self) -> int:
        """How many roots were forked."""
        return self._begun

    def next_number(self) -> int:
        """The number of a session to come."""
        with self._lock:
            self._begun += 1
            return self._begun

    def fork_root(self, request: dict[str, Any]) -> Process:
        """The root process of a new session. Raises Lost."""
        ours, theirs = new_socket()
        with self._forking:
            try:
                with theirs, self._lock:
                    wire.send(self._control, request, (theirs.fileno(),))
            except OSError as error:
                ours.close()
                raise Lost(str(error)) from None
            root = meet(ours, self.pid)
        self.register(root)
        return root

    def register(self, process: Process) -> None:
        """Count a process among the live ones, which sweeps spare."""
        with self._lock:
            self._live[process.pid] = process

    def hold(self, process: Process) -> None:
        """One more chain has this process as a state."""
        with self._lock:
            process.holders += 1

    def forget(self, process: Process) -> None:
        """One chain less has this process as a state; after the last it is killed."""
        with self._lock:
            process.holders -= 1
            if process.holders:
                return
            self._live.pop(process.pid, None)
        process.kill()

    def in_use(self) -> bool:
        """Whether any session of it lives."""
        return self.alive and bool(self._live)

    def living(self) -> dict[int, Process]:
        """A copy of the live processes by pid."""
        with self._lock:
            return dict(self._live)

    def close(self) -> None:
        """End the zygote, every process that came from it, and the workspaces. Blocks until they are gone."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # not only close: a forked child of ours may hold a copy
        self._control.close()
        for process in self.living().values():
            process.stop()
        try:
            self._child.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            for pid in kernel.descendants(self._child.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._child.kill()
            self._child.wait()
        self.workspaces.remove()


def _environment() -> dict[str, str]:
    """What a session may see of the environment. Everything else (keys, Ray's and Slurm's variables) stays out."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    threads = ("OMP", "OPENBLAS", "MKL", "NUMEXPR")  # a pool of threads used before a fork hangs the child
    environment |= {f"{library}_NUM_THREADS": "1" for library in threads}
    environment |= {
        "PYTHONHASHSEED": "0",  # a replay walks sets in the same order
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": str(font_cache()),
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # mimalloc reserves 1 GiB, which RLIMIT_DATA counts
        "JOBLIB_MULTIPROCESSING": "0",
        "USER": "agent",  # what getpass says: a session's user id has no name
        "LOGNAME": "agent",
    }
    return environment
