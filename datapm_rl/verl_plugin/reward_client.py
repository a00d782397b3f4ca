"""Calls from an agent loop to verl's RewardLoop workers: verify a step now, form the reward at the end.

A trajectory sticks to one worker (its caches are warm there) and turns to the next one when that is gone; when none is
left, it waits a while for one to be started again. Every call has a deadline; a call that is given up, by its deadline
or its caller, is cancelled in the worker too.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from typing import Any

import ray
from ray.exceptions import RayActorError

from datapm_rl.errors import InfraError
from datapm_rl.trajectory import Step, Task, Trajectory, Verdict, to_json, verdict_from_json

REVIVAL_S = 60.0
"""Seconds in which a dead worker may come back (`tending.py`); its start takes ten."""


class RewardClient:
    """The RewardLoop workers as seen by one trajectory."""

    def __init__(self, num_workers: int, key: str, deadline_s: float):
        self.num_workers = num_workers
        self.first = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
        self.deadline_s = deadline_s

    async def verify(
        self, task: Task, sandbox: str, session_id: str, history: list[Step], verdicts: list[Verdict], step: Step
    ) -> Verdict:
        """The verdict of one step; the worker works on a branch of session `session_id` of actor `sandbox`."""
        payload = {
            "kind": "verify",
            "task": to_json(task.public()),
            "sandbox": sandbox,
            "session_id": session_id,
            "history": to_json(history),
            "verdicts": to_json(verdicts),
            "step": to_json(step),
        }
        return verdict_from_json(await self._call(payload))

    async def reward(self, trajectory: Trajectory, gold: str) -> dict[str, Any]:
        """Outcome and total reward of a finished trajectory, as `output.reward_info`."""
        return await self._call({"kind": "reward", "trajectory": to_json(trajectory), "gold": gold})

    async def _call(self, payload: dict[str, Any]) -> dict[str, Any]:
        patient_until = time.monotonic() + min(REVIVAL_S, self.deadline_s)
        for attempt in itertools.count():
            name = f"reward_loop_worker_{(self.first + attempt) % self.num_workers}"
            if attempt and attempt % self.num_workers == 0:  # asked all of them
                if time.monotonic() > patient_until:
                    break
                await asyncio.sleep(1.0)
            try:
                worker = ray.get_actor(name)
            except ValueError:  # no actor of that name is left
                continue
            call = worker.compute_score.remote(payload)
            try:
                return await asyncio.wait_for(_await(call), self.deadline_s)
            except RayActorError:
                continue
            except (TimeoutError, asyncio.CancelledError):
                ray.cancel(call)
                raise
        raise InfraError("reward_worker_lost", f"none of the {self.num_workers} RewardLoop workers answers")


async def _await(reference: Any) -> dict[str, Any]:
    return await reference
