"""The synchronous core: rows of running requests, prefill, one decoding step. One thread owns it.

Running requests are rows 0..n of the KV store, in the order of `rows`. A finished row is replaced by the last one, so
a step works on a prefix view. Both prefill and a decoding step are one call of `_forward`: each row feeds the tokens
the store does not hold yet (all of a prompt, or the last sampled token), its queries aligned to the *right* end of the
call, so that the last query's logits are the next token's for every row. Padding at the left has no slot in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from datapm_rl.engine import attention
from datapm_rl.engine.draw import DrawPlan
from datapm_rl.engine.kv_store import KVStore, StepCache
from datapm_rl.engine.prefix_cache import Parked, PrefixCache
from datapm_rl.engine.sampling import Generation, Sampling
from datapm_rl.engine.stops import StopMatcher
from datapm_rl.errors import UserError

_PREFILL_TOKENS = 8192  # padded tokens of one prefill call: bounds its activations and its mask


@dataclass(eq=False)
class Request:
    """One request on its way. `tokens` are prompt and generated ones; the store holds the first `cached` of them."""

    tokens: list[int]
    sampling: Sampling
    stop_ids: frozenset[int]
    matcher: StopMatcher | None
    limit: int  # total length at which it ends
    rng: np.random.Generator
    cached: int = 0
    parked: Parked | None = None  # the entry of the prefix cache that it goes on from
    out: Generation = field(default_factory=Generation)


class Decoder:
    """See the module. `version` is the weight version written into generations; the owner sets it."""

    def __init__(self, model: Any, *, max_batch: int, max_len: int, prefix_cache_bytes: int):
        config = model.config.get_text_config()
        _check_plain_attention(config, max_len)
        model.eval().requires_grad_(False)
        model.set_attn_implementation(attention.NAME)
        heads = config.num_attention_heads
        self._model = model
        self.store = KVStore(
            config.num_hidden_layers,
            getattr(config, "num_key_value_heads", None) or heads,
            getattr(config, "head_dim", None) or config.hidden_size // heads,
            model.dtype,
            max_batch,
            max_len,
        )
        self.prefixes = PrefixCache(prefix_cache_bytes)
        self.rows: list[Request] = []
        self.version = 0
        self.counts = dict.fromkeys(("steps", "prefills", "generated_tokens", "prefill_tokens", "reused_tokens"), 0)
        self._max_batch = max_batch
        self._plan: DrawPlan | None = None

    @property
    def free(self) -> int:
        """Rows that can be admitted."""
        return self._max_batch - len(self.rows)

    def admit(self, requests: Sequence[Request]) -> list[Request]:
        """Prefill new rows (at most `free`) and sample their first tokens; returns those that are finished."""
        finished = []
        for group in self._prefill_groups(requests):
            lo = len(self.rows)
            self.rows.extend(request for request, _ in group)
            self._reserve()
            for row, (_, kv) in enumerate(group, lo):
                if kv is not None:
                    self.store.write(row, kv)
            self.counts["prefills"] += 1
            self.counts["prefill_tokens"] += sum(len(request.tokens) - request.cached for request, _ in group)
            self._plan = None
            finished += self._advance(lo, DrawPlan([request.sampling for request, _ in group]))
        return finished

    def step(self) -> list[Request]:
        """One token for every row; returns the requests that are finished."""
        if not self.rows:
            return []
        self._reserve()
        if self._plan is None:
            self._plan = DrawPlan([request.sampling for request in self.rows])
        self.counts["steps"] += 1
        return self._advance(0, self._plan)

    def remove(self, request: Request) -> None:
        """Take a running request out of its row and park its keys and values."""
        row, last = self.rows.index(request), len(self.rows) - 1
        if self.prefixes.fits(request.cached * self.store.token_bytes):
            kv = self.store.read(row, request.cached)
            self.prefixes.park(request.tokens[: request.cached], kv, request.parked)
        if row != last:
            self.rows[row] = self.rows[last]
            self.store.move(last, row, self.rows[row].cached)
        self.rows.pop()
        request.cached = 0
        self._plan = None

    def clear(self) -> list[Request]:
        """Take all rows out without parking them; returns them, ready to be admitted again."""
        rows, self.rows, self._plan = self.rows, [], None
        for request in rows:
            request.cached = 0
        return rows

    def _reserve(self) -> None:
        longest = max(len(request.tokens) for request in self.rows)
        self.store.reserve(longest, [request.cached for request in self.rows])

    def _prefill_groups(self, requests: Sequence[Request]) -> list[list[tuple[Request, torch.Tensor | None]]]:
        """Requests with their parked kv, in groups of which each is one forward call."""
        groups: list[list[tuple[Request, torch.Tensor | None]]] = []
        longest = 0
        for request in requests:
            kv = None
            if found := self.prefixes.find(request.tokens):
                entry, request.cached = found
                kv = entry.kv[:, :, :, : request.cached]
                request.parked = entry if request.cached == len(entry.tokens) else None
            self.counts["reused_tokens"] += request.cached
            if not request.out.token_ids:
                request.out.cached_tokens = request.cached
            longest = max(longest, len(request.tokens) - request.cached)
            if not groups or longest * (len(groups[-1]) + 1) > _PREFILL_TOKENS:
                groups.append([])
                longest = len(request.tokens) - request.cached
            groups[-1].append((request, kv))
        return groups

    def _advance(self, lo: int, plan: DrawPlan) -> list[Request]:
        """Feed what rows lo.. have not fed yet, sample a token for each, take the finished ones out."""
        rows = self.rows[lo:]
        uniforms = np.array([request.rng.random() for request in rows])
        tokens, logprobs = plan.draw(self._forward(lo, rows), uniforms)
        finished = []
        for request, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            request.cached = len(request.tokens)
            if self._accept(request, token, logprob):
                finished.append(request)
        self.counts["generated_tokens"] += len(rows)
        for request in finished:
            self.remove(request)
        return finished

    def _forward(self, lo: int, rows: list[Request]) -> torch.Tensor:
        """Logits [rows, vocabulary] of the token after each row's last."""
        lengths = torch.tensor([len(request.tokens) for request in rows])
        fed = [len(request.tokens) - request.cached for request in rows]
        queries, length = max(fed), int(lengths.max())
        positions = lengths.unsqueeze(1) - queries + torch.arange(queries)
        row_ids = torch.arange(lo, lo + len(rows))
        real = None
        if queries == 1:
            ids = torch.tensor([request.tokens[-1:] for request in rows])
            slots = self.store.slots(row_ids, positions[:, 0])
        else:
            ids = torch.tensor([[0] * (queries - n) + r.tokens[-n:] for r, n in zip(rows, fed, strict=True)])
            is_real = torch.arange(queries) >= queries - torch.tensor(fed).unsqueeze(1)
            real = is_real.flatten().nonzero().squeeze(1)
            slots = self.store.slots(row_ids.repeat_interleave(torch.tensor(fed)), positions[is_real])
            positions = positions.clamp(min=0)  # padding sees at least key 0, so that no row of the softmax is empty
        mask = torch.zeros(len(rows), 1, queries, length, dtype=self._model.dtype)
        mask.masked_fill_(torch.arange(length) > positions[:, None, :, None], float("-inf"))
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=StepCache(self.store, lo, lo + len(rows), length, slots, real),
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def _accept(self, request: Request, token: int, logprob: float) -> bool:
        """Append a sampled token; True if the request ends with it."""
        out = request.out
        if not out.token_ids:
            out.weight_version = self.version
        out.last_weight_version = self.version
        request.tokens.append(token)
        out.token_ids.append(token)
        out.logprobs.append(logprob)
        if token in request.stop_ids:
            out.matched = token
        elif request.matcher is not None:
            out.matched = request.matcher.match(out.token_ids)
        if out.matched is not None:
            out.stop_reason = "stop"
            return True
        return len(request.tokens) >= request.limit


def _check_plain_attention(config: Any, max_len: int) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "layer_types", None) is None else None
    if kinds != {"full_attention"} or (window is not None and window < max_len):
        raise UserError(
            f"the CPU engine needs full attention in every layer, {config.model_type} has {sorted(kinds)} "
            f"with window {window}; take another model, or a max_len within the window"
        )
