"""Grading rules by name. The name of the rule stands beside every score that it gave."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from datapm_rl.benchmarks.graders import dabench
from datapm_rl.errors import UserError

Gold = Sequence[tuple[str, str]]

RULES: dict[str, Callable[[str, Gold], dict[str, bool]]] = {"dabench": dabench.right_parts}
"""Rule -> function from (prediction, gold) to which of the gold's names are right."""


@dataclass(frozen=True)
class Grade:
    """A score in [0, 1] by a named rule; `parts` says which of the gold's names are right."""

    score: float
    rule: str
    parts: dict[str, bool]


def grade(rule: str, prediction: str | None, gold: Gold, *, partial: bool = False) -> Grade:
    """Grade a final answer against [(name, value), ...]. No answer is the agent's fault: 0.

    The score is 1 if every part is right, else 0; with `partial` it is the share of right parts. UserError: unknown
    rule, or nothing to compare with.

    >>> grade("dabench", "It is @mean[2.50]", [("mean", "2.5")]).score
    1.0
    """
    parts = _rule(rule)(prediction or "", gold)
    if not parts:
        raise UserError("a task without gold cannot be graded: give it gold, as [[name, value], ...]")
    share = sum(parts.values()) / len(parts)
    return Grade(share if partial else float(share == 1.0), rule, parts)


def check_rule(rule: str) -> None:
    """UserError, naming the nearest one, unless there is a rule of that name."""
    _rule(rule)


def _rule(rule: str) -> Callable[[str, Gold], dict[str, bool]]:
    if rule not in RULES:
        near = difflib.get_close_matches(str(rule), RULES, n=1, cutoff=0.0)[0]
        raise UserError(f"unknown grader {rule!r}: the nearest is {near!r}")
    return RULES[rule]
