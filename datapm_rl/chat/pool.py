"""Who is asked, and when: a bounded number of requests in flight over endpoints with breakers."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from datapm_rl.chat.breaker import BreakerState
from datapm_rl.chat.failure import EndpointFailure
from datapm_rl.chat.types import ChatReply, ChatSampling, Message

if TYPE_CHECKING:
    from datapm_rl.chat.endpoint import Endpoint

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """What `Chat.complete` was asked for. `deadline` is a time of the loop; one request may take `attempt_s` seconds.

    `failed` counts the failed requests per endpoint, so that the next try goes to another one.
    """

    messages: list[Message]
    sampling: ChatSampling
    deadline: float
    attempt_s: float
    failed: Counter[Endpoint] = field(default_factory=Counter)


class Pool:
    """The endpoints of one `EndpointChat` within one event loop. Deadlines are times of that loop."""

    def __init__(self, endpoints: Sequence[Endpoint], max_in_flight: int):
        self._endpoints = endpoints
        self._max_in_flight = max_in_flight
        self._slots = asyncio.Semaphore(max_in_flight)
        self._news = asyncio.Event()  # set, and replaced, whenever a breaker may have changed

    async def ask(self, call: Call) -> ChatReply:
        """One reply, as soon as a breaker and a slot let it through; what one endpoint refuses, the others are asked.

        `EndpointFailure`: no reply from any, and why; of several reasons the one that may pass soonest.
        """
        while True:
            await self._until_ready(call.deadline)
            async with self._slot(call.deadline):
                failures: list[EndpointFailure] = []
                for endpoint in self._by_merit(call):
                    ticket = endpoint.breaker.admit()
                    if ticket is None:
                        continue
                    try:
                        return await self._ask(endpoint, ticket, call)
                    except EndpointFailure as error:
                        failures.append(error)
                        if error.cause == "context_exceeded" or asyncio.get_running_loop().time() >= call.deadline:
                            break
                if failures:
                    raise min(failures, key=lambda failure: (not failure.retried, failure.retry_after))

    def _by_merit(self, call: Call) -> list[Endpoint]:
        """First those that have not failed this call, then those that do not rest, then the least busy."""
        now = asyncio.get_running_loop().time()
        return sorted(self._endpoints, key=lambda end: (call.failed[end], end.rests_until > now, end.in_flight))

    async def aclose(self) -> None:
        """Close the connections of every endpoint."""
        for endpoint in self._endpoints:
            await endpoint.aclose()

    async def _until_ready(self, deadline: float) -> None:
        """Wait until a breaker lets a request through; `endpoint_down` as soon as none will within the deadline."""
        loop = asyncio.get_running_loop()
        while all(waits := [endpoint.breaker.ready_in() for endpoint in self._endpoints]):
            left = deadline - loop.time()
            if left <= 0 or (left <= min(waits) and math.inf not in waits):  # infinity: a probe may yet succeed
                urls = ", ".join(endpoint.url for endpoint in self._endpoints)
                raise EndpointFailure(
                    "endpoint_down", f"{urls}: left alone after failures, for longer than the deadline"
                )
            try:
                async with asyncio.timeout(min(*waits, left)):
                    await self._news.wait()
            except TimeoutError:
                continue

    @asynccontextmanager
    async def _slot(self, deadline: float) -> AsyncIterator[None]:
        if asyncio.get_running_loop().time() >= deadline:
            raise EndpointFailure("endpoint_timeout", "the deadline passed before the request was sent")
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            waited_for = f"one of {self._max_in_flight} requests in flight to end"
            raise EndpointFailure("endpoint_timeout", f"the deadline passed waiting for {waited_for}") from None
        try:
            yield
        finally:
            self._slots.release()

    async def _ask(self, endpoint: Endpoint, ticket: int, call: Call) -> ChatReply:
        started = asyncio.get_running_loop().time()
        alive: bool | None = None  # stays so when the caller is cancelled
        endpoint.in_flight += 1
        try:
            async with asyncio.timeout_at(min(call.deadline, started + call.attempt_s)):
                reply = await endpoint.ask(call.messages, call.sampling)
            alive = True
            return reply
        except TimeoutError:
            alive = False
            call.failed[endpoint] += 1
            seconds = asyncio.get_running_loop().time() - started
            raise EndpointFailure("endpoint_timeout", f"{endpoint.url}: no reply in {seconds:.1f} s", True) from None
        except EndpointFailure as failure:
            alive = failure.alive
            call.failed[endpoint] += 1
            endpoint.rests_until = asyncio.get_running_loop().time() + failure.rest_s
            raise
        finally:
            endpoint.in_flight -= 1
            self._settle(endpoint, ticket, alive)

    def _settle(self, endpoint: Endpoint, ticket: int, alive: bool | None) -> None:
        before = endpoint.breaker.state
        endpoint.breaker.settle(ticket, alive)
        if endpoint.breaker.state is before:
            return
        if endpoint.breaker.state is BreakerState.OPEN and alive is False:
            _log.warning("%s fails, next try in %.1f s", endpoint.url, endpoint.breaker.ready_in())
        self._news.set()
        self._news = asyncio.Event()
