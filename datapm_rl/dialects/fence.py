"""Code without the Markdown fence around it."""

from __future__ import annotations

import ast
import re

_OPENING = re.compile(r"^[ \t]*```[ \t]*(?:python3?|py)?[ \t]*\n?", re.MULTILINE)
_CLOSING = re.compile(r"```[ \t]*$", re.MULTILINE)
_TRIED = 8  # closings; code that holds more fences is taken up to the first


def unfenced(content: str) -> str:
    r"""The code in `content`: all of it if there is no fence, else the longest fenced text that is Python.

    Code may hold fences itself (a string that is Markdown), so the first closing one need not be the end; and a second
    block may follow, so neither need the last. If nothing is Python, it ends at the first. Newlines around it go.

    >>> unfenced("Look:\n```python\nprint('''\n```\n''')\n```\n")
    "print('''\n```\n''')"
    """
    opening = _OPENING.search(content)
    if not opening:
        return content.strip("\n").rstrip()
    body = content[opening.end() :]
    ends = [closing.start() for closing in _CLOSING.finditer(body)] or [len(body)]
    texts = [body[:end].strip("\n").rstrip() for end in ends[:_TRIED]]
    return next(filter(_is_python, reversed(texts)), texts[0])


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # null bytes, deep nesting
        return False
    return True
