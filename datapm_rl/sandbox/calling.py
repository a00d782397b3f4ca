"""A run behind the actor whose code makes calls: told to the client as events, a call at a time, its result at last.

A core is held while the code runs, and not while a call is answered. A client that went away is waited for `REPLY_S`
seconds; closing the session ends the run at once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from datapm_rl.errors import cause_of
from datapm_rl.sandbox.calls import Answer, Reply
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import StepStatus

REPLY_S = 300.0
_numbers = itertools.count()


@dataclass(frozen=True)
class PendingCall:
    """The code waits for the reply to a call."""

    call_id: str
    name: str
    arguments: dict[str, Any]


class CallingRun:
    """Begins when it is made, goes on whether or not anybody asks for its events. For the actor's event loop."""

    def __init__(
        self, run: Callable[[Answer], ExecutionResult], turns: asyncio.Semaphore, use: AbstractContextManager[None]
    ):
        """`turns`: one per core. `use`: held for all of it."""
        self._loop = asyncio.get_running_loop()
        self._turns = turns
        self._events: asyncio.Queue[ExecutionResult | PendingCall] = asyncio.Queue()
        self._waiting: tuple[str, asyncio.Future[Reply]] | None = None  # for the reply to the call of this id
        self._asking: Future[Reply] | None = None
        self._task = asyncio.create_task(self._hold(run, use))

    async def next_event(self) -> ExecutionResult | PendingCall:
        """Its next call, or its result."""
        return await self._events.get()

    def reply(self, call_id: str, reply: Reply) -> None:
        """Answer a call; one that nobody waits for any more is ignored."""
        if self._waiting is not None and self._waiting[0] == call_id and not self._waiting[1].done():
            self._waiting[1].set_result(reply)

    async def _hold(self, run: Callable[[Answer], ExecutionResult], use: AbstractContextManager[None]) -> None:
        # a thread of its own: it may wait for long, and those of a pool would run out
        thread = ThreadPoolExecutor(1, thread_name_prefix="sandbox-calling")
        with use:
            async with self._turns:
                try:
                    result = await self._loop.run_in_executor(thread, run, self._answer)
                except Exception as error:  # else nobody would hear of it
                    result = ExecutionResult(StepStatus.INFRA_ERROR, error=str(error), cause=cause_of(error))
                finally:
                    thread.shutdown(wait=False)
                if self._waiting is not None:
                    self.reply(self._waiting[0], {"error": "the run has ended"})
                if self._asking is not None:
                    await asyncio.wait([asyncio.wrap_future(self._asking)])
        self._events.put_nowait(result)

    def _answer(self, name: str, arguments: dict[str, Any]) -> Reply:
        """In a thread of the run's."""
        self._asking = asyncio.run_coroutine_threadsafe(self._ask(name, arguments), self._loop)
        return self._asking.result()

    async def _ask(self, name: str, arguments: dict[str, Any]) -> Reply:
        call = PendingCall(str(next(_numbers)), name, arguments)
        self._waiting = (call.call_id, self._loop.create_future())
        self._turns.release()
        self._events.put_nowait(call)
        try:
            return await asyncio.wait_for(self._waiting[1], REPLY_S)
        except TimeoutError:
            return {"error": f"no answer within {REPLY_S:g} s"}
        finally:
            self._waiting = None
            await self._turns.acquire()
