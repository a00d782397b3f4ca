"""The `reference` verifier: judges steps by what the task's own reference program says is right.

It stands in for a trained process reward model, in tests and in the quickstart, and *knows the answer*: numbers from
runs with it show that the machinery learns, not that a PRM is good. It never sees the gold.

    once per task   the reference program runs in a fresh session  -> Facts: the answer, digests of the needed columns
                                                                     before and after cleaning
    per step        a probe runs on a branch after the step        -> State: these columns in the agent's data frames
                    (not after code that only prints: the state is the one before)
                    facts + states before and after + the step     -> score and one sentence (`reference_scoring.py`)

The state after a step is kept in its verdict's trace, and the next verification reads it from there: any worker can
verify any step. A task's reference program is Python text that defines `answer` (str) and `clean` (dict: header ->
cleaned Series). A task without one gives missing verdicts, cause "no_reference".
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Sequence

from datapm_rl.errors import InfraError
from datapm_rl.trajectory import Step, StepStatus, Task, Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.reference_looks import only_shows, uses_missing_count
from datapm_rl.verifier.reference_probe import (
    Facts,
    State,
    facts_code,
    read_facts,
    read_state,
    state_code,
    state_from_json,
    state_to_json,
)
from datapm_rl.verifier.reference_scoring import Judgement, judge_answer, judge_failure, judge_run

CACHED_TASKS = 4096
PROBE = "# digests of the needed columns in the agent's data frames"  # stands for the probe in traces
_ROLLED_BACK = (StepStatus.TIMEOUT, StepStatus.DIED, StepStatus.OUTPUT)  # the sandbox undid the step


class ReferenceVerifier:
    """See the module docstring. Safe for many verifications at a time in one event loop."""

    name = "reference"

    def __init__(self) -> None:
        self._facts: OrderedDict[str, Facts] = OrderedDict()  # the least recently used first
        self._running: dict[str, asyncio.Lock] = {}

    async def verify(self, request: VerificationRequest) -> Verdict:
        """Score 0, 0.5 or 1. InfraError: "no_reference", "reference_failed", or the cause of a sandbox failure."""
        start = time.monotonic()
        step, history = request.step, request.history
        if step.status is StepStatus.INFRA_ERROR:
            raise InfraError(step.cause or "step_lost", "the step itself was lost")
        facts = await self._facts_of(request)
        before = state_before(request.verdicts)
        after: State | None = before
        runs = 0
        if step.status is StepStatus.MALFORMED:
            judgement = Judgement(0.0, "The turn holds neither code nor an answer that can be read.")
        elif step.status is StepStatus.ANSWER:
            judgement = judge_answer(facts, step.answer or "")
        else:
            if step.status not in _ROLLED_BACK and not _changes_nothing(step):
                after, runs = await _probe(request, facts), 1
            judgement = _judge_code(history, step, facts, before, after, request.task)
        output = json.dumps(state_to_json(before if after is None else after))
        return Verdict(
            score=judgement.score,
            rationale=judgement.reason,
            verifier=self.name,
            trace=[{"code": PROBE, "output": output, "status": "ok"}],
            cost={"turns": 1.0, "tool_calls": float(runs), "tokens": 0.0, "seconds": time.monotonic() - start},
        )

    async def _facts_of(self, request: VerificationRequest) -> Facts:
        """The task's facts, from the cache or by one run of its reference program."""
        task = request.task
        if not task.reference:
            raise InfraError("no_reference", f"task {task.id} has no reference program")
        key = _key(task)
        lock = self._running.setdefault(key, asyncio.Lock())
        try:
            async with lock:  # whoever comes second finds the first one's facts
                if key not in self._facts:
                    async with request.fresh() as session:
                        self._facts[key] = read_facts(await session.run(facts_code(task)))
                self._facts.move_to_end(key)
                facts = self._facts[key]
        finally:
            if not lock.locked():
                self._running.pop(key, None)
        while len(self._facts) > CACHED_TASKS:
            self._facts.popitem(last=False)
        return facts


def state_before(verdicts: Sequence[Verdict]) -> State:
    """The state after the last step whose verdict holds one; {} at the start of a trajectory."""
    for verdict in reversed(verdicts):
        for entry in reversed(verdict.trace):
            if entry.get("code") == PROBE:
                return state_from_json(json.loads(entry["output"]))
    return {}


def _changes_nothing(step: Step) -> bool:
    return step.status is StepStatus.OK and only_shows(step.code or "")


async def _probe(request: VerificationRequest, facts: Facts) -> State | None:
    return read_state(await request.probe(state_code(facts)))


def _judge_code(
    history: Sequence[Step], step: Step, facts: Facts, before: State, after: State | None, task: Task
) -> Judgement:
    if step.status is not StepStatus.OK:
        return judge_failure(history, step, facts, before, after)
    counts_missing = uses_missing_count(task.reference)
    return judge_run(history, step, facts, before, before if after is None else after, counts_missing)


def _key(task: Task) -> str:
    text = json.dumps([task.id, task.data_dir, task.files, task.reference])
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
