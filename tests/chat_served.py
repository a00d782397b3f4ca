"""A stub endpoint and a chat with it, for the tests of `datapm_rl.chat`."""

from __future__ import annotations

import contextlib

from stub_endpoint import StubEndpoint

from datapm_rl.chat import ChatSampling
from datapm_rl.chat.client import EndpointChat
from datapm_rl.chat.retry import RetryPolicy

HELLO = [{"role": "user", "content": "hello"}]
QUICK = RetryPolicy(attempts=3, base_s=0.01, max_s=0.01)


@contextlib.asynccontextmanager
async def served(script, models=("stub",), **kwargs):
    made = {"model": "stub", "retry": QUICK} | kwargs
    async with (
        StubEndpoint(script, models=models) as stub,
        contextlib.aclosing(EndpointChat([stub.url], **made)) as chat,
    ):
        yield stub, chat


async def complete(chat, messages=HELLO, deadline_s=5.0, **sampling):
    return await chat.complete(messages, ChatSampling(**sampling), deadline_s)
