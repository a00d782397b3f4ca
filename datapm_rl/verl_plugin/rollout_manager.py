"""The agent-loop workers of a run: who has which prompt, and what to do when one of them dies.

verl's manager forgets a prompt once a worker has it: when that worker dies, its prompts stay "running" for ever. This
one remembers the rows that are out, gives each to the worker with the fewest, and, when a worker is dead, starts
another one, drops what the dead one left of its prompts and hands them out again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import ray
import torch
import transfer_queue as tq
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from datapm_rl.errors import InfraError

RESTARTS = 10
"""Workers of a kind that are replaced in one run; more deaths have a cause that a replacement does not cure."""

_VerlWorker = AgentLoopWorkerTQ.__ray_metadata__.modified_class


@ray.remote
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
        """Prompts whose groups have not settled."""
        return self.open


def dense(prompts: TensorDict) -> TensorDict:
    """The same rows, which can be sliced: TransferQueue gives tensors back as nested ones, which cannot."""
    rows = prompts.clone(recurse=False)
    for key, column in prompts.items():
        if isinstance(column, torch.Tensor) and column.is_nested:
            rows[key] = torch.stack(column.unbind())
    return rows


def spread_over_nodes(index: int) -> NodeAffinitySchedulingStrategy:
    """Where verl puts worker `index`: round robin over the nodes that have CPUs."""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    return NodeAffinitySchedulingStrategy(node_id=nodes[index % len(nodes)], soft=True)


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
        self.replaced = 0

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Hand prompts out without waiting for their rollouts."""
        prompts = dense(prompts)
        partition = "val" if "validate" in prompts.keys() and prompts["validate"] else "train"  # noqa: SIM118
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
        except RayActorError:  # dead: `redispatch_lost` finds the rows again
            return

    def redispatch_lost(self, open_uids: set[str]) -> int:
        """Hand out again what died with its worker; returns the number of prompts.

        `open_uids`: prompts that are pending or running in TransferQueue, of a moment ago; others are forgotten. A
        worker that does not answer at once is busy, not dead: it is asked on. Raises InfraError "worker_lost" when they
        die again and again.
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
        except RayActorError:
            self._replace(worker)
            return set()

    def _replace(self, worker: int) -> None:
        """As verl's `_init_agent_loop_workers` starts it. (A restart by Ray loses the actor's large arguments.)"""
        if self.replaced == RESTARTS:
            raise InfraError("worker_lost", f"agent-loop workers died more than {RESTARTS} times in this run")
        self.replaced += 1
        self.agent_loop_workers[worker] = RolloutWorker.options(
            name=f"agent_loop_worker_{worker}_{uuid4().hex[:8]}", scheduling_strategy=spread_over_nodes(worker)
        ).remote(self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles)

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
