"""The engine: an asyncio face over a decoding thread.

One thread owns the decoder and the model. It alternates between commands from its inbox and decoding steps: admit
waiting requests, one token for every row, hand out what is finished. Everything from outside (a request, an abort, a
weight update, a cancellation) is a command, so nothing ever happens under a running forward, and order is kept.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from datapm_rl.engine.decoder import Decoder, Request
from datapm_rl.engine.sampling import Generation, Sampling
from datapm_rl.engine.stops import StopMatcher
from datapm_rl.engine.weights import WeightUpdate
from datapm_rl.errors import InfraError, UserError


class CpuEngine:
    """Batched decoding of one model with continuous admission.

    `max_batch` rows run at once, others wait. `max_len`: prompt and response tokens of one request, by default what
    the model was made for. `prefix_cache_mb` bounds the parked keys and values; 0 turns prefix reuse off. `threads`
    is torch's for a forward. With equal `seed`, request ids (or `Sampling.seed`) and prompts, results are equal up to
    float rounding, whatever else is in the batch.
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
        self._update = WeightUpdate(model)
        self._threads = threads
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._futures: dict[Request, Future[Generation]] = {}
        self._paused = False
        self._closed = False
        self._busy_s = 0.0
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._thread = threading.Thread(target=self._run, name="cpu-engine", daemon=True)
        self._thread.start()

    @classmethod
    def from_folder(cls, path: str | Path, *, load_weights: bool = True, **options: Any) -> CpuEngine:
        """An engine for a Hugging Face model folder, in float32. `load_weights=False`: random weights, to be updated.

        `options` are those of the constructor. Raises `UserError` if the folder is not one.
        """
        if not (Path(path) / "config.json").is_file():
            raise UserError(f"{path} is not a model folder: it has no config.json")
        config = AutoConfig.from_pretrained(path)
        tokenizer = AutoTokenizer.from_pretrained(path)
        kind = AutoModelForCausalLM
        if load_weights:
            model = kind.from_pretrained(path, config=config, dtype=torch.float32, attn_implementation="sdpa")
        else:
            model = kind.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
            if (Path(path) / "generation_config.json").is_file():
                model.generation_config = GenerationConfig.from_pretrained(path)
        return cls(model, tokenizer, **options)

    async def generate(self, prompt_ids: list[int], sampling: Sampling, request_id: str) -> Generation:
        """Decode one request. Cancelling the task frees its row. Waits while the engine is aborted or asleep.

        A later call with the same `request_id` and a prompt that goes on from this one computes only the new
        tokens. Raises `UserError` on a prompt that is empty or too long, `InfraError` if the engine fails.
        """
        if self._closed:
            raise InfraError("engine_closed", "the engine was closed")
        request = self._request(prompt_ids, sampling, request_id)
        future: Future[Generation] = Future()
        self._inbox.put(lambda: self._enqueue(request, future))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._inbox.put(lambda: self._drop(request))
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
        await self._command(lambda: self._write_weights(named_tensors, version, last))

    async def abort_all(self) -> None:
        """End all requests, running and waiting, with stop_reason "aborted"; later ones wait for `resume`."""
        await self._command(self._abort_all)

    async def resume(self) -> None:
        """Go on after `abort_all` or `sleep`."""
        await self._command(lambda: setattr(self, "_paused", False))

    async def sleep(self) -> None:
        """`abort_all`, and give the memory of keys and values back. `resume` wakes the engine."""
        await self._command(self._sleep)

    async def close(self) -> None:
        """Stop the thread. Requests not finished fail with `InfraError("engine_closed")`."""
        if self._closed:
            return
        self._closed = True
        for closer in self._closers:
            await closer()
        self._inbox.put(lambda: None)
        await asyncio.to_thread(self._thread.join)

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Have `closer` awaited when the engine is closed (its server's shutdown)."""
        self._closers.append(closer)

    def stats(self) -> dict[str, float]:
        """Counters since the start (tokens, steps, seconds busy) and the present load and memory."""
        decoder = self._decoder
        return {
            **decoder.counts,
            "busy_s": self._busy_s,
            "running": len(decoder.rows),
            "waiting": len(self._waiting),
            "parked": len(decoder.prefixes),
            "kv_bytes": decoder.store.nbytes,
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
        stops = sampling.stop
        if stops and stops not in self._matchers:
            self._matchers[stops] = StopMatcher(self.tokenizer, stops)
        return Request(
            id=request_id,
            tokens=list(prompt_ids),
            sampling=sampling,
            stop_ids=frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._eos),
            matcher=self._matchers.get(stops),
            limit=min(self.max_len, length + (sampling.max_tokens or self.max_len)),
            rng=np.random.default_rng([self._seed, sampling.seed is None, abs(who), length]),
        )

    async def _command(self, action: Callable[[], None]) -> None:
        """Run `action` in the decoding thread, between two steps."""
        if self._closed:
            raise InfraError("engine_closed", "the engine was closed")
        done: Future[None] = Future()

        def run() -> None:
            try:
                done.set_result(action())
            except Exception as error:
                done.set_exception(error)

        self._inbox.put(run)
        await asyncio.wrap_future(done)

    # What follows runs in the decoding thread alone.

    @torch.inference_mode()
    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # a setting of the thread
        while not self._closed:
            self._drain_inbox()
            if self._held() or not (self._waiting or self._decoder.rows):
                continue
            start = time.perf_counter()
            try:
                admitted = [self._waiting.popleft() for _ in range(min(self._decoder.free, len(self._waiting)))]
                self._finish(self._decoder.admit(admitted) if admitted else [])
                self._finish(self._decoder.step())
            except Exception as error:  # the boundary: whoever waits for a token learns of it
                self._fail(InfraError("engine_failed", f"{type(error).__name__}: {error}"))
            self._busy_s += time.perf_counter() - start
        self._drain_inbox()
        self._fail(InfraError("engine_closed", "the engine was closed"))

    def _held(self) -> bool:
        return self._paused or self._update.partial

    def _drain_inbox(self) -> None:
        """Run the commands at hand; sleep for the first one when there is nothing to decode."""
        idle = self._held() or not (self._waiting or self._decoder.rows)
        try:
            self._inbox.get(block=idle and not self._closed)()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            pass

    def _enqueue(self, request: Request, future: Future[Generation]) -> None:
        self._futures[request] = future
        self._waiting.append(request)

    def _drop(self, request: Request) -> None:
        if self._futures.pop(request, None) is None:
            return
        if request in self._decoder.rows:
            self._decoder.remove(request)
        else:
            self._waiting.remove(request)

    def _finish(self, requests: list[Request]) -> None:
        for request in requests:
            future = self._futures.pop(request)
            if future.set_running_or_notify_cancel():
                future.set_result(request.out)

    def _fail(self, error: Exception) -> None:
        self._decoder.clear()
        self._waiting.clear()
        for future in self._futures.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        self._futures.clear()

    def _abort_all(self) -> None:
        self._paused = True
        requests = [*self._decoder.rows, *self._waiting]
        for request in list(self._decoder.rows):
            self._decoder.remove(request)
        self._waiting.clear()
        for request in requests:
            request.out.stop_reason = "aborted"
        self._finish(requests)

    def _sleep(self) -> None:
        self._abort_all()
        self._decoder.prefixes.clear()
        self._decoder.store.clear()

    def _write_weights(self, named: Mapping[str, torch.Tensor | np.ndarray], version: int | None, last: bool) -> None:
        self._update.write(named, last)
        if last:
            self._decoder.version = self._decoder.version + 1 if version is None else version
            self._decoder.prefixes.clear()
            self._waiting.extendleft(reversed(self._decoder.clear()))


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a turn: of the generation config (one or several) and of the tokenizer."""
    config = getattr(model, "generation_config", None)
    ids = getattr(config, "eos_token_id", None)
    found = set(ids) if isinstance(ids, list | tuple) else {ids}
    return frozenset(found | {getattr(tokenizer, "eos_token_id", None)} - {None}) - {None}
