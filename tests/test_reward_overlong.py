"""Overlong trajectories: the penalty grows over the buffer and no further, and only a token budget cuts off."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.reward import overlong_share
from datapm_rl.trajectory import StopReason

pytestmark = pytest.mark.unit
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")

NOT_CUT = sorted(set(StopReason) - {StopReason.LENGTH, StopReason.CONTEXT})


@pytest.mark.parametrize(
    ("tokens", "share"), [(0, 0.0), (7000, 0.0), (7168, 0.0), (7680, 0.5), (8192, 1.0), (9000, 1.0)]
)
def test_penalty_starts_at_the_buffer_and_is_whole_at_the_limit(tokens, share):
    """DAPO eq. 13 with L_max = 8192 and L_cache = 1024."""
    assert overlong_share(tokens, 8192, 1024, StopReason.ANSWERED) == share


@pytest.mark.parametrize("reason", [StopReason.LENGTH, StopReason.CONTEXT, "context"])
def test_cut_off_before_the_limit_is_not_cheaper_than_at_it(reason):
    """An observation that did not fit leaves room behind it: the trajectory was cut off all the same."""
    assert overlong_share(7000, 8192, 1024, reason) == 1.0


@given(st.integers(0, 9000), st.integers(0, 9000), st.sampled_from(NOT_CUT))
def test_longer_is_never_cheaper_and_the_share_stays_a_share(one, other, reason):
    short, long = (overlong_share(tokens, 8192, 1024, reason) for tokens in sorted((one, other)))
    assert 0.0 <= short <= long <= 1.0
