"""Step credit: returns cross observations, and a policy that chooses when to stop is still rewarded for going on."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.algorithm import broadcast_to_tokens, group_normalised_advantage, step_credit_advantage
from datapm_rl.reward import step_rewards, trajectory_reward
from datapm_rl.trajectory import Outcome, Verdict

pytestmark = pytest.mark.unit
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")
torch.set_num_threads(1)

trajectories = st.tuples(
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=5), st.sampled_from([0.0, 1.0])
)


def rows(*step_terms: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Each step: two model tokens, the reward on the second; one observation token between steps."""
    length = max(3 * len(terms) for terms in step_terms)
    rewards, mask = torch.zeros(len(step_terms), length), torch.zeros(len(step_terms), length)
    for row, terms in enumerate(step_terms):
        for t, term in enumerate(terms):
            mask[row, 3 * t : 3 * t + 2] = 1
            rewards[row, 3 * t + 1] = term
    return rewards, mask


def terms_of(scores: list[float], outcome: float, beta: float) -> list[float]:
    reward = trajectory_reward(Outcome(outcome, "g"), [Verdict(score) for score in scores], beta)
    return step_rewards(reward, len(scores), beta)


def credit(*step_terms: list[float], normalise_std: bool = False) -> list[list[float]]:
    """Advantage of each step, per member of one group."""
    rewards, mask = rows(*step_terms)
    tokens = step_credit_advantage(rewards, mask, ["g"] * len(step_terms), normalise_std)
    assert (tokens[mask == 0] == 0).all()
    assert all(tokens[r, 3 * t] == tokens[r, 3 * t + 1] for r, s in enumerate(step_terms) for t in range(len(s)))
    return [[tokens[row, 3 * t].item() for t in range(len(terms))] for row, terms in enumerate(step_terms)]


# The toy: at turn 1 the policy stops (return 0) or goes on with probability p = 0.5, by a logit; turn 2 has no choice
# and pays 1. J = p, so dJ/dlogit = p (1 - p) = 0.25. A Bernoulli's score is 1 - p for going on and -p for stopping.
STOP, GO_ON = [0.0], [0.0, 1.0]
SCORE = {1: -0.5, 2: 0.5}  # by number of turns


def gradient(estimate, size: int = 4) -> float:
    """Expected gradient by exact enumeration of all groups; n / (n - 1) undoes that a member is in its own baseline."""
    total = 0.0
    for group in itertools.product([STOP, GO_ON], repeat=size):
        advantages = estimate(*group)
        total += sum(a[0] * SCORE[len(a)] for a in advantages) / size
    return total / 2**size * size / (size - 1)


def centred_by_turn(*group: list[float]) -> list[list[float]]:
    """The wrong estimator: rewards minus the mean of their turn index, then reward-to-go."""
    by_turn = defaultdict(list)
    for terms in group:
        for turn, term in enumerate(terms):
            by_turn[turn].append(term)
    means = {turn: sum(values) / len(values) for turn, values in by_turn.items()}
    centred = [[term - means[turn] for turn, term in enumerate(terms)] for terms in group]
    return [[sum(values[t:]) for t in range(len(values))] for values in centred]


def test_stop_or_continue_toy_recovers_its_gradient():
    assert gradient(credit) == pytest.approx(0.25)


def test_centring_by_turn_index_never_rewards_going_on():
    assert gradient(centred_by_turn) == pytest.approx(0.0, abs=1e-12)


def test_toy_gradient_from_a_big_sample():
    torch.manual_seed(0)
    group = [GO_ON if going else STOP for going in torch.rand(4096).lt(0.5).tolist()]
    got = credit(*group)
    assert sum(a[0] * SCORE[len(a)] for a in got) / len(got) == pytest.approx(0.25, abs=0.01)


@given(st.lists(trajectories, min_size=2, max_size=6), st.sampled_from([0.25, 0.5, 1.0]))
def test_first_step_has_trajectory_credit(group, beta):
    terms = [terms_of(scores, outcome, beta) for scores, outcome in group]
    first = [advantages[0] for advantages in credit(*terms)]
    totals = torch.tensor([sum(values) for values in terms])
    whole = group_normalised_advantage(totals, ["g"] * len(terms), torch.ones(len(terms)).bool(), normalise_std=False)
    assert first == pytest.approx(whole.tolist(), abs=1e-5)


@given(st.lists(trajectories, min_size=2, max_size=6))
def test_beta_zero_is_trajectory_credit_on_every_token(group):
    terms = [terms_of(scores, outcome, 0.0) for scores, outcome in group]
    rewards, mask = rows(*terms)
    groups = ["g"] * len(terms)
    whole = group_normalised_advantage(rewards.sum(dim=-1), groups, mask.any(dim=-1))
    torch.testing.assert_close(step_credit_advantage(rewards, mask, groups), broadcast_to_tokens(whole, mask))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_perfect_members_of_any_length_get_exactly_zero(beta):
    group = [terms_of([1.0] * length, 1.0, beta) for length in (1, 2, 3, 7)]
    assert credit(*group, normalise_std=True) == [[0.0] * len(terms) for terms in group]


def test_perfect_member_has_even_credit_and_later_steps_do_not_fade():
    good, bad = terms_of([1.0] * 4, 1.0, 0.5), terms_of([1.0] * 4, 0.0, 0.5)
    even, _ = credit(good, bad)
    assert even == pytest.approx([even[0]] * 4)


def test_bad_step_is_blamed_and_the_steps_after_it_are_not():
    late, early = terms_of([1.0, 0.0, 1.0], 1.0, 0.5), terms_of([1.0, 1.0, 1.0], 1.0, 0.5)
    flawed, clean = credit(late, early)
    assert flawed[1] < flawed[2]
    assert clean[1] > flawed[1]


def test_return_crosses_observation_tokens():
    rewards = torch.tensor([[0.0, 0, 1], [0.0, 0, 0]])
    mask = torch.tensor([[1, 0, 1], [1, 0, 1]])
    got = step_credit_advantage(rewards, mask, ["g", "g"], normalise_std=False)
    assert got.tolist() == [[0.5, 0, 0.5], [-0.5, 0, -0.5]]


def test_masked_member_neither_votes_nor_gets_anything():
    rewards, mask = rows([0.0, 1.0], [0.0, 0.0], [0.5])
    alone = step_credit_advantage(rewards[:2], mask[:2], ["g"] * 2)
    mask[2] = 0
    got = step_credit_advantage(rewards, mask, ["g"] * 3)
    assert torch.equal(got[:2], alone)
    assert (got[2] == 0).all()


def test_all_masked_batch_is_zero():
    assert (step_credit_advantage(torch.ones(2, 3), torch.zeros(2, 3), ["g", "g"]) == 0).all()


@given(st.lists(trajectories, min_size=1, max_size=6), st.randoms())
def test_finite_and_permutation_equivariant(group, random):
    terms = [terms_of(scores, outcome, 0.5) for scores, outcome in group]
    order = list(range(len(terms)))
    random.shuffle(order)
    rewards, mask = rows(*terms)
    groups = ["g"] * len(terms)
    got = step_credit_advantage(rewards, mask, groups)
    assert torch.isfinite(got).all()
    assert torch.equal(step_credit_advantage(rewards[order], mask[order], groups), got[order])
