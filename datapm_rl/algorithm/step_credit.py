"""Step credit (beyond the paper): a step is judged by what follows it, against a baseline from the whole group.

Input are the terms of eq. 8 where they were earned (`reward.step_rewards`): beta * r_t / T on the last token of step t,
(1 - beta) * r_outcome added on the last token of all. The *return* of a step is the sum of the terms from its own on;
the first step's return is r_total, unscaled. Observation tokens carry nothing and do not interrupt the sum.

    A_t = return_t - (b - a * (t - 1) / T)         t = 1..T

    b = mean of r_total over the group's scored members
    a = what steps before the last one earn in this group: sum of their terms / sum of (T - 1) / T over the members

The baseline begins at b and falls as an average member of the group collects its terms. Another way to say it: A_t is
trajectory credit, r_total - b, less what *this* member's earlier steps collected above the group's average. So the
first step has exactly trajectory credit, with beta = 0 every step has it, and a group of perfect members has 0 on
every step, whatever their lengths.

b and a are two numbers for the whole group. A mean for each turn index would be wrong: when the policy chooses when to
stop, only the members that went on have a turn 2, its rewards are centred away, and going on is never rewarded (in the
toy problem of tests/test_algorithm_step_credit.py the gradient becomes 0 where it is 0.25).

Scale: all A are divided by sqrt(sum_i mean_t A_it^2 / (n - 1)), which with beta = 0 is the std of eq. 9. A group whose
r_total are equal has no signal: 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence

import torch

from datapm_rl.algorithm.group_advantage import has_no_signal


def step_credit_advantage(
    step_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    groups: Sequence[Hashable],
    normalise_std: bool = True,
) -> torch.Tensor:
    """Advantage of each model token; 0 on others. All tensors [bsz, response_length], `groups` [bsz].

    One row per trajectory. A step is a run of model tokens (mask 1); observations part steps. A row without model
    tokens is a member that is not scored: it gets 0 and does not vote.
    """
    if len(groups) != len(response_mask):
        raise ValueError(f"{len(groups)} groups for {len(response_mask)} rows")
    mask = response_mask.bool()
    result = torch.zeros(mask.shape, dtype=step_rewards.dtype, device=step_rewards.device)
    members: dict[Hashable, list[int]] = {}
    for row, (group, scored) in enumerate(zip(groups, mask.any(dim=-1).tolist(), strict=True)):
        if scored:
            members.setdefault(group, []).append(row)
    for rows in members.values():
        steps = [_steps(mask[row].tolist()) for row in rows]
        terms = [_terms(step_rewards[row].tolist(), ends) for row, ends in zip(rows, steps, strict=True)]
        for row, spans, values in zip(rows, steps, _group_advantages(terms, normalise_std), strict=True):
            for (start, end), value in zip(spans, values, strict=True):
                result[row, start:end] = value
    return result


def _steps(mask: list[bool]) -> list[tuple[int, int]]:
    """[start, end) of each run of model tokens."""
    edges = [i for i, (a, b) in enumerate(zip([False, *mask], [*mask, False], strict=True)) if a != b]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _terms(rewards: list[float], steps: list[tuple[int, int]]) -> list[float]:
    """What each step earned: its tokens' rewards, and any on the observation after it."""
    starts = [0, *(start for start, _ in steps[1:]), len(rewards)]
    return [math.fsum(rewards[a:b]) for a, b in itertools.pairwise(starts)]


def _group_advantages(terms: list[list[float]], normalise_std: bool) -> list[list[float]]:
    """A_it of one group's scored members from what their steps earned."""
    totals = [math.fsum(values) for values in terms]
    if has_no_signal(totals):
        return [[0.0] * len(values) for values in terms]
    b = math.fsum(totals) / len(totals)
    earlier = math.fsum(term for values in terms for term in values[:-1])
    weight = math.fsum((len(values) - 1) / len(values) for values in terms)
    a = earlier / weight if weight else 0.0
    advantages = [[math.fsum(values[t:]) - (b - a * t / len(values)) for t in range(len(values))] for values in terms]
    if not normalise_std:
        return advantages
    squares = math.fsum(math.fsum(v * v for v in values) / len(values) for values in advantages)
    scale = math.sqrt(squares / (len(terms) - 1))
    return [[value / scale for value in values] for values in advantages]
