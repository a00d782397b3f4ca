"""Eq. 8 and 10: a failed judge is missing and never a zero, and beta = 0 is the outcome bit for bit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.errors import UserError
from datapm_rl.reward import override_final_step, step_rewards, total_reward, trajectory_reward
from datapm_rl.trajectory import Outcome, Verdict

pytestmark = pytest.mark.unit
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")

scores = st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), max_size=12)
outcomes = st.floats(0, 1)
betas = st.floats(0, 1)


def verdicts(*given: float | None) -> list[Verdict]:
    return [Verdict(score, cause="deadline" if score is None else None) for score in given]


def outcome(score: float | None) -> Outcome:
    return Outcome(score, "dabench", cause="grader_down" if score is None else None)


def test_worked_example():
    reward = trajectory_reward(outcome(0.0), verdicts(1.0, 0.5, 1.0), beta=0.5)
    assert reward.step_scores == [1.0, 0.5, 0.0]  # eq. 10
    assert (reward.process, reward.total, reward.overridden) == (0.5, 0.25, True)


@given(outcomes, scores)
def test_beta_zero_is_the_outcome_bit_for_bit(score, given_scores):
    reward = trajectory_reward(outcome(score), verdicts(*given_scores), beta=0.0)
    assert reward.total == score
    assert math.copysign(1, reward.total) == math.copysign(1, score)
    terms = step_rewards(reward, n_steps=max(1, len(given_scores)), beta=0.0)
    assert terms == [0.0] * (len(terms) - 1) + [score]


def test_missing_score_leaves_the_mean():
    with_missing = trajectory_reward(outcome(1.0), verdicts(0.0, None, 1.0), beta=1.0)
    assert with_missing.total == trajectory_reward(outcome(1.0), verdicts(0.0, 1.0), beta=1.0).total == 0.5
    assert with_missing.n_missing == 1


def test_missing_final_verdict_is_replaced_by_the_outcome():
    reward = trajectory_reward(outcome(1.0), verdicts(0.5, None), beta=1.0)
    assert (reward.total, reward.step_scores) == (0.75, [0.5, 1.0])


@pytest.mark.parametrize("given_scores", [[], [None, None], [None, None, 1.0]])
def test_reward_without_any_verdict_is_missing_not_the_outcome(given_scores):
    reward = trajectory_reward(outcome(1.0), verdicts(*given_scores), beta=0.5)
    assert (reward.total, reward.cause) == (None, "no_verdicts")


@pytest.mark.parametrize("score", [None, 0.0, 1.0])
def test_single_step_needs_no_verifier(score):
    assert trajectory_reward(outcome(1.0), verdicts(score), beta=0.5).total == 1.0


@given(scores, betas)
def test_missing_outcome_is_a_missing_reward_with_its_cause(given_scores, beta):
    reward = trajectory_reward(outcome(None), verdicts(*given_scores), beta)
    assert (reward.total, reward.cause, reward.overridden) == (None, "grader_down", None)
    with pytest.raises(ValueError, match="grader_down"):
        step_rewards(reward, len(given_scores), beta)


@given(outcomes, scores, betas)
def test_total_is_missing_exactly_when_there_is_a_cause(score, given_scores, beta):
    reward = trajectory_reward(outcome(score), verdicts(*given_scores), beta)
    assert (reward.total is None) == (reward.cause is not None)
    if reward.total is not None:
        assert -1e-12 <= reward.total <= 1 + 1e-12


@given(outcomes, scores.filter(bool), betas)
def test_step_terms_sum_to_the_total(score, given_scores, beta):
    reward = trajectory_reward(outcome(score), verdicts(*given_scores), beta)
    if reward.total is None:
        return
    terms = step_rewards(reward, len(given_scores), beta)
    assert len(terms) == len(given_scores)
    assert math.fsum(terms) == pytest.approx(reward.total, abs=1e-12)
    assert all(term == 0.0 for term, s in zip(terms[:-1], given_scores[:-1], strict=True) if not s)


def test_step_terms_refuse_another_number_of_steps():
    with pytest.raises(ValueError, match="2 step scores for 3 steps"):
        step_rewards(trajectory_reward(outcome(1.0), verdicts(1.0, 1.0), 0.5), 3, 0.5)


SKIPPED = Verdict(None, skipped=True)


@given(outcomes | st.none(), scores, st.floats(0, 1) | st.none(), betas)
def test_no_reward_depends_on_the_final_verdict_so_a_skipped_one_changes_no_bit(score, before, last, beta):
    judged = trajectory_reward(outcome(score), verdicts(*before, last), beta)
    skipped = trajectory_reward(outcome(score), [*verdicts(*before), SKIPPED], beta)
    assert (skipped.total, skipped.cause, skipped.outcome) == (judged.total, judged.cause, judged.outcome)
    if score is not None:
        assert (skipped.process, skipped.step_scores) == (judged.process, judged.step_scores)
    if judged.total is not None:
        n = len(before) + 1
        assert step_rewards(skipped, n, beta) == step_rewards(judged, n, beta)


def test_skipped_verdict_is_neither_missing_nor_a_disagreement():
    reward = trajectory_reward(outcome(1.0), [*verdicts(0.5, None), SKIPPED], 0.5)
    assert (reward.n_missing, reward.overridden) == (1, None)
    assert trajectory_reward(outcome(1.0), verdicts(0.5, 1.0), 0.5).overridden is False


@pytest.mark.parametrize("states", [{}, {"score": 1.0, "skipped": True}, {"cause": "x", "skipped": True}])
def test_verdict_has_exactly_one_state(states):
    with pytest.raises(ValueError, match="or is skipped"):
        Verdict(**{"score": None, **states})


def test_override_touches_the_last_score_only():
    given_scores = [0.5, None, 1.0]
    assert override_final_step(given_scores, 0.0) == [0.5, None, 0.0]
    assert given_scores == [0.5, None, 1.0]
    assert override_final_step([], 1.0) == []


@pytest.mark.parametrize("beta", [-0.1, 1.1, float("nan")])
def test_beta_outside_the_unit_interval_is_refused(beta):
    with pytest.raises(UserError, match=r"outside \[0, 1\]"):
        trajectory_reward(outcome(1.0), verdicts(1.0), beta)
    with pytest.raises(UserError, match=r"outside \[0, 1\]"):
        total_reward(1.0, [1.0], beta)
