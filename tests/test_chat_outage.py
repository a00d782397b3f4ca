"""During an outage the endpoint is probed, not hammered; callers wait for it, or fail at once when they cannot."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from stub_answers import Answer, status
from stub_endpoint import StubEndpoint

from datapm_rl.chat import ChatSampling
from datapm_rl.chat.breaker import Breaker
from datapm_rl.chat.client import EndpointChat
from datapm_rl.chat.retry import RetryPolicy
from datapm_rl.errors import InfraError

pytestmark = pytest.mark.unit

HELLO = [{"role": "user", "content": "hello"}]
ONCE = RetryPolicy(attempts=1)


def chat_with(*stubs, retry=ONCE, **breaker):
    settings = {"failures": 3, "cool_down_s": 0.3, "uniform": lambda low, high: high} | breaker
    urls = [stub.url for stub in stubs]
    return contextlib.aclosing(EndpointChat(urls, model="stub", retry=retry, breaker=lambda: Breaker(**settings)))


async def outcome(chat, deadline_s=5.0) -> str:
    """The reply's text, or the cause."""
    try:
        return (await chat.complete(HELLO, ChatSampling(), deadline_s)).text
    except InfraError as error:
        return error.cause


async def test_callers_wait_for_the_probe_and_all_go_on_after_it():
    probing = asyncio.Event()

    def script(body, index):
        if index < 3:
            return status(500)
        probing.set()
        return Answer("ok", latency_s=0.2)

    async with StubEndpoint(script) as stub, chat_with(stub) as chat:
        assert [await outcome(chat) for _ in range(3)] == ["endpoint_error"] * 3
        waiting = [asyncio.create_task(outcome(chat)) for _ in range(20)]
        await asyncio.wait_for(probing.wait(), 5)
        await asyncio.sleep(0.1)
        assert len(stub.requests) == 4  # the probe alone
        assert await asyncio.gather(*waiting) == ["ok"] * 20
        assert stub.max_concurrent > 10


async def test_a_caller_that_cannot_wait_fails_at_once():
    async with StubEndpoint(status(500)) as stub, chat_with(stub, cool_down_s=60, max_cool_down_s=60) as chat:
        for _ in range(3):
            await outcome(chat)
        started = time.monotonic()
        assert await outcome(chat, 30) == "endpoint_down"
        assert time.monotonic() - started < 1
        assert len(stub.requests) == 3


async def test_a_long_outage_costs_one_request_per_cool_down():
    stubborn = RetryPolicy(attempts=100, base_s=0.01, max_s=0.01)
    async with StubEndpoint(status(500)) as stub, chat_with(stub, retry=stubborn, cool_down_s=0.1) as chat:
        ends = await asyncio.gather(*(outcome(chat, 1.0) for _ in range(40)))
    assert set(ends) <= {"endpoint_error", "endpoint_down"}
    assert len(stub.requests) <= 40 + 4  # those in flight when it opened, and probes after 0.1, 0.3, 0.7


async def test_a_probe_that_hangs_keeps_the_others_waiting_no_longer_than_their_deadline():
    async with StubEndpoint([*[status(500)] * 3, Answer(fault="hang")]) as stub, chat_with(stub) as chat:
        for _ in range(3):
            await outcome(chat)
        probe = asyncio.create_task(outcome(chat, 5.0))
        while len(stub.requests) < 4:
            await asyncio.sleep(0.01)
        assert await outcome(chat, 0.2) == "endpoint_down"
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)


async def test_a_cancelled_probe_is_followed_by_another():
    async with StubEndpoint([*[status(500)] * 3, Answer(fault="hang"), "back"]) as stub, chat_with(stub) as chat:
        for _ in range(3):
            await outcome(chat)
        probe = asyncio.create_task(outcome(chat))
        while len(stub.requests) < 4:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(outcome(chat))
        probe.cancel()
        assert await waiting == "back"


@pytest.mark.parametrize("code", [400, 429])
async def test_refusals_and_overload_do_not_open_it(code):
    async with StubEndpoint(status(code)) as stub, chat_with(stub) as chat:
        for _ in range(6):
            assert await outcome(chat, 1.0) != "endpoint_down"
        assert len(stub.requests) == 6


async def test_a_failing_endpoint_is_skipped_and_work_is_shared_among_the_others():
    retry = RetryPolicy(attempts=3, base_s=0.01, max_s=0.01)
    async with (
        StubEndpoint(status(502)) as bad,
        StubEndpoint(Answer("ok", latency_s=0.02)) as good,
        StubEndpoint(Answer("ok", latency_s=0.02)) as fine,
        chat_with(bad, good, fine, retry=retry, cool_down_s=60, max_cool_down_s=60) as chat,
    ):
        assert await asyncio.gather(*(outcome(chat) for _ in range(60))) == ["ok"] * 60
        assert await outcome(chat) == "ok"
        before = len(bad.requests)
        assert await asyncio.gather(*(outcome(chat) for _ in range(20))) == ["ok"] * 20
        assert len(bad.requests) == before
        assert min(len(good.requests), len(fine.requests)) > 25


async def test_a_retry_goes_to_another_endpoint_than_the_one_that_failed():
    retry = RetryPolicy(attempts=2, base_s=0.01, max_s=0.01)
    async with StubEndpoint(status(500)) as bad, StubEndpoint("ok") as good, chat_with(bad, good, retry=retry) as chat:
        assert await outcome(chat) == "ok"
        assert (len(bad.requests), len(good.requests)) == (1, 1)
