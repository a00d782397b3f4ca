"""verl's clipped loss (eq. 7), also for a mini-batch without a model token: `actor.policy_loss.loss_mode=prm_clip`.

Token-mean divides by the mini-batch's model tokens. When all its rows are masked (rewards missing, overlong, padding)
that is 0 / 0: the gradient is 0 all the same, but loss, entropy and KL are NaN, and so are the step's metrics. Here the
divisor is at least 1, and all of them are 0.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss
from verl.workers.config import ActorConfig


@register_policy_loss("prm_clip")
def clipped_loss(config: ActorConfig, **arguments: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """As `compute_policy_loss_vanilla`. verl aggregates entropy and KL after this call, by the same batch info."""
    info = config.global_batch_info
    info["batch_num_tokens"] = max(1, info["batch_num_tokens"])
    return compute_policy_loss_vanilla(config=config, **arguments)
