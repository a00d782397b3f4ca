"""How verdicts agree with labels. Pure functions of arrays.

All numbers but the missing share are over steps with a score; each has its own n. Scores between the three values (a
discriminative model's) count as the nearest one, 0.25 as 0.5 and 0.75 as 1. A number that has nothing to be measured
on (no silent step in the set) is None, never 0.

The 95 % intervals are percentiles of a bootstrap over trajectories: steps of one trajectory are not independent. All
numbers are functions of counts, so a resample is a weighted sum of trajectories' counts, and all resamples are one
matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapm_rl.trajectory import Verdict
from datapm_rl.verifier.gate.labelled import LabelledTrajectory

RESAMPLES = 2000
Counts = NDArray[np.float64]
_LABELS = np.array([0.0, 0.5, 1.0])
_DISAGREEMENT = (_LABELS[:, None] - _LABELS[None, :]) ** 2  # quadratic weights


@dataclass(frozen=True)
class Measured:
    """A number with its 95 % interval, and on how many steps (or trajectories) it was measured. None: undefined."""

    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Scores:
    """`confusion[i][j]`: steps with label i and score j, both in the order 0, 0.5, 1. `metrics`: by name."""

    confusion: list[list[int]]
    metrics: dict[str, Measured]
    missing: dict[str, int]  # cause -> steps


# Columns of a trajectory's counts: nine of the confusion matrix, row by row, then these.
_SILENT, _SILENT_FOUND, _GROUNDING, _GROUNDING_ALARM, _STEPS, _MISSING = range(9, 15)
_WRONG, _WRONG_RIGHT, _CLEAN, _CLEAN_RIGHT = range(15, 19)  # for the first wrong step
_WIDTH = 19


def measure(trajectories: Sequence[LabelledTrajectory], verdicts: Sequence[Sequence[Verdict]], seed: int = 0) -> Scores:
    """All numbers of a verifier's verdicts, `verdicts[i][k]` for step k of trajectory i.

    agreement           share of steps whose score is the label
    kappa               Cohen's kappa with quadratic weights
    first_error_f1      on the first step that scores 0, as ProcessBench defines it: the harmonic mean of two
                        accuracies, over trajectories with an error (that step is found) and over those without (no
                        step scores 0). A trajectory is left out if a missing verdict hides which step comes first
    silent_recall       share of silent errors that score 0
    false_alarm_rate    share of grounding errors that score 0
    missing_share       share of steps without a score
    """
    counts = np.stack([_counts(item, given) for item, given in zip(trajectories, verdicts, strict=True)])
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=RESAMPLES)
    total, resampled = counts.sum(axis=0), weights @ counts
    sizes = {
        "agreement": total[:9].sum(),
        "kappa": total[:9].sum(),
        "first_error_f1": total[_WRONG] + total[_CLEAN],
        "silent_recall": total[_SILENT],
        "false_alarm_rate": total[_GROUNDING],
        "missing_share": total[_STEPS],
    }
    missing: dict[str, int] = {}
    for verdict in (verdict for given in verdicts for verdict in given):
        if verdict.cause is not None:
            missing[verdict.cause] = missing.get(verdict.cause, 0) + 1
    return Scores(
        confusion=total[:9].reshape(3, 3).astype(int).tolist(),
        metrics={name: _measured(METRICS[name], total, resampled, int(n)) for name, n in sizes.items()},
        missing=dict(sorted(missing.items())),
    )


def ternary(score: float) -> float:
    """The nearest of 0, 0.5 and 1."""
    return 0.0 if score < 0.25 else 0.5 if score < 0.75 else 1.0


def _counts(item: LabelledTrajectory, verdicts: Sequence[Verdict]) -> Counts:
    counts = np.zeros(_WIDTH)
    scores = [None if verdict.score is None else ternary(verdict.score) for verdict in verdicts]
    for label, kind, score in zip(item.labels, item.kinds, scores, strict=True):
        counts[_STEPS] += 1
        if score is None:
            counts[_MISSING] += 1
            continue
        counts[3 * round(2 * label) + round(2 * score)] += 1
        if kind == "silent":
            counts[[_SILENT, _SILENT_FOUND]] += (1, score == 0)
        elif kind == "grounding":
            counts[[_GROUNDING, _GROUNDING_ALARM]] += (1, score == 0)
    found = scores.index(0.0) if 0.0 in scores else None
    if None not in scores[:found]:  # else the first 0 may be hidden
        wrong = item.labels.index(0.0) if 0.0 in item.labels else None
        counts[[_CLEAN, _CLEAN_RIGHT] if wrong is None else [_WRONG, _WRONG_RIGHT]] += (1, found == wrong)
    return counts


def _measured(metric: Callable[[Counts], Counts], total: Counts, resampled: Counts, n: int) -> Measured:
    value = float(metric(total[None])[0])
    if np.isnan(value):
        return Measured(None, None, None, n)
    drawn = metric(resampled)
    low, high = np.percentile(drawn[~np.isnan(drawn)], (2.5, 97.5))  # resamples where it is undefined do not vote
    return Measured(value, float(low), float(high), n)


def _ratio(part: Counts, whole: Counts) -> Counts:
    """NaN where there is nothing to divide by."""
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


def _agreement(counts: Counts) -> Counts:
    return _ratio(counts[:, [0, 4, 8]].sum(axis=1), counts[:, :9].sum(axis=1))


def _kappa(counts: Counts) -> Counts:
    """1 - disagreement / disagreement of independent raters with the same margins; NaN if that is 0."""
    confusion = counts[:, :9].reshape(-1, 3, 3)
    n = confusion.sum(axis=(1, 2))
    observed = (confusion * _DISAGREEMENT).sum(axis=(1, 2)) * n
    expected = np.einsum("bi,ij,bj->b", confusion.sum(axis=2), _DISAGREEMENT, confusion.sum(axis=1))
    return 1 - _ratio(observed, expected)


def _first_error_f1(counts: Counts) -> Counts:
    wrong = _ratio(counts[:, _WRONG_RIGHT], counts[:, _WRONG])
    clean = _ratio(counts[:, _CLEAN_RIGHT], counts[:, _CLEAN])
    return np.where(wrong + clean == 0, 0.0, _ratio(2 * wrong * clean, wrong + clean))


METRICS: dict[str, Callable[[Counts], Counts]] = {
    "agreement": _agreement,
    "kappa": _kappa,
    "first_error_f1": _first_error_f1,
    "silent_recall": lambda counts: _ratio(counts[:, _SILENT_FOUND], counts[:, _SILENT]),
    "false_alarm_rate": lambda counts: _ratio(counts[:, _GROUNDING_ALARM], counts[:, _GROUNDING]),
    "missing_share": lambda counts: _ratio(counts[:, _MISSING], counts[:, _STEPS]),
}
"""Name -> from counts [resamples, columns] to values [resamples], NaN where undefined."""
