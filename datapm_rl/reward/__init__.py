"""From an outcome and verdicts to the reward of a trajectory (DataPRM eq. 8 and 10), missing values included."""

from datapm_rl.reward.combine import (
    TrajectoryReward,
    override_final_step,
    step_rewards,
    total_reward,
    trajectory_reward,
)

__all__ = ["TrajectoryReward", "override_final_step", "step_rewards", "total_reward", "trajectory_reward"]
