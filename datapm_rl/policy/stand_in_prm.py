"""A model folder that stands in for DataPRM where its weights are not at hand: `prm.model=stand_in`, in the CPU twins.

It runs one fixed piece of code on the agent's state and then gives one fixed verdict, whatever it has read: its
verdicts mean nothing. What it is good for: everything around a verifier is real (prompts, pool, tokens, code on a
branch), so a run with it shows that a recipe's graph works.

How it answers: attention and MLP write nothing, so a token's hidden state is its one-hot embedding, and the head maps
it to its successor. The chat template opens the reply with `<|check|>`, or with `<|judge|>` after an output of code.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import uuid
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

CODE = "<code>\n```python\nprint(sorted(name for name in globals() if not name.startswith('_')))\n```\n</code>"
CHECK = ("<reasoning>Which names are there?</reasoning>", CODE, "<|end|>")
VERDICT = ("<reasoning>None was made.</reasoning>", "<score>1</score>", "<summary>Stand-in.</summary>", "<|end|>")
SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|check|>", "<|judge|>")
WIDTH = 64  # words, hidden size and head: the smallest that attention kernels of GPU engines take
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|> {{ message['content'] }} <|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if '<interpreter>' in messages[-1]['content'] %}<|judge|>{% else %}<|check|>{% endif %}{% endif %}"
)


def build_stand_in_prm(out_dir: str | Path) -> Path:
    """The folder of the stand-in below `out_dir`, built if it is not there yet."""
    target = Path(out_dir) / f"stand_in_prm_{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]}"
    if target.is_dir():
        return target
    work = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    work.mkdir(parents=True)
    try:
        _write(work)
        os.rename(work, target)
    except OSError:
        if not target.is_dir():  # else another process was faster, with the same content
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _write(folder: Path) -> None:
    vocabulary = list(dict.fromkeys(["<unk>", *SPECIAL, *CHECK, *VERDICT]))  # any other word is <unk>, one token
    vocabulary += [f"<unused{number}>" for number in range(WIDTH - len(vocabulary))]
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    wrapped.chat_template = TEMPLATE

    config = LlamaConfig(
        vocab_size=WIDTH,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=WIDTH,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=ids["<|end|>"],
        pad_token_id=ids["<|end|>"],
    )
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(WIDTH))
        model.lm_head.weight.zero_()
        for chain in (("<|check|>", *CHECK), ("<|judge|>", *VERDICT)):
            for token, follower in itertools.pairwise(chain):
                model.lm_head.weight[ids[follower], ids[token]] = 100.0
    disable_progress_bar()  # of "Writing model shards": one shard
    wrapped.save_pretrained(folder)
    model.save_pretrained(folder)
