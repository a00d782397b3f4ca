"""No fault of an endpoint loses a call or invents a reply: each ends in time, with the reply or the right cause."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from stub_answers import MALFORMED, Answer, status
from stub_endpoint import StubEndpoint

from datapm_rl.chat import ChatSampling
from datapm_rl.chat.breaker import Breaker
from datapm_rl.chat.client import EndpointChat
from datapm_rl.chat.retry import RetryPolicy
from datapm_rl.errors import InfraError

pytestmark = pytest.mark.unit

HELLO = [{"role": "user", "content": "hello"}]
QUICK = RetryPolicy(attempts=3, base_s=0.01, max_s=0.02)
IMPATIENT = RetryPolicy(attempts=3, base_s=0.01, max_s=0.02, attempt_s=0.3)

REFUSALS = (400, 401, 403, 404, 413, 422)
RETRIED = {
    **dict.fromkeys((408, 409, 425), "endpoint_rejected"),
    **dict.fromkeys((500, 501, 502, 503, 504, 529), "endpoint_error"),
    429: "endpoint_overloaded",
}
FAULTS = {
    **{f"status {code}": (status(code), cause) for code, cause in RETRIED.items()},
    **{f"status {code} with Retry-After": (status(code, retry_after="0.01"), RETRIED[code]) for code in (429, 503)},
    **{f"malformed: {name}": (answer, "endpoint_malformed") for name, answer in MALFORMED.items()},
    "html 503": (Answer(status=503, body=b"<html>", content_type="text/html"), "endpoint_error"),
    "no content": (Answer(status=204, body=b""), "endpoint_malformed"),
    "not modified": (Answer(status=304, body=b""), "endpoint_malformed"),
    "abort": (Answer(finish="abort"), "endpoint_error"),
    "cut": (Answer(fault="cut"), "endpoint_unreachable"),
    "reset": (Answer(fault="reset"), "endpoint_unreachable"),
    "hang": (Answer(fault="hang"), "endpoint_timeout"),
    "hang after headers": (Answer(fault="hang_after_headers"), "endpoint_timeout"),
    "drip": (Answer(fault="drip"), "endpoint_timeout"),
}


def policy(bad: Answer) -> RetryPolicy:
    """Requests that would never end have a limit of their own, so that another can be tried."""
    return IMPATIENT if bad.fault in ("hang", "hang_after_headers", "drip") else QUICK


@contextlib.asynccontextmanager
async def served(script, retry=QUICK, **kwargs):
    """A stub with this script, and a chat with it. The breaker stays out of the way unless it is given."""
    made = {"model": "stub", "retry": retry, "breaker": lambda: Breaker(failures=1000)} | kwargs
    async with StubEndpoint(script) as stub, contextlib.aclosing(EndpointChat([stub.url], **made)) as chat:
        yield stub, chat


async def complete(chat, deadline_s=5.0, **sampling):
    return await chat.complete(HELLO, ChatSampling(**sampling), deadline_s)


async def failure(chat, deadline_s=5.0) -> InfraError:
    """What a call fails with; that it fails in time."""
    started = time.monotonic()
    with pytest.raises(InfraError) as caught:
        await complete(chat, deadline_s)
    assert time.monotonic() - started < deadline_s + 0.5
    return caught.value


@pytest.mark.parametrize("name", FAULTS)
async def test_a_transient_fault_loses_nothing(name):
    bad, _ = FAULTS[name]
    async with served([bad, bad, "right"], policy(bad)) as (stub, chat):
        reply = await complete(chat)
    assert (reply.text, reply.finish, reply.prompt_tokens, reply.completion_tokens) == ("right", "stop", 10, 5)
    assert len(stub.requests) == 3
    assert stub.requests[0] == stub.requests[2]


@pytest.mark.parametrize("name", FAULTS)
async def test_a_lasting_fault_ends_with_its_cause_after_a_bounded_number_of_tries(name):
    bad, cause = FAULTS[name]
    async with served(bad, policy(bad)) as (stub, chat):
        error = await failure(chat)
    assert error.cause == cause
    assert stub.url in error.detail
    assert len(stub.requests) == 3


@pytest.mark.parametrize("kind", ["hang", "hang_after_headers", "drip"])
async def test_what_never_ends_is_ended_by_the_deadline(kind):
    async with served(Answer(fault=kind)) as (stub, chat):
        error = await failure(chat, 0.2)
        assert error.cause == "endpoint_timeout"
        assert len(stub.requests) == 1
        await until(lambda: stub.disconnects == 1)


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_refusal_is_not_retried_and_speaks_in_the_endpoints_words(code):
    async with served(status(code, "no such thing, " + "really " * 100)) as (stub, chat):
        error = await failure(chat)
    assert error.cause == "endpoint_rejected"
    assert f"{code}: no such thing, really" in error.detail
    assert len(error.detail) <= len(f"{stub.url}: ") + 300
    assert len(stub.requests) == 1


async def test_the_content_filter_is_a_refusal():
    async with served(Answer(text="", finish="content_filter")) as (stub, chat):
        assert (await failure(chat)).cause == "endpoint_rejected"
    assert len(stub.requests) == 1


async def test_retry_after_is_waited_for_and_not_beyond_the_deadline():
    async with served([status(429, retry_after="0.3"), "right"]) as (_, chat):
        started = time.monotonic()
        assert (await complete(chat)).text == "right"
        assert time.monotonic() - started >= 0.3
    for header in ("60", "Fri, 31 Dec 2099 23:59:59 GMT"):
        async with served([status(503, retry_after=header), "late"]) as (stub, chat):
            assert (await failure(chat, 1.0)).cause == "endpoint_error"
            assert len(stub.requests) == 1
    for header in ("soon", "nan", "-5", "Fri, 31 Dec 1999 23:59:59 GMT"):
        async with served([status(503, retry_after=header), "right"]) as (_, chat):
            assert (await complete(chat, 1.0)).text == "right"


async def test_an_endpoint_that_is_not_there_is_unreachable_and_one_that_comes_back_is_used():
    stub = StubEndpoint("back")
    async with stub:
        pass
    patient = RetryPolicy(attempts=100, base_s=0.02, max_s=0.05)
    settings = {"model": "stub", "breaker": lambda: Breaker(failures=1000)}
    async with contextlib.aclosing(EndpointChat([stub.url], retry=QUICK, **settings)) as chat:
        assert (await failure(chat)).cause == "endpoint_unreachable"
    async with contextlib.aclosing(EndpointChat([stub.url], retry=patient, **settings)) as chat:
        waiting = asyncio.create_task(complete(chat))
        await asyncio.sleep(0.1)
        async with stub:
            assert (await waiting).text == "back"


async def test_a_burst_respects_max_in_flight_and_all_come_back_through_faults():
    bad = [status(503), status(429), Answer(fault="cut"), Answer(fault="reset"), MALFORMED["html"]]

    def script(body, index):
        said = body["messages"][0]["content"]
        return bad[index % 5] if index < 100 else Answer(f"re {said}", latency_s=0.002)

    patient = RetryPolicy(attempts=20, base_s=0.01, max_s=0.1)
    async with served(script, patient, max_in_flight=7) as (stub, chat):
        asked = [[{"role": "user", "content": str(number)}] for number in range(200)]
        replies = await asyncio.gather(*(chat.complete(messages, ChatSampling(), 30) for messages in asked))
    assert [reply.text for reply in replies] == [f"re {number}" for number in range(200)]
    assert stub.max_concurrent == 7
    assert len(stub.requests) == 300


async def test_waiting_for_a_slot_ends_at_the_deadline():
    async with served(Answer(fault="hang"), max_in_flight=1) as (stub, chat):
        errors = await asyncio.gather(failure(chat, 0.4), failure(chat, 0.2), failure(chat, 0.2))
    assert {error.cause for error in errors} == {"endpoint_timeout"}
    assert len(stub.requests) == 1


async def test_a_deadline_that_has_passed_sends_nothing():
    async with served("ok") as (stub, chat):
        assert (await failure(chat, 0.0)).cause == "endpoint_timeout"
    assert stub.requests == []


async def test_cancelling_closes_the_connection_frees_the_slot_and_leaves_the_breaker_alone():
    def script(body, index):
        return Answer(fault="hang") if index < 3 else "next"

    async with served(script, max_in_flight=1, breaker=lambda: Breaker(failures=1)) as (stub, chat):
        for count in (1, 2, 3):
            task = asyncio.create_task(complete(chat))
            await until(lambda count=count: len(stub.requests) == count)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda count=count: stub.disconnects == count)
        assert (await complete(chat)).text == "next"


async def until(true, seconds=5.0):
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.005)
