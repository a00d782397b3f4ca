"""Invariants of both credits as properties, on rows as verl hands them over (docs/paper-index.md)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("verl")

from verl.trainer.ppo.core_algos import get_adv_estimator_fn

import datapm_rl.verl_plugin.advantage  # noqa: F401
from datapm_rl.reward import step_rewards, trajectory_reward
from datapm_rl.trajectory import Outcome, Verdict

pytestmark = pytest.mark.unit
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")
torch.set_num_threads(1)

CREDITS = ("prm_grpo_trajectory", "prm_grpo_step")
credits = st.sampled_from(CREDITS)
scores = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=5)
members = st.tuples(scores, st.sampled_from([0.0, 1.0, 1 / 3]))
betas = st.floats(0, 1)


def batch(group, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards and mask of members (step scores, outcome). A step is two model tokens, an observation one."""
    length = 3 * max(len(scores) for scores, _ in group)
    rewards, mask = torch.zeros(len(group), length), torch.zeros(len(group), length, dtype=torch.int64)
    for row, (scores, outcome) in enumerate(group):
        reward = trajectory_reward(Outcome(outcome, "g"), [Verdict(score) for score in scores], beta)
        for t, term in enumerate(step_rewards(reward, len(scores), beta)):
            mask[row, 3 * t : 3 * t + 2] = 1
            rewards[row, 3 * t + 1] = term
    return rewards, mask


def estimate(credit: str, rewards: torch.Tensor, mask: torch.Tensor, groups=None, normalise: bool = True):
    config = {"norm_adv_by_std_in_grpo": normalise}
    groups = groups or ["g"] * len(rewards)
    got, returns = get_adv_estimator_fn(credit)(
        token_level_rewards=rewards, response_mask=mask, config=config, index=groups
    )
    assert torch.equal(got, returns)
    return got


@given(credits, members, betas, st.integers(2, 12))
def test_equal_blended_rewards_give_exactly_zero(credit, member, beta, size):
    """Eight times 0.7 in float32 have a std of 6e-8, and divided by it they would have a signal of 0.06."""
    assert (estimate(credit, *batch([member] * size, beta)) == 0).all()


@given(credits, st.floats(0.0625, 1, width=32), st.integers(2, 12), st.randoms())
def test_float_noise_is_no_signal(credit, value, size, random):
    """The same total summed in another order differs in its last bit."""
    mask = torch.ones(size, 2, dtype=torch.int64)
    noisy = [torch.nextafter(torch.tensor(value), torch.tensor(2.0 * random.randint(0, 1))) for _ in range(size)]
    rewards = torch.stack([torch.zeros(size), torch.stack(noisy)], dim=1)
    assert (estimate(credit, rewards, mask) == 0).all()


@given(credits, members, betas)
def test_single_member_gets_zero_and_not_its_raw_reward(credit, member, beta):
    assert (estimate(credit, *batch([member], beta)) == 0).all()


@given(credits, st.lists(members, min_size=1, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6), betas)
def test_masked_member_neither_votes_nor_gets_anything(credit, group, masked, beta):
    rewards, mask = batch(group, beta)
    kept = [row for row in range(len(group)) if not masked[row]]
    for row in set(range(len(group))) - set(kept):
        mask[row] = 0
        rewards[row] = 7.0  # whatever is left there
    got = estimate(credit, rewards, mask)
    assert torch.isfinite(got).all()
    assert all((got[row] == 0).all() for row in set(range(len(group))) - set(kept))
    assert torch.equal(got[kept], estimate(credit, rewards[kept], mask[kept]))


@given(credits, st.lists(members, min_size=1, max_size=6), betas)
def test_observation_tokens_get_no_advantage(credit, group, beta):
    rewards, mask = batch(group, beta)
    assert (estimate(credit, rewards, mask)[mask == 0] == 0).all()


@given(credits, st.lists(members, min_size=2, max_size=6), betas, st.randoms())
def test_permuting_a_batch_permutes_its_advantages(credit, group, beta, random):
    rewards, mask = batch(group, beta)
    groups = [random.choice("ab") for _ in group]
    order = list(range(len(group)))
    random.shuffle(order)
    got = estimate(credit, rewards, mask, groups)
    assert torch.equal(estimate(credit, rewards[order], mask[order], [groups[i] for i in order]), got[order])


@given(st.lists(members, min_size=2, max_size=6))
def test_beta_zero_is_plain_outcome_grpo_bit_for_bit(group):
    """Whatever the verifier says, and wherever steps end: as if each row had the outcome at its last token."""
    rewards, mask = batch(group, beta=0.0)
    plain = torch.zeros_like(rewards)
    plain[:, -1] = torch.tensor([outcome for _, outcome in group])
    got = estimate("prm_grpo_trajectory", rewards, mask)
    assert torch.equal(got, estimate("prm_grpo_trajectory", plain, mask))
    torch.testing.assert_close(estimate("prm_grpo_step", rewards, mask), got)


@given(st.lists(members, min_size=2, max_size=6), betas)
def test_advantages_are_normalised_once(group, beta):
    """gem PR#113: normalised per episode, then again."""
    got = estimate("prm_grpo_trajectory", *batch(group, beta))[:, 0].tolist()
    if any(got):
        assert math.fsum(a * a for a in got) / (len(got) - 1) == pytest.approx(1.0, rel=1e-4)
        assert math.fsum(got) == pytest.approx(0.0, abs=1e-4)


@given(credits, st.lists(members, min_size=2, max_size=5), betas)
def test_padding_of_the_batch_changes_no_bit(credit, group, beta):
    """SkyRL PR#1507 took the last, masked token's advantage for all. A sum in float32 depends on the padding, too."""
    rewards, mask = batch(group, beta)
    longer = [torch.nn.functional.pad(column, (0, 4)) for column in (rewards, mask)]
    assert torch.equal(estimate(credit, *longer)[:, : rewards.shape[1]], estimate(credit, rewards, mask))
