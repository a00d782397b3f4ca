"""The cold start: supervised training on demonstrations.

Loss = mean over the assistant's tokens + `context_weight` * mean over all others; the small second part teaches the
embedding of names and observations, without which copying is learnt much later. Copy drills (`drills`) stand beside
the demonstrations.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from datapm_rl.dialects import Dialect
from datapm_rl.policy.demonstrations import Demonstration, Noise
from datapm_rl.policy.drills import make_drills
from datapm_rl.policy.model import ModelConfig
from datapm_rl.policy.rendering import render


@dataclass(frozen=True)
class SftConfig:
    """The cold start's sizes. Accuracy follows the number of updates, not of tokens."""

    demonstrations: int = 4000
    drill_share: float = 0.4  # of the demonstrations that copy drills are made of
    updates: int = 900
    batch: int = 16  # conversations per update
    learning_rate: float = 4e-3  # at its highest; cosine to 5 %
    warmup: int = 20  # updates
    context_weight: float = 0.1
    weight_decay: float = 0.05
    noise: Noise = field(default_factory=Noise)
    model: ModelConfig = field(default_factory=ModelConfig)


@dataclass(frozen=True)
class Example:
    """Token ids of a conversation; `acted` is 1 on the assistant's tokens that carry the full loss."""

    ids: list[int]
    acted: list[int]


def make_examples(
    demonstrations: Sequence[Demonstration],
    drill_share: float,
    tokenizer: PreTrainedTokenizerBase,
    dialect: Dialect,
    rng: random.Random,
) -> list[Example]:
    """Demonstrations and copy drills as examples. The template's closing follows the last turn, as context."""
    drills = make_drills(demonstrations[: int(drill_share * len(demonstrations))], dialect, rng)
    shown = render(tokenizer, [demonstration.messages for demonstration in demonstrations])
    drilled = render(tokenizer, [drill.messages for drill in drills])
    acted = [[int(turn > 0) for turn in conversation.turn] for conversation in shown]
    for drill, conversation in zip(drills, drilled, strict=True):
        word = None if drill.word is None else tokenizer.convert_tokens_to_ids(drill.word)
        last = conversation.turn[-1]
        pairs = zip(conversation.ids, conversation.turn, strict=True)
        acted.append([int(turn == last and word in (None, token)) for token, turn in pairs])
    eos = tokenizer.eos_token_id
    return [Example([*c.ids, eos], [*mask, 0]) for c, mask in zip(shown + drilled, acted, strict=True)]


def train_sft(
    model: LlamaForCausalLM,
    examples: Sequence[Example],
    config: SftConfig,
    rng: random.Random,
    report: Callable[[str], None],
) -> float:
    """Train in place, on one thread; the mean action loss of the last 50 updates. Reports every few seconds."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=config.weight_decay, fused=True
    )
    batches = _bucketed(examples, config.batch, rng)
    losses: list[float] = []
    reported = time.monotonic()
    model.train()
    with one_thread():
        for update in range(config.updates):
            warm = min(1.0, (update + 1) / config.warmup)
            cosine = 0.5 * (1 + math.cos(math.pi * update / config.updates))
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * warm * (0.05 + 0.95 * cosine)
            action_loss, context_loss = _losses(model, next(batches))
            (action_loss + config.context_weight * context_loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(action_loss.item())
            if time.monotonic() - reported > 3 or update + 1 == config.updates:
                reported = time.monotonic()
                report(f"cold start: update {update + 1}/{config.updates}, loss {_recent(losses):.3f}")
    model.eval()
    return _recent(losses)


def _recent(losses: list[float]) -> float:
    return sum(losses[-50:]) / len(losses[-50:])


def _bucketed(examples: Sequence[Example], size: int, rng: random.Random) -> Iterator[list[Example]]:
    """Batches of similar length without end: little padding, and still in random order."""
    while True:
        order = list(examples)
        rng.shuffle(order)
        blocks = [order[start : start + size * 16] for start in range(0, len(order), size * 16)]
        batches = []
        for block in blocks:
            block.sort(key=lambda example: len(example.ids))
            batches += [block[start : start + size] for start in range(0, len(block), size)]
        rng.shuffle(batches)
        yield from batches


def _losses(model: LlamaForCausalLM, batch: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross-entropy over the action tokens and over the context tokens."""
    length = max(len(example.ids) for example in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    present = torch.zeros(len(batch), length, dtype=torch.long)
    acted = torch.zeros(len(batch), length)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        present[row, : len(example.ids)] = 1
        acted[row, : len(example.ids)] = torch.tensor(example.acted, dtype=torch.float)
    logits = model(input_ids=ids, attention_mask=present, use_cache=False).logits[:, :-1]
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(batch), -1)
    action = acted[:, 1:]
    context = present[:, 1:] - action
    return (losses * action).sum() / action.sum(), (losses * context).sum() / context.sum()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread: at these sizes more are slower, and the sums come out the same every time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
