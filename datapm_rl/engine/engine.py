"""`CpuEngine`: the asyncio face of the decoding thread. See the package's docstring for how the parts fit."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from datapm_rl.engine.decoder import Decoder, Request
from datapm_rl.engine.sampling import Generation, Sampling
from datapm_rl.engine.stops import StopMatcher
from datapm_rl.engine.weights import WeightUpdate
from datapm_rl.engine.worker import DecodingThread
from datapm_rl.errors import InfraError, UserError


class CpuEngine:
    """Batched decoding of one model with continuous admission. It owns the model: nobody else may change it.

    `max_batch` rows run at once, others wait. `max_len`: prompt and response tokens of one request, by default what
    the model was made for. `prefix_cache_mb` bounds the parked keys and values; 0 turns prefix reuse off. `threads`
    is torch's for a forward. With equal `seed`, request ids (or `Sampling.seed`) and prompts, results are equal up to
    float rounding, whatever else is in the batch. Memory: at worst max_batch x max_len x `stats()["token_bytes"]`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_batch: int = 64,
        max_len: int | None = None,
        seed: int = 0,
        prefix_cache_mb: int = 512,
        threads: int = 1,
    ):
        self.tokenizer = tokenizer
        self.max_len = max_len or model.config.get_text_config().max_position_embeddings
        self._seed = seed
        self._eos = _eos_ids(model, tokenizer)
        self._matchers: dict[tuple[str, ...], StopMatcher] = {}
        self._decoder = Decoder(
            model, max_batch=max_batch, max_len=self.max_len, prefix_cache_bytes=prefix_cache_mb * 2**20
        )
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._worker = DecodingThread(self._decoder, WeightUpdate(model), threads)

    @classmethod
    def from_folder(cls, path: str | Path, *, load_weights: bool = True, **options: Any) -> CpuEngine:
        """An engine for a Hugging Face model folder, in float32. `load_weights=False`: random weights, to be updated.

        `options` are those of the constructor. Raises `UserError` if the folder is not one.
        """
        if not (Path(path) / "config.json").is_file():
            raise UserError(f"{path} is not a model folder: it has no config.json")
        kind = AutoModelForCausalLM
        if load_weights:
            model = kind.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
        else:
            config = AutoConfig.from_pretrained(path)
            model = kind.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
            if (Path(path) / "generation_config.json").is_file():  # it names the EOS tokens
                model.generation_config = GenerationConfig.from_pretrained(path)
        return cls(model, AutoTokenizer.from_pretrained(path), **options)

    async def generate(self, prompt_ids: list[int], sampling: Sampling, request_id: str) -> Generation:
        """Decode one request. Cancelling the task frees its row. Waits while the engine is aborted or asleep.

        A later call whose prompt goes on from prompt and response of this one computes only the new tokens. The
        request id is the seed of a request that brings none. Raises `UserError` on a prompt that is empty or too
        long, `InfraError` if the engine fails.
        """
        request = self._request(prompt_ids, sampling, request_id)
        self._check_open()
        future = self._worker.submit(request)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._worker.drop(request)
            raise

    async def update_weights(
        self,
        named_tensors: Mapping[str, torch.Tensor | np.ndarray],
        *,
        version: int | None = None,
        last: bool = True,
    ) -> None:
        """Write weights in place, between two steps. After the last bucket all keys and values computed with the old
        weights are gone: parked prefixes are dropped, requests still running are prefilled again. Between the first
        and the last bucket nothing is decoded. `version` None counts one up. Raises `UserError` on an unknown name, a
        wrong shape, or (with `last`) a missing weight.
        """
        await self._call(lambda: self._worker.write_weights(named_tensors, version, last))

    async def abort_all(self) -> None:
        """End all requests, running and waiting, with stop_reason "aborted"; later ones wait for `resume`."""
        await self._call(self._worker.abort_all)

    async def resume(self) -> None:
        """Go on after `abort_all` or `sleep`."""
        await self._call(self._worker.resume)

    async def sleep(self) -> None:
        """`abort_all`, and give the memory of keys and values back. `resume` wakes the engine."""
        await self._call(self._worker.sleep)

    async def close(self) -> None:
        """Stop server and thread. Requests not finished fail with `InfraError("engine_closed")`."""
        for closer in self._closers:
            await closer()
        self._closers.clear()
        if not self._worker.stopped:
            await asyncio.to_thread(self._worker.stop)

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Have `closer` awaited when the engine is closed (its server's shutdown)."""
        self._closers.append(closer)

    def stats(self) -> dict[str, float]:
        """Counters since the start (tokens, steps, seconds busy) and the present load and memory."""
        decoder = self._decoder
        return {
            **decoder.counts,
            "busy_s": self._worker.busy_s,
            "running": len(decoder.rows),
            "waiting": len(self._worker.waiting),
            "parked": len(decoder.prefixes),
            "kv_bytes": decoder.store.nbytes,
            "token_bytes": decoder.store.token_bytes,
            "parked_bytes": decoder.prefixes.nbytes,
            "weight_version": decoder.version,
        }

    def _request(self, prompt_ids: list[int], sampling: Sampling, request_id: str) -> Request:
        length = len(prompt_ids)
        if length == 0:
            raise UserError("the prompt is empty: there is nothing to go on from")
        if length >= self.max_len:
            raise UserError(
                f"the prompt has {length} tokens, the engine takes prompt and response up to {self.max_len}"
            )
        who = zlib.crc32(request_id.encode()) if sampling.seed is None else sampling.seed
        if sampling.stop and sampling.stop not in self._matchers:
            self._matchers[sampling.stop] = StopMatcher(self.tokenizer, sampling.stop)
        return Request(
            tokens=list(prompt_ids),
            sampling=sampling,
            stop_ids=frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._eos),
            matcher=self._matchers.get(sampling.stop),
            limit=min(self.max_len, length + (sampling.max_tokens or self.max_len)),
            rng=np.random.default_rng([self._seed % 2**64, sampling.seed is None, who % 2**64, length]),
        )

    async def _call(self, action: Callable[[], None]) -> None:
        self._check_open()
        await asyncio.wrap_future(self._worker.call(action))

    def _check_open(self) -> None:
        if self._worker.stopped:
            raise InfraError("engine_closed", "the engine was closed")


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a turn: of the generation config (one or several) and of the tokenizer."""
    found = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = [*(found if isinstance(found, list | tuple) else [found]), getattr(tokenizer, "eos_token_id", None)]
    return frozenset(token for token in ids if token is not None)
