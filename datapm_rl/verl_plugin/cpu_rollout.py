"""The CPU rollout engine as a verl rollout backend: `actor_rollout_ref.rollout.name=hf_cpu`.

Three parts, as verl wants them: `CpuServer`, a Ray actor around one `CpuEngine`; `CpuReplica`, which starts it for the
trainer (hybrid), for a reward-model pool or for a teacher; and `CpuServerAdapter`, which lives in each trainer worker
and copies new weights into the server.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from datapm_rl.engine import CpuEngine, Sampling
from datapm_rl.engine.openai_server import start_server

Weights = dict[str, np.ndarray]


class CpuServer:
    """Ray actor: token-in-token-out generation for verl, and an OpenAI-compatible endpoint when it serves a judge."""

    def __init__(self, folder: str, seed: int, max_len: int, max_batch: int, load_weights: bool):
        torch.set_num_threads(1)
        self.folder = folder
        self.address: tuple[str, int] | None = None
        self.starting = asyncio.Lock()
        self.rejecting = False
        self.engine = CpuEngine.from_folder(
            folder, load_weights=load_weights, max_batch=max_batch, max_len=max_len, seed=seed
        )

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        """One turn, or its beginning: verl's client sends an aborted one again, with the tokens it has.

        The reply's `global_steps` is the trainer step of the weights that produced its last token; None when it has no
        token, so that a request which was aborted while it waited does not count for the weights before the abort.
        """
        if self.rejecting:
            return TokenOutput(
                token_ids=[], stop_reason="aborted", num_preempted=0, extra_fields={"global_steps": None}
            )
        result = await self.engine.generate(prompt_ids, Sampling.from_dict(sampling_params), request_id)
        return TokenOutput(
            token_ids=result.token_ids,
            log_probs=result.logprobs if sampling_params.get("logprobs") else None,
            stop_reason="aborted" if result.stop_reason == "aborted" else "completed",
            num_preempted=0,
            extra_fields={"global_steps": result.last_weight_version if result.token_ids else None},
        )

    async def load_weights(self, bucket: Weights, last: bool, version: int | None) -> None:
        await self.engine.update_weights(bucket, version=version, last=last)

    async def get_server_address(self) -> tuple[str, int]:
        """(host, port) of the OpenAI-compatible endpoint, started when it is first asked for.

        Its model has the folder's path as its name, as vLLM does it.
        """
        async with self.starting:
            if self.address is None:
                from transformers import AutoTokenizer

                tokenizer = AutoTokenizer.from_pretrained(self.folder)
                host = ray.util.get_node_ip_address()
                address = await start_server(self.engine, tokenizer, host, 0, self.folder)
                self.address = host, int(address.rpartition(":")[2])
        return self.address

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """End all requests as aborted. Later ones wait for `resume_generation`; with `reject_request` they are aborted
        at once, because this server leaves the load balancer and their client shall go to another."""
        self.rejecting = reject_request
        await self.engine.abort_all()

    async def resume_generation(self) -> None:
        self.rejecting = False
        await self.engine.resume()

    # verl's memory management between rollout and training: nothing to give back on a CPU.
    async def wake_up(self, tags: Any = None) -> None: ...
    async def sleep(self) -> None: ...
    async def clear_kv_cache(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def start_profile(self, **_: Any) -> None: ...
    async def stop_profile(self) -> None: ...


class CpuReplica(RolloutReplica):
    """One `CpuServer`, named so that its weight adapter finds it."""

    def rollout_worker_use_gpu(self) -> bool:
        return False

    async def init_colocated(self, resource_pool: Any) -> None:
        """A reward model or a teacher: its weights do not change, so it needs no weight adapter."""
        self.rollout_mode, self.resource_pool = RolloutMode.COLOCATED, resource_pool
        self.workers: list[Any] = []
        await self.launch_servers()

    async def launch_servers(self) -> None:
        judge = self.is_reward_model or self.is_teacher_model
        kind = "reward_" if self.is_reward_model else "teacher_" if self.is_teacher_model else ""
        name = f"{self.config.name}_{kind}server_{self.replica_rank}_0"
        server = (
            ray.remote(CpuServer)
            .options(name=name, num_cpus=0, max_concurrency=self.max_concurrency)
            .remote(
                folder=self.model_config.path,
                seed=self.config.seed + self.replica_rank,
                max_len=self.config.prompt_length + self.config.response_length,
                max_batch=min(self.config.max_num_seqs, 64),
                load_weights=judge or self.config.load_format != "dummy",
            )
        )
        self.servers, self._server_handle = [server], server
        self._server_address = name
        if judge:
            host, port = await server.get_server_address.remote()
            self._server_address = f"{host}:{port}"


class CpuServerAdapter(BaseRollout):
    """The trainer worker's side of a weight update."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any = None, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ.get("RANK", 0))
        ranks_per_replica = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        self.replica_rank = rank // ranks_per_replica if replica_rank == -1 else replica_rank
        self.is_leader_rank = rank % ranks_per_replica == 0

    def _server(self) -> Any:
        return ray.get_actor(f"{self.config.name}_server_{self.replica_rank}_0")

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Iterator[Any] | AsyncIterator[Any],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **_: Any,
    ) -> None:
        """Send weights in buckets. All ranks drain the iterator (it all-gathers inside); the leader sends."""
        if wire_format != "named_tensors":
            raise ValueError(f"hf_cpu takes named_tensors, got {wire_format}")
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        bucket: Weights = {}
        size = 0
        async for name, tensor in ensure_async_iterator(weights):
            if not self.is_leader_rank:
                continue
            bucket[name] = tensor.detach().float().cpu().contiguous().numpy().copy()
            size += bucket[name].nbytes
            if size >= limit:
                await self._server().load_weights.remote(bucket, last=False, version=None)
                bucket, size = {}, 0
        if self.is_leader_rank:
            await self._server().load_weights.remote(bucket, last=True, version=global_steps)
