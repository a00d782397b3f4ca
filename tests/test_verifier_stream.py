"""The stream of verdicts: verification overlaps the rollout, in order, and what is late is missing."""

from __future__ import annotations

import asyncio

import pytest

from datapm_rl.errors import InfraError
from datapm_rl.trajectory import Step, Verdict
from datapm_rl.verifier.stream import VerdictStream

pytestmark = pytest.mark.unit


def steps(count: int) -> list[Step]:
    return [Step(index=i + 1, text=f"turn {i + 1}") for i in range(count)]


async def test_caller_goes_on_while_a_step_is_verified():
    started, release = asyncio.Event(), asyncio.Event()

    async def verify(history, verdicts, step):
        started.set()
        await release.wait()
        return Verdict(1.0)

    stream = VerdictStream(verify)
    first, second = steps(2)
    stream.submit(first)
    await started.wait()  # the verification runs ...
    stream.submit(second)  # ... while the caller works and submits the next step
    release.set()
    assert [v.score for v in await stream.finish(5)] == [1.0, 1.0]


async def test_step_t_sees_the_steps_and_verdicts_before_it():
    seen = []

    async def verify(history, verdicts, step):
        seen.append(([s.index for s in history], [v.score for v in verdicts], step.index))
        await asyncio.sleep(0)
        return Verdict([0.0, 0.5, 1.0][step.index - 1])

    stream = VerdictStream(verify)
    for step in steps(3):
        stream.submit(step)
    await stream.finish(5)
    assert seen == [([], [], 1), ([1], [0.0], 2), ([1, 2], [0.0, 0.5], 3)]


async def test_worker_picks_up_again_after_it_ran_dry():
    async def verify(history, verdicts, step):
        return Verdict(1.0)

    stream = VerdictStream(verify)
    for step in steps(3):
        stream.submit(step)
        for _ in range(5):
            await asyncio.sleep(0)
    assert len(await stream.finish(5)) == 3


async def test_failed_verification_is_missing_and_the_next_one_goes_on():
    async def verify(history, verdicts, step):
        if step.index == 1:
            raise InfraError("sandbox_lost", "gone")
        return Verdict(0.5)

    stream = VerdictStream(verify)
    for step in steps(2):
        stream.submit(step)
    first, second = await stream.finish(5)
    assert (first.score, first.cause, second.score) == (None, "sandbox_lost", 0.5)


async def test_late_verdicts_are_missing_and_their_work_is_cancelled():
    cancelled = asyncio.Event()

    async def verify(history, verdicts, step):
        if step.index == 1:
            return Verdict(1.0)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    stream = VerdictStream(verify)
    for step in steps(3):
        stream.submit(step)
    got = await stream.finish(0.05)
    assert [(v.score, v.cause) for v in got] == [
        (1.0, None),
        (None, "trajectory_deadline"),
        (None, "trajectory_deadline"),
    ]
    await asyncio.wait_for(cancelled.wait(), 5)


async def test_verifier_that_swallows_its_cancellation_does_not_count_late():
    async def verify(history, verdicts, step):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Verdict(1.0)

    stream = VerdictStream(verify)
    stream.submit(steps(1)[0])
    [verdict] = await stream.finish(0.05)
    for _ in range(5):
        await asyncio.sleep(0)
    assert verdict.cause == "trajectory_deadline"
    assert [v.cause for v in await stream.finish(1)] == ["trajectory_deadline"]


async def test_cancel_stops_the_work_at_once():
    running = asyncio.Event()

    async def verify(history, verdicts, step):
        running.set()
        await asyncio.Event().wait()

    stream = VerdictStream(verify)
    stream.submit(steps(1)[0])
    await running.wait()
    stream.cancel()
    [verdict] = await stream.finish(5)
    assert verdict.cause == "cancelled"
    with pytest.raises(RuntimeError, match="closed"):
        stream.submit(steps(1)[0])


async def test_cancelled_caller_leaves_no_work_behind():
    ended = asyncio.Event()

    async def verify(history, verdicts, step):
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    stream = VerdictStream(verify)
    stream.submit(steps(1)[0])
    finishing = asyncio.create_task(stream.finish(60))
    await asyncio.sleep(0.01)
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    await asyncio.wait_for(ended.wait(), 5)


async def test_no_steps_no_verdicts():
    async def verify(history, verdicts, step):
        raise AssertionError

    assert await VerdictStream(verify).finish(1) == []
