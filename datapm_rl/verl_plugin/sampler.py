"""verl's replay buffer, made for small models and for lost workers.

verl looks for finished groups every 2 s, most of a step of a small model: here ten times a second. And a group whose
agent-loop worker died stays "running" for ever: here the workers are asked now and then whether they live.
"""

from __future__ import annotations

import time
from typing import Any

import ray
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_S = 0.1
ASK_S = 10.0
"""Seconds between two questions to the workers."""


class WatchfulReplayBuffer(ReplayBuffer):
    """`ReplayBuffer` that polls often and raises Ray's error when one of `workers` is gone."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "poll_interval": POLL_S})
        self.workers: list[Any] = []  # set by the trainer, which has their handles
        self._asked = time.monotonic()

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        if time.monotonic() - self._asked > ASK_S:
            ray.get([worker.__ray_ready__.remote() for worker in self.workers])
            self._asked = time.monotonic()
        return super()._wait_for_next_poll(partition_id, last_debug_time)
