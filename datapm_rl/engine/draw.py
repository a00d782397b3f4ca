"""Drawing one token per row from a batch of logits.

Every row brings its own uniform number, so a row's token does not depend on which other rows are in the batch:
token = first index whose cumulative probability exceeds u. Rows that ask for top-k or top-p are cut first; the
others do not pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from datapm_rl.engine.sampling import Sampling


class DrawPlan:
    """The sampling parameters of `rows` as tensors; built anew only when the batch changes."""

    def __init__(self, rows: Sequence[Sampling]):
        greedy = [row.temperature == 0.0 for row in rows]
        temperature = [row.temperature or 1.0 for row in rows]
        self.any_sampled = not all(greedy)
        self.greedy = torch.tensor(greedy) if any(greedy) else None
        self.temperature = torch.tensor(temperature).unsqueeze(1) if set(temperature) != {1.0} else None
        self.cut = [i for i, row in enumerate(rows) if not greedy[i] and (row.top_k > 0 or row.top_p < 1.0)]
        self.top_k = torch.tensor([rows[i].top_k or 2**31 - 1 for i in self.cut]).unsqueeze(1)
        self.top_p = torch.tensor([rows[i].top_p for i in self.cut]).unsqueeze(1)

    def draw(self, logits: torch.Tensor, uniforms: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [rows] and their logprobs [rows], from logits [rows, vocabulary] and uniforms in [0, 1) [rows]."""
        logits = logits.float()
        if self.temperature is not None:
            logits = logits / self.temperature
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = self._sample(logprobs, uniforms) if self.any_sampled else logits.argmax(dim=-1)
        if self.any_sampled and self.greedy is not None:
            tokens = torch.where(self.greedy, logits.argmax(dim=-1), tokens)
        return tokens, logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)

    def _sample(self, logprobs: torch.Tensor, uniforms: np.ndarray) -> torch.Tensor:
        weights = logprobs.exp()
        if self.cut:
            weights[self.cut] = _keep_top(weights[self.cut], self.top_k, self.top_p)
        cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
        total = cumulative[:, -1]
        # Strictly below the total: the first index above it then exists and has probability > 0.
        target = torch.minimum(torch.from_numpy(uniforms) * total, torch.nextafter(total, torch.zeros(())))
        return torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1)


def _keep_top(weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero all but the `top_k` largest weights, and of these all but the smallest set that reaches `top_p`.

    weights [rows, vocabulary], each row summing to 1 before; top_k, top_p [rows, 1]. The largest always stays.
    """
    ordered, index = weights.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(weights.shape[1]).unsqueeze(0)
    ordered = ordered.masked_fill(rank >= top_k, 0.0)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill((before >= top_p * ordered.sum(dim=-1, keepdim=True)) & (rank > 0), 0.0)
    return torch.zeros_like(weights).scatter_(1, index, ordered)
