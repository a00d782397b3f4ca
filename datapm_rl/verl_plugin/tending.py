"""Looks after a run's workers while the trainer waits for rollouts: who died is started again.

Agent-loop workers are replaced with their prompts (`rollout_manager.py`), RewardLoop workers here, under their names,
by which callers find them. Sandbox actors restart by themselves; trainer workers and TransferQueue cannot be replaced
(`watchdog.py`).
"""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayActorError

from datapm_rl.errors import InfraError
from datapm_rl.verl_plugin.rollout_manager import RESTARTS, RolloutManager, spread_over_nodes


class Tender:
    """Call `tend` every few seconds; `metrics` counts what it did since the start."""

    def __init__(self, rollouts: RolloutManager, rewards: Any):
        """`rewards`: verl's RewardLoopManager."""
        self.rollouts = rollouts
        self.rewards = rewards
        self.asked: dict[int, Any] = {}
        self.replaced = 0
        self.redispatched = 0

    def tend(self, open_uids: set[str]) -> None:
        """Look once. `open_uids`: prompts in TransferQueue that are pending or running.

        Raises InfraError "worker_lost" for a worker that dies again and again.
        """
        for index in range(len(self.rewards.reward_loop_workers)):
            if self._reward_worker_is_dead(index):
                self._replace_reward_worker(index)
        self.redispatched += self.rollouts.redispatch_lost(open_uids)

    def metrics(self) -> dict[str, float]:
        """Rows `workers/*` of docs/metrics.md."""
        return {
            "workers/replaced_agent_loop_workers": float(self.rollouts.replaced),
            "workers/replaced_reward_workers": float(self.replaced),
            "workers/redispatched_prompts": float(self.redispatched),
        }

    def _reward_worker_is_dead(self, index: int) -> bool:
        asked = self.asked.pop(index, None) or self.rewards.reward_loop_workers[index].__ray_ready__.remote()
        if not ray.wait([asked], timeout=0)[0]:  # busy, or on its way
            self.asked[index] = asked
            return False
        try:
            ray.get(asked)
        except RayActorError:
            return True
        return False

    def _replace_reward_worker(self, index: int) -> None:
        """As verl's `RewardLoopManager._init_reward_loop_workers` starts it."""
        if self.replaced == RESTARTS:
            raise InfraError("worker_lost", f"RewardLoop workers died more than {RESTARTS} times in this run")
        ray.kill(self.rewards.reward_loop_workers[index])  # dead it is: this process shall forget that it had the name
        self.rewards.reward_loop_workers[index] = self.rewards.reward_loop_workers_class.options(
            name=f"reward_loop_worker_{index}", scheduling_strategy=spread_over_nodes(index)
        ).remote(self.rewards.config, self.rewards.reward_router_address)
        self.replaced += 1
