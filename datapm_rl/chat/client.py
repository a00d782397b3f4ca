"""`EndpointChat`: calls of OpenAI-compatible endpoints that end within their deadline, with a reply or a cause.

complete -> retry (attempts, pauses) -> pool (breakers, slots, least busy endpoint) -> endpoint (one request)
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from datapm_rl.chat.breaker import Breaker
from datapm_rl.chat.pool import Call, Pool
from datapm_rl.chat.retry import RetryPolicy
from datapm_rl.chat.types import ChatReply, ChatSampling, Message
from datapm_rl.errors import UserError


class EndpointChat:
    """A `Chat` over one or several endpoints that serve the same model.

    `base_urls` are given as for OpenAI's client ("http://host:port/v1"). `model` None: each endpoint is asked for its
    list and the first is taken. `max_in_flight` bounds the requests over all endpoints together; further calls wait
    their turn. Everything that belongs to an event loop (connections, breakers) is made on the first call in it, so
    an object may be made where none runs. `UserError`: an address or a key that cannot be used.

    >>> chat = EndpointChat(["http://localhost:8000/v1"], model="dataprm")
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        model: str | None = None,
        api_key: str | None = None,
        max_in_flight: int = 64,
        retry: RetryPolicy | None = None,
        breaker: Callable[[], Breaker] = Breaker,
    ):
        if not base_urls:
            raise UserError("a chat endpoint has no address: give at least one, such as http://localhost:8000/v1")
        for url in base_urls:
            _check_url(url)
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise UserError("the API key holds a line break or another character that no header carries: check it")
        if max_in_flight < 1:
            raise UserError(f"max_in_flight must be at least 1, got {max_in_flight}")
        self._base_urls, self._model, self._api_key = tuple(base_urls), model, api_key
        self._max_in_flight, self._breaker = max_in_flight, breaker
        self._retry = retry or RetryPolicy()
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}

    async def complete(self, messages: list[Message], sampling: ChatSampling, deadline_s: float) -> ChatReply:
        """See `Chat.complete`. A caller that is cancelled closes its connection."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + deadline_s
        call = Call(messages, sampling, deadline, self._retry.attempt_s)
        reply: ChatReply = await self._retry.until(deadline)(self._pool().ask, call)
        return dataclasses.replace(reply, seconds=loop.time() - started)

    async def aclose(self) -> None:
        """Close the running loop's connections, when no call is under way."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool:
            await pool.aclose()

    def _pool(self) -> Pool:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            from datapm_rl.chat.endpoint import Endpoint  # and with it openai, which takes half a second

            for ended in [other for other in self._pools if other.is_closed()]:
                del self._pools[ended]
            endpoints = [Endpoint(url, self._model, self._api_key, self._breaker()) for url in self._base_urls]
            self._pools[loop] = Pool(endpoints, self._max_in_flight)
        return self._pools[loop]


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is none, an unclosed bracket
        good = False
    if not good:
        raise UserError(f"the address {url!r} of a chat endpoint is not of the form http(s)://host[:port]/v1: mend it")
