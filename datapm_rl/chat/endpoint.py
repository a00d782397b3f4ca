"""One OpenAI-compatible endpoint: a request, sent once, gives a reply or an `EndpointFailure`."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from urllib.parse import urlsplit

import openai

from datapm_rl.chat.breaker import Breaker
from datapm_rl.chat.failure import EndpointFailure, malformed, own_words, refused, unreachable
from datapm_rl.chat.reply import parse_reply, read_json
from datapm_rl.chat.types import ChatReply, ChatSampling, Message

CONNECT_S = 5.0
LOOKUP_S = 10.0
"""Seconds for the list of models: one lookup serves all callers, whatever their deadlines."""

_log = logging.getLogger(__name__)


class Endpoint:
    """One base url (".../v1") within one event loop, with its connections. Deadlines are the caller's."""

    def __init__(self, base_url: str, model: str | None, api_key: str | None, breaker: Breaker):
        self.url = _without_login(base_url)
        self.breaker = breaker
        self.in_flight = 0
        self.rests_until = 0.0  # a time of the loop, before which others are asked first
        self._model, self._api_key = model, api_key
        self._lookup: asyncio.Task[str] | None = None
        self._takes_top_k = True
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or "none",  # never the environment's: it belongs to another endpoint
            max_retries=0,
            timeout=openai.Timeout(None, connect=CONNECT_S),
        )

    async def ask(self, messages: list[Message], sampling: ChatSampling) -> ChatReply:
        """Send one request. `EndpointFailure`: no reply, and why."""
        try:
            try:
                return await self._post(messages, sampling)
            except openai.APIStatusError as error:
                if not self._refuses_top_k(error, sampling):
                    raise
                return await self._post(messages, sampling)
        except EndpointFailure as failure:
            raise failure.told_by(self.url, self._api_key) from None
        except openai.APIStatusError as error:
            raise refused(error).told_by(self.url, self._api_key) from None
        except (openai.APIConnectionError, OSError) as error:  # its only own time limit is the one for connecting
            raise unreachable(error).told_by(self.url, self._api_key) from None

    async def aclose(self) -> None:
        """Close the connections."""
        if self._lookup:
            self._lookup.cancel()
        await self._client.close()

    async def _post(self, messages: list[Message], sampling: ChatSampling) -> ChatReply:
        started = time.monotonic()
        body: dict[str, Any] = {
            "model": self._model or await self._only_model(),
            "messages": messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
        if self._takes_top_k and sampling.top_k > 0:
            body["extra_body"] = {"top_k": sampling.top_k}
        answer = await self._client.chat.completions.with_raw_response.create(**body)
        return parse_reply(answer.http_response.content, sampling, time.monotonic() - started)

    def _refuses_top_k(self, error: openai.APIStatusError, sampling: ChatSampling) -> bool:
        """top_k is not OpenAI's; an endpoint that complains of it is asked without it from now on."""
        if error.status_code not in (400, 422) or "top_k" not in f"{error.param} {own_words(error)}":
            return False
        if sampling.top_k <= 0:
            return False
        if self._takes_top_k:
            _log.warning("%s does not take top_k: it is asked without", self.url)
        self._takes_top_k = False
        return True

    async def _only_model(self) -> str:
        """The model's name. Concurrent callers share one lookup, which outlives a caller that is cancelled."""
        if self._lookup is None or self._lookup.done():
            self._lookup = asyncio.create_task(self._look_up())
            self._lookup.add_done_callback(_retrieve)
        return await asyncio.shield(self._lookup)

    async def _look_up(self) -> str:
        try:
            async with asyncio.timeout(LOOKUP_S):
                answer = await self._client.models.with_raw_response.list()
        except TimeoutError:
            raise EndpointFailure("endpoint_timeout", f"no list of models in {LOOKUP_S} s", True) from None
        models = read_json(answer.http_response.content)
        try:
            self._model = str(models["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise malformed("the list of models is empty or in no known form") from None
        return self._model


def _retrieve(lookup: asyncio.Task[str]) -> None:
    """Nobody may be left to take the error of a lookup; asyncio would report it as lost."""
    if not lookup.cancelled():
        lookup.exception()


def _without_login(url: str) -> str:
    """The url for messages: no user name, no password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
