"""The project's estimators under verl's names: `prm_grpo_trajectory` and `prm_grpo_step` (`prm.credit` chooses).

verl calls an estimator with the step rewards of `output.py` (their sum is r_total), the response mask and the group
of each row, and takes back advantages [bsz, response_length]. A row without model tokens (missing reward, or verl's
padding) is a member that does not vote.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.trainer.ppo.core_algos import register_adv_est

from datapm_rl.algorithm.group_advantage import broadcast_to_tokens, group_normalised_advantage
from datapm_rl.algorithm.step_credit import step_credit_advantage


@register_adv_est("prm_grpo_trajectory")
def prm_grpo_trajectory(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any = None, index: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Trajectory credit (eq. 9): the group-normalised r_total on each model token. Shapes [bsz, response_length]."""
    scored = response_mask.bool().any(dim=-1)
    normalise = bool(config.get("norm_adv_by_std_in_grpo", True)) if config is not None else True
    totals = token_level_rewards.double().sum(dim=-1)  # exact: in float32 the last bit depends on the batch's padding
    advantage = group_normalised_advantage(totals, list(index), scored, normalise_std=normalise)
    tokens = broadcast_to_tokens(advantage.to(token_level_rewards.dtype), response_mask)
    return tokens, tokens


@register_adv_est("prm_grpo_step")
def prm_grpo_step(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any = None, index: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Step credit: reward-to-go of the step rewards against the group's baseline. Shapes [bsz, response_length]."""
    normalise = bool(config.get("norm_adv_by_std_in_grpo", True)) if config is not None else True
    tokens = step_credit_advantage(token_level_rewards, response_mask, list(index), normalise_std=normalise)
    return tokens, tokens
