"""What the generator knows of a task while it writes a trajectory, and what a move is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from datapm_rl.policy import idioms
from datapm_rl.trajectory import Task


class Unfit(Exception):
    """The task has no place for the move."""


@dataclass
class Situation:
    """A task of the builtin benchmark, as its meta tells it, and how far the trajectory has come."""

    task: Task
    rng: random.Random
    loaded: bool = False
    cleaned: set[str] = field(default_factory=set)  # columns that the agent takes for clean

    def __post_init__(self) -> None:
        meta = self.task.meta
        self.columns = [column for column in (meta["category"], meta["number"]) if column]
        self.headers = dict(zip(self.columns, meta["columns"], strict=True))
        self.dirt = dict(zip(self.columns, meta["dirt"], strict=True))

    @property
    def load(self) -> str:
        """The statements that read the file."""
        return idioms.LOAD.format(file=Path(self.task.files[0]).name)

    def fixes(self, but: str = "") -> str:
        """The right statements for what the agent takes for dirty, without one column's."""
        todo = [column for column in self.columns if column not in self.cleaned and column != but]
        return "".join(self.fix(column) for column in todo)

    def fix(self, column: str) -> str:
        """The right statement for a column; "" if it is clean."""
        return self.fill(idioms.FIXES.get(self.dirt[column], ""), column)

    def fill(self, template: str, column: str) -> str:
        """A statement about a column."""
        return template.format(column=self.headers[column])

    def computation(self, template: str = "", headers: dict[str, str] | None = None) -> str:
        """A program over the headers, or over others; the right one unless a template is given."""
        meta, headers = self.task.meta, headers or self.headers
        return (template or idioms.COMPUTATIONS[meta["family"]]).format(
            number=headers.get(meta["number"], ""),
            category=headers.get(meta["category"], ""),
            value=meta["value"],
            operation=meta["operation"],
            wrong_operation=idioms.WRONG_OPERATION.get(meta["operation"], ""),
        )

    def pick(self, options: Sequence[str]) -> str:
        """One of them. Unfit: there is none."""
        if not options:
            raise Unfit
        return self.rng.choice(options)


@dataclass(frozen=True)
class Move:
    """A step to be. `expects` names what must come out (`attempt`), `shows` a text that must be in its output.

    `code` None: the step gives the answer. `cleans`: afterwards the agent takes every column for clean. `column`: the
    one that a corruption is about.
    """

    kind: str
    thought: str
    code: str | None
    expects: str
    shows: str = ""
    cleans: bool = False
    column: str = ""
