"""Conversations as token ids, in exactly the form that the agent loop produces.

The loop encodes the chat template's text up to the first assistant turn, keeps the sampled ids of a turn, and then
encodes only what the template puts around the next observation. SFT must see the same cuts, or the policy would be
trained on token sequences that it never meets. Hence the same recipe here: every segment is cut out of the
template's own rendering and encoded alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}


@dataclass(frozen=True)
class Rendered:
    """`ids` of a conversation and `turn` of each id: 0 outside the assistant's turns, else the turn, from 1."""

    ids: list[int]
    turn: list[int]


def segments(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[str]:
    """Texts [prompt, turn 1, around observation 1, turn 2, ...] of a conversation that ends in an assistant turn."""
    found: list[str] = []
    done = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        text = tokenizer.apply_chat_template(list(messages[:index]), tokenize=False, add_generation_prompt=True)
        if not text.startswith(done):
            raise ValueError("the chat template is not append-only: it rewrites earlier turns")
        found += [text[len(done) :], message["content"]]
        done = text + message["content"]
    return found


def render(tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Sequence[Message]]) -> list[Rendered]:
    """Render conversations; the ids end with the last assistant turn, without the template's closing."""
    parts = [segments(tokenizer, messages) for messages in conversations]
    encoded = iter(tokenizer([text for texts in parts for text in texts], add_special_tokens=False)["input_ids"])
    results = []
    for texts in parts:
        ids: list[int] = []
        turn: list[int] = []
        for position in range(len(texts)):
            piece = next(encoded)
            ids += piece
            turn += [(position + 1) // 2 if position % 2 else 0] * len(piece)
        results.append(Rendered(ids, turn))
    return results
