"""verl's replay buffer with a shorter poll: its 2 s would be most of a step of a small model."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class FastReplayBuffer(ReplayBuffer):
    """`ReplayBuffer` that looks for finished groups ten times a second."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "poll_interval": 0.1})
