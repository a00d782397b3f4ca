"""Candidates of the release -> rows of result files: each trajectory is replayed once in a sandbox and verified.

Several candidates at a time. A row is handed over when its candidate is finished, so that a killed run loses no more
than the candidates it was at. When the verifier or the sandbox is out, the run stops instead of writing missing
verdicts for all that is left.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from datapm_rl.chat import Message
from datapm_rl.dialects.deepanalyze import DEEPANALYZE
from datapm_rl.dialects.describe import error_line, failed, shown
from datapm_rl.errors import InfraError
from datapm_rl.sandbox import ExecutionResult, Sandbox
from datapm_rl.tracking.jsonl import Row
from datapm_rl.trajectory import Step, StepStatus, Verdict
from datapm_rl.verifier.base import Verifier
from datapm_rl.verifier.local import verify_replayed
from datapm_rl.verifier.release.reader import Candidate
from datapm_rl.verifier.release.results import verdict_row
from datapm_rl.verifier.release.transcript import read_transcript

_WINDOW = 20  # newest candidates, whose share without any score tells an outage


@dataclass(frozen=True)
class Scoring:
    """How candidates are scored. `samples`: passes over each. `max_turns`: the agent's; a step of this index is final.

    `max_missing_share`: share of the newest candidates without any score above which the run stops.
    """

    verifier: Verifier
    sandbox: Sandbox
    data_dir: Path
    samples: int = 1
    concurrency: int = 8
    max_turns: int = 10
    deadline_s: float = 120.0
    tamper_policy: str = "clean_room"
    max_missing_share: float = 0.5


async def score(candidates: Iterable[Candidate], scoring: Scoring, write: Callable[[Candidate, Row], None]) -> None:
    """Score candidates, in their order, `scoring.concurrency` at a time; each row goes to `write` at once.

    InfraError "verifier_out": too many candidates have no score. UserError: data that is not there.
    """
    waiting = iter(candidates)
    outage = _Outage(scoring.max_missing_share)
    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(scoring.concurrency):
                workers.create_task(_work(waiting, scoring, write, outage))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def score_candidate(candidate: Candidate, scoring: Scoring) -> Row:
    """The row of one candidate. One without a trajectory has no verdicts."""
    steps = read_transcript(candidate.trace)
    samples: list[Row] = []
    for number in range(1, scoring.samples + 1) if steps else ():
        verdicts, prompts, differing = await _pass(candidate, steps, scoring)
        label = number if scoring.samples > 1 else None
        samples += [
            verdict_row(step, verdict, prompts.get(step.index, []), step.index in differing, label)
            for step, verdict in zip(steps, verdicts, strict=True)
        ]
    return {"task_id": candidate.task_id, "answer": candidate.answer, "samples": samples}


def same_output(step: Step, result: ExecutionResult) -> bool:
    """Whether a replayed step showed what is recorded; of a failure, its last line. True if nothing is recorded.

    Addresses of objects and spaces at the ends of lines do not count.
    """
    if step.observation is None:
        return True
    if failed(result) or step.status is not StepStatus.OK:
        alike = result.status is step.status
        return alike and (step.status is not StepStatus.ERROR or error_line(result) in step.observation)
    texts = (result.stdout, shown(result), DEEPANALYZE.observation_body(result, max_chars=1 << 30))
    return _plain(step.observation) in map(_plain, texts)


class _Outage:
    """Notices that hardly anything gets a score any more."""

    def __init__(self, max_share: float):
        self._max_share = max_share
        self._unscored: deque[bool] = deque(maxlen=_WINDOW)

    def count(self, row: Row) -> None:
        """InfraError: too many of the newest rows have verdicts, and all of them missing."""
        causes = [verdict.get("missing_cause") for verdict in row["samples"]]
        if causes:
            self._unscored.append(None not in causes)
        missing = sum(self._unscored)
        if len(self._unscored) == _WINDOW and missing > self._max_share * _WINDOW:
            raise InfraError(
                "verifier_out",
                f"{missing} of the last {_WINDOW} candidates got no score, the last one: {causes[0]}; the same command "
                "goes on with them",
            )


async def _work(
    waiting: Iterator[Candidate], scoring: Scoring, write: Callable[[Candidate, Row], None], outage: _Outage
) -> None:
    for candidate in waiting:
        row = await score_candidate(candidate, scoring)
        write(candidate, row)
        outage.count(row)


async def _pass(
    candidate: Candidate, steps: list[Step], scoring: Scoring
) -> tuple[list[Verdict], dict[int, list[Message]], set[int]]:
    """Of one pass: verdicts, prompts by step index, and the indices of the steps whose replay showed something else."""
    differing: set[int] = set()
    prompts: dict[int, list[Message]] = {}

    def compare(step: Step, result: ExecutionResult) -> None:
        if result.status is not StepStatus.INFRA_ERROR and not same_output(step, result):
            differing.add(step.index)

    verdicts = await verify_replayed(
        scoring.verifier,
        candidate.task(scoring.data_dir),
        steps,
        scoring.sandbox,
        deadline_s=scoring.deadline_s,
        max_turns=scoring.max_turns,
        tamper_policy=scoring.tamper_policy,
        strict=False,  # another machine's trajectory: its observations stand, whatever the code shows here
        on_replay=compare,
        on_verdict=lambda step, record: prompts.update({step.index: record.prompt}),
    )
    return verdicts, prompts, differing


def _plain(text: str) -> str:
    lines = re.sub(r"0x[0-9a-f]{6,}", "0x", text).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip()
