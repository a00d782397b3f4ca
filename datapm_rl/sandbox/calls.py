"""Calls that code makes while it runs, as its owner answers them (`inside.calls` is the other end).

A call is answered in a thread of its own, so that whoever follows the step goes on looking at it. The time that an
answer takes is not the step's. What is no call of ours, and a process that does not read its replies, ends the step.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from datapm_rl.sandbox.inside import wire
from datapm_rl.sandbox.inside.calls import CALL_MAX
from datapm_rl.sandbox.process import hear, new_socket

Reply = dict[str, Any]
Answer = Callable[[str, dict[str, Any]], Reply]
"""From a call's name and JSON-ready arguments to a JSON-ready reply; may block, may raise."""

CALLS_MAX = 32  # in one step
REPLY_MAX = 128 << 10  # bytes of a reply: the socket takes it whole, so sending it never waits for the step
ANSWER_S = 360.0  # after which the code is told that nobody answers


def call_key(name: str, arguments: dict[str, Any]) -> str:
    """By which a call is found again."""
    return hashlib.sha256(json.dumps([name, arguments], sort_keys=True).encode()).hexdigest()


def failure(error: BaseException) -> Reply:
    """The reply to a call whose answer raised."""
    return {"error": f"{type(error).__name__}: {error}"[:500]}


class Recorder:
    """Answers and keeps the replies, so that a lost state is rebuilt without asking again. An `Answer`."""

    def __init__(self, answer: Answer):
        self._answer = answer
        self.replies: dict[str, Reply] = {}

    def __call__(self, name: str, arguments: dict[str, Any]) -> Reply:
        try:
            reply = self._answer(name, arguments)
        except Exception as error:  # the boundary to whoever answers
            reply = failure(error)
        self.replies[call_key(name, arguments)] = reply
        return reply


def recorded(replies: Mapping[str, Reply]) -> Answer:
    """Answers a replay with what a `Recorder` kept."""
    return lambda name, arguments: replies.get(call_key(name, arguments), {"error": "this was not asked before"})


class Calls:
    """Of one run, for the thread that follows it. `theirs`: the socket for the process that runs."""

    def __init__(self, answer: Answer):
        self._answer = answer
        self._sock, self.theirs = new_socket()
        self._done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # an answer is there
        self._reader = wire.FrameReader(CALL_MAX)
        self._frames: collections.deque[dict[str, Any]] = collections.deque()
        self._count = 0
        self._begun: float | None = None  # of the call that is being answered, monotonic seconds
        self._reply: Reply | None = None  # to it
        self._waited = 0.0
        self._heard = True  # False: the other end is closed
        self._closed = False
        self._lock = threading.Lock()  # guards `_reply` and `_closed`: the threads that answer may come late

    def attend(self, poller: select.poll, pid: int) -> None:
        """Wait with this poller for calls of process `pid`."""
        self._poller, self._pid = poller, pid
        poller.register(self._sock, select.POLLIN)
        poller.register(self._done, select.POLLIN)

    @property
    def pending(self) -> bool:
        """Whether a call is being answered."""
        return self._begun is not None

    def waited(self) -> float:
        """Seconds so far in which calls were answered."""
        return self._waited + (time.monotonic() - self._begun if self._begun is not None else 0.0)

    def serve(self, ready: Collection[int]) -> None:
        """What can be done with these descriptors. Raises OSError, ProtocolError: these are no calls of ours."""
        if self._sock.fileno() in ready:
            if self.pending:
                self._hang_up()  # nobody waits for the reply
            else:
                self._hear()
        if self._done in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._done)
        if self.pending:
            self._finish()
        while self._frames and not self.pending:
            self._begin(self._frames.popleft())

    def close(self) -> None:
        """The run has ended. An answer that is still to come is dropped."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._done)
        self._sock.close()
        self.theirs.close()

    def _hear(self) -> None:
        data, sender = hear(self._sock)
        if data and sender != self._pid:
            raise wire.ProtocolError("another process called in its name")
        if not data:
            self._hang_up()
        self._frames.extend(self._reader.feed(data))

    def _begin(self, frame: dict[str, Any]) -> None:
        name, arguments = frame.get("call"), frame.get("arguments")
        if len(frame) != 2 or not isinstance(name, str) or not isinstance(arguments, dict):
            raise wire.ProtocolError("a call that is none")
        self._count += 1
        if self._count > CALLS_MAX:
            self._send({"error": f"one piece of code may use tools {CALLS_MAX} times"})
            return
        self._begun, self._reply = time.monotonic(), None
        if self._heard:
            self._poller.modify(self._sock, 0)  # its end is told all the same; the next call waits
        threading.Thread(target=self._ask, args=(self._count, name, arguments), daemon=True).start()

    def _ask(self, number: int, name: str, arguments: dict[str, Any]) -> None:
        """In a thread of its own."""
        try:
            reply = self._answer(name, arguments)
        except Exception as error:  # the boundary to whoever answers
            reply = failure(error)
        if not isinstance(reply, dict):
            reply = {"error": f"the answer is a {type(reply).__name__}"}
        with self._lock:
            if not self._closed and number == self._count and self.pending:
                self._reply = reply
                os.eventfd_write(self._done, 1)

    def _finish(self) -> None:
        assert self._begun is not None
        took = time.monotonic() - self._begun
        with self._lock:
            reply = self._reply
            if reply is None and self._heard and took <= ANSWER_S:
                return
            self._begun = None
        self._waited += took
        if self._heard:
            self._poller.modify(self._sock, select.POLLIN)
            self._send({"error": f"no answer within {ANSWER_S:g} s"} if reply is None else reply)

    def _send(self, reply: Reply) -> None:
        try:
            data = wire.encode(reply)
        except (TypeError, ValueError) as error:
            data = wire.encode(failure(error))
        if len(data) > REPLY_MAX:
            data = wire.encode({"error": f"the answer has {len(data)} bytes, more than {REPLY_MAX}"})
        try:
            sent = self._sock.send(data, socket.MSG_DONTWAIT)
        except (BrokenPipeError, ConnectionResetError):
            return self._hang_up()
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            raise wire.ProtocolError("it does not read the replies to its calls")

    def _hang_up(self) -> None:
        if self._heard:
            self._heard = False
            self._poller.unregister(self._sock)
        self._frames.clear()
