"""Intervals for shares measured on finitely many tasks."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054


def wilson(share: float, n: float) -> tuple[float, float]:
    """95 % Wilson score interval of an accuracy `share` in [0, 1] over `n` tasks; (0, 1) for n = 0.

    Written out because statsmodels, which the test compares with, takes a second to import. Unlike share +- 2 sigma it
    stays in [0, 1] and is not empty at 0 % and 100 %.

    >>> [round(bound, 3) for bound in wilson(0.35, 200)]
    [0.287, 0.418]
    """
    if n <= 0:
        return 0.0, 1.0
    centre = (share + Z_95**2 / (2 * n)) / (1 + Z_95**2 / n)
    half = Z_95 / (1 + Z_95**2 / n) * math.sqrt(share * (1 - share) / n + Z_95**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)
