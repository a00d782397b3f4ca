"""Text of untrusted origin made harmless: no tag of a dialect, no chat token, no lone surrogate."""

from __future__ import annotations

import functools
import re

_CHAT_WORDS = ("user", "assistant", "system", "s", "bos", "eos", "pad", "start_of_turn", "end_of_turn")
"""Names of special tokens of common chat templates, besides the `<|...|>` family."""


def escape_tags(text: str, tags: tuple[str, ...]) -> str:
    """`<` becomes `&lt;` where it opens one of `tags` (open or close, in any case), or a chat template's token.

    >>> escape_tags("a < b </Code> <|im_end|>", ("Code",))
    'a < b &lt;/Code> &lt;|im_end|>'
    """
    return _pattern(tags).sub("&lt;", text)


def printable(text: str) -> str:
    r"""The text with lone surrogates written as `\udXXX`, so that it can be encoded."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@functools.cache
def _pattern(tags: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(map(re.escape, (*tags, *_CHAT_WORDS)))
    return re.compile(rf"<(?=\||\s{{0,3}}/?\s{{0,3}}(?:{names})\s{{0,3}}>)", re.IGNORECASE)
