"""Trajectory credit, DataPRM eq. 9: A_i = (r_i - mean) / std over the scored members of i's group.

A member that is not scored (its reward is missing) gets 0 and does not vote: neither its reward nor its presence
changes the mean and std of the others. A group with fewer than two scored members tells nothing: 0. The std is
the unbiased one (n - 1), as in GRPO. Sums are exact (`math.fsum`), so the order of members does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch

EQUAL = 1e-6
"""Rewards that differ by less than this (relative to 1, or to the largest if that is more) count as equal.

Float noise is no signal: eight times 0.7 in float32 have a std of 6e-8, and dividing by it would make it one.
"""


def group_normalised_advantage(
    rewards: torch.Tensor,
    groups: Sequence[Hashable],
    scored: torch.Tensor,
    normalise_std: bool = True,
    trajectories: Sequence[Hashable] | None = None,
) -> torch.Tensor:
    """Advantage of each row. Shapes: `rewards` [bsz], `groups` [bsz], `scored` [bsz] bool -> [bsz], rewards' dtype.

    `normalise_std=False` centres only. `trajectories` [bsz]: ids of the trajectories that rows belong to, when a
    trajectory is split in several rows; each row carries the trajectory's reward, and it votes once. ValueError:
    lengths differ, or the rows of one trajectory carry different rewards.
    """
    owners = trajectories if trajectories is not None else range(len(groups))
    if not len(rewards) == len(groups) == len(scored) == len(owners):
        raise ValueError(f"{len(rewards)} rewards, {len(groups)} groups, {len(scored)} scored, {len(owners)} owners")
    members: dict[Hashable, dict[Hashable, float]] = {}  # group -> trajectory -> reward
    rows = list(zip(rewards.tolist(), groups, scored.tolist(), owners, strict=True))
    for reward, group, is_scored, owner in rows:
        if is_scored and members.setdefault(group, {}).setdefault(owner, reward) != reward:
            raise ValueError(f"rows of trajectory {owner!r} carry different rewards")
    advantages = {group: _normalised(list(votes.values()), normalise_std) for group, votes in members.items()}
    table = {
        (group, owner): advantage
        for group, votes in members.items()
        for owner, advantage in zip(votes, advantages[group], strict=True)
    }
    values = [table[group, owner] if is_scored else 0.0 for _, group, is_scored, owner in rows]
    return torch.tensor(values, dtype=rewards.dtype, device=rewards.device)


def broadcast_to_tokens(advantage: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Each row's advantage on its model tokens, 0 elsewhere. [bsz], [bsz, response_length] -> mask's shape."""
    return advantage.unsqueeze(-1) * response_mask


def all_equal(values: Sequence[float]) -> bool:
    """Whether values differ by no more than float noise, see `EQUAL`."""
    return max(values) - min(values) <= EQUAL * max(1.0, max(map(abs, values)))


def has_no_signal(rewards: Sequence[float | None]) -> bool:
    """Whether a group teaches nothing: fewer than two members are scored (None: missing), or all scored are equal.

    Each estimator gives exactly 0 to every member of such a group. DAPO's dynamic sampling (section 3.2) puts another
    prompt in its place.
    """
    scored = [reward for reward in rewards if reward is not None]
    return len(scored) < 2 or all_equal(scored)


def _normalised(rewards: list[float], normalise_std: bool) -> list[float]:
    if has_no_signal(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not normalise_std:
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / (len(rewards) - 1))
    return [value / std for value in centred]
