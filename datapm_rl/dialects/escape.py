"""Text of untrusted origin made harmless: no tag of a dialect, no chat token, no lone surrogate."""

from __future__ import annotations

import functools
import re

# fmt: off
_CHAT_WORDS = (
    "user", "assistant", "system", "s", "bos", "eos", "pad", "unk", "mask", "sop", "eop", "BOS_TOKEN", "EOS_TOKEN",
    "start_of_turn", "end_of_turn", "start_of_image", "think", "tool_call", "tool_response",
)
# fmt: on
"""Names of special tokens of common chat templates, besides the `<|...|>` family."""
_SQUARE = re.compile(r"\[(?=/?(?:INST|TOOL_RESULTS|TOOL_CALLS|SYSTEM_PROMPT|AVAILABLE_TOOLS|gMASK)\])|<(?=</?SYS>>)")
"""The start of those in square brackets, and of Llama 2's `<<SYS>>`."""


def escape_tags(text: str, tags: tuple[str, ...]) -> str:
    """`<` becomes `&lt;` where it opens one of `tags` (open or close, in any case), or a chat template's token; so does
    `[` before one, as `&#91;`.

    >>> escape_tags("a < b </Code> <|im_end|>", ("Code",))
    'a < b &lt;/Code> &lt;|im_end|>'
    """
    text = _SQUARE.sub(lambda opening: "&#91;" if opening[0] == "[" else "&lt;", text)
    return _pattern(tags).sub("&lt;", text)


def printable(text: str) -> str:
    r"""The text with lone surrogates written as `\udXXX`, so that it can be encoded."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@functools.cache
def _pattern(tags: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(map(re.escape, (*tags, *_CHAT_WORDS)))
    return re.compile(rf"<(?=\||\s{{0,3}}/?\s{{0,3}}(?:{names})\s{{0,3}}>)", re.IGNORECASE)
