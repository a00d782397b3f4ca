"""Verifying with real code at realistic latencies, in one run: python -m bench.verification

The endpoint is a stub process that takes as long as DataPRM does, scaled down (`verification_plan`); client, loop,
prompts, sandbox and schedule are the real ones. All contenders meet the same replies and latencies.

* serial      the official loop: one verification after another, after the rollout; each in a workspace of its own where
              the code of all steps so far runs again, and each piece of the verifier's code runs on a replay of all of
              it. (Kinder than the original, which starts an interpreter and imports pandas each time.)
* parallel    after the rollout, so many verifications at a time, on branches; those of a trajectory in order
* streaming   verification beside the rollout: step t is judged while the policy writes step t + 1. Twice: with a policy
              that takes 1.5 verifications for a turn, and with one that takes half of one

"ideal" is the time that replies alone take: of all of them divided by the concurrency, or of the longest trajectory.
The critical path of a streamed trajectory is its rollout with the verifications that cannot overlap it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.sandbox_trajectory import STEPS, write_table
from bench.verification_plan import SCALE, SECONDS, plan
from datapm_rl.chat import ChatSampling
from datapm_rl.chat.client import EndpointChat
from datapm_rl.sandbox import Limits, Sandbox
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5, help="of a trajectory, at most 10")
    parser.add_argument("--concurrency", type=int, default=16, help="verifications at a time")
    parser.add_argument("--serial", type=int, default=3, help="trajectories that the serial loop gets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there, too")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-verification-") as folder, stub() as url:
        data = Path(folder) / "data"
        data.mkdir()
        write_table(data)
        found = attempts(data, args.trajectories, args.steps)
        limits = Limits(wall_s=30)
        with Sandbox(limits, workspace_root=Path(folder) / "work", keep="all") as sandbox:
            numbers = measure(found, sandbox, url, args.concurrency, args.serial)
    numbers["load"] = [load, os.getloadavg()[0]]
    show(numbers)
    if args.json:
        args.json.write_text(json.dumps(numbers, indent=1) + "\n")


def measure(
    found: Sequence[Attempt], sandbox: Sandbox, url: str, concurrency: int, serial_count: int
) -> dict[str, Any]:
    """All numbers, in seconds as they passed here."""
    plans = [[plan(attempt.task.id, step.index).seconds for step in attempt.steps] for attempt in found]
    count, total = sum(map(len, plans)), sum(map(sum, plans))
    one = total / count
    numbers: dict[str, Any] = {"scale": SCALE, "concurrency": concurrency, "verifications": count, "replies_s": one}
    numbers["serial_s"] = asyncio.run(serial(found[:serial_count], sandbox, url))
    numbers["serial_replies_s"] = statistics.mean(second for row in plans[:serial_count] for second in row)
    wall, verdicts = asyncio.run(parallel(found, sandbox, url, concurrency))
    assert all(verdict.score == 1.0 for verdict in verdicts), [v.cause for v in verdicts if v.score != 1.0]
    numbers["parallel_s"] = wall / count
    numbers["ideal_s"] = max(total / concurrency, max(map(sum, plans))) / count
    for name in ("turns", "executions"):
        numbers[name] = statistics.mean(verdict.cost[name] for verdict in verdicts)
    for name, share in (("slow", 1.5), ("fast", 0.5)):
        rows = asyncio.run(streaming(found[:concurrency], sandbox, url, concurrency, share * SECONDS * SCALE))
        numbers[f"streaming_{name}"] = {
            "turn_in_verifications": share,
            "lag_in_verifications": statistics.mean(row.lag_s for row in rows) / one,
            "post_hoc_in_verifications": count / len(found),
            "wall_over_critical_path": statistics.mean(row.wall_s / row.critical_s for row in rows),
        }
    return numbers


def show(numbers: dict[str, Any]) -> None:
    """The table."""
    serial_s, parallel_s = numbers["serial_s"], numbers["parallel_s"]
    count, turns, executions = numbers["verifications"], numbers["turns"], numbers["executions"]
    print(f"{count} verifications of {turns:.2f} turns and {executions:.2f} executions")
    print(f"one paper second is {numbers['scale']:g} s here; load {numbers['load'][0]:.1f} to {numbers['load'][1]:.1f}")
    print(f"{'':28}{'s per verification':>20}{'x serial':>10}")
    print(f"{'serial (official loop)':28}{serial_s:20.3f}{1:10.1f}")
    print(f"{'parallel':28}{parallel_s:20.3f}{serial_s / parallel_s:10.1f}   wanted >= 7.5 (the paper's own)")
    print(f"{'ideal at ' + str(numbers['concurrency']) + ' at a time':28}{numbers['ideal_s']:20.3f}")
    print(f"parallel reaches {numbers['ideal_s'] / parallel_s:.2f} of the ideal   wanted >= 0.90")
    for name in ("slow", "fast"):
        row = numbers[f"streaming_{name}"]
        print(
            f"streaming, a turn takes {row['turn_in_verifications']} verifications: reward ready "
            f"{row['lag_in_verifications']:.2f} verifications after the end (post hoc "
            f"{row['post_hoc_in_verifications']:.1f}; wanted <= 1.2 for the first), wall time "
            f"{row['wall_over_critical_path']:.3f} of the critical path (wanted <= 1.10)"
        )


if __name__ == "__main__":
    main()
