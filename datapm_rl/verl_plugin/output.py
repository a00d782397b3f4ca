"""The row a trajectory becomes in verl: its reward as a column of step rewards, and a mask of zeros if it is missing.

verl's own row has one reward at the last token. Here the column `rm_scores` [response_length] holds the terms of
eq. 8 where they belong: beta * r_t / T at the last token of step t, (1 - beta) * r_outcome at the last of all. Its
sum is r_total, so trajectory credit reads the sum, step credit reads the places, and verl's own metrics stay right.

A trajectory without a reward has response_mask 0 everywhere: it pays no loss, and the estimator (`advantage.py`) takes
a row without any model token for a member that does not vote. verl's padding rows look the same, and are treated alike.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

Info = dict[str, Any]


def reward_info(
    *,
    total: float | None,
    outcome: float | None,
    process: float | None,
    step_scores: list[float | None],
    step_rewards: list[float],
    overridden: bool,
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
    }


def missing_info(cause: str) -> Info:
    """The info of a trajectory whose reward is missing."""
    return reward_info(
        total=None, outcome=None, process=None, step_scores=[], step_rewards=[], overridden=False, cause=cause
    )


class RewardedOutput(AgentLoopOutput):
    """`AgentLoopOutput` whose row carries step rewards; see the module docstring."""

    def as_dict(self) -> dict[str, Any]:
        row = super().as_dict()
        info: Info = self.extra_fields["reward_extra_info"]
        rewards = torch.zeros_like(row["response_mask"], dtype=torch.float32)
        if info["missing_cause"] is None:
            spans = [step["span"] for step in self.extra_fields["trajectory"]["steps"]]
            for (_, end), reward in zip(spans, info["step_rewards"], strict=True):
                rewards[end - 1] += reward
        else:
            row["response_mask"] = torch.zeros_like(row["response_mask"])
        row["rm_scores"] = rewards
        return row
