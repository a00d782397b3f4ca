"""Calls from a running step to the trainer, and the functions that make them: the verifier's tools.

A call is one frame, {"call": name, "arguments": {...}}, on a socket that only a run with tools has; the reply is one
frame, {"text": ...} or {"error": ...}. The functions read the file themselves, so they reach what the step may read and
nothing else, and they return errors as text. They are new in each run, in place of whatever has their names.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any

from . import wire

CALL_MAX = 24 << 20  # bytes of a call's frame
FILE_MAX = 16 << 20  # bytes of a file that is asked about: in base64, and in JSON, below CALL_MAX
_NOBODY = "tools work while the code that was given them runs, and in the process that runs it"

# bound early: agent code may replace what it finds in `os`
_getpid, _open_fd, _close, _fstat, _open = os.getpid, os.open, os.close, os.fstat, open
_exists, _realpath, _b64encode, _Lock = os.path.exists, os.path.realpath, base64.b64encode, threading.Lock


class Calls:
    """The step's end. One call at a time, from any thread of the step's own process."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self._process = _getpid()
        self._lock = _Lock()

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The trainer's reply; {"error": text} when there can be none."""
        if _getpid() != self._process:
            return {"error": _NOBODY}
        with self._lock:
            if self.sock.fileno() < 0:
                return {"error": _NOBODY}
            try:
                wire.send(self.sock, {"call": name, "arguments": arguments})
                reply = wire.receive(self.sock)
            except (BrokenPipeError, ConnectionResetError, wire.ProtocolError):
                reply = None
            except BaseException:  # an alarm's handler raised: the reply to come would be taken for the next call's
                self.close()
                raise
        return reply[0] if reply else {"error": _NOBODY}

    def close(self) -> None:
        """The run has ended; a thread that waits for a reply is told so."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


@contextlib.contextmanager
def offered(calls: Calls, workspace: str, namespace: dict[str, Any]) -> Iterator[None]:
    """Have the tools among the variables. Afterwards, what was there before under their names is back."""
    tools = _tools(calls.call, workspace)
    before = {name: namespace[name] for name in tools if name in namespace}
    namespace.update(tools)
    try:
        yield
    finally:
        for name, tool in tools.items():
            if namespace.get(name) is tool:
                del namespace[name]
                namespace.update({name: before[name]} if name in before else {})
        calls.close()


def _tools(call: Callable[[str, dict[str, Any]], dict[str, Any]], workspace: str) -> dict[str, Callable[..., str]]:
    def query_document(query: str, file_path: str) -> str:
        """Ask a question about a text file of the working directory."""
        return ask("query_document", query, file_path)

    def query_image(query: str, image_path: str) -> str:
        """Ask a question about an image file of the working directory."""
        return ask("query_image", query, image_path)

    def ask(tool: str, query: object, path: object) -> str:
        try:
            name, content = _read(str(path), workspace)
        except (OSError, ValueError) as error:
            return f"[Error]: {error}"
        reply = call(tool, {"query": str(query), "name": name, "content": _b64encode(content).decode("ascii")})
        return str(reply["text"]) if "text" in reply else f"[Error]: {reply.get('error')}"

    return {"query_document": query_document, "query_image": query_image}


def _read(path: str, workspace: str) -> tuple[str, bytes]:
    """(path below the workspace, content) of a regular file in it. ValueError or OSError say what is wrong."""
    real, root = _realpath(path), _realpath(workspace)
    if not real.startswith(root + os.sep):
        raise ValueError(f"{path} is outside the working directory; give a file in it")
    if not _exists(real):
        raise ValueError(f"there is no file {path}")
    fd = _open_fd(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # a pipe must not block
    try:
        status = _fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path} is not a file")
        with _open(fd, "rb", closefd=False) as file:
            content = file.read(FILE_MAX + 1)
    finally:
        _close(fd)
    if len(content) > FILE_MAX:
        size = max(status.st_size, len(content)) / (1 << 20)
        raise ValueError(
            f"{path} has {size:.1f} MB, and tools read at most {FILE_MAX >> 20} MB; write the part in question to a "
            "file of its own, or read it with code"
        )
    return real[len(root) + 1 :], content
