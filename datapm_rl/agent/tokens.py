"""Tokens of a growing conversation, without ever encoding again what a model produced.

The prompt is rendered once through the chat template. Afterwards the sampled ids of a turn are kept as they are,
and only what the template puts *around the next observation* is encoded: the end of the assistant turn, the
observation message, and the start of the next assistant turn. That text is found by rendering a short conversation
with a marker in the place of the turn and taking what follows the marker, so any append-only template works.
"""

from __future__ import annotations

from typing import Any

from datapm_rl.errors import UserError

_MARKER = "\u2402turn\u2403"  # never part of a template


class ChatTokens:
    """Incremental tokenisation of [system, user] + (turn, observation)* for one tokenizer and chat template."""

    def __init__(self, tokenizer: Any):
        if not getattr(tokenizer, "chat_template", None):
            name = getattr(tokenizer, "name_or_path", "the model folder")
            raise UserError(f"{name} has no chat template: add chat_template.jinja to it, or use another model folder")
        self.tokenizer = tokenizer

    def prompt(self, system: str, user: str) -> list[int]:
        """Ids of the conversation up to the first assistant turn."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return self._encode(self._render(messages))

    def after_turn(self, turn_ids: list[int], observation: str) -> list[int]:
        """Ids that follow a sampled turn: its closing, the observation message, the next generation prompt.

        A closing token that the model already sampled (its end-of-turn token) is not repeated.
        """
        messages = [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": _MARKER},
            {"role": "user", "content": observation},
        ]
        rendered = self._render(messages)
        ids = self._encode(rendered[rendered.index(_MARKER) + len(_MARKER) :])
        if turn_ids and ids and turn_ids[-1] == ids[0] and ids[0] in self.tokenizer.all_special_ids:
            return ids[1:]
        return ids

    def decode(self, ids: list[int]) -> str:
        """Text of a sampled turn, without its end-of-turn token."""
        end = self.tokenizer.eos_token_id
        if ids and ids[-1] == end:
            ids = ids[:-1]
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def _render(self, messages: list[dict[str, str]]) -> str:
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)
