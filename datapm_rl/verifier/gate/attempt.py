"""One built trajectory: a scenario's moves run in the sandbox, and each label is checked by what comes out.

The checks do not ask any verifier; they run programs. The *right rest* of a step is the right cleaning of what the
agent takes for dirty and the right computation; it runs on a branch after the step.

| what a move expects | what must be true |
|---|---|
| state | it runs; the right rest gives the answer |
| unchanged | it runs; the data frame is equal before and after; the right rest gives the answer |
| right_value | it runs; it prints the answer; the right rest gives the answer |
| error | it raises; the right rest gives the answer |
| caught | it runs and prints an exception; the right rest gives the answer |
| corrupted | it runs; the right rest runs and gives another value, also when the column is cleaned once more |
| wrong_value | it runs and prints a value that is neither the answer nor visibly none (nan) |
| right_answer, wrong_answer | the value printed last is the answer, is not |
| slipped_answer | the value printed last is the answer, and what is copied is not |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from datapm_rl.benchmarks import grade
from datapm_rl.dialects import Dialect
from datapm_rl.policy import idioms
from datapm_rl.sandbox import ExecutionResult, Sandbox, Session
from datapm_rl.trajectory import Step, StepStatus, Task
from datapm_rl.verifier.gate.labelled import KINDS, LabelledTrajectory
from datapm_rl.verifier.gate.situation import Move, Situation, Unfit

OBSERVATION_CHARS = 2048
_NO_VALUE = ("", "nan", "none")


class Discarded(Exception):
    """A step did not come out as its label says; the message says how."""


def attempt(
    task: Task, moves: Sequence[Callable[[Situation], Move]], sandbox: Sandbox, dialect: Dialect, rng: random.Random
) -> LabelledTrajectory:
    """The trajectory of these moves. Raises `Unfit` or `Discarded`. The task is one of the builtin benchmark."""
    with sandbox.session(task.data_dir, task.files) as session:
        return _Attempt(task, session, dialect, rng).run(moves)


class _Attempt:
    def __init__(self, task: Task, session: Session, dialect: Dialect, rng: random.Random):
        self.task, self.session, self.dialect, self.rng = task, session, dialect, rng
        self.situation = Situation(task, rng)
        self.value = ""  # what was printed last
        self.steps: list[Step] = []
        self.kinds: list[str] = []

    def run(self, moves: Sequence[Callable[[Situation], Move]]) -> LabelledTrajectory:
        for make in moves:
            move = make(self.situation)
            self.steps.append(self._answer(move) if move.code is None else self._code(move, move.code))
            self.kinds.append(move.kind)
        labels = [KINDS[kind] for kind in self.kinds]
        shown = {key: self.task.meta[key] for key in ("table", "family")}  # not the dirt: it would tell
        task = Task(**{**vars(self.task.public()), "meta": shown})
        return LabelledTrajectory(task, tuple(self.steps), tuple(x for x in labels if x is not None), tuple(self.kinds))

    def _code(self, move: Move, code: str) -> Step:
        s = self.situation
        code = code if s.loaded else s.load + code
        if move.expects == "unchanged":
            self._require(
                self._on_branch(f"_before = df.copy()\n{code}\ndf.equals(_before)").value == "True", "changes"
            )
        result = self.session.run(code)
        s.loaded = True
        if move.cleans:
            s.cleaned = set(s.columns)
        self.value = _last_line(result)
        observation = self.dialect.observation_body(result, OBSERVATION_CHARS)
        self._require(move.shows in observation, f"does not show {move.shows!r}")
        raises = move.expects == "error"
        self._require(result.status is (StepStatus.ERROR if raises else StepStatus.OK), f"is {result.status}")
        if move.expects == "wrong_value":
            self._require(self.value.lower() not in _NO_VALUE, "shows no value")
            self._require(not self._is_right(self.value), "changes nothing")
        elif move.expects == "corrupted":
            rest = self._on_branch(s.fixes() + s.computation())
            self._require(rest.status is StepStatus.OK, "cannot be built on")
            self._require(not self._is_right(_last_line(rest)), "changes nothing")
            again = self._on_branch(s.fix(move.column) + s.fixes() + s.computation())
            self._require(not self._is_right(_last_line(again)), "can be mended without a reload")
        else:
            if move.expects == "right_value":
                self._require(self._is_right(self.value), "prints another value")
            self._require(self._is_right(_last_line(self._on_branch(s.fixes() + s.computation()))), "spoils the data")
        turn = self._turn(move.thought, self.dialect.code_tag, code)
        return Step(len(self.steps) + 1, turn, move.thought, code, observation=observation, status=result.status)

    def _answer(self, move: Move) -> Step:
        value = self.value
        self._require(self._is_right(value) is (move.expects != "wrong_answer"), "the last value is not as expected")
        if move.expects == "slipped_answer":
            value = slipped(value, self.rng)
            self._require(not self._is_right(value), "the slip changes nothing")
        text = idioms.ANSWER_TEXT.format(key=self.task.gold[0][0], answer=value)
        turn = self._turn(move.thought, self.dialect.answer_tag, text)
        return Step(len(self.steps) + 1, turn, move.thought, answer=text, status=StepStatus.ANSWER)

    def _turn(self, thought: str, tag: str, content: str) -> str:
        thinking = self.dialect.thought_tag
        return f"<{thinking}>{thought}</{thinking}><{tag}>{content}</{tag}>"

    def _on_branch(self, code: str) -> ExecutionResult:
        with self.session.branch() as twin:
            return twin.run(code)

    def _is_right(self, value: str) -> bool:
        text = idioms.ANSWER_TEXT.format(key=self.task.gold[0][0], answer=value)
        return grade(self.task.grader, text, self.task.gold).score == 1.0

    def _require(self, condition: bool, otherwise: str) -> None:
        if not condition:
            raise Discarded(f"step {len(self.steps) + 1} {otherwise}")


def slipped(value: str, rng: random.Random) -> str:
    """A number with two neighbouring digits in the wrong order. Unfit: no number, or no two that differ."""
    pairs = [
        at
        for at in range(len(value) - 1)
        if value[at].isdigit() and value[at + 1].isdigit() and value[at] != value[at + 1] and value[at + 1] != "0"
    ]
    if not pairs or not value.lstrip("-").replace(".", "", 1).isdigit():
        raise Unfit
    at = rng.choice(pairs)
    return value[:at] + value[at + 1] + value[at] + value[at + 2 :]


def _last_line(result: ExecutionResult) -> str:
    lines = result.stdout.split("\n") if result.status is StepStatus.OK else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
