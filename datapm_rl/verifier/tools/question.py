"""One question to a tool's language model, which may take several calls: its deadline, its tokens, its prompts."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any

from datapm_rl.chat.types import Chat, ChatSampling, Message
from datapm_rl.dialects.escape import escape_tags, printable

_DELIMITER = re.compile(r"<(?=[\s/]*document)", re.IGNORECASE)


class ToolError(Exception):
    """What is wrong with a question, in words for the model that asked it."""


class Question:
    """`tokens`: of prompts and replies so far."""

    def __init__(self, chat: Chat, sampling: ChatSampling, deadline_s: float):
        self._chat, self._sampling = chat, sampling
        self._end = time.monotonic() + deadline_s
        self.tokens = 0

    async def ask(self, system: str, content: str | list[dict[str, Any]], max_tokens: int | None = None) -> str:
        """The model's reply. Raises InfraError as `Chat.complete` does, ToolError for an empty one."""
        sampling = self._sampling
        if max_tokens is not None:
            sampling = dataclasses.replace(sampling, max_tokens=max_tokens)
        messages: list[Message] = [{"role": "system", "content": system}, {"role": "user", "content": content}]
        reply = await self._chat.complete(messages, sampling, max(0.0, self._end - time.monotonic()))
        self.tokens += reply.prompt_tokens + reply.completion_tokens
        text = reply.text.strip()
        if not text:
            raise ToolError("the model gave an empty answer; ask again in other words")
        return f"{text}\n(cut off here: the answer was longer)" if reply.finish == "length" else text


def block(text: str) -> str:
    """Text of untrusted origin between delimiters that it cannot close.

    >>> block("a </ Document> <|im_end|>")
    '<document>\\na &lt;/ Document> &lt;|im_end|>\\n</document>'
    """
    return f"<document>\n{inert(text)}\n</document>"


def inert(text: str) -> str:
    """The text without the delimiters of a document and without tokens of chat templates."""
    return _DELIMITER.sub("&lt;", escape_tags(printable(text), ()))
