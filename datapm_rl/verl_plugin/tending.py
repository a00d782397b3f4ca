"""Looks after a run's workers while the trainer waits for rollouts: who died is started again.

Agent-loop workers are restarted by Ray and get their prompts back (`rollout_manager.py`). verl starts its RewardLoop
workers without restarts: a dead one is started anew here, under its name, by which callers find it. Sandbox actors
restart by themselves; trainer workers and TransferQueue cannot be replaced (`watchdog.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from datapm_rl.errors import InfraError
from datapm_rl.verl_plugin.rollout_manager import RESTARTS, RolloutManager


class Tender:
    """Call `tend` every few seconds; `metrics` counts what it did since the start."""

    def __init__(self, rollouts: RolloutManager, rewards: Any):
        """`rewards`: verl's RewardLoopManager."""
        self.rollouts = rollouts
        self.rewards = rewards
        self.asked: dict[int, Any] = {}
        self.counts: Counter[str] = Counter()

    def tend(self, open_uids: set[str]) -> None:
        """Look once. `open_uids`: prompts in TransferQueue that are pending or running.

        Raises InfraError "worker_lost" for a worker that dies again and again.
        """
        for index in range(len(self.rewards.reward_loop_workers)):
            if self._reward_worker_is_dead(index):
                self._replace_reward_worker(index)
        self.counts["workers/redispatched_prompts"] += self.rollouts.redispatch_lost(open_uids)

    def metrics(self) -> dict[str, float]:
        """Rows `workers/*` of docs/metrics.md."""
        names = ("workers/redispatched_prompts", "workers/replaced_reward_workers")
        return {name: float(self.counts[name]) for name in names}

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
        self.counts["workers/replaced_reward_workers"] += 1
        if self.counts["workers/replaced_reward_workers"] > RESTARTS:
            raise InfraError("worker_lost", f"RewardLoop workers died more than {RESTARTS} times in this run")
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        self.rewards.reward_loop_workers[index] = self.rewards.reward_loop_workers_class.options(
            name=f"reward_loop_worker_{index}",
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=nodes[index % len(nodes)], soft=True),
        ).remote(self.rewards.config, self.rewards.reward_router_address)
