"""A stored trajectory verified without Ray: each verdict is given over the state that its step left."""

from __future__ import annotations

import asyncio

import pytest

from datapm_rl.sandbox import Sandbox
from datapm_rl.trajectory import Step, StepStatus, Task, Verdict
from datapm_rl.verifier.local import LocalSession, verify_replayed

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def task(tmp_path):
    (tmp_path / "t.csv").write_text("a\n1\n2\n")
    return Task("t", "?", "", str(tmp_path), ("t.csv",), gold=())


class Looking:
    """Says what it saw of `x` on a branch, which it changes, and in a fresh session."""

    name = "looking"

    async def verify(self, request):
        async with request.branch() as twin:
            seen = (await twin.run("x = x + 100; x - 100")).value
        async with request.fresh() as pristine:
            assert (await pristine.run("'x' in globals()")).value == "False"
        assert (await request.probe("x")).value == seen
        earlier = [verdict.rationale for verdict in request.verdicts]
        return Verdict(1.0, f"{seen} after {earlier}", verifier=self.name)


STEPS = [
    Step(1, "", code="x = 1"),
    Step(2, "", code="x = 2; oops", status=StepStatus.ERROR),
    Step(3, "", answer="2", status=StepStatus.ANSWER),
]


async def verdicts(verifier, task, steps, sandbox, **settings):
    return await verify_replayed(verifier, task, steps, sandbox, **{"deadline_s": 20, "max_turns": 10} | settings)


async def test_each_step_is_judged_over_its_own_state_with_earlier_verdicts(sandbox, task):
    found = await verdicts(Looking(), task, STEPS, sandbox)
    assert [verdict.rationale[:10] for verdict in found] == ["1 after []", "2 after ['", "2 after ['"]
    assert found[2].rationale.count("1 after []") == 2  # its own two verdicts, the second one with the first in view
    assert sandbox.health()["sessions"] == 0


async def test_a_replay_that_ends_otherwise_is_missing_from_there_on(sandbox, task):
    steps = [STEPS[0], Step(2, "", code="x = 2"), Step(3, "", code="y = 1", status=StepStatus.ERROR), STEPS[2]]
    found = await verdicts(Looking(), task, steps, sandbox)
    assert [verdict.cause for verdict in found] == [None, None, "replay_diverged", "replay_diverged"]
    found = await verdicts(Looking(), task, steps, sandbox, strict=False)
    assert [verdict.score for verdict in found] == [1.0] * 4


async def test_a_verification_past_its_deadline_is_missing_and_leaves_no_session(sandbox, task):
    class Slow:
        name = "slow"

        async def verify(self, request):
            async with request.branch() as twin:
                await twin.run("import time; time.sleep(20)")

    found = await verdicts(Slow(), task, STEPS[:1], sandbox, deadline_s=0.5)
    assert (found[0].score, found[0].cause) == (None, "deadline")
    await asyncio.sleep(0.1)
    assert sandbox.health()["sessions"] == 0


async def test_a_branch_that_nobody_waits_for_any_more_is_closed(sandbox, task):
    session = await LocalSession.open(sandbox, task.data_dir, task.files)
    waiting = asyncio.create_task(session.branch().__aenter__())
    await asyncio.sleep(0)  # its thread has begun
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await session.close()
    for _ in range(100):
        if sandbox.health()["sessions"] == 0:
            break
        await asyncio.sleep(0.02)
    assert sandbox.health()["sessions"] == 0


async def test_code_of_a_verifier_calls_tools_through_a_local_session(sandbox, task):
    async def answer(name, arguments):
        await asyncio.sleep(0)
        return {"text": f"{name} {arguments['query']}"}

    session = await LocalSession.open(sandbox, task.data_dir, task.files)
    async with session.branch() as twin:
        result = await twin.run("print(query_document('how many?', 't.csv'))", answer)
    assert result.stdout == "query_document how many?\n"
    await session.close()


async def test_a_run_that_waits_for_a_tool_ends_when_it_is_cancelled(sandbox, task):
    asked = asyncio.Event()

    async def never(name, arguments):
        asked.set()
        await asyncio.sleep(60)

    session = await LocalSession.open(sandbox, task.data_dir, task.files)
    running = asyncio.create_task(session.run("query_document('?', 't.csv')", never))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await session.run("1 + 1")).value == "2"  # its thread and the session are free
    await session.close()
