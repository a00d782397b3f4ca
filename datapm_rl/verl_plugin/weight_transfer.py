"""Weights from trainer to rollout servers of their own through Ray's object store: checkpoint engine `ray_store`.

For `separate_async` without accelerators, where NCCL and its kin do not exist. The trainer's first rank puts buckets
into the object store; a mailbox actor hands their references to every rollout worker. Chosen by
`rollout.checkpoint_engine.backend=ray_store` with this module as `custom_backend_module`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

import datapm_rl.verl_plugin.register  # noqa: F401  a rollout worker builds its weight adapter by name after this import

BUCKETS_AHEAD = 2
"""Buckets that wait for the slowest receiver at most."""


class _Mailbox:
    """Ray actor: one queue of bucket references for each receiver. None ends a transfer."""

    async def open(self, receivers: int) -> None:
        self.queues: list[asyncio.Queue] = [asyncio.Queue(BUCKETS_AHEAD) for _ in range(receivers)]

    async def post(self, references: list[ray.ObjectRef] | None) -> None:
        await asyncio.gather(*(queue.put(references) for queue in self.queues))

    async def take(self, receiver: int) -> list[ray.ObjectRef] | None:
        return await self.queues[receiver].get()


@CheckpointEngineRegistry.register("ray_store")
class RayStoreEngine(CheckpointEngine):
    """One end of a transfer: a trainer rank (only rank 0 sends) or a rollout worker."""

    _mailbox: ClassVar[Any] = None
    """In the process that drives training. Kept from one transfer to the next: an actor dies with the handle that
    created it, and making one takes seconds."""

    def __init__(self, bucket_size: int, is_master: bool = False):
        self.bucket_size, self.is_master = bucket_size, is_master
        self.mailbox: Any = None
        self.receiver = -1

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Arguments of `init_process_group`, one list entry per worker: of the trainer's, and of the rollout's."""
        if cls._mailbox is None:
            cls._mailbox = ray.remote(_Mailbox).options(num_cpus=0, max_concurrency=1000).remote()
        ray.get(cls._mailbox.open.remote(rollout_world_size))
        trainer = {"mailbox": [cls._mailbox] * actor_wg_world_size, "receiver": [-1] * actor_wg_world_size}
        rollout = {"mailbox": [cls._mailbox] * rollout_world_size, "receiver": list(range(rollout_world_size))}
        return trainer, rollout

    def init_process_group(self, mailbox: Any, receiver: int) -> None:
        self.mailbox, self.receiver = mailbox, receiver

    def finalize(self) -> None:
        self.mailbox = None

    @torch.no_grad()
    async def send_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Send all weights. Every rank drains the iterator (it all-gathers inside); the master sends."""
        bucket: dict[str, Any] = {}
        size = 0
        async for name, tensor in ensure_async_iterator(weights):
            if not self.is_master:
                continue
            bucket[name] = tensor.detach().cpu().clone()
            size += bucket[name].nbytes
            if size >= self.bucket_size:
                await self.mailbox.post.remote([ray.put(bucket)])
                bucket, size = {}, 0
        if self.is_master:
            await self.mailbox.post.remote([ray.put(bucket)])
            await self.mailbox.post.remote(None)
        return {}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) until the sender ends the transfer."""
        while (references := await self.mailbox.take.remote(self.receiver)) is not None:
            for name, tensor in (await references[0]).items():
                yield name, tensor
