"""Eq. 9: float noise is no signal, a masked member does not vote, nothing is ever NaN."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.algorithm import broadcast_to_tokens, group_normalised_advantage, has_no_signal

pytestmark = pytest.mark.unit
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")
torch.set_num_threads(1)

members = st.lists(st.tuples(st.floats(0, 1, width=32), st.integers(0, 3), st.booleans()), min_size=1, max_size=24)


def advantage(rewards, groups=None, scored=None, **options) -> torch.Tensor:
    rewards = torch.tensor(rewards, dtype=torch.float32)
    scored = torch.ones(len(rewards), dtype=torch.bool) if scored is None else torch.tensor(scored, dtype=torch.bool)
    return group_normalised_advantage(rewards, groups or ["g"] * len(rewards), scored, **options)


def columns(rows):
    rewards, groups, scored = (list(column) for column in zip(*rows, strict=True))
    return rewards, groups, scored


@pytest.mark.parametrize(("value", "count"), [(0.7, 8), (1.1, 12), (0.9, 12), (0.0, 4), (1.0, 4)])
def test_equal_rewards_give_exactly_zero(value, count):
    assert advantage([value] * count).tolist() == [0.0] * count


def test_float_noise_among_equal_rewards_gives_exactly_zero():
    mixed = [0.5 * 1.0 + 0.5 * (2.1 / 3), 0.85, 0.8500001, 0.85]
    assert advantage(mixed).tolist() == [0.0] * 4


def test_single_member_gets_zero_and_not_its_raw_reward():
    assert advantage([1.0]).tolist() == [0.0]
    assert advantage([1.0, 0.0, 0.5], scored=[True, False, False]).tolist() == [0.0] * 3


def test_masked_member_does_not_vote():
    got = advantage([1, 1, 0, 0], scored=[True, False, True, True], normalise_std=False)
    torch.testing.assert_close(got, torch.tensor([2 / 3, 0, -1 / 3, -1 / 3]))


def test_masked_members_nan_does_not_leak():
    got = advantage([1.0, float("nan"), 0.0], scored=[True, False, True])
    torch.testing.assert_close(got, torch.tensor([0.5**0.5, 0, -(0.5**0.5)]))


def test_std_is_the_unbiased_one():
    torch.testing.assert_close(advantage([1, 0, 0, 0]), torch.tensor([1.5, -0.5, -0.5, -0.5]))


def test_groups_do_not_mix():
    torch.testing.assert_close(advantage([1, 5, 0, 6], ["a", "b", "a", "b"]), 0.5**0.5 * torch.tensor([1.0, -1, -1, 1]))


def test_split_trajectory_votes_once():
    split = advantage([1, 1, 1, 0, 0], trajectories=["t", "t", "t", "u", "v"])
    whole = advantage([1, 0, 0])
    assert split.tolist() == [whole[0]] * 3 + [whole[1], whole[2]]


def test_split_trajectory_with_two_rewards_is_refused():
    with pytest.raises(ValueError, match="different rewards"):
        advantage([1, 0, 0], trajectories=["t", "t", "u"])


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="3 rewards, 2 groups"):
        advantage([1, 0, 0], ["a", "a"])


@given(members)
def test_always_finite_centred_and_zero_where_masked(rows):
    rewards, groups, scored = columns(rows)
    got = advantage(rewards, groups, scored)
    assert torch.isfinite(got).all()
    assert all(value == 0.0 for value, is_scored in zip(got.tolist(), scored, strict=True) if not is_scored)
    for group in set(groups):
        own = [value for value, g in zip(got.tolist(), groups, strict=True) if g == group]
        assert sum(own) == pytest.approx(0, abs=1e-5)


@given(members, st.randoms())
def test_permuting_members_permutes_advantages_exactly(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    got = advantage(*columns(rows))
    permuted = advantage(*columns([rows[i] for i in order]))
    assert permuted.tolist() == [got[i].item() for i in order]


@given(members)
def test_removing_masked_members_changes_nothing_for_the_others(rows):
    kept = [row for row in rows if row[2]]
    if kept:
        everyone = advantage(*columns(rows))
        assert advantage(*columns(kept)).tolist() == [
            a for a, row in zip(everyone.tolist(), rows, strict=True) if row[2]
        ]


def test_all_masked_batch_is_zero():
    got = broadcast_to_tokens(advantage([1, 0], scored=[False, False]), torch.zeros(2, 3))
    assert got.tolist() == [[0.0] * 3] * 2


def test_observation_tokens_get_nothing():
    got = broadcast_to_tokens(torch.tensor([2.0, -1.0]), torch.tensor([[1, 0, 1], [1, 1, 0]]))
    assert got.tolist() == [[2, 0, 2], [-1, -1, 0]]


@pytest.mark.parametrize(
    ("rewards", "nothing"),
    [
        ([], True),
        ([1.0], True),
        ([1.0, None, None], True),  # one scored member compares with nobody
        ([0.85, 0.8500001, 0.85], True),  # float noise
        ([0.0, None, 0.0], True),
        ([1.0, None, 0.0], False),
        ([0.5, 0.5, 0.75], False),
    ],
)
def test_group_without_signal_is_told_from_one_with(rewards, nothing):
    assert has_no_signal(rewards) is nothing


@given(st.lists(st.one_of(st.none(), st.floats(0, 1, width=32)), min_size=1, max_size=8))
def test_no_signal_is_exactly_an_advantage_of_zero_for_all(rewards):
    got = advantage([reward or 0.0 for reward in rewards], scored=[reward is not None for reward in rewards])
    assert (got == 0).all().item() is has_no_signal(rewards)
