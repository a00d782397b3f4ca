"""The gate's numbers against their definitions, hand-made cases and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, confusion_matrix

from datapm_rl.trajectory import Step, Task, Verdict
from datapm_rl.verifier.gate.labelled import LabelledTrajectory
from datapm_rl.verifier.gate.metrics import measure

pytestmark = pytest.mark.unit

TASK = Task("t", "?", "", "/", ("t.csv",), gold=())
KIND = {1.0: "right", 0.5: "grounding", 0.0: "silent"}


def case(labels, scores, kinds=None):
    """A labelled trajectory and its verdicts; None is a missing one."""
    steps = tuple(Step(at + 1, "") for at in range(len(labels)))
    item = LabelledTrajectory(TASK, steps, tuple(labels), tuple(kinds or [KIND[label] for label in labels]))
    return item, [Verdict(score, cause=None if score is not None else "deadline") for score in scores]


def measured(*cases):
    items, verdicts = zip(*cases, strict=True)
    return measure(items, verdicts)


def value(scores, name):
    return scores.metrics[name].value


def test_confusion_agreement_and_kappa_are_scikit_learns():
    rng = np.random.default_rng(1)
    cases = [case(rng.choice([0, 0.5, 1.0], 5), rng.choice([0, 0.5, 1.0], 5, p=[0.2, 0.2, 0.6])) for _ in range(40)]
    scores = measured(*cases)
    labels = [round(2 * label) for item, _ in cases for label in item.labels]
    given = [round(2 * verdict.score) for _, verdicts in cases for verdict in verdicts]
    assert scores.confusion == confusion_matrix(labels, given, labels=[0, 1, 2]).tolist()
    assert value(scores, "kappa") == pytest.approx(cohen_kappa_score(labels, given, weights="quadratic"))
    assert value(scores, "agreement") == pytest.approx(np.mean(np.equal(labels, given)))
    assert scores.metrics["kappa"].n == 200


def test_a_perfect_verifier_has_one_everywhere_and_an_interval_without_width():
    scores = measured(case([1, 0.5, 1, 0], [1, 0.5, 1, 0]), case([1, 1], [1, 1]))
    for name, wanted in {"agreement": 1, "kappa": 1, "first_error_f1": 1, "silent_recall": 1}.items():
        metric = scores.metrics[name]
        assert (metric.value, metric.low, metric.high) == (wanted, wanted, wanted), name
    assert value(scores, "false_alarm_rate") == 0


def test_a_constant_verifier_has_kappa_zero_and_finds_nothing():
    scores = measured(case([1, 0.5, 0], [1, 1, 1]), case([1, 1], [1, 1]))
    assert value(scores, "kappa") == 0
    assert value(scores, "silent_recall") == 0
    assert value(scores, "first_error_f1") == 0  # all of the clean ones, none of the others
    assert value(scores, "agreement") == 0.6


def test_what_cannot_be_measured_is_null_and_not_zero():
    scores = measured(case([1, 1], [1, 0]))
    for name in ("silent_recall", "false_alarm_rate", "first_error_f1"):
        metric = scores.metrics[name]
        assert (metric.value, metric.low, metric.high) == (None, None, None)
    assert scores.metrics["silent_recall"].n == 0
    assert value(measured(case([1, 1], [1, 1])), "kappa") is None  # 0 / 0


def test_a_missing_verdict_is_no_score_and_is_counted():
    scores = measured(case([1, 0, 0.5], [None, None, 0.5]), case([0, 0.5], [0, None]))
    assert scores.missing == {"deadline": 3}
    assert value(scores, "missing_share") == pytest.approx(0.6)
    assert (value(scores, "silent_recall"), scores.metrics["silent_recall"].n) == (1.0, 1)
    assert (value(scores, "agreement"), scores.metrics["agreement"].n) == (1.0, 2)


def test_all_missing_gives_null_and_not_zero():
    scores = measured(case([1, 0], [None, None]))
    assert [value(scores, name) for name in ("agreement", "kappa", "first_error_f1", "silent_recall")] == [None] * 4
    assert value(scores, "missing_share") == 1


def test_first_error_f1_is_the_harmonic_mean_over_wrong_and_clean_trajectories():
    scores = measured(
        case([1, 0, 0], [1, 0, 1]),  # found
        case([1, 0, 0], [0, 0, 0]),  # too early
        case([1, 1], [1, 0.5]),  # clean, and said so
        case([0.5, 1], [0.5, 1]),
    )
    assert value(scores, "first_error_f1") == pytest.approx(2 * 0.5 * 1 / 1.5)


@pytest.mark.parametrize(("scores", "n"), [([None, 0, 1], 0), ([1, 0, None], 1), ([1, 1, None], 0)])
def test_a_missing_verdict_before_the_first_zero_leaves_the_trajectory_out(scores, n):
    assert measured(case([1, 0, 0], scores)).metrics["first_error_f1"].n == n


def test_scores_between_count_as_the_nearest_one():
    scores = measured(case([0, 0.5, 0.5, 1], [0.2, 0.25, 0.74, 0.75]))
    assert value(scores, "agreement") == 1


def test_the_interval_is_over_trajectories_and_the_same_for_the_same_seed():
    alike = [case([1] * 50, [1] * 50), case([1] * 50, [0] * 50)] * 10  # 20 independent facts, not 1000
    metric = measured(*alike).metrics["agreement"]
    assert metric.low < 0.35
    assert metric.high > 0.65
    assert measured(*alike).metrics["agreement"] == metric
