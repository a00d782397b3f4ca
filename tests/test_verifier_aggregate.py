"""Aggregates of step scores: what is missing is left out, and never a number."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapm_rl.errors import UserError
from datapm_rl.verifier.aggregate import RULES, aggregate

pytestmark = pytest.mark.unit

SCORES = st.lists(st.none() | st.floats(0.0, 1.0), max_size=12)


@pytest.mark.parametrize(
    ("rule", "expected"), [("mean", 0.5), ("sum", 1.5), ("min", 0.0), ("last", 0.5), ("product", 0.0)]
)
def test_each_rule_gives_its_value(rule, expected):
    assert aggregate([1.0, 0.0, 0.5], rule) == expected


def test_nothing_scored_is_missing_and_not_zero():
    for rule in RULES:
        assert aggregate([], rule) is None
        assert aggregate([None, None], rule) is None


@given(SCORES, st.sampled_from(sorted(RULES)), st.integers(0, 12))
def test_missing_scores_change_nothing(scores, rule, place):
    there = [score for score in scores if score is not None]
    assert aggregate(scores, rule) == aggregate(there, rule)
    assert aggregate([*scores[:place], None, *scores[place:]], rule) == aggregate(scores, rule)


@given(SCORES, st.sampled_from(["mean", "sum", "min"]), st.randoms(use_true_random=False))
def test_order_matters_only_to_last(scores, rule, rng: random.Random):
    shuffled = list(scores)
    rng.shuffle(shuffled)
    assert aggregate(shuffled, rule) == aggregate(scores, rule)
    assert aggregate(shuffled, "product") == pytest.approx(aggregate(scores, "product"))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
def test_aggregates_stay_within_their_bounds(scores):
    low, high = min(scores), max(scores)
    assert aggregate(scores, "min") == low
    assert low - 1e-9 <= aggregate(scores, "mean") <= high + 1e-9
    assert 0.0 <= aggregate(scores, "mean") <= 1.0
    assert low <= aggregate(scores, "last") <= high
    assert 0.0 <= aggregate(scores, "product") <= low
    assert high <= aggregate(scores, "sum") <= len(scores)


def test_unknown_rule_names_the_nearest():
    with pytest.raises(UserError, match="nearest is 'mean'"):
        aggregate([1.0], "meen")
