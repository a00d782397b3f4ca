"""Keys and values of all sequences, one row each.

Layout: data[layer, 0 = key / 1 = value, row, kv_head, position, head_dim]. Position p of a row is token p of its
sequence, without holes, so a step reads a view (rows lo..hi, positions 0..length) and never gathers. Positions are
next to each other within a head because a decoding step is bound by how fast attention streams them: with heads
inside of positions it took 2 to 4 times as long.

Memory: the store reserves max_rows x length and grows in length as needed, from nothing. Reserved is not used: pages
come from calloc and cost nothing before something is written to them, so a row costs what its longest sequence took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from transformers import Cache

_LENGTH_BLOCK = 128


class KVStore:
    """Growing storage [layers, 2, max_rows, kv_heads, length, head_dim]; zeros where nothing was written.

    (Zeros and not empty memory: a masked position has weight 0, but 0 * NaN is NaN.)
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, max_rows: int, max_length: int):
        self._shape = (layers, 2, max_rows, kv_heads, 0, head_dim)
        self._dtype = dtype
        self._max_length = max_length
        self.token_bytes = layers * 2 * kv_heads * head_dim * dtype.itemsize  # of one sequence
        self.clear()

    def clear(self) -> None:
        """Give the memory back."""
        self._allocate(0)

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return self.data.nbytes

    def reserve(self, length: int, used: Sequence[int]) -> None:
        """Make room for `length` positions per row; the first `used[row]` of each row stay."""
        have = self.data.shape[4]
        if length <= have:
            return
        blocks = -(-max(length, have * 5 // 4) // _LENGTH_BLOCK)
        old = self.data
        self._allocate(min(blocks * _LENGTH_BLOCK, self._max_length))
        for row, stored in enumerate(used):
            self.data[:, :, row, :, :stored] = old[:, :, row, :, :stored]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of row `source` over row `target`."""
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]

    def read(self, row: int, length: int) -> torch.Tensor:
        """A copy of a row [layers, 2, kv_heads, length, head_dim]."""
        return self.data[:, :, row, :, :length].clone()

    def write(self, row: int, kv: torch.Tensor) -> None:
        """Put `kv` [layers, 2, kv_heads, length, head_dim] at the start of a row."""
        self.data[:, :, row, :, : kv.shape[3]] = kv

    def slots(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Where tokens (rows [tokens], positions [tokens]) go in `flat` [tokens * kv_heads], head by head."""
        kv_heads = self._shape[3]
        head_rows = rows.unsqueeze(1) * kv_heads + torch.arange(kv_heads)
        return (head_rows * self.data.shape[4] + positions.unsqueeze(1)).flatten()

    def _allocate(self, length: int) -> None:
        shape = (*self._shape[:4], length, self._shape[5])
        if length:  # torch.zeros would write its zeros; int8 and view because numpy knows no bfloat16
            pages = np.zeros(math.prod(shape) * self._dtype.itemsize, dtype=np.int8)
            self.data = torch.from_numpy(pages).view(self._dtype).view(shape)
        else:
            self.data = torch.zeros(shape, dtype=self._dtype)
        self.flat = [list(layer.view(2, -1, shape[-1])) for layer in self.data] if length else []


class StepCache(Cache):
    """What transformers sees of the store in one forward call over rows lo..hi and positions 0..length.

    `slots`: from `KVStore.slots` for the real tokens; `real` [tokens]: their indices among the batch's flattened
    [rows * queries] inputs, None when all of them are real.
    """

    def __init__(self, store: KVStore, lo: int, hi: int, length: int, slots: torch.Tensor, real: torch.Tensor | None):
        super().__init__(layers=[])
        self._flat, self._slots, self._real = store.flat, slots, real
        self._view = store.data[:, :, lo:hi, :, :length]
        self._length = length

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values [rows, kv_heads, queries, head_dim]; all of them [rows, kv_heads, length, .]."""
        for flat, states in zip(self._flat[layer_idx], (key_states, value_states), strict=True):
            tokens = states.transpose(1, 2)
            if self._real is not None:
                tokens = tokens.flatten(0, 1)[self._real]
            flat.index_copy_(0, self._slots, tokens.reshape(-1, tokens.shape[-1]))
        return self._view[layer_idx, 0], self._view[layer_idx, 1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions in view. Only asked for what the explicit positions and mask already answer."""
        return self._length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """(length, offset) of the keys."""
        return self._length, 0
