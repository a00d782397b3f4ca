"""What the terminal shows of a Best-of-N: one line for each aggregation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from datapm_rl.verifier.aggregate import RULES
from datapm_rl.verifier.release.best_of_n import Choice, Results, best_of_n, by_task
from datapm_rl.verifier.release.gold import Gold, is_right


def accuracy(choices: Sequence[Choice], gold: Gold) -> float | None:
    """Share of right answers among the choices whose task has gold; None if none has."""
    return _mean([is_right(each.task_id, each.answer, gold) for each in choices if str(each.task_id) in gold])


def table(results: Results, gold: Gold | None = None) -> str:
    """For each aggregation: what was chosen, what has no score, and with gold how often the choice is right.

    With gold, two lines to compare with: a candidate drawn at random, and a task right if any of its candidates is.
    """
    lines = [["aggregation", "tasks", "unscored", "unscored candidates", "mean score", "accuracy"]]
    for rule in RULES:
        choices = best_of_n(results, rule)
        scores = [choice.score for choice in choices if choice.score is not None]
        unscored = sum(choice.unscored for choice in choices)
        counts = (len(choices), len(choices) - len(scores), f"{unscored}/{sum(each.candidates for each in choices)}")
        lines.append([rule, *map(str, counts), _shown(_mean(scores)), _shown(accuracy(choices, gold or {}))])
    if gold:
        right = [
            [is_right(row["task_id"], row["answer"], gold) for _, row in candidates]
            for task_id, candidates in by_task(results).items()
            if task_id in gold
        ]
        random = _mean([math.fsum(each) / len(each) for each in right])
        lines.append(["(random)", str(len(right)), "", "", "", _shown(random)])
        lines.append(["(any right)", str(len(right)), "", "", "", _shown(_mean([max(each) for each in right]))])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def by_number(results: Results, rule: str, gold: Gold) -> str:
    """How the accuracy grows with the number of candidates: for N of 1, 2, 4, ... and all files."""
    powers = [1 << at for at in range(len(results).bit_length()) if 1 << at < len(results)]
    shown = [f"N={n} {_shown(accuracy(best_of_n(results, rule, n), gold))}" for n in [*powers, len(results)]]
    return f"accuracy by {rule} of the first N candidates: {', '.join(shown)}"


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
