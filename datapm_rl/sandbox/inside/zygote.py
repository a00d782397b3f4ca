"""The zygote: a small fresh interpreter with the data libraries loaded, from which every session is forked.

It runs no agent code and has one thread. It ends, and takes every process of the sandbox and the workspaces with
it, when the trainer closes the control socket or dies (seen through a pidfd, which works whichever way it dies).

Requests on the control socket (one way; a session answers on its own socket):
    cwd, seed, limits, names, isolation | fds: socket     fork a session's root
"""

from __future__ import annotations

import contextlib
import gc
import glob
import importlib
import importlib.util
import io
import os
import select
import shutil
import signal
import socket
import sys
import time
from typing import Any

from . import kernel, pristine, transplant, wire
from .confine import Namespaces, confine
from .notebook import new_namespace, redirect_output
from .snapshot import Snapshot, enter

_ORPHANS_MS = 20  # how soon to look again for processes that a dead session left


def main(control_fd: int, trainer: int, root: str, preload: list[str], namespaces: str) -> None:
    """Load, report readiness, serve until the trainer goes. Called in a new interpreter."""
    control = socket.socket(fileno=control_fd)
    trainer_fd = os.pidfd_open(trainer)
    kernel.die_first_when_memory_is_short()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        own = Namespaces(namespaces)
    except OSError as error:
        wire.send(control, {"refused": str(error)})
        return
    kernel.set_subreaper(True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    for stream in (sys.__stdout__, sys.__stderr__):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    try:
        for name in preload:
            importlib.import_module(name)
        _warm_up()
        pristine.record(preload)
        transplant.prepare()
    except ImportError as error:
        wire.send(control, {"error": str(error)})
        return
    gc.collect()
    gc.freeze()  # without it, a collection in a child copies 49 MB of the zygote's pages (with: 1.3 MB)
    wire.send(control, {"ready": True})
    zygote = _Zygote(control, trainer_fd, own)
    zygote.serve()
    zygote.end_all()
    shutil.rmtree(root, ignore_errors=True)


def _warm_up() -> None:
    """What every session would do anew: what pandas imports at its first `read_csv`, Matplotlib's scan of the fonts."""
    pandas = sys.modules.get("pandas")
    if pandas is not None:
        pandas.read_csv(io.StringIO("a,b\n1,x\n"))
    if importlib.util.find_spec("matplotlib") and not glob.glob(os.path.join(os.environ["MPLCONFIGDIR"], "fontlist*")):
        if os.fork() == 0:  # so that it is not in this process
            with contextlib.suppress(BaseException):
                importlib.import_module("matplotlib.font_manager")
            os._exit(0)
        with contextlib.suppress(ChildProcessError):  # raised when it has ended: the kernel reaps
            os.wait()


class _Zygote:
    def __init__(self, control: socket.socket, trainer_fd: int, namespaces: Namespaces):
        self.control = control
        self.trainer_fd = trainer_fd
        self.namespaces = namespaces
        self.roots: dict[int, int] = {}  # pidfd -> pid
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
                message = wire.receive(self.control)
                if message is None:
                    return
                self._fork_root(*message)
                continue
            for fd in ready:
                self._forget(fd)
            orphans = self._kill_orphans()

    def end_all(self, patience_s: float = 5.0) -> None:
        """Kill all roots and what they leave. (With namespaces, each root takes its own with it.)"""
        give_up = time.monotonic() + patience_s
        while self.roots and time.monotonic() < give_up:
            for fd in list(self.roots):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                if select.select([fd], [], [], 1.0)[0]:
                    self._forget(fd)
        while self._kill_orphans() and time.monotonic() < give_up:
            time.sleep(_ORPHANS_MS / 1000)

    def _fork_root(self, request: dict[str, Any], fds: list[int]) -> None:
        try:
            pid = self.namespaces.fork()
        except OSError:
            with contextlib.suppress(OSError), socket.socket(fileno=fds[0]) as answer:
                answer.sendall(wire.FORK_FAILED)
            return
        if pid == 0:
            _become_root(request, fds[0])
        os.close(fds[0])
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        self.roots[fd] = pid
        self.poller.register(fd, select.POLLIN)

    def _forget(self, fd: int) -> None:
        self.poller.unregister(fd)
        os.close(fd)
        del self.roots[fd]

    def _kill_orphans(self) -> bool:
        """What a dead root has left has become our child: kill it. True while there was any.

        With namespaces there is none, and /proc speaks of pids that are not ours.
        """
        if self.namespaces.exist:
            return False
        orphans = set(kernel.children(os.getpid())) - set(self.roots.values())
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(orphans)


def _become_root(request: dict[str, Any], fd: int) -> None:
    """In the fork: from the zygote's image to an empty, confined session. Never returns."""
    try:
        kernel.set_subreaper(True)
        os.setpgid(0, 0)  # the trainer freezes a session by its group
        os.closerange(3, fd)
        os.closerange(fd + 1, 1 << 16)
        redirect_output(os.open(os.devnull, os.O_RDWR))
        enter(request["cwd"])
        sock = socket.socket(fileno=fd)
        try:
            confine(request["isolation"], request["limits"])
        except (OSError, KeyError) as error:
            wire.send(sock, {"refused": str(error)})
            return
        for name in [name for name in sys.modules if name.partition(".")[0] == __name__.partition(".")[0]]:
            del sys.modules[name]  # agent code does not find the sandbox's own functions there
        namespace = new_namespace(request["names"])
        _seed(request["seed"])
        Snapshot(sock, namespace, request["cwd"]).serve()
    finally:
        os._exit(70)


def _seed(seed: int) -> None:
    """The generators that an agent uses without asking; a `default_rng()` without a seed stays random."""
    if "random" in sys.modules:
        sys.modules["random"].seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
