"""Right answers, for the accuracy of what was chosen. The verifier never sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datapm_rl.benchmarks import grade
from datapm_rl.benchmarks.graders import dabench
from datapm_rl.benchmarks.grading import check_rule
from datapm_rl.errors import UserError

Gold = Mapping[str, tuple[str, tuple[tuple[str, str], ...]]]
"""Task id -> (name of the grader, [(name, value), ...])."""


def read_gold(path: Path) -> Gold:
    """JSON lines {"task_id", "answer", "grader"}; without a grader it is `dabstep`'s, as for DABStep's own tasks.

    An answer of `@name[value]` pairs gives these pairs, any other one the pair `answer`. UserError: not of this form.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"gold file {path} cannot be read ({error}): check --gold") from None
    gold: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            task_id, rule, answer = _row(line, f"{path}, line {number}")
            gold[task_id] = (rule, tuple(dabench.values(answer).items()) or (("answer", answer),))
    return gold


def is_right(task_id: str | int, answer: Any, gold: Gold) -> float:
    """1 if the answer to this task, which has gold, is right, else 0."""
    rule, pairs = gold[str(task_id)]
    return grade(rule, None if answer is None else str(answer), pairs).score


def _row(line: str, where: str) -> tuple[str, str, str]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where} is not JSON ({error}): write one object per line") from None
    answer = row.get("answer") if isinstance(row, dict) and "task_id" in row else None
    if answer is None or not str(answer).strip():
        raise UserError(f"{where} has no task_id or no answer: tasks without a right answer do not belong here")
    rule = str(row.get("grader", "dabstep"))
    try:
        check_rule(rule)
    except UserError as error:
        raise UserError(f"{where}: {error}; name a grader of this project as 'grader'") from None
    return str(row["task_id"]), rule, str(answer)
