"""The interface of every verifier (a process reward model that may run code).

Data flow (DataPRM eq. 3-6): a verifier sees the task without its gold, the history h_t of finished steps, the
verdicts f_t it gave to them, and the current step tau_t; it may run code on a *branch* of the agent's state after
step t, and returns a `Verdict`. An exception of any kind is turned into a missing verdict by `verify_or_missing`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from datapm_rl.chat import Message
from datapm_rl.errors import cause_of
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import Step, Task, Verdict

GRACE_S = 1.0
"""Seconds for a verifier that watches its deadline itself to say what was late, before it is cut off."""

Answer = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a call that code in the sandbox makes: from its name and JSON-ready arguments to a JSON-ready reply."""


class CodeRunner(Protocol):
    """A place to run code in: a session of the sandbox, local or behind an actor."""

    async def run(self, code: str, answer: Answer | None = None) -> ExecutionResult:
        """Run code. With `answer`, it may call the verifier's tools (`verifier/tools`)."""
        ...


@dataclass
class Record:
    """What a verification did so far. Kept in its verdict, also when it fails or its deadline cuts it off.

    `prompt`, the messages before the first reply, is not: it can be rendered again from the trajectory.
    """

    prompt: list[Message] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)  # as `Verdict.trace`
    cut: list[str] = field(default_factory=list)  # as `Verdict.cut`
    started: float = field(default_factory=time.monotonic)

    def cost(self) -> dict[str, float]:
        """Table 7's columns: turns, executions, calls of tools, tokens in and out, seconds."""
        return {
            "turns": float(len(self.turns)),
            "executions": float(sum(turn.get("output") is not None for turn in self.turns)),
            "tool_calls": float(sum(len(turn.get("tool_calls", ())) for turn in self.turns)),
            "prompt_tokens": float(sum(turn.get("prompt_tokens", 0) for turn in self.turns)),
            "completion_tokens": float(sum(turn.get("completion_tokens", 0) for turn in self.turns)),
            "seconds": time.monotonic() - self.started,
        }


@dataclass
class VerificationRequest:
    """Everything a verifier gets for step t = `step.index`; `len(verdicts) == len(history) == t - 1`."""

    task: Task  # public: without gold
    history: list[Step]
    verdicts: list[Verdict]
    step: Step
    branch: Callable[[], AbstractAsyncContextManager[CodeRunner]]  # the agent's state after this step, private copy
    probe: Callable[[str], Awaitable[ExecutionResult]]  # code run once on such a branch: cheaper when once is enough
    fresh: Callable[[], AbstractAsyncContextManager[CodeRunner]]  # a new session over the task's pristine files
    max_turns: int = 10  # the agent's limit: the step of this index is the final one
    deadline_s: float = 120.0  # for this verification
    record: Record = field(default_factory=Record)  # filled by the verifier as it goes


class Verifier(Protocol):
    """A verifier. `name` is stored in each verdict and in the metrics."""

    name: str

    async def verify(self, request: VerificationRequest) -> Verdict:
        """Judge one step. May raise; infrastructure failures as `InfraError` with a cause."""
        ...


async def verify_or_missing(verifier: Verifier, request: VerificationRequest) -> Verdict:
    """`verifier.verify` within `request.deadline_s` and a little; what fails is a missing verdict with its cause."""
    try:
        return await asyncio.wait_for(verifier.verify(request), request.deadline_s + GRACE_S)
    except (Exception, asyncio.CancelledError) as error:  # the boundary: it is missing data, never a score
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # it was not the verifier that raised it
        return Verdict(
            score=None,
            cause=cause_of(error),
            rationale=str(error)[:500],
            verifier=getattr(verifier, "name", ""),
            trace=request.record.turns,
            cost=request.record.cost(),
            cut=request.record.cut,
        )
