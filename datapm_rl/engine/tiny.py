"""A random model and a byte tokenizer of a few hundred entries: for tests, benchmarks and dry runs of the engine."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """256 bytes, `<|end|>` as EOS, the tag `</Code>` as one token, and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"])
    tokenizer.add_tokens([AddedToken("</Code>", normalized=False)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    wrapped.chat_template = _CHAT_TEMPLATE
    return wrapped


def random_model(kind: str = "llama", *, vocab_size: int = 261, seed: int = 0, **sizes: Any) -> Any:
    """A causal model of architecture `kind` with random weights wide enough that its choices vary."""
    config = AutoConfig.for_model(
        kind,
        **{
            "vocab_size": vocab_size,
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 1024,
            "bos_token_id": None,
            "eos_token_id": 256,
            "pad_token_id": 256,
            "initializer_range": 0.2,
        }
        | sizes,
    )
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
