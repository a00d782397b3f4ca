"""Best of N: of a task's candidates, the one whose steps have the highest aggregated score.

A candidate's score is the aggregate of its steps' scores; with several passes over it, the mean of theirs. A candidate
without any scored step is not zero: it loses to every one that has a score. Of equals the first one wins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datapm_rl.tracking.jsonl import Row
from datapm_rl.verifier.aggregate import aggregate
from datapm_rl.verifier.release.results import step_scores

Results = Mapping[int, Sequence[Row]]
"""File number -> rows of that result file."""


@dataclass(frozen=True)
class Choice:
    """What was chosen for a task: the candidate of file `candidate`. `score` is None if no candidate has one.

    `unscored`: candidates of the task without any scored step, out of `candidates`.
    """

    task_id: str | int
    answer: Any
    candidate: int
    score: float | None
    candidates: int
    unscored: int


def best_of_n(results: Results, rule: str = "mean", n: int | None = None) -> list[Choice]:
    """The best of the first `n` files' candidates (default: of all) for each task. UserError: an unknown rule."""
    return [_choice(candidates, rule) for candidates in by_task(results, n).values()]


def by_task(results: Results, n: int | None = None) -> dict[str, list[tuple[int, Row]]]:
    """Task id -> its candidates in the first `n` files, each with the number of its file."""
    tasks: dict[str, list[tuple[int, Row]]] = {}
    for number in sorted(results)[:n]:
        for row in results[number]:
            tasks.setdefault(str(row["task_id"]), []).append((number, row))
    return tasks


def candidate_score(row: Row, rule: str = "mean") -> float | None:
    """The score of a row's candidate; None if no step of it has one."""
    scores = [score for steps in step_scores(row) if (score := aggregate(steps, rule)) is not None]
    return math.fsum(scores) / len(scores) if scores else None


def choice_line(choice: Choice) -> str:
    """A choice as a line of `best_of_N.jsonl`."""
    row = {"task_id": choice.task_id, "answer": choice.answer, "candidate": choice.candidate, "score": choice.score}
    return json.dumps(row, ensure_ascii=False) + "\n"


def _choice(candidates: list[tuple[int, Row]], rule: str) -> Choice:
    scores = [candidate_score(row, rule) for _, row in candidates]
    ranks = [-math.inf if score is None else score for score in scores]
    best = ranks.index(max(ranks))  # the first of equals
    number, row = candidates[best]
    return Choice(row["task_id"], row["answer"], number, scores[best], len(scores), scores.count(None))
