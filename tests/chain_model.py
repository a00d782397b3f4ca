"""A real model folder that always says the same: each token determines the next one. It plays the verifier in pools.

Attention and MLP write nothing, so a token's hidden state is its one-hot embedding, and the head maps it to its
successor: `<|assistant|>` -> reasoning -> score -> summary -> `<|end|>`. Unknown words of the prompt are one token
each.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for message in messages %} <|{{ message['role'] }}|> {{ message['content'] }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %} <|assistant|> {% endif %}"
)


def build_chain_model(folder: Path, score: str = "1") -> Path:
    """Write the folder; the model's every reply is a verdict of `score`."""
    said = ["<reasoning>checked</reasoning>", f"<score>{score}</score>", "<summary>fine</summary>"]
    vocabulary = ["<unk>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", *said]
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)

    size = len(vocabulary)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=size,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=ids["<|end|>"],
        pad_token_id=ids["<|end|>"],
    )
    model = LlamaForCausalLM(config).float()
    chain = ["<|assistant|>", *said, "<|end|>"]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.zero_()
        for token, follower in itertools.pairwise(chain):
            model.lm_head.weight[ids[follower], ids[token]] = 100.0
    model.save_pretrained(folder)
    return folder
