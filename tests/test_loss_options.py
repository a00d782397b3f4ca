"""The switches of docs/training.md do what they say in verl's own loss: clips, dual clip, KL, rollout correction."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("verl")

from loss_parts import Row, actor_config, verl_loss
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

pytestmark = pytest.mark.unit
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")

log_probs = st.lists(st.floats(-10, 0, width=32), min_size=1, max_size=8)


def one_token(ratio: float, advantage: float, **settings):
    """Loss and gradient of one token whose probability is `ratio` times the old one."""
    result = verl_loss([Row([1], [-2.0 + math.log(ratio)], [-2.0], [advantage])], actor_config(**settings))
    return result.loss, result.gradient[0][0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.27, 1.0, True),  # clip-higher: 1.2 would have stopped here
        (1.29, 1.0, False),
        (0.81, -1.0, True),
        (0.79, -1.0, False),
        (0.5, 1.0, True),  # the clip never keeps a good token down
        (2.9, -1.0, True),
        (3.1, -1.0, False),  # dual clip
    ],
)
def test_clip_bounds_are_the_papers(ratio, advantage, moves):
    assert (one_token(ratio, advantage)[1] != 0) is moves


@given(st.floats(-15, 15), st.floats(-5, -0.01))
@settings(max_examples=50)
def test_dual_clip_bounds_the_loss_of_a_bad_token(log_ratio, advantage):
    loss, gradient = one_token(math.exp(log_ratio), advantage)
    assert 0 < loss <= 3.0 * -advantage * (1 + 1e-5)
    assert abs(gradient) <= 3.0 * -advantage * (1 + 1e-5)


def test_kl_is_off_by_default_and_on_with_its_coefficient():
    row = Row([1, 1], [-1.0, -2.0], [-1.0, -2.0], [1.0, -1.0], ref=[-3.0, -0.5])
    off, on = verl_loss([row]), verl_loss([row], actor_config(use_kl_loss=True, kl_loss_coef=0.25))
    low_var = [math.exp(d) - d - 1 for d in (-2.0, 1.5)]
    assert "kl_loss" not in off.metrics
    assert on.metrics["kl_loss"] == pytest.approx(sum(low_var) / 2)
    assert on.loss == pytest.approx(off.loss + 0.25 * sum(low_var) / 2)


def test_entropy_bonus_lowers_the_loss_and_nothing_else_by_default():
    row = Row([1, 1], [-1.0, -2.0], [-1.0, -2.0], [1.0, -1.0])
    off, on = verl_loss([row]), verl_loss([row], actor_config(entropy_coeff=0.5))
    assert on.loss == pytest.approx(off.loss - 0.5 * off.metrics["actor/entropy_loss"])


def weights(old: list[float], rollout: list[float], mask: list[int]):
    """verl's truncated weights with the settings of `configs/train.yaml`, and its metrics."""
    columns = [torch.tensor([column]) for column in (old, rollout, mask)]
    proto, kept, metrics = compute_rollout_correction_and_rejection_mask(
        *columns, rollout_is="token", rollout_is_threshold=2.0
    )
    assert torch.equal(kept, columns[2]), "weights reject nothing"
    return proto.batch["rollout_is_weights"][0].tolist(), metrics


@given(log_probs, st.randoms())
@settings(max_examples=50)
def test_rollout_correction_weights_are_truncated_ratios(old, random):
    rollout = [value + random.uniform(-3, 3) for value in old]
    mask = [1, *(random.randint(0, 1) for _ in old[1:])]
    got, metrics = weights(old, rollout, mask)
    for weight, a, b, trained in zip(got, old, rollout, mask, strict=True):
        assert weight == pytest.approx(min(2.0, math.exp(a - b)) * trained, rel=1e-4)
    assert metrics["rollout_corr/rollout_is_max"] <= 2.0


@given(log_probs)
@settings(max_examples=25)
def test_rollout_correction_changes_nothing_where_the_engines_agree(old):
    got, metrics = weights(old, old, [1] * len(old))
    assert got == [1.0] * len(old)
    assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] == 0.0
    row = Row([1] * len(old), old, old, [1.0] * len(old))
    corrected = Row(row.mask, row.log_probs, row.old, row.advantages, weights=got)
    assert verl_loss([corrected]) == verl_loss([row])


def test_rollout_correction_scales_the_loss_of_a_token():
    row = Row([1, 1], [-1.0, -1.0], [-1.0, -1.0], [1.0, 1.0], weights=[2.0, 0.5])
    assert verl_loss([row]).gradient == [[-1.0, -0.25]]
