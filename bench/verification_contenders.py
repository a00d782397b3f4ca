"""The contenders of `bench.verification`: the official loop, all in parallel, and beside the rollout."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.sandbox_trajectory import STEPS
from bench.verification_plan import SCALE, plan
from datapm_rl.chat import ChatSampling
from datapm_rl.chat.client import EndpointChat
from datapm_rl.sandbox import Sandbox
from datapm_rl.sandbox.replay import ReplaySession
from datapm_rl.trajectory import Step, Task, Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.budget import Budget, estimate_tokens
from datapm_rl.verifier.local import LocalSession, verify_replayed
from datapm_rl.verifier.react import GenerativeVerifier
from datapm_rl.verifier.scheduler import Scheduler
from datapm_rl.verifier.stream import VerdictStream
from datapm_rl.verifier.tools import ToolBox
from datapm_rl.verifier.trust import CheckedBranches

_TESTS = Path(__file__).resolve().parent.parent / "tests"
_MAX_TURNS = 10


@dataclass(frozen=True)
class Attempt:
    """A trajectory: its task names it, which is how the stub knows what to say."""

    task: Task
    steps: list[Step]


def attempts(data: Path, count: int, length: int) -> list[Attempt]:
    """So many trajectories over the table."""
    found = []
    for number in range(count):
        task = Task(f"{number}", f"trajectory {number}: which product sells best?", "", str(data), ("sales.csv",), ())
        steps = [Step(index, "", "Next.", code, observation="...") for index, code in enumerate(STEPS[:length], 1)]
        found.append(Attempt(task, steps))
    return found


@contextlib.contextmanager
def stub() -> Iterator[str]:
    """The endpoint in a process of its own; its address."""
    script = f"{Path(__file__).with_name('verification_plan.py')}:answer"
    command = [sys.executable, str(_TESTS / "stub_endpoint.py"), "--script", script]
    environment = os.environ | {"BENCH_SCALE": str(SCALE)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def verifier_of(url: str, concurrency: int) -> AsyncIterator[GenerativeVerifier]:
    """DataPRM's loop with its defaults."""
    async with contextlib.aclosing(EndpointChat([url], model="stub", max_in_flight=concurrency)) as chat:
        yield GenerativeVerifier(chat, ChatSampling(), Budget(24_000, estimate_tokens), ToolBox({}))


class Bounded:
    """A verifier of which so many verifications run at a time."""

    name = "bounded"

    def __init__(self, verifier: GenerativeVerifier, concurrency: int):
        self.verify = Scheduler(verifier, concurrency).verify


def request(attempt: Attempt, position: int, verdicts: Sequence[Verdict], branches: Any) -> VerificationRequest:
    """The request for one step."""
    history, step = attempt.steps[:position], attempt.steps[position]
    return VerificationRequest(
        attempt.task, history, list(verdicts), step, branches.branch, branches.probe, branches.branch, _MAX_TURNS
    )


class Replays:
    """`branch` as the official loop has it: a new workspace in which all code up to the step runs first."""

    def __init__(self, sandbox: Sandbox, attempt: Attempt, position: int):
        self._sandbox, self._attempt, self._position = sandbox, attempt, position
        self.probe = None

    @contextlib.asynccontextmanager
    async def branch(self) -> AsyncIterator[Any]:
        yield self._replay

    async def prepare(self) -> None:
        """The official loop replays before it asks the model."""
        task = self._attempt.task
        self._replay = _AsyncReplay(ReplaySession(self._sandbox.session(task.data_dir, task.files)))
        for step in self._attempt.steps[: self._position + 1]:
            await self._replay.run(step.code or "")

    def close(self) -> None:
        self._replay.session.close()


class _AsyncReplay:
    def __init__(self, session: ReplaySession):
        self.session = session

    async def run(self, code: str, answer: Any = None) -> Any:
        return await asyncio.to_thread(self.session.run, code)


async def serial(found: Sequence[Attempt], sandbox: Sandbox, url: str) -> float:
    """Seconds per verification of the official loop."""
    start = time.monotonic()
    async with verifier_of(url, 1) as verifier:
        for attempt in found:
            verdicts: list[Verdict] = []
            for position in range(len(attempt.steps)):
                replays = Replays(sandbox, attempt, position)
                await replays.prepare()
                verdicts.append(await verifier.verify(request(attempt, position, verdicts, replays)))
                replays.close()
    return (time.monotonic() - start) / sum(len(attempt.steps) for attempt in found)


async def parallel(
    found: Sequence[Attempt], sandbox: Sandbox, url: str, concurrency: int
) -> tuple[float, list[Verdict]]:
    """(seconds of all, verdicts)."""
    start = time.monotonic()
    async with verifier_of(url, concurrency) as verifier:
        bounded = Bounded(verifier, concurrency)
        rows = await asyncio.gather(
            *(
                verify_replayed(
                    bounded, attempt.task, attempt.steps, sandbox, deadline_s=600, max_turns=_MAX_TURNS, strict=False
                )
                for attempt in found
            )
        )
    return time.monotonic() - start, [verdict for row in rows for verdict in row]


@dataclass
class Streamed:
    """One trajectory: seconds from its end to its reward, of all of it, and of its critical path."""

    lag_s: float
    wall_s: float
    critical_s: float


async def streaming(
    found: Sequence[Attempt], sandbox: Sandbox, url: str, concurrency: int, turn_s: float
) -> list[Streamed]:
    """So many rollouts at a time, verified while they go on; the policy takes `turn_s` for a turn."""
    rollouts = asyncio.Semaphore(concurrency)

    async def one(attempt: Attempt, verifier: Scheduler) -> Streamed:
        async with rollouts:
            task, start = attempt.task, time.monotonic()
            session = await LocalSession.open(sandbox, task.data_dir, task.files)

            async def verify(history: list[Step], verdicts: list[Verdict], step: Step) -> Verdict:
                branches = CheckedBranches(session, step.index, "clean_room")
                return await verifier.verify(request(attempt, step.index - 1, verdicts, branches))

            stream, generated, judged = VerdictStream(verify), 0.0, 0.0
            for step in attempt.steps:
                await asyncio.sleep(turn_s)
                await session.run(step.code or "")
                generated = time.monotonic() - start
                judged = max(judged, generated) + plan(task.id, step.index).seconds
                stream.submit(step)
            verdicts = await stream.finish(120)
            assert all(verdict.score == 1.0 for verdict in verdicts)
            wall = time.monotonic() - start
            await session.close()
            return Streamed(wall - generated, wall, judged)

    async with verifier_of(url, concurrency) as verifier:
        scheduler = Scheduler(verifier, concurrency)
        return list(await asyncio.gather(*(one(attempt, scheduler) for attempt in found)))
