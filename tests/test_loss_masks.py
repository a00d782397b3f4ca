"""verl's own loss on our masks: what is masked moves neither loss nor gradient nor KL, and nothing is ever NaN."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("verl")

from loss_parts import Row, actor_config, verl_loss

pytestmark = pytest.mark.unit
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")

log_prob = st.floats(-8, 0, width=32)
signed = st.floats(-3, 3, width=32)
KL = {"use_kl_loss": True, "entropy_coeff": 0.01}


@st.composite
def rows(draw, masked: bool = False):
    """A response with at least one model token, or with none (`masked`)."""
    mask = draw(st.lists(st.integers(0, 1), min_size=1, max_size=6).map(lambda m: [0] * len(m) if masked else [*m, 1]))
    size = len(mask)
    columns = [draw(st.lists(kind, min_size=size, max_size=size)) for kind in (log_prob, log_prob, signed, log_prob)]
    return Row(mask, *columns)


def with_other_observations(row: Row, value: float) -> Row:
    """The row with `value` in every column at the tokens of mask 0."""

    def changed(column: list[float]) -> list[float]:
        return [old if trained else value for old, trained in zip(column, row.mask, strict=True)]

    return Row(row.mask, *map(changed, (row.log_probs, row.old, row.advantages, row.ref)))


@given(st.lists(rows(), min_size=1, max_size=4), st.floats(-8, -1, width=32))
@settings(max_examples=50)
def test_observation_tokens_change_neither_loss_nor_gradient_nor_kl(batch, value):
    """Search-R1 PR#21: KL counted over observations explodes."""
    before = verl_loss(batch, actor_config(**KL))
    after = verl_loss([with_other_observations(row, value) for row in batch], actor_config(**KL))
    assert after == before
    for row, gradient in zip(batch, before.gradient, strict=True):
        assert all(trained or g == 0 for g, trained in zip(gradient, row.mask, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_at_an_observation_does_not_leak(value):
    """An engine may have no log-prob there."""
    row = Row([1, 0, 1], [-1.0, -2.0, -1.0], [-1.1, -2.0, -0.9], [1.0, 0.0, 1.0], [-1.0, -2.0, -1.5])
    clean = verl_loss([row], actor_config(use_kl_loss=True))
    dirty = verl_loss([replace(row, old=[-1.1, value, -0.9], ref=[-1.0, value, -1.5])], actor_config(use_kl_loss=True))
    assert dirty.loss == clean.loss
    assert dirty.gradient[0][0] == clean.gradient[0][0]
    assert math.isfinite(dirty.metrics["kl_loss"])


@given(st.lists(rows(masked=True), min_size=1, max_size=4))
@settings(max_examples=25)
def test_all_masked_mini_batch_is_zero_and_not_nan(batch):
    """unsloth-zoo PR#1286, trl#3339: 0/0 in the token-mean."""
    result = verl_loss(batch, actor_config(**KL))
    assert result.loss == 0.0
    assert not any(g for row in result.gradient for g in row)
    assert all(math.isfinite(value) for value in result.metrics.values())


def test_verls_own_loss_still_needs_the_mend():
    """When this fails, `verl_plugin/policy_loss.py` can go."""
    row = Row([0, 0], [-1.0, -2.0], [-1.0, -2.0], [0.0, 0.0])
    assert math.isnan(verl_loss([row], actor_config("vanilla")).loss)


@given(st.lists(rows(), min_size=1, max_size=3), st.lists(rows(masked=True), min_size=1, max_size=2))
@settings(max_examples=25)
def test_masked_rows_are_not_in_the_denominator(batch, masked):
    """trl PR#7068: rows without signal still pay. A masked one pays no policy loss, no KL, no entropy."""
    alone, together = verl_loss(batch, actor_config(**KL)), verl_loss(batch + masked, actor_config(**KL))
    assert together.loss == pytest.approx(alone.loss, rel=1e-5, abs=1e-6)
    assert together.metrics["kl_loss"] == pytest.approx(alone.metrics["kl_loss"], rel=1e-5, abs=1e-6)


def test_token_mean_weighs_tokens_and_not_rows():
    """A long response is not diluted: each token has the same weight (eq. 7, DAPO section 3.3)."""
    long = Row([1] * 6, [-1.0] * 6, [-1.0] * 6, [1.0] * 6)
    short = Row([1, 1], [-1.0] * 2, [-1.0] * 2, [1.0] * 2)
    gradients = verl_loss([long, short]).gradient
    assert {round(g, 6) for row in gradients for g in row} == {-0.125}
