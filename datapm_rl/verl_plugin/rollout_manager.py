"""The agent-loop workers of a run: who has which prompt, and what to do when one of them dies.

verl's manager forgets a prompt once a worker has it: when that worker dies, its prompts stay "running" for ever. This
one remembers the rows that are out, gives each to the worker with the fewest, and, when a restarted worker does not
know a prompt any more, drops what the dead one left of it and hands it out again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
import torch
import transfer_queue as tq
from ray.exceptions import ActorUnavailableError, RayActorError
from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from datapm_rl.errors import InfraError

RESTARTS = 10
"""Restarts of one worker in a run; one that dies more often has a cause that a restart does not cure."""

_VerlWorker = AgentLoopWorkerTQ.__ray_metadata__.modified_class


@ray.remote(max_restarts=RESTARTS)
class RolloutWorker(_VerlWorker):
    """verl's agent-loop worker, which can say what it works on."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.open: set[str] = set()

    async def generate_sequences(self, batch: TensorDict) -> None:
        self.open.update(batch["uid"])
        await super().generate_sequences(batch)

    async def _run_prompt(self, prompt: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        uid = prompt["uid"]
        try:
            await super()._run_prompt(prompt, *args, **kwargs)
        finally:
            self.open.discard(uid)

    async def open_prompts(self) -> set[str]:
        """Prompts whose groups have not settled; a worker that was restarted knows none."""
        return self.open


def dense(prompts: TensorDict) -> TensorDict:
    """The same rows, which can be sliced: TransferQueue gives tensors back as nested ones, which cannot."""
    rows = prompts.clone(recurse=False)
    for key, column in prompts.items():
        if isinstance(column, torch.Tensor) and column.is_nested:
            rows[key] = torch.stack(column.unbind())
    return rows


@dataclass
class _Out:
    """A prompt that a worker has: its row, its partition, and the worker's number."""

    row: TensorDict
    partition: str
    worker: int


class RolloutManager(AgentLoopManagerTQ):
    """`AgentLoopManagerTQ` that survives its workers; see the module docstring."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = RolloutWorker
        self.out: dict[str, _Out] = {}
        self.asked: dict[int, Any] = {}

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Hand prompts out without waiting for their rollouts."""
        prompts = dense(prompts)
        partition = "val" if prompts.get("validate", None) else "train"
        load = [0] * len(self.agent_loop_workers)
        for out in self.out.values():
            load[out.worker] += 1
        given: dict[int, list[int]] = {}
        for index, uid in enumerate(prompts["uid"]):
            worker = load.index(min(load))
            load[worker] += 1
            given.setdefault(worker, []).append(index)
            self.out[uid] = _Out(prompts[index : index + 1], partition, worker)
        for worker, indices in given.items():
            self._give(worker, prompts[indices])

    def _give(self, worker: int, rows: TensorDict) -> None:
        try:
            ray.get(self.agent_loop_workers[worker].generate_sequences.remote(rows))
        except RayActorError:  # dead or being restarted: `redispatch_lost` finds the rows again
            return

    def redispatch_lost(self, open_uids: set[str]) -> int:
        """Hand out again what died with its worker; returns the number of prompts.

        `open_uids`: prompts that are pending or running in TransferQueue, of a moment ago; others are forgotten. A
        worker that does not answer at once is busy, not dead: it is asked on. Raises InfraError "worker_lost" for one
        that is dead for good.
        """
        self.out = {uid: out for uid, out in self.out.items() if uid in open_uids}
        lost = []
        for worker in range(len(self.agent_loop_workers)):
            known = self._known_to(worker)
            if known is not None:
                lost += [uid for uid, out in self.out.items() if out.worker == worker and uid not in known]
        lost = self._still_open(lost)
        for uid in lost:
            self._drop_rows(uid)
            self._give(self.out[uid].worker, self.out[uid].row)
        return len(lost)

    def _known_to(self, worker: int) -> set[str] | None:
        """Open prompts of a worker; None if it has not answered yet."""
        asked = self.asked.pop(worker, None) or self.agent_loop_workers[worker].open_prompts.remote()
        if not ray.wait([asked], timeout=0.5)[0]:
            self.asked[worker] = asked
            return None
        try:
            return ray.get(asked)
        except ActorUnavailableError:  # being restarted
            return None
        except RayActorError as error:
            raise InfraError(
                "worker_lost", f"agent-loop worker {worker} died more than {RESTARTS} times in this run"
            ) from error

    def _still_open(self, uids: list[str]) -> list[str]:
        """Those that have not settled since: their worker forgets a prompt after its status is written."""
        if not uids:
            return []
        status = {uid: tag.get("status") for tags in (tq.kv_list() or {}).values() for uid, tag in tags.items()}
        return [uid for uid in uids if status.get(uid) in ("pending", "running")]

    def _drop_rows(self, uid: str) -> None:
        partition = self.out[uid].partition
        rows = [key for key in (tq.kv_list(partition) or {}).get(partition, {}) if key.startswith(f"{uid}_")]
        if rows:
            tq.kv_clear(keys=rows, partition_id=partition)
