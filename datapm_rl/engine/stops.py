"""Stop strings over tokens.

A stop string can only become complete with a token whose own text holds the string's last character. So most
tokens are dismissed by one dictionary look-up, and only candidates cost a decode of a short tail. A stop string that
is one token of the vocabulary and one that is spelt out of pieces go the same way.
"""

from __future__ import annotations

from typing import Any

_BROKEN = "�"  # what decoding a part of a multi-byte character gives


class StopMatcher:
    """Finds the first of `stops` that a token just sampled has completed."""

    def __init__(self, tokenizer: Any, stops: tuple[str, ...]):
        self._tokenizer = tokenizer
        self._stops = stops
        self._last_chars = {stop[-1] for stop in stops} | {_BROKEN}
        self._tail = max(len(stop.encode()) for stop in stops)  # a token is at least one byte
        self._candidate: dict[int, bool] = {}

    def match(self, tokens: list[int]) -> str | None:
        """The stop string that ends in the last of the generated `tokens`, or None."""
        last = tokens[-1]
        candidate = self._candidate.get(last)
        if candidate is None:
            candidate = self._candidate[last] = not self._last_chars.isdisjoint(self._decode([last]))
        if not candidate:
            return None
        text = self._decode(tokens[-self._tail :])
        return next((stop for stop in self._stops if stop in text), None)

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
