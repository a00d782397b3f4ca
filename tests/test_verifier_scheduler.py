"""How many verifications run at a time, in which order, and what a cancelled one leaves."""

from __future__ import annotations

import asyncio

import pytest

from datapm_rl.trajectory import Step, Task, Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.scheduler import Scheduler
from datapm_rl.verifier.stream import VerdictStream

pytestmark = pytest.mark.unit


class Slow:
    """A verifier that takes a moment; `order` has who was judged, `ended` how many were not cut off."""

    name = "slow"

    def __init__(self, seconds: float = 0.01):
        self.seconds, self.running, self.most, self.ended, self.order = seconds, 0, 0, 0, []

    async def verify(self, request):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
            self.order.append(request.task.id)
            self.ended += 1
            return Verdict(1.0)
        finally:
            self.running -= 1


def request(name: str = "t", **settings) -> VerificationRequest:
    return VerificationRequest(Task(name, "", "", "", (), ()), [], [], Step(1, "x"), None, None, None, **settings)


def stream_of(scheduler: Scheduler, name: str, steps: int) -> VerdictStream:
    stream = VerdictStream(lambda history, verdicts, step: scheduler.verify(request(name)))
    for index in range(steps):
        stream.submit(Step(index + 1, "x"))
    return stream


async def test_concurrency_is_bounded_and_used():
    verifier = Slow()
    scheduler = Scheduler(verifier, concurrency=3)
    await asyncio.gather(*(scheduler.verify(request()) for _ in range(20)))
    assert (verifier.most, verifier.ended) == (3, 20)


async def test_long_trajectory_does_not_hold_up_a_short_one():
    verifier = Slow()
    scheduler = Scheduler(verifier, concurrency=1)
    long, short = stream_of(scheduler, "long", 30), stream_of(scheduler, "short", 3)
    await short.finish(10)
    assert verifier.order.count("long") <= 4, "they take turns"
    assert len(await long.finish(10)) == 30


async def test_waiting_for_a_turn_is_not_part_of_a_deadline_and_is_counted():
    scheduler = Scheduler(Slow(0.15), concurrency=1)
    verdicts = await asyncio.gather(*(scheduler.verify(request(deadline_s=0.4)) for _ in range(4)))
    assert [verdict.cause for verdict in verdicts] == [None] * 4
    assert verdicts[3].cost["queued_s"] > 0.4


async def test_deadline_of_a_verification_is_missing_and_frees_its_turn():
    scheduler = Scheduler(Slow(10), concurrency=1)
    verdicts = [await scheduler.verify(request(deadline_s=0.05)) for _ in range(2)]
    assert [verdict.cause for verdict in verdicts] == ["deadline"] * 2


async def test_cancelled_trajectory_ends_its_verification_and_frees_its_turn():
    verifier = Slow(10)
    scheduler = Scheduler(verifier, concurrency=1)
    stream = stream_of(scheduler, "gone", 3)
    await asyncio.sleep(0.05)
    assert verifier.running == 1
    stream.cancel()
    await asyncio.sleep(0.05)
    assert verifier.running == 0
    verifier.seconds = 0
    assert (await asyncio.wait_for(scheduler.verify(request()), 1)).score == 1.0
    assert [verdict.cause for verdict in await stream.finish(1)] == ["cancelled"] * 3


async def test_deadline_of_a_trajectory_counts_what_is_late_as_missing_and_stops_it():
    verifier = Slow(0.1)
    stream = stream_of(Scheduler(verifier, concurrency=1), "late", 5)
    verdicts = await stream.finish(0.25)
    assert [verdict.cause for verdict in verdicts] == [
        None,
        None,
        "trajectory_deadline",
        "trajectory_deadline",
        "trajectory_deadline",
    ]
    await asyncio.sleep(0.15)
    assert verifier.ended == 2, "no verification goes on for a trajectory that has been counted"
