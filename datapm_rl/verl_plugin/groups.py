"""The missing-data rule for groups: what a settled group is worth, and what a step's groups add up to.

A group is the `rollout.n` members sampled for one prompt. Once all of them have settled it is one of three things:

* *failed*: fewer than two members have a reward, so there is nothing to compare;
* *without signal*: its members that vote do not differ, so each estimator gives 0 (`algorithm.has_no_signal`);
* worth training on, with all its members or with those that were ready.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datapm_rl.algorithm import has_no_signal
from datapm_rl.verl_plugin.output import vote

Extra = dict[str, Any]
"""`AgentLoopOutput.extra_fields` of one trajectory: "trajectory" and "reward_extra_info" (see `output.py`)."""

NO_ROW = "session_failed"
"""Cause of a member that left no row: its session raised in spite of all."""


@dataclass(frozen=True)
class Group:
    """A settled group, as its members' records tell. `task_id` is None if no member left a record."""

    task_id: str | None
    votes: list[float | None]
    """Rewards of the members; None for one that is missing or left out by choice."""
    outcomes: list[float] = field(default_factory=list)
    """Grades of the members that vote."""
    missing: Counter[str] = field(default_factory=Counter)
    """Members without a reward, by cause."""
    missing_verdicts: Counter[str] = field(default_factory=Counter)
    """Verdicts that are missing, by cause."""
    given_up: int = 0
    """Attempts at members that were sampled again."""

    @classmethod
    def of(cls, extras: list[Extra], size: int = 0, task_id: str | None = None) -> Group:
        """From the records there are; of `size` members, those without a record are missing."""
        infos = [extra["reward_extra_info"] for extra in extras]
        votes = [vote(info) for info in infos]
        lost = max(0, size - len(extras))
        missing = Counter(info["missing_cause"] for info in infos if info["missing_cause"] is not None)
        return cls(
            task_id=extras[0]["trajectory"]["task"]["id"] if extras else task_id,
            votes=votes + [None] * lost,
            outcomes=[info["acc"] for info, reward in zip(infos, votes, strict=True) if reward is not None],
            missing=missing + Counter({NO_ROW: lost}),
            missing_verdicts=missing_verdicts(extras),
            given_up=sum(len(info["given_up"]) for info in infos),
        )

    @property
    def failed(self) -> bool:
        """Whether fewer than two members have a reward."""
        return len(self.votes) - self.missing.total() < 2

    @property
    def silent(self) -> bool:
        """Whether rewards are there and teach nothing."""
        return not self.failed and has_no_signal(self.votes)


def missing_verdicts(extras: Iterable[Extra]) -> Counter[str]:
    """Causes of the verdicts that are missing."""
    causes = (verdict["cause"] for extra in extras for verdict in extra["trajectory"]["verdicts"])
    return Counter(cause for cause in causes if cause is not None)


@dataclass
class StepGroups:
    """What became of the groups that settled in one step."""

    used: list[Group] = field(default_factory=list)
    """Handed to the trainer."""
    failed: list[Group] = field(default_factory=list)
    """Evicted because they failed."""
    silent: list[Group] = field(default_factory=list)
    """Evicted because they have no signal."""
    kept_silent: int = 0
    """Groups without signal that dynamic sampling handed over, after too many evictions."""
    refilled: int = 0
    """Prompts dispatched in the place of evicted groups."""

    @property
    def all(self) -> list[Group]:
        return [*self.used, *self.failed, *self.silent]

    def missing_share(self) -> float:
        """Share of the members without a reward, those of evicted groups included."""
        members = sum(len(group.votes) for group in self.all)
        return self.missing().total() / max(members, 1)

    def missing(self) -> Counter[str]:
        """Members without a reward, by cause."""
        return sum((group.missing for group in self.all), Counter())

    def missing_verdicts(self) -> Counter[str]:
        """Missing verdicts by cause."""
        return sum((group.missing_verdicts for group in self.all), Counter())

    def metrics(self) -> dict[str, float]:
        """Rows `missing/*` and `group/*` of docs/metrics.md."""
        counts = {
            "group/failed": len(self.failed),
            "group/filtered": len(self.silent),
            "group/filtered_all_right": sum(_all(group.outcomes, 1.0) for group in self.silent),
            "group/filtered_all_wrong": sum(_all(group.outcomes, 0.0) for group in self.silent),
            "group/kept_silent": self.kept_silent,
            "group/refilled": self.refilled,
            "group/refilled_members": sum(group.given_up for group in self.all),
            **{f"missing/{cause}": count for cause, count in self.missing().items()},
        }
        return {"missing/share": self.missing_share(), **{name: float(count) for name, count in counts.items()}}


def _all(outcomes: list[float], value: float) -> bool:
    return bool(outcomes) and bool(np.all(np.isclose(outcomes, value)))
