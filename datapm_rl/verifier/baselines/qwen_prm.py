"""The architecture of Qwen2.5-Math-PRM, so that its weights load without running code from their folder.

A Qwen2 body with a classification head of two layers over {wrong, right} at every token (Zhang et al., "The Lessons
of Developing Process Reward Models in Mathematical Reasoning"). The names of its parts are those in the published
weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Qwen2Model, Qwen2PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput


class Qwen2ForProcessRewardModel(Qwen2PreTrainedModel):
    """`logits`: (batch, tokens, 2)."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.model = Qwen2Model(config)
        hidden = config.hidden_size
        self.score = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2))
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> TokenClassifierOutput:
        """As other token classifiers of transformers; without labels."""
        hidden = self.model(input_ids=input_ids, **kwargs).last_hidden_state
        return TokenClassifierOutput(logits=self.score(hidden))
