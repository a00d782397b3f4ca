"""The network: a Llama of a quarter of a million parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ModelConfig:
    """Sizes. Key-value heads equal heads: sharing them costs decoding time on a CPU and saves nothing here."""

    hidden: int = 96
    layers: int = 2
    heads: int = 4
    feed_forward: int = 256
    positions: int = 1024  # longest context in tokens


def new_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> LlamaForCausalLM:
    """A float32 model with random weights, the same for the same seed. The global random state is left alone."""
    llama = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 8) * 8,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        intermediate_size=config.feed_forward,
        max_position_embeddings=config.positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(llama)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model
