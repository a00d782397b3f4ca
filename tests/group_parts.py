"""Records of members, as `AgentLoopOutput.extra_fields` holds them, for tests of groups."""

from __future__ import annotations

from typing import Any

from datapm_rl.verl_plugin.output import missing_info, reward_info


def member(reward: float | None, task: str = "t", outcome: float = 1.0, cause: str = "sandbox_lost") -> dict[str, Any]:
    """The record of one member; `reward` None is missing with `cause`."""
    if reward is None:
        info = missing_info(cause)
    else:
        info = reward_info(
            total=reward,
            outcome=outcome,
            process=None,
            step_scores=[],
            step_rewards=[reward],
            overridden=False,
            cause=None,
        )
    attempt = {"task": {"id": task, "question": "?"}, "steps": [], "verdicts": [], "stop_reason": "answered"}
    return {"trajectory": attempt, "reward_extra_info": info}
