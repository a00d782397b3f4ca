"""The row a trajectory becomes in verl: its reward as a column of step rewards, and a mask of zeros if it is missing.

verl's own row has one reward at the last token. Here the column `rm_scores` [response_length] holds the terms of
eq. 8 where they belong: beta * r_t / T at the last token of step t, (1 - beta) * r_outcome at the last of all. Its
sum is r_total, so trajectory credit reads the sum, step credit reads the places, and verl's own metrics stay right.

A trajectory without a reward has response_mask 0 everywhere: it pays no loss, and the estimator (`advantage.py`) takes
a row without any model token for a member that does not vote. verl's padding rows look the same, and are treated alike.
So does a trajectory that is left out by choice (`overlong.policy=mask`): it has a reward, and `excluded` says why it is
not used. `vote` tells the three apart from a member that counts.
"""

from __future__ import annotations

from typing import Any

import torch
from omegaconf import DictConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from datapm_rl.agent import Rollout
from datapm_rl.reward.overlong import CUT_OFF, OVERLONG, overlong_share
from datapm_rl.trajectory import to_json

Info = dict[str, Any]


def reward_info(
    *,
    total: float | None,
    outcome: float | None,
    process: float | None,
    step_scores: list[float | None],
    step_rewards: list[float],
    overridden: bool | None,
    cause: str | None,
) -> Info:
    """`reward_extra_info` of a trajectory. verl takes the keys of the first row for all: they never differ."""
    return {
        "total": total,
        "acc": outcome,
        "process": process,
        "step_scores": step_scores,
        "step_rewards": step_rewards,
        "overridden": overridden,
        "missing_cause": cause,
        "given_up": [],  # causes of earlier attempts, whose place this one took
        "excluded": None,
        "overlong_penalty": 0.0,
    }


def missing_info(cause: str) -> Info:
    """The info of a trajectory whose reward is missing."""
    return reward_info(
        total=None, outcome=None, process=None, step_scores=[], step_rewards=[], overridden=None, cause=cause
    )


def with_overlong(info: Info, rollout: Rollout, overlong: DictConfig, limit: int) -> Info:
    """`info` of a training trajectory under `overlong.policy`, `limit` in tokens. A missing reward stays missing.

    A penalty is part of what the last step earned, so that the step rewards still sum to the total.
    """
    if info["missing_cause"] is not None or not info["step_rewards"]:
        return info
    stop_reason = rollout.trajectory.stop_reason
    if overlong.policy == "mask" and stop_reason in CUT_OFF:
        return {**info, "excluded": OVERLONG}
    if overlong.policy != "shape":
        return info
    share = overlong_share(len(rollout.response_ids), limit, overlong.buffer_tokens, stop_reason)
    penalty = overlong.penalty * share
    *earlier, last = info["step_rewards"]
    return {
        **info,
        "total": info["total"] - penalty,
        "step_rewards": [*earlier, last - penalty],
        "overlong_penalty": penalty,
    }


def vote(info: Info) -> float | None:
    """The reward with which a trajectory counts in its group; None if it is missing or left out by choice."""
    return info["total"] if info["missing_cause"] is None and info["excluded"] is None else None


class RewardedOutput(AgentLoopOutput):
    """`AgentLoopOutput` whose row carries step rewards; see the module docstring."""

    def as_dict(self) -> dict[str, Any]:
        row = super().as_dict()
        info: Info = self.extra_fields["reward_extra_info"]
        rewards = torch.zeros_like(row["response_mask"], dtype=torch.float32)
        if vote(info) is not None:
            spans = [step["span"] for step in self.extra_fields["trajectory"]["steps"]]
            for (_, end), reward in zip(spans, info["step_rewards"], strict=True):
                rewards[end - 1] += reward
        else:
            row["response_mask"] = torch.zeros_like(row["response_mask"])
        row["rm_scores"] = rewards
        return row


def rewarded_output(rollout: Rollout, info: Info, filler: int) -> RewardedOutput:
    """The row of a trajectory. verl needs one token per row: `filler` stands in where the model gave none."""
    trajectory = rollout.trajectory
    first, last = trajectory.weight_versions or (0, 0)
    return RewardedOutput(
        prompt_ids=rollout.prompt_ids,
        response_ids=rollout.response_ids or [filler],
        response_mask=rollout.response_mask or [0],
        response_logprobs=rollout.response_logprobs or [0.0],
        reward_score=info["total"] or 0.0,
        num_turns=len(trajectory.steps),
        metrics={},
        extra_fields={
            "trajectory": to_json(trajectory),
            "reward_extra_info": info,
            "min_global_steps": first,
            "max_global_steps": last,
        },
    )
