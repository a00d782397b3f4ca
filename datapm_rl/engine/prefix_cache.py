"""Keys and values of finished turns, so that the next turn of a conversation computes only its new tokens.

Found by content and not by request id: verl gives every turn a fresh id, and HTTP clients give none. Each parked
sequence is indexed by a running hash at every 16th token; the longest hash a prompt shares names candidates, and a
comparison of the next few tokens says which of them agrees longest. Least recently used entries leave when the budget
is full. A turn that went on from an entry replaces it when parked itself. Weights change: everything goes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_BLOCK = 16


@dataclass(eq=False)
class Parked:
    """A sequence and its kv [layers, 2, kv_heads, len(tokens), head_dim]."""

    tokens: list[int]
    kv: torch.Tensor


class PrefixCache:
    """Parked sequences within `budget_bytes`."""

    def __init__(self, budget_bytes: int):
        self._budget = budget_bytes
        self._entries: OrderedDict[Parked, None] = OrderedDict()  # the least recently used first
        self._index: dict[int, list[Parked]] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def fits(self, nbytes: int) -> bool:
        """Whether an entry of this size can be held at all."""
        return nbytes <= self._budget

    def park(self, tokens: list[int], kv: torch.Tensor, replaces: Parked | None) -> None:
        """Keep a sequence, in place of the one it went on from."""
        if replaces is not None and replaces in self._entries:
            self._discard(replaces)
        entry = Parked(tokens, kv)
        self._entries[entry] = None
        for mark in _marks(tokens):
            self._index.setdefault(mark, []).append(entry)
        self.nbytes += kv.nbytes
        while self.nbytes > self._budget:
            self._discard(next(iter(self._entries)))

    def find(self, prompt: Sequence[int]) -> tuple[Parked, int] | None:
        """The entry that shares the longest beginning with `prompt`, and that beginning's length.

        The prompt's last token never counts: it has to be fed again, since its logits are wanted.
        """
        prompt = prompt[:-1]
        marks = _marks(prompt)
        for block in range(len(marks), 0, -1):
            if candidates := self._index.get(marks[block - 1]):
                best = max(candidates, key=lambda entry: _agree(entry.tokens, prompt, block * _BLOCK))
                self._entries.move_to_end(best)
                common = _agree(best.tokens, prompt, 0)  # from the start: hashes may collide
                return (best, common) if common else None
        return None

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self._index.clear()
        self.nbytes = 0

    def _discard(self, entry: Parked) -> None:
        del self._entries[entry]
        self.nbytes -= entry.kv.nbytes
        for mark in _marks(entry.tokens):
            self._index[mark].remove(entry)
            if not self._index[mark]:
                del self._index[mark]


def _marks(tokens: Sequence[int]) -> list[int]:
    """Hashes of the first 16, 32, ... tokens."""
    marks = [0]
    for end in range(_BLOCK, len(tokens) + 1, _BLOCK):
        marks.append(hash((marks[-1], *tokens[end - _BLOCK : end])))
    return marks[1:]


def _agree(left: Sequence[int], right: Sequence[int], start: int) -> int:
    """The end of the stretch from `start` on over which both are the same."""
    end = min(len(left), len(right))
    if left[start:end] == right[start:end]:  # a conversation that went on: the usual case
        return end
    return next(i for i in range(start, end) if left[i] != right[i])
