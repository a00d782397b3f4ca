"""Frames between the trainer and the processes of the sandbox: 4 bytes of length, then ASCII JSON.

Never pickle: the other side runs hostile code. Descriptors travel beside the first bytes of a frame (SCM_RIGHTS).
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!I")
REQUEST_MAX = 64 << 20  # bytes of one request; code is far smaller, this bounds a corrupted length

# first words on a new socket, of one length; the kernel adds the true pid of the speaker (SCM_CREDENTIALS)
HELLO = _LENGTH.pack(2) + b"{}"
FORK_FAILED = _LENGTH.pack(2) + b"[]"


class ProtocolError(Exception):
    """The bytes are not frames of ours."""


def encode(message: dict[str, Any]) -> bytes:
    """One frame. Raises TypeError, ValueError for what JSON cannot say."""
    body = json.dumps(message).encode("ascii")
    return _LENGTH.pack(len(body)) + body


def send(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send one frame, with descriptors. Raises OSError when the other side is gone."""
    data = encode(message)
    sent = socket.send_fds(sock, [data], fds) if fds else sock.send(data)
    if sent < len(data):
        sock.sendall(memoryview(data)[sent:])


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Block for one frame from a trusted sender: (message, descriptors), None at the end of the stream."""
    head, fds, _flags, _address = socket.recv_fds(sock, _LENGTH.size, 4)
    if not head:
        return None
    head += _read(sock, _LENGTH.size - len(head))
    return decode(_read(sock, _LENGTH.unpack(head)[0])), list(fds)


def _read(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise ProtocolError("the stream ended within a frame")
        data += chunk
    return bytes(data)


def decode(body: bytes) -> dict[str, Any]:
    """The message of a frame's body; anything but a JSON object is a ProtocolError."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError; "["*10**5 recurses
        raise ProtocolError(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError("not a JSON object")
    return message


class FrameReader:
    """Reassembles frames from an untrusted sender without ever blocking for the rest of one.

    `feed` takes bytes as they come and returns the frames that are complete; a frame above `max_bytes` is a
    ProtocolError before it is stored.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        self._buffer += data
        frames = []
        while len(self._buffer) >= _LENGTH.size:
            length = _LENGTH.unpack_from(self._buffer)[0]
            if length > self._max_bytes:
                raise ProtocolError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return frames
