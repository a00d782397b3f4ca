"""A process of the sandbox as the trainer holds it.

Nothing that it says is believed: its pid comes from the kernel with its first message, and signals go through a
pidfd (a pid could have been given to somebody else meanwhile).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import Any

from datapm_rl.sandbox.consumption import cpu_seconds
from datapm_rl.sandbox.inside import kernel, wire

_FORK_S = 10.0  # a fork takes milliseconds; on a machine that swaps, seconds
_GLANCE_S = 0.5
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_ANCILLARY = socket.CMSG_SPACE(_CREDENTIALS.size)  # room for credentials only: descriptors sent to us are discarded


class Lost(Exception):
    """The process asked does not answer. `cause`: "fork_failed", "refused" (by the kernel, at the start) or "gone"."""

    def __init__(self, detail: str, cause: str = "gone"):
        super().__init__(detail)
        self.cause = cause


@dataclass(eq=False)
class Process:
    """A process: kernel-verified pid, pidfd (-1: ended before we looked), the socket on which it is asked."""

    pid: int
    pidfd: int
    sock: socket.socket
    holders: int = 1  # whose state it is: its own chain's and those branched from it
    running: bool = False  # a step, whose processes are none of anybody else's business
    # a root's: held until a fork below it is registered
    forking: threading.Lock = field(default_factory=threading.Lock)
    _closing: threading.Lock = field(default_factory=threading.Lock)  # a closed descriptor's number may be another's

    def ask(self, request: dict[str, Any], fds: tuple[int, ...]) -> None:
        """Send a request with descriptors. Raises Lost when the process is gone."""
        try:
            wire.send(self.sock, request, fds)
        except OSError as error:
            raise Lost(str(error)) from None

    def ping(self) -> bool:
        """Whether it is parked: it answers when it is spoken to."""
        try:
            wire.send(self.sock, {"op": "ping"})
            _await_hello(self.sock, self.pid)
            data, sender = hear(self.sock)
        except (OSError, Lost):
            return False
        return data == wire.HELLO and sender == self.pid

    def alive(self) -> bool:
        """Whether it has not ended."""
        return not self.wait_end(0.0)

    def wait_end(self, seconds: float) -> bool:
        """Whether it ends within the time."""
        return self.pidfd < 0 or ended(self.pidfd, seconds)

    def stop(self) -> None:
        """Kill it. Its descriptors stay open, for a thread may be waiting on them."""
        with self._closing:
            if self.pidfd >= 0:
                send_kill(self.pidfd)

    def kill(self) -> None:
        """Kill it and let go of it; again is harmless. For the thread that waits on it, or when none does."""
        self.stop()
        with self._closing:
            if self.pidfd >= 0:
                os.close(self.pidfd)
                self.pidfd = -1
        self.sock.close()


def new_socket() -> tuple[socket.socket, socket.socket]:
    """(ours, theirs); ours tells the true pid of whoever writes."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def hear(sock: socket.socket) -> tuple[bytes, int]:
    """(bytes, who wrote them by the kernel's word) from an end that is ours; b"" at the end. Raises OSError."""
    data, ancillary, _flags, _address = sock.recvmsg(1 << 16, _ANCILLARY)
    return data, _CREDENTIALS.unpack(ancillary[0][2])[0] if ancillary else 0


def meet(sock: socket.socket, parent: int) -> Process:
    """Wait for the hello of a process just forked by another. Raises Lost (and closes the socket) when none comes."""
    try:
        _await_hello(sock, parent)
        sock.settimeout(_FORK_S)
        data, ancillary, _flags, _address = sock.recvmsg(len(wire.HELLO), _ANCILLARY)
        if data == wire.FORK_FAILED:
            raise Lost("fork failed", "fork_failed")
        if not data:
            raise Lost("the process ended")
        if data != wire.HELLO:
            raise Lost((data + sock.recv(4096))[4:].decode("utf-8", "replace"), "refused")
        sock.settimeout(None)
        pid = _CREDENTIALS.unpack(ancillary[0][2])[0]
        return Process(pid, open_pidfd(pid), sock)
    except (OSError, IndexError, struct.error) as error:
        sock.close()
        raise Lost(str(error)) from None
    except Lost:
        sock.close()
        raise


def _await_hello(sock: socket.socket, parent: int) -> None:
    """A busy machine is waited for; a parent or child that sleeps, or computes, instead of saying hello is not."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    before = cpu_seconds(parent)
    idle = 0
    for _ in range(int(_FORK_S / _GLANCE_S)):
        if poller.poll(_GLANCE_S * 1000):
            return
        both = [parent, *kernel.children(parent)]
        idle = idle + 1 if all(kernel.sleeps(pid) for pid in both) else 0
        if idle == 2 or sum(map(cpu_seconds, both)) - before > _GLANCE_S:
            raise Lost("it does not fork")
    raise Lost("it did not fork in time")


def open_pidfd(pid: int) -> int:
    """A descriptor of a process, -1 when it has ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def send_kill(pidfd: int) -> None:
    """SIGKILL, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def ended(pidfd: int, seconds: float) -> bool:
    """Whether a process ends within the time."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(max(0.0, seconds) * 1000))
