"""The zygote: a small fresh interpreter with the data libraries loaded, from which every session is forked.

It runs no agent code and has one thread. It ends, and takes every process of the sandbox and the workspaces with
it, when the trainer closes the control socket or dies (seen through a pidfd, which works whichever way it dies).

Requests on the control socket (one way; a session answers on its own socket):
    session  cwd, seed, limits, names | fds: socket     fork a session's root
    adopt    pid                                        a snapshot of a branch: should its session's root end, keep it
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import select
import shutil
import signal
import socket
import sys
from typing import Any

from . import kernel, wire
from .notebook import new_namespace
from .snapshot import Snapshot, enter, redirect_output

_ORPHANS_MS = 20  # how soon to look again for processes that a dead session left


def main(control_fd: int, trainer: int, root: str, preload: list[str]) -> None:
    """Load, report readiness, serve until the trainer goes. Called in a new interpreter."""
    control = socket.socket(fileno=control_fd)
    trainer_fd = os.pidfd_open(trainer)
    kernel.set_subreaper(True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.__stdout__, sys.__stderr__):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    try:
        for name in preload:
            importlib.import_module(name)
        _warm_up()
    except ImportError as error:
        wire.send(control, {"error": str(error)})
        return
    gc.collect()
    gc.freeze()  # without it, a collection in a child copies 49 MB of the zygote's pages (with: 1.3 MB)
    wire.send(control, {"ready": os.getpid()})
    _Zygote(control, trainer_fd).serve()
    kernel.kill_children(patience_s=5.0)
    shutil.rmtree(root, ignore_errors=True)


def _warm_up() -> None:
    """Have pandas import now what it imports at its first `read_csv`, or every session would do it anew."""
    pandas = sys.modules.get("pandas")
    if pandas is not None:
        pandas.read_csv(io.StringIO("a,b\n1,x\n"))


class _Zygote:
    def __init__(self, control: socket.socket, trainer_fd: int):
        self.control = control
        self.trainer_fd = trainer_fd
        self.known: dict[int, int] = {}  # pidfd -> pid of roots and adopted snapshots
        self.poller = select.poll()
        self.poller.register(control, select.POLLIN)
        self.poller.register(trainer_fd, select.POLLIN)

    def serve(self) -> None:
        """Until the trainer is gone."""
        orphans = False
        while True:
            ready = [fd for fd, _event in self.poller.poll(_ORPHANS_MS if orphans else None)]
            if self.trainer_fd in ready:
                return
            if self.control.fileno() in ready:
                # before the deaths: an `adopt` must be known when the process it names becomes our child
                message = wire.receive(self.control)
                if message is None:
                    return
                self._obey(*message)
                continue
            for fd in ready:
                self._forget(fd)
            orphans = self._kill_orphans()

    def _obey(self, request: dict[str, Any], fds: list[int]) -> None:
        if request["op"] == "adopt":
            self._watch(request["pid"])
            return
        try:
            pid = os.fork()
        except OSError:
            with contextlib.suppress(OSError), socket.socket(fileno=fds[0]) as answer:
                answer.sendall(wire.FORK_FAILED)
            return
        if pid == 0:
            _become_root(request, fds[0])
        os.close(fds[0])
        self._watch(pid)

    def _watch(self, pid: int) -> None:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        self.known[fd] = pid
        self.poller.register(fd, select.POLLIN)

    def _forget(self, fd: int) -> None:
        self.poller.unregister(fd)
        os.close(fd)
        del self.known[fd]

    def _kill_orphans(self) -> bool:
        """What a dead session left has become our child: kill it. True while there was any."""
        mine = kernel.children(os.getpid())
        # an `adopt` is sent before the process it names can become our child: after this, all that is ours is known
        while self._has_message() and (message := wire.receive(self.control)) is not None:
            self._obey(*message)
        orphans = set(mine) - set(self.known.values())
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(orphans)

    def _has_message(self) -> bool:
        return bool(select.select([self.control], [], [], 0)[0])


def _become_root(request: dict[str, Any], fd: int) -> None:
    """In the fork: from the zygote's image to an empty session. Never returns."""
    try:
        kernel.die_with_parent(True)
        kernel.set_subreaper(True)
        os.setpgid(0, 0)
        os.closerange(3, fd)
        os.closerange(fd + 1, 1 << 16)
        redirect_output(os.open(os.devnull, os.O_RDWR))
        enter(request["cwd"])
        kernel.apply_limits(request["limits"])
        namespace = new_namespace(request["names"])
        _seed(request["seed"])
        Snapshot(socket.socket(fileno=fd), namespace).serve()
    finally:
        os._exit(70)


def _seed(seed: int) -> None:
    """The generators that an agent uses without asking; a `default_rng()` without a seed stays random."""
    if "random" in sys.modules:
        sys.modules["random"].seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
