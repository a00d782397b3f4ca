"""An engine with continuous batching on simulated H20s: how long prompts and replies take, by arithmetic.

The H20: 4.0 TB/s of HBM3, 148 TFLOPS dense in bf16, 96 GB. Of these, `MEMORY_SHARE` and `COMPUTE_SHARE` are reached by
good kernels; `STEP_OVERHEAD_S` is the engine's own time for a step (schedule, launch, sample). None of the three was
measured here: no GPU. A replica is one GPU (tensor parallel 1), weights and KV cache in bf16.

    decode step   overhead + max(memory, compute): every step reads the weights and the KV cache of all running requests
                  (the plateau, and a slope with context), and computes 2 FLOP per parameter and request
    prefill       2 FLOP per parameter and token that the prefix cache does not hold; first come, first served; decoding
                  stands still meanwhile (chunked prefill lets it advance one token per chunk: left out)

For the policy (7.6 B parameters, 28 layers x 4 KV heads x 128) that is a plateau of 15.2 GB / 3.2 TB/s + 2 ms = 6.8 ms,
compute-bound from 28 requests on, and 5,800 tokens/s of prefill. For DataPRM (Qwen3-4B: 4.0 B, 36 x 8 x 128) 4.5 ms,
but 147 kB of KV per token make it 20 ms at 32 requests of 10,000 tokens; 11,000 tokens/s of prefill. KV capacity does
not bind at the sizes of this bench (32 x 10,000 tokens are 47 GB) and is left out, and so is eviction. Attention's
FLOP are left out: below a tenth at these lengths.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

BANDWIDTH = 4.0e12
FLOPS = 148e12
MEMORY_SHARE = 0.8
COMPUTE_SHARE = 0.6
STEP_OVERHEAD_S = 0.002
MAX_NUM_SEQS = 256  # vLLM's default
BLOCK_TOKENS = 16  # of the prefix cache, vLLM's default


@dataclass(frozen=True)
class Model:
    """What of a model its speed depends on. `slowness` multiplies all times, for the sensitivity lines."""

    parameters: float
    kv_bytes: float  # per token: 2 (K, V) x layers x KV heads x head size x 2 bytes
    slowness: float = 1.0

    def decode_step_s(self, requests: int, context_tokens: float) -> float:
        """Seconds of one step with so many requests, of `context_tokens` all together."""
        memory = (2 * self.parameters + self.kv_bytes * context_tokens) / (BANDWIDTH * MEMORY_SHARE)
        compute = 2 * self.parameters * requests / (FLOPS * COMPUTE_SHARE)
        return self.slowness * (STEP_OVERHEAD_S + max(memory, compute))

    def prefill_s(self, tokens: float) -> float:
        """Seconds to prefill so many tokens."""
        return self.slowness * 2 * self.parameters * tokens / (FLOPS * COMPUTE_SHARE)


POLICY = Model(7.6e9, 2 * 28 * 4 * 128 * 2)
DATAPRM = Model(4.0e9, 2 * 36 * 8 * 128 * 2)


@dataclass
class _Request:
    done: asyncio.Future[None]
    prefill: float  # tokens left
    decode: float  # tokens left
    context: float  # tokens in the KV cache


class Replica:
    """One GPU. Between two events (a request comes, is prefilled, is finished) all running requests go on evenly."""

    def __init__(self, model: Model, prefix_tokens: int = 0):
        """`prefix_tokens`: before every prompt, and in the prefix cache from the start."""
        self.model, self.load, self.busy_s, self._prefix_tokens = model, 0, 0.0, prefix_tokens
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._timer: asyncio.TimerHandle | None = None
        self._at, self._token_s = 0.0, 0.0  # the last event; seconds per decoded token since then (0: prefilling)
        self._cached: set[int] = set()
        self.cpu_s = 0.0

    async def serve(
        self, content: Sequence[int] | str, per_token: int, prompt_tokens: float, new_tokens: float
    ) -> None:
        """Take as long as a request takes. `content`: prompt and reply, `per_token` items of which are a token."""
        began = time.thread_time()
        chain = chain_of(content, BLOCK_TOKENS * per_token)
        hits = sum(1 for _ in itertools.takewhile(self._cached.__contains__, chain))
        cached = min(hits * BLOCK_TOKENS, prompt_tokens - 1)  # vLLM computes the last token of a prompt anew
        done = asyncio.get_running_loop().create_future()
        self._advance()
        self._waiting.append(_Request(done, prompt_tokens - cached, new_tokens, prompt_tokens + self._prefix_tokens))
        self.load += 1
        self._next()
        self.cpu_s += time.thread_time() - began
        try:
            await done
        finally:
            self.load -= 1
            self._cached.update(chain)

    def forget(self) -> None:
        """New weights: what was cached is of no use."""
        self._cached.clear()

    def _advance(self) -> None:
        """Account for the time since the last event."""
        now = asyncio.get_running_loop().time()
        passed, self._at = now - self._at, now
        if self._timer is None:
            return
        self.busy_s += passed
        if self._token_s:
            for request in self._running:
                request.decode -= passed / self._token_s
                request.context += passed / self._token_s
        else:
            self._waiting[0].prefill -= passed / self.model.prefill_s(1)

    def _next(self) -> None:
        """Start what follows, until its end or until another request comes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and len(self._running) < MAX_NUM_SEQS:
            self._token_s = 0.0
            wait_s = self.model.prefill_s(self._waiting[0].prefill)
        elif self._running:
            tokens = min(request.decode for request in self._running)
            context = sum(request.context for request in self._running) + len(self._running) * tokens / 2
            self._token_s = self.model.decode_step_s(len(self._running), context)
            wait_s = tokens * self._token_s
        else:
            return
        self._timer = asyncio.get_running_loop().call_later(max(wait_s, 0.0), self._event)

    def _event(self) -> None:
        began = time.thread_time()
        self._advance()
        if not self._token_s:
            self._running.append(self._waiting.popleft())
        for request in [request for request in self._running if request.decode < 0.01]:
            self._running.remove(request)
            if not request.done.done():
                request.done.set_result(None)
        self._next()
        self.cpu_s += time.thread_time() - began


class Engine:
    """Replicas behind a balancer: a session stays where it began (as in verl), other requests go to the least busy."""

    def __init__(self, model: Model, replicas: int, prefix_tokens: int = 0):
        self.replicas = [Replica(model, prefix_tokens) for _ in range(replicas)]
        self._sessions: dict[str, Replica] = {}

    async def serve(
        self,
        content: Sequence[int] | str,
        per_token: int,
        prompt_tokens: float,
        new_tokens: float,
        session: str | None = None,
    ) -> None:
        """See `Replica.serve`."""
        replica = self._sessions.get(session) if session else None
        if replica is None:
            replica = min(self.replicas, key=lambda each: each.load)
            if session:
                self._sessions[session] = replica
        await replica.serve(content, per_token, prompt_tokens, new_tokens)

    def forget(self) -> None:
        """Drop all prefix caches."""
        for replica in self.replicas:
            replica.forget()

    @property
    def cpu_s(self) -> float:
        """CPU seconds that the simulation of these replicas took."""
        return sum(replica.cpu_s for replica in self.replicas)

    @property
    def busy_s(self) -> float:
        """Simulated seconds in which replicas had something to do, of all together."""
        return sum(replica.busy_s for replica in self.replicas)


def chain_of(content: Sequence[int] | str, block: int) -> list[int]:
    """Hashes of a conversation's blocks of `block` tokens or characters, each with all before it."""
    chain, before = [], 0
    for start in range(0, len(content) - block + 1, block):
        piece = content[start : start + block]
        before = hash((before, piece if isinstance(piece, str) else tuple(piece)))
        chain.append(before)
    return chain
