"""One score for a trajectory from the scores of its steps, to rank candidates by (DataPRM, eq. 2).

A missing score is left out, whatever the rule: it is neither a zero nor the release's -1. A trajectory with no score
at all has no aggregate.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence

from datapm_rl.errors import UserError


def _mean(scores: list[float]) -> float:
    return math.fsum(scores) / len(scores)


def _last(scores: list[float]) -> float:
    return scores[-1]


RULES: dict[str, Callable[[list[float]], float]] = {
    "mean": _mean,
    "sum": math.fsum,
    "min": min,
    "last": _last,
    "product": math.prod,
}
"""Rule -> function of the scores that are there. `mean` and `sum` are eq. 2's, `mean` is also the reward's (eq. 8),
`product` is usual for discriminative PRMs, `last` for GenPRM. `sum` and `product` depend on the number of steps."""


def aggregate(scores: Sequence[float | None], rule: str = "mean") -> float | None:
    """The aggregate of step scores in [0, 1], in their order; None if all are missing. UserError: an unknown rule.

    >>> aggregate([1.0, None, 0.5])
    0.75
    """
    if rule not in RULES:
        near = difflib.get_close_matches(str(rule), RULES, n=1, cutoff=0.0)[0]
        raise UserError(f"unknown aggregation {rule!r}: the nearest is {near!r}, and there are {', '.join(RULES)}")
    there = [score for score in scores if score is not None]
    return RULES[rule](there) if there else None
