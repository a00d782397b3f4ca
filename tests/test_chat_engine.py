"""The CPU engine's endpoint, through the client: its errors have their causes, a weight update is waited for."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import torch

from datapm_rl.chat import ChatSampling
from datapm_rl.chat.client import EndpointChat
from datapm_rl.chat.retry import RetryPolicy
from datapm_rl.engine import CpuEngine
from datapm_rl.engine.openai_server import start_server
from datapm_rl.engine.tiny import byte_tokenizer, random_model
from datapm_rl.errors import InfraError

pytestmark = pytest.mark.unit
torch.set_num_threads(1)

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def engine():
    engine = CpuEngine(random_model(), byte_tokenizer(), max_batch=4)
    yield engine
    await engine.close()


@pytest.fixture
async def chat(engine):
    address = await start_server(engine, byte_tokenizer(), "127.0.0.1", 0, "tiny")
    patient = RetryPolicy(attempts=10, base_s=0.02, max_s=0.1)
    async with contextlib.aclosing(EndpointChat([f"http://{address}/v1"], retry=patient)) as chat:
        yield chat


async def test_replies_and_refusals(chat):
    reply = await chat.complete(HELLO, ChatSampling(max_tokens=5), 10)
    assert (reply.finish, reply.completion_tokens) == ("length", 5)
    with pytest.raises(InfraError, match=r"endpoint_rejected.*top_logprobs is not supported"):
        await chat.complete(HELLO, ChatSampling(max_tokens=5, top_logprobs=2), 10)
    with pytest.raises(InfraError, match=r"context_exceeded.*takes prompt and response up to"):
        await chat.complete([{"role": "user", "content": "x" * 2000}], ChatSampling(max_tokens=5), 10)


async def test_a_weight_update_is_waited_for(engine, chat):
    task = asyncio.create_task(chat.complete(HELLO, ChatSampling(max_tokens=700), 20))
    while not engine.stats()["running"]:
        await asyncio.sleep(0.005)
    await engine.abort_all()
    await engine.resume()
    assert (await task).finish in ("length", "stop")
