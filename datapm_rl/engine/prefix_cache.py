"""Keys and values of finished turns, so that the next turn of the same request computes only its new tokens.

Keyed by request id. An entry is used once: the turn that takes it parks a longer one when it ends. Least recently
parked entries leave first when the budget is full. Weights change: everything goes.
"""

from __future__ import annotations

from collections import OrderedDict

import torch


class PrefixCache:
    """Parked sequences: request id -> (tokens, kv [layers, 2, kv_heads, len(tokens), head_dim])."""

    def __init__(self, budget_bytes: int):
        self._budget = budget_bytes
        self._entries: OrderedDict[str, tuple[list[int], torch.Tensor]] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def fits(self, nbytes: int) -> bool:
        """Whether an entry of this size can be held at all."""
        return nbytes <= self._budget

    def park(self, request_id: str, tokens: list[int], kv: torch.Tensor) -> None:
        """Keep a sequence, in place of an older one of the same request."""
        self._discard(request_id)
        self._entries[request_id] = (tokens, kv)
        self.nbytes += kv.nbytes
        while self.nbytes > self._budget:
            self._discard(next(iter(self._entries)))

    def take(self, request_id: str, prompt: list[int]) -> torch.Tensor | None:
        """The kv of the longest stored beginning of `prompt`, without its last token (whose logits are wanted)."""
        if request_id not in self._entries:
            return None
        tokens, kv = self._entries[request_id]
        self._discard(request_id)
        common = _common_prefix(tokens, prompt[:-1])
        return kv[:, :, :, :common] if common else None

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self.nbytes = 0

    def _discard(self, request_id: str) -> None:
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self.nbytes -= entry[1].nbytes


def _common_prefix(left: list[int], right: list[int]) -> int:
    if right[: len(left)] == left:  # a conversation that went on: the usual case
        return len(left)
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
