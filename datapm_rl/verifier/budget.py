"""Conversations that fit the verifier's context.

The content of a message is a text, or a list of parts that say whether, and as what, they may be shortened. What does
not fit is cut in this order, the oldest part first in each stage, until it fits:

    1  the agent's earlier observations, then the verifier's own earlier outputs, to their head and tail
    2  the same, to nothing
    3  thoughts and code of the agent's earlier steps, to their head and tail, then to nothing
    4  the verifier's latest output, to its head and tail

The agent's observations go first because the verdicts that follow them stay and say what they showed; an own output
is evidence on the step in question. The current step, the verdicts, the problem, the instructions and what the verifier
itself said are never cut.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from datapm_rl.chat.types import Message
from datapm_rl.errors import InfraError, UserError
from datapm_rl.verifier.escape import harmless

Count = Callable[[str], int]
"""From a text to its number of tokens."""

KEPT_CHARS = 600
"""Characters that remain of a part that is shortened: half of them its head, half its tail."""
MESSAGE_TOKENS = 8
"""Tokens of a chat template around one message, at most."""

_ASCII = re.compile(r"[\0-\x7f]+")
_PIECE = re.compile(
    r"[A-Z]?[a-z]{1,4}|[A-Z]{1,2}|[0-9]|([\0-\x08\x0b\x0c\x0e-\x1f!-/:-@\[-`{-\x7f])\1{0,7}|[\n\t\r]+| {1,16}(?=[ 0-9])"
)


class Kind(StrEnum):
    """What a part is to the budget."""

    FIXED = "fixed"  # never cut
    OBSERVATION = "observation"  # what an earlier step of the agent saw
    STEP = "step"  # what the agent wrote in an earlier step
    OUTPUT = "output"  # what the verifier's own code gave


@dataclass(frozen=True)
class Part:
    """A stretch of a message. `text` is harmless already. `name` says what was cut, as in "observation 2"."""

    text: str
    kind: Kind = Kind.FIXED
    name: str = ""


class Budget:
    """Fits conversations into `max_tokens`: the model's context without the room for its reply.

    >>> parts = [Part("Your code gave: "), Part("x" * 5000, Kind.OUTPUT, "output 1")]
    >>> messages, cut = Budget(400, estimate_tokens).fit([{"role": "user", "content": parts}])
    >>> cut, len(messages[0]["content"])
    (['output 1: 5000 -> 600 characters'], 652)
    """

    def __init__(self, max_tokens: int, count: Count):
        self.max_tokens, self._count = max_tokens, count

    def fit(self, messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
        """The messages with texts as contents, and what was cut: "observation 2: 5000 -> 600 characters".

        InfraError "context_exceeded": they do not fit even so. Each part is counted once, and again when it is cut.
        """
        parts = [part for message in messages for part in _parts(message)]
        texts, cut = [part.text for part in parts], dict[int, str]()
        tokens = [self._count(text) for text in texts]
        total = sum(tokens) + MESSAGE_TOKENS * len(messages)
        for at, kept in _cuts(parts):
            if total <= self.max_tokens:
                break
            text = _shortened(parts[at].text, kept)
            if len(text) >= len(texts[at]):
                continue
            total -= tokens[at]
            texts[at], tokens[at] = text, self._count(text)
            total += tokens[at]
            cut[at] = f"{parts[at].name}: {len(parts[at].text)} -> {kept} characters"
        if total > self.max_tokens:
            raise InfraError("context_exceeded", f"{total} tokens remain after all cuts, {self.max_tokens} fit")
        left = iter(texts)
        joined = [dict(message, content="".join(next(left) for _ in _parts(message))) for message in messages]
        return joined, [cut[at] for at in sorted(cut)]


@functools.lru_cache(maxsize=4096)  # the parts of a conversation are counted again with each of its turns
def estimate_tokens(text: str) -> int:
    """Tokens of a text, estimated without its tokenizer, rather too many than too few.

    One per 4 lower-case or 2 upper-case letters of a word, per digit, per punctuation mark (8 if it repeats), per
    break, and per 2 bytes of what is not ASCII (1.5 per Chinese character). Of Qwen's own count that is 0.95 to 1.0 on
    tables of numbers, 1.4 on Python, 2 and more on other scripts than Latin; 0.8 on random letters such as base64.
    """
    return len(_PIECE.findall(text)) + (len(_ASCII.sub("", text).encode()) + 1) // 2


def tokenizer_count(folder: str) -> Count:
    """Counts with the `tokenizer.json` of a model's folder. UserError: there is none, or it is damaged."""
    from tokenizers import Tokenizer  # only here: an estimate needs no tokenizer

    path = Path(folder) / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"no tokenizer can be read from {path} ({error}): give the folder of the model's") from error

    @functools.lru_cache(maxsize=4096)  # as above
    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    return count


def _parts(message: Message) -> list[Part]:
    content = message["content"]
    return [Part(content)] if isinstance(content, str) else content


def _cuts(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """(index of a part, characters that it keeps), in the order of the stages above."""
    of_kind = {kind: [at for at, part in enumerate(parts) if part.kind is kind] for kind in Kind}
    seen, outputs, steps = of_kind[Kind.OBSERVATION], of_kind[Kind.OUTPUT], of_kind[Kind.STEP]
    earlier, latest = outputs[:-1], outputs[-1:]
    stages = [(seen + earlier, KEPT_CHARS), (seen + earlier, 0), (steps, KEPT_CHARS), (steps, 0), (latest, KEPT_CHARS)]
    return [(at, kept) for indices, kept in stages for at in indices]


def _shortened(text: str, kept: int) -> str:
    """Head and tail with a line between them; each is made harmless again, for a cut may leave a header on a line."""
    if not kept:
        return f"({len(text)} characters left out)"
    head, tail = text[: kept // 2], text[-(kept // 2) :]
    return f"{harmless(head)}\n... ({len(text) - kept} characters left out) ...\n{harmless(tail)}"
