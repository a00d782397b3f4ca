"""From an outcome and verdicts to the reward of a trajectory (DataPRM eq. 8 and 10), missing values included."""

from datapm_rl.reward.combine import (
    TrajectoryReward,
    override_final_step,
    step_rewards,
    total_reward,
    trajectory_reward,
)
from datapm_rl.reward.overlong import overlong_share

__all__ = [
    "TrajectoryReward",
    "overlong_share",
    "override_final_step",
    "step_rewards",
    "total_reward",
    "trajectory_reward",
]
