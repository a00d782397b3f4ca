"""What both trainers of `bench.grpo_step` are given: a model folder, and a batch of ids, masks and rewards."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

# Of the recipes (eq. 7), for both: clip-higher, dual clip, token-level loss, no KL term.
CLIP_LOW, CLIP_HIGH, DUAL_CLIP = 0.2, 0.28, 3.0
LR, WEIGHT_DECAY, GRAD_CLIP = 1e-4, 0.01, 1.0
MINI_BATCHES = 2  # of one batch: two optimizer steps, so both need the log-probs from before the first
PAD, EOS = 0, 1


@dataclass(frozen=True)
class Shape:
    """A model and a batch; lengths in tokens, from and to."""

    hidden: int
    layers: int
    vocabulary: int
    prompts: int
    group: int
    prompt: tuple[int, int]
    response: tuple[int, int]

    @property
    def rows(self) -> int:
        return self.prompts * self.group


SHAPES = {
    "quickstart": Shape(96, 2, 512, 4, 4, (50, 90), (60, 400)),  # the small policy's sizes
    "larger": Shape(320, 8, 8192, 4, 4, (50, 90), (60, 400)),
    "quick": Shape(32, 1, 64, 2, 2, (8, 12), (10, 40)),
}


@dataclass(frozen=True)
class Batch:
    """Rows of a group are neighbours. `masks`: 1 on the model's tokens, 0 on observations, as long as `responses`."""

    prompts: list[list[int]]
    responses: list[list[int]]
    masks: list[list[int]]
    rewards: list[float]
    groups: list[int]


def make_batch(shape: Shape, seed: int = 0) -> Batch:
    """Turns of 10 to 60 tokens with observations of 5 to 40 between them; some reward in every group differs."""
    draw = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [draw.randrange(2, shape.vocabulary) for _ in range(count)]

    prompts, responses, masks, rewards = [], [], [], []
    for _ in range(shape.prompts):
        prompt = ids(draw.randint(*shape.prompt))
        for member in range(shape.group):
            mask: list[int] = []
            length = draw.randint(*shape.response)
            while len(mask) < length:
                mask += [1] * draw.randint(10, 60) + [0] * draw.randint(5, 40)
            mask = [*mask[: length - 1], 1]
            prompts.append(prompt)
            responses.append([*ids(length - 1), EOS])
            masks.append(mask)
            rewards.append(member / shape.group + draw.random() / 8)
    return Batch(prompts, responses, masks, rewards, [row // shape.group for row in range(shape.rows)])


def write_model(shape: Shape, folder: Path) -> None:
    """A Llama with random weights in float32, and a tokenizer that can decode any id."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()

    words = {"<pad>": PAD, "<eos>": EOS, **{f"t{number}": number for number in range(2, shape.vocabulary)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="<eos>"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    heads = max(2, shape.hidden // 32)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.hidden * 8 // 3,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
