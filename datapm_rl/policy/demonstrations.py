"""An imperfect demonstrator for the builtin benchmark.

It knows each file's true headers and dirt (the task's meta) and errs in known ways: it guesses headers instead of
listing them, computes without a look at the values, cleans wrongly, slips in the operation, gives up on an error.
SFT on its attempts gives a policy that speaks the form and can do every right thing, but often does not: that gap is
what RL closes. Silent errors change the answer; grounding errors raise and can be mended in the next turn.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from datapm_rl.benchmarks.builtin.variants import HEADER_STYLES, header
from datapm_rl.benchmarks.grading import grade
from datapm_rl.dialects import Dialect
from datapm_rl.errors import UserError
from datapm_rl.policy import idioms
from datapm_rl.policy.rendering import Message
from datapm_rl.policy.trusted import TrustedSession
from datapm_rl.trajectory import StepStatus, Task

MAX_TURNS = 6
MAX_ERRORS = 2  # errors after which the demonstrator gives up
OBSERVATION_CHARS = 200  # as in the quickstart recipe


@dataclass(frozen=True)
class Noise:
    """Probabilities of the demonstrator's errors. `Noise(careful=1)` is the expert: always right.

    `careful` is the share of attempts without errors. Without them the right turns are too rare to be learnt well,
    and RL finds them spoilt by slips of copying whenever it tries them.
    """

    careful: float = 0.3
    skip_schema: float = 0.8  # guesses headers instead of listing the columns
    skip_inspect: float = 0.9  # computes without a look at the values
    wrong_clean: float = 0.8  # per dirty column: a statement that runs and leaves wrong data
    wrong_operation: float = 0.1  # computes something else
    no_recover: float = 0.7  # on an error: guesses again, or gives up


@dataclass(frozen=True)
class Demonstration:
    """One attempt: a conversation [system, user, assistant, user, ..., assistant] and whether its answer is right."""

    task: Task
    messages: list[Message]
    right: bool


def demonstrate(
    tasks: Sequence[Task], count: int, noise: Noise, dialect: Dialect, rng: random.Random
) -> list[Demonstration]:
    """`count` finished attempts, tasks in random order (again and again if there are fewer tasks than `count`)."""
    found: list[Demonstration] = []
    while len(found) < count:
        order = list(tasks)
        rng.shuffle(order)
        attempts = (_Attempt(task, noise, dialect, rng).run() for task in order)
        finished = (attempt for attempt in attempts if attempt is not None)
        found += itertools.islice(finished, count - len(found))
    return found


def answer_turn(task: Task, value: str) -> str:
    """The last turn, with a value."""
    answer = idioms.ANSWER_TEXT.format(key=task.gold[0][0], answer=value)
    return f"<Analyze>{idioms.ANSWER}</Analyze><Answer>{answer}</Answer>"


class _OutOfTurns(Exception):
    """The attempt needs more turns than an agent has."""


@dataclass
class _Attempt:
    task: Task
    noise: Noise
    dialect: Dialect
    rng: random.Random
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        meta = self.task.meta
        if missing := [key for key in ("family", "columns", "dirt") if key not in meta]:
            raise UserError(
                f"Task {self.task.id} has no meta.{missing[0]}: the small policy is built from tasks of the builtin "
                "benchmark; for other tasks give a Hugging Face folder as the model."
            )
        self.columns = [column for column in (meta["category"], meta["number"]) if column]
        self.true_headers = dict(zip(self.columns, meta["columns"], strict=True))
        self.dirt = dict(zip(self.columns, meta["dirt"], strict=True))
        self.headers = dict(self.true_headers)  # as the demonstrator believes them
        self.session = TrustedSession(self.task)
        self.careful = self.rng.random() < self.noise.careful
        self.loaded = False
        self.failed = False  # the last program raised

    def run(self) -> Demonstration | None:
        """The whole attempt; None if it does not end within the turns."""
        system, user = self.dialect.system_prompt, self.dialect.user_message(self.task)
        self.messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        try:
            value = self._solve()
            self._say(answer_turn(self.task, value))
        except _OutOfTurns:
            return None
        return Demonstration(self.task, self.messages, self._is_right(value))

    def _solve(self) -> str:
        """Turns up to the answer; the value to answer."""
        if self._errs("skip_schema"):
            self._guess_headers(("snake", "snake", "title"))
        else:
            self._execute(idioms.LIST_COLUMNS, idioms.SHOW_COLUMNS)
        look, fixes = not self._errs("skip_inspect"), ""
        for _ in range(MAX_ERRORS + 1):
            observation = ""
            if look:
                observation = self._execute(idioms.CHECK_VALUES, self._look())
                if not self.failed:
                    look, fixes = False, self._fixes()
            if not look:
                thought = idioms.CLEAN_AND_COMPUTE if fixes else idioms.COMPUTE
                observation = self._execute(thought, fixes + self._computation())
            if not self.failed:
                return observation
            if "KeyError" in observation:
                if self._errs("no_recover"):
                    self._guess_headers(HEADER_STYLES)
                else:
                    self._execute(idioms.WRONG_NAME, idioms.SHOW_COLUMNS)
                    self.headers = dict(self.true_headers)
            elif self._errs("no_recover"):
                break
            else:
                look, self.loaded = True, False  # again from the file, with a look at the values
        return "0"

    def _is_right(self, value: str) -> bool:
        answer = idioms.ANSWER_TEXT.format(key=self.task.gold[0][0], answer=value)
        return grade(self.task.grader, answer, self.task.gold).score == 1.0

    def _execute(self, thought: str, code: str) -> str:
        """One turn with code; the observation as the policy will see it."""
        if not self.loaded:
            code = idioms.LOAD.format(file=Path(self.task.files[0]).name) + code
            self.loaded = True
        self._say(f"<Analyze>{thought}</Analyze><Code>{code}</Code>")
        result = self.session.run(code)
        self.failed = result.status is not StepStatus.OK
        observation = self.dialect.observation_body(result, OBSERVATION_CHARS)
        self.messages.append({"role": "user", "content": self.dialect.wrap_observation(observation)})
        return observation

    def _say(self, text: str) -> None:
        if sum(message["role"] == "assistant" for message in self.messages) == MAX_TURNS:
            raise _OutOfTurns
        self.messages.append({"role": "assistant", "content": text})

    def _errs(self, kind: str) -> bool:
        return self.rng.random() < getattr(self.noise, kind) and not self.careful

    def _guess_headers(self, styles: Sequence[str]) -> None:
        style = self.rng.choice(styles)
        self.headers = {column: header(column, style) for column in self.columns}

    def _look(self) -> str:
        def statements() -> Iterator[str]:
            for column in self.columns:
                words = column == self.task.meta["category"]
                template = idioms.SHOW_WORDS if words else idioms.SHOW_SMALLEST
                yield template.format(column=self.headers[column])

        return "".join(statements())

    def _fixes(self) -> str:
        """A statement per dirty column, right or wrong."""
        chosen = []
        for column in self.columns:
            group = idioms.WRONG_FIXES if self._errs("wrong_clean") else idioms.FIXES
            chosen.append(group.get(self.dirt[column], "").format(column=self.headers[column]))
        return "".join(chosen)

    def _computation(self) -> str:
        meta = self.task.meta
        family, operation = meta["family"], meta["operation"]
        template = idioms.COMPUTATIONS[family]
        if self._errs("wrong_operation"):
            template = idioms.WRONG_COMPUTATIONS.get(family, template)
            operation = idioms.WRONG_OPERATION.get(operation, "")
        return template.format(
            number=self.headers.get(meta["number"], ""),
            category=self.headers.get(meta["category"], ""),
            value=meta["value"],
            operation=operation,
        )
