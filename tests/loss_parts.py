"""A mini-batch in verl's own form (nested tensors), and verl's own `ppo_loss` on it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

import datapm_rl.verl_plugin.policy_loss  # noqa: F401

PROMPT = 2


@dataclass
class Row:
    """One response: a list per column, all of the same length. `log_probs` are the current policy's."""

    mask: list[int]
    log_probs: list[float]
    old: list[float]
    advantages: list[float]
    ref: list[float] = field(default_factory=list)
    weights: list[float] | None = None


@dataclass
class Result:
    """The loss, its gradient per response token of each row, and verl's metrics as numbers."""

    loss: float
    gradient: list[list[float]]
    metrics: dict[str, float]


def actor_config(loss_mode: str = "prm_clip", **settings) -> FSDPActorConfig:
    """The configuration of `configs/train.yaml`, with `settings` changed."""
    chosen = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0, "kl_loss_coef": 0.1, **settings}
    policy_loss = PolicyLossConfig(loss_mode=loss_mode)
    return FSDPActorConfig(strategy="fsdp2", rollout_n=4, use_dynamic_bsz=True, policy_loss=policy_loss, **chosen)


def verl_loss(rows: list[Row], config: FSDPActorConfig | None = None) -> Result:
    """verl's loss of a mini-batch that is one micro-batch on one device."""
    flat = torch.cat([torch.tensor([0.0] * (PROMPT - 1) + [*row.log_probs, 0.0]) for row in rows]).requires_grad_()
    columns = {
        "response_mask": _nested([row.mask for row in rows], torch.int64),
        "old_log_probs": _nested([row.old for row in rows]),
        "advantages": _nested([row.advantages for row in rows]),
        "ref_log_prob": _nested([row.ref or row.old for row in rows]),
        "prompts": _nested([[1] * PROMPT for _ in rows], torch.int64),
        "responses": _nested([[1] * len(row.mask) for row in rows], torch.int64),
    }
    if all(row.weights is not None for row in rows):
        columns["rollout_is_weights"] = _nested([row.weights for row in rows])
    data = TensorDict(columns, batch_size=len(rows))
    tokens = sum(sum(row.mask) for row in rows)
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=len(rows))
    loss, metrics = ppo_loss(config or actor_config(), {"log_probs": flat, "entropy": flat * -1.0}, data)
    loss.backward()
    gradients, start = [], 0
    for row in rows:  # a response's log-probs lie one token before its ids
        gradients.append(flat.grad[start + PROMPT - 1 : start + PROMPT - 1 + len(row.mask)].tolist())
        start += PROMPT + len(row.mask)
    values = {name: float(getattr(metric, "values", [metric])[0]) for name, metric in metrics.items()}
    return Result(loss.item(), gradients, values)


def _nested(rows: list[list], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)
