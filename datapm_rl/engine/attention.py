"""Attention for the engine: grouped-query heads without copying keys and values per query head.

transformers' sdpa path repeats every cached key and value for each query head when a mask is given; in a decoding
step that copy costs more than the attention itself. Here the query heads of a group become extra queries of their
key-value head, and two batched products read the store where it lies.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "datapm_rl_grouped"


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """query [rows, heads, queries, dim], key and value [rows, kv_heads, length, dim], additive mask
    [rows, 1, queries, length] -> ([rows, queries, heads, dim], None)."""
    rows, heads, queries, dim = query.shape
    if queries > 1:  # prefill: the fused kernel never holds the score matrix
        out = scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None
    kv_heads = key.shape[1]
    scale = dim**-0.5 if scaling is None else scaling
    grouped = (query * scale).view(rows, kv_heads, heads // kv_heads, dim)
    scores = torch.matmul(grouped, key.transpose(2, 3)).add_(attention_mask)
    out = torch.matmul(torch.softmax(scores, dim=-1), value)
    return out.view(rows, 1, heads, dim), None


AttentionInterface.register(NAME, grouped_attention)
