"""The vocabulary that everything shares: tasks, steps, trajectories, verdicts, outcomes.

A *trajectory* is an agent's attempt at a *task*: a list of *steps* tau_t = (thought z_t, code a_t, observation
o_t). A verifier gives each step a *verdict*; a grader gives the trajectory an *outcome*. Both are a score or
*missing with a cause*: a failed judge is never a zero.

Steps are stored structured and rendered to text by a dialect; a transcript is never parsed back. Everything here
is plain data: `to_json` gives JSON-ready dicts, `from_json` reads them. No I/O, no Ray, no verl.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class StepStatus(StrEnum):
    """What became of a step. All but `INFRA_ERROR` are the agent's doing and train it."""

    OK = "ok"  # code ran
    ERROR = "error"  # code raised
    TIMEOUT = "timeout"  # code exceeded the wall or CPU limit
    MEMORY = "memory"  # code exceeded the memory limit
    OUTPUT = "output"  # code wrote more than the output limit
    LIMIT = "limit"  # code exceeded another limit (processes, files)
    DIED = "died"  # code killed its own process
    MALFORMED = "malformed"  # the turn is not in the dialect's form: no code, no answer
    ANSWER = "answer"  # the turn gives the final answer
    INFRA_ERROR = "infra_error"  # ours: the sandbox was lost; `Step.cause` says how


class StopReason(StrEnum):
    """Why a trajectory ended."""

    ANSWERED = "answered"  # the agent gave a final answer
    MAX_TURNS = "max_turns"  # the turn limit was reached without an answer
    LENGTH = "length"  # a turn was cut by the token limit for one turn
    CONTEXT = "context"  # no room left for another turn in the response budget
    AGENT_ERROR = "agent_error"  # the agent cannot go on (a turn in no known form)
    INFRA_ERROR = "infra_error"  # a part of ours failed; the trajectory is masked, not scored
    ABORTED = "aborted"  # stopped from outside (shutdown, cancelled group)


@dataclass(frozen=True)
class Task:
    """One question over data files.

    `gold` is for the grader alone: it never reaches a prompt, the verifier or the sandbox (`Task.public`).
    `reference` is a Python program for the `reference` verifier; other verifiers do not get it. "" if there is none.
    `data_dir` is an absolute folder; `files` are names below it. In the workspace a file has its base name.
    """

    id: str
    question: str
    answer_format: str
    data_dir: str
    files: tuple[str, ...]
    gold: tuple[tuple[str, str], ...]
    grader: str = "dabench"
    split: str = "train"
    reference: str = ""
    meta: dict[str, Any] = field(default_factory=dict)

    def public(self) -> Task:
        """The same task without gold: what a verifier may see."""
        return dataclasses.replace(self, gold=())


@dataclass
class Step:
    """One turn tau_t. `index` counts from 1. `span` is [start, end) of the model's tokens in the response."""

    index: int
    text: str  # the model's turn as sampled
    thought: str = ""
    code: str | None = None
    answer: str | None = None
    observation: str | None = None  # as the policy saw it, without the dialect's tags
    status: StepStatus = StepStatus.OK
    cause: str | None = None  # set for INFRA_ERROR, and a reason for MALFORMED
    span: tuple[int, int] = (0, 0)
    wall_s: float = 0.0  # seconds of execution, queueing excluded


@dataclass
class Verdict:
    """A verifier's judgement of one step: a `score`, or a `cause` (missing), or `skipped` (nobody was to judge it).

    DataPRM's scores are 0, 0.5 and 1; a baseline's may be any probability.
    """

    score: float | None
    rationale: str = ""
    cause: str | None = None
    verifier: str = ""
    trace: list[dict[str, Any]] = field(default_factory=list)  # per turn: reply, code, output, status, tokens, ...
    tampered: list[str] = field(default_factory=list)  # functions that the agent's code had replaced in its process
    cost: dict[str, float] = field(default_factory=dict)  # turns, executions, tool_calls, .._tokens, seconds
    cut: list[str] = field(default_factory=list)  # what the verifier did not see because its context is bounded
    skipped: bool = False  # a final answer under `prm.verify_answers: false`: eq. 10 replaces its score anyway

    def __post_init__(self) -> None:
        if (self.score is not None) + (self.cause is not None) + self.skipped != 1:
            raise ValueError(
                f"a verdict has a score or a cause or is skipped, got {self.score=} {self.cause=} {self.skipped=}"
            )
        if self.score is not None and not 0.0 <= self.score <= 1.0:  # also refuses NaN
            raise ValueError(f"a verdict's score is in [0, 1], got {self.score}")


@dataclass
class Outcome:
    """A grader's score of the final answer in [0, 1], or None with a `cause` (missing)."""

    score: float | None
    grader: str
    cause: str | None = None

    def __post_init__(self) -> None:
        if (self.score is None) == (self.cause is None):
            raise ValueError(f"an outcome has a score or a cause, got score={self.score} cause={self.cause}")
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise ValueError(f"an outcome's score is in [0, 1], got {self.score}")


@dataclass
class Trajectory:
    """A finished attempt. `verdicts[k]` judges `steps[k]`; the list is empty when no verifier ran."""

    task: Task
    steps: list[Step] = field(default_factory=list)
    answer: str | None = None
    stop_reason: StopReason = StopReason.ANSWERED
    cause: str | None = None  # set for INFRA_ERROR and ABORTED
    verdicts: list[Verdict] = field(default_factory=list)
    outcome: Outcome | None = None
    weight_versions: tuple[int, int] | None = None  # first and last trainer step whose weights produced tokens


def to_json(value: Any) -> Any:
    """A JSON-ready copy of any dataclass above (enums become their words, tuples become lists)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    return value


def task_from_json(row: dict[str, Any]) -> Task:
    """Inverse of `to_json` for a task."""
    row = dict(row)
    row["files"] = tuple(row["files"])
    row["gold"] = tuple((str(name), str(value)) for name, value in row["gold"])
    return Task(**row)


def step_from_json(row: dict[str, Any]) -> Step:
    """Inverse of `to_json` for a step."""
    row = dict(row, status=StepStatus(row["status"]), span=tuple(row["span"]))
    return Step(**row)


def verdict_from_json(row: dict[str, Any]) -> Verdict:
    """Inverse of `to_json` for a verdict."""
    return Verdict(**row)
