"""Calls of code behind the actor: a core is free while one is answered, and a client that goes away holds nothing."""

import asyncio
import time

import pytest
from sandbox_remote import Remote

from datapm_rl.errors import InfraError
from datapm_rl.sandbox import Limits, calling
from datapm_rl.sandbox.actor import SandboxActor
from datapm_rl.sandbox.client import RemoteSession
from datapm_rl.trajectory import StepStatus

pytestmark = pytest.mark.unit

ASK = "query_document('how many?', 'notes.md')"


@pytest.fixture
async def actor(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.md").write_text("three apples")
    settings = {"limits": Limits(wall_s=5), "preload": (), "workspace_root": tmp_path / "root"}
    actor = SandboxActor(settings, 1, 1.0)
    yield actor
    await actor.shutdown()


@pytest.fixture
async def session(actor, tmp_path):
    return await RemoteSession.open(Remote(actor), str(tmp_path / "data"), deadline_s=20)


async def echo(name, arguments):
    return {"text": f"{name}: {arguments['query']}"}


async def test_calls_are_answered_by_the_client(session, actor):
    assert (await session.run(f"x = [{ASK}, {ASK}]; x[1]", echo)).value == "'query_document: how many?'"
    async with session.branch() as twin:
        assert (await twin.run(f"{ASK}, len(x)", echo)).value == "('query_document: how many?', 2)"
    assert (await session.run(ASK)).status is StepStatus.ERROR
    assert (await actor.health())["steps"] == 3


async def test_an_answer_that_raises_is_an_error_as_text(session):
    async def raises(name, arguments):
        raise InfraError("endpoint_down", "it is down")

    assert (await session.run(ASK, raises)).value == "'[Error]: InfraError: endpoint_down: it is down'"


async def test_a_core_is_free_while_a_call_is_answered_and_taken_again_afterwards(session, actor, tmp_path):
    others = [await RemoteSession.open(Remote(actor), str(tmp_path / "data")) for _ in range(30)]
    gate, waiting = asyncio.Event(), asyncio.Semaphore(0)

    async def answer(name, arguments):
        waiting.release()
        await gate.wait()
        return {"text": "yes"}

    runs = [asyncio.ensure_future(other.run(f"{ASK}", answer)) for other in others]
    for _ in others:
        await asyncio.wait_for(waiting.acquire(), 20)
    assert (await session.run("1 + 1")).value == "2", "the only core is free while 30 calls wait"
    gate.set()
    assert [result.value for result in await asyncio.gather(*runs)] == ["'yes'"] * 30
    assert actor._turns._value == 1
    assert not actor._turns.locked()


async def test_waiting_for_an_answer_is_not_the_steps_time_and_does_not_end_its_lease(session, actor):
    async def slow(name, arguments):
        await asyncio.sleep(2.5)
        return {"text": "at last"}

    result = await session.run(ASK, slow)
    assert (result.value, (await actor.health())["swept"]) == ("'at last'", 0)
    assert result.wall_s < 1


async def test_a_client_that_closes_its_session_while_it_answers_leaves_nothing(session, actor, tmp_path):
    asked = asyncio.Event()

    async def never(name, arguments):
        asked.set()
        await asyncio.sleep(60)

    async def verification():
        async with session.branch() as twin:
            await twin.run(ASK, never)

    task = asyncio.ensure_future(verification())
    await asyncio.wait_for(asked.wait(), 10)
    task.cancel()
    await asyncio.wait([task])
    assert (await actor.health())["sessions"] == 1
    assert (await session.run("1")).value == "1"
    await _until(lambda: actor._turns._value == 1)


async def test_a_client_that_vanishes_is_waited_for_with_a_bound(session, actor, monkeypatch):
    monkeypatch.setattr(calling, "REPLY_S", 0.3)
    call = await actor.run(session.id, f"x = {ASK}; x", True)
    assert (call.name, call.arguments["name"]) == ("query_document", "notes.md")
    late = await actor.reply(session.id, call.call_id, {"text": "just in time"})
    assert late.value == "'just in time'"
    call = await actor.run(session.id, f"x = {ASK}; x", True)
    await asyncio.sleep(0.6)
    assert (await actor.run(session.id, "x[:8]")).value == "'[Error]:'"
    assert "no answer within" in (await actor.reply(session.id, call.call_id, {"text": "too late"})).value
    assert (await actor.reply(session.id, call.call_id, {"text": "again"})).cause == "session_unknown"
    await _until(lambda: actor._turns._value == 1)


async def test_code_that_dies_during_a_call_ends_the_run(session, actor):
    code = f"import os, threading\nthreading.Timer(0.2, lambda: os._exit(1)).start()\n{ASK}"

    async def slow(name, arguments):
        await asyncio.sleep(0.6)
        return {"text": "nobody hears"}

    assert (await session.run(code, slow)).status is StepStatus.DIED
    assert (await session.run(ASK, echo)).value == "'query_document: how many?'"
    assert actor._turns._value == 1


async def test_a_session_that_the_actor_lost_is_rebuilt_without_asking_again(session, actor):
    asked = []

    async def answer(name, arguments):
        asked.append(name)
        return {"text": f"reply {len(asked)}"}

    await session.run(f"x = {ASK}", answer)
    await actor.close(session.id)
    assert (await session.run("x")).value == "'reply 1'"
    assert asked == ["query_document"]


async def test_the_event_loop_goes_on_while_a_call_is_answered(session):
    pauses, last = [], time.monotonic()

    async def slow(name, arguments):
        await asyncio.sleep(0.5)
        return {"text": "yes"}

    task = asyncio.ensure_future(session.run(ASK, slow))
    while not task.done():
        await asyncio.sleep(0.01)
        pauses.append(time.monotonic() - last)
        last = time.monotonic()
    assert max(pauses) < 0.4


async def _until(holds):
    for _ in range(100):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError
