"""A session's processes: each is a *snapshot*, parked, that forks when asked.

    zygote --fork--> root (snapshot 0, runs no code) --run--> snapshot 1 --run--> snapshot 2 ...
                                                                         --run, other cwd--> snapshot 1 of a branch

A `run` forks the parked process; the child runs the code, reports and parks as the next snapshot, while its parent
stays parked as it was: whatever becomes of the child, the state before the step is still there. Each child gets a
new socket, so nothing that a step forges can be taken for a later step's answer.

Requests to a parked process, one way, for the answers come from the child's own socket: op (run; export or load the
variables to or from a file; ping: say hello on the own socket), code (or the file's path), keep (characters of
value and error), number (of the step), cwd (or null: stay), changeable (folders to which a branch's changes are
confined, or null), check (whether to look for replaced functions first), calls (whether the code has tools) | fds:
socket, output pipe, and the socket for calls.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import sys
import tempfile
from typing import Any

from . import calls, kernel, landlock, notebook, pristine, transplant, wire

# bound early: agent code may replace what it finds in `os`
_exit, _fork_process, _close, _fstat = os._exit, os.fork, os.close, os.fstat


class Snapshot:
    """The state of one parked process. `serve` never returns."""

    def __init__(self, sock: socket.socket, namespace: dict[str, Any], workspace: str):
        self.sock = sock
        self.namespace = namespace
        self.workspace = workspace
        self.child_handler: Any = signal.SIG_DFL  # the agent's SIGCHLD handler while parked

    def serve(self) -> None:
        """Obey requests until the trainer closes the socket. A fork continues this loop in the child."""
        try:
            self.sock.sendall(wire.HELLO)
            while (message := wire.receive(self.sock)) is not None:
                request, fds = message
                if request["op"] == "ping":
                    self.sock.sendall(wire.HELLO)
                elif self._fork(fds):
                    self._in_child(request, fds)
        finally:
            _exit(0)

    def _fork(self, fds: list[int]) -> bool:
        """True in the child. The stdlib reseeds `random` in every forked child: carry its state over."""
        random = sys.modules.get("random")
        state = random.getstate() if random else None
        sys.stdout.flush()
        try:
            pid = _fork_process()
        except OSError:
            with contextlib.suppress(OSError), socket.socket(fileno=fds.pop(0)) as answer:
                answer.sendall(wire.FORK_FAILED)
            pid = -1
        if pid != 0:
            for fd in fds:
                os.close(fd)
            return False
        if random:
            random.setstate(state)
        return True

    def _in_child(self, request: dict[str, Any], fds: list[int]) -> None:
        """Run the code, report, and be the next snapshot."""
        self.sock.close()
        self.sock = socket.socket(fileno=fds[0])
        kernel.die_with_parent(True)  # while code runs, its predecessor lives; while parked, it may go first
        kernel.set_subreaper(True)
        notebook.redirect_output(fds[1])
        signal.signal(signal.SIGCHLD, self.child_handler)
        if request["changeable"] is not None:
            _close_channels({self.sock.fileno(), *fds[2:]})
            landlock.confine_changes(request["changeable"])
        if request["cwd"]:
            self.workspace = request["cwd"]
            enter(self.workspace)
        self.sock.sendall(wire.HELLO)
        tampered = pristine.changed(self.namespace) if request["check"] else []
        with contextlib.ExitStack() as offers:
            if request["calls"]:
                channel = calls.Calls(socket.socket(fileno=fds[2]))
                offers.enter_context(calls.offered(channel, self.workspace, self.namespace))
            result = self._perform(request)
        if request["check"]:  # a thread may have patched after the first look
            tampered = list(dict.fromkeys([*tampered, *pristine.changed(self.namespace)]))
        self._settle()
        wire.send(self.sock, {**result, "tampered": tampered})

    def _perform(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "run":
            return notebook.run_cell(request["code"], self.namespace, f"<step {request['number']}>", request["keep"])
        carry = transplant.export if request["op"] == "export" else transplant.load
        try:
            return {"status": "ok", "value": json.dumps(carry(self.namespace, request["code"])), "error": None}
        except (OSError, MemoryError) as error:
            return {"status": "error", "value": None, "error": f"{type(error).__name__}: {error}"}

    def _settle(self) -> None:
        """From running to parked: no alarms, no output, dead children are the kernel's business.

        Children that live are the trainer's: it sees them below this process, which stays their subreaper.
        """
        with contextlib.suppress(Exception):  # the agent may have closed its stdout
            sys.stdout.flush()
            sys.stderr.flush()
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        kernel.give_back_memory()
        sys.settrace(None)
        sys.setprofile(None)
        kernel.die_with_parent(False)
        handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        self.child_handler = signal.SIG_DFL if handler is None else handler
        with contextlib.suppress(ChildProcessError):  # those that died before the kernel was told to reap
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        null = os.open(os.devnull, os.O_RDWR)
        notebook.redirect_output(null)


def _close_channels(own: set[int]) -> None:
    """In a branch: no socket or pipe that code in the original could talk through. Open files stay open."""
    for fd in range(3, 256):
        with contextlib.suppress(OSError):
            mode = _fstat(fd).st_mode
            if fd not in own and (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
                _close(fd)


def enter(workspace: str) -> None:
    """Make a workspace the current, home and temporary directory."""
    os.chdir(workspace)
    os.environ.update(HOME=workspace, TMPDIR=workspace, PWD=workspace)
    tempfile.tempdir = None  # cached from the session this one was branched from
