"""Answers as `@name[value]`, the closed form that the grader `dabench` reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from datapm_rl.benchmarks.graders.dabench import right_parts

_PAIR = re.compile(r"@(\w+)\[(.*?)\]")
Gold = Sequence[tuple[str, str]]

MAX_WORDS, MAX_CHARS = 6, 60


def gold_of(answer: Any) -> list[tuple[str, str]]:
    """Gold of an answer as people write it: `@mean[3.5] @n[7]` has two parts, anything else is one, named `answer`.

    >>> gold_of("@mean[3.5], @n[7]")
    [('mean', '3.5'), ('n', '7')]
    >>> gold_of(12)
    [('answer', '12')]
    """
    text = str(answer).strip()
    pairs = _PAIR.findall(text)
    if pairs and not _PAIR.sub("", text).strip(" ,;\n"):
        return [(name, value) for name, value in pairs]
    return [("answer", text)]


def default_format(gold: Gold) -> str:
    """Words for the answer's form. Of gold they tell the names, and of numbers the decimals.

    >>> default_format([("answer", "3.50")])
    '@answer[answer_value] where "answer_value" is a number rounded to 2 decimals.'
    """
    forms = ", ".join(f"@{name}[{name}_value]" for name, _ in gold)
    kinds = ", ".join(f'"{name}_value" is {_kind(value)}' for name, value in gold)
    return f"{forms} where {kinds}."


def _kind(value: str) -> str:
    number = re.fullmatch(r"[-+]?\d+(?:\.(\d+))?", value)
    if number is None:
        return "the answer alone"
    return f"a number rounded to {len(number[1])} decimals" if number[1] else "a whole number"


def is_closed(answer: str) -> bool:
    """Whether equality can grade an answer: one line of a few words. A sentence needs a judge."""
    return "\n" not in answer and len(answer) <= MAX_CHARS and len(answer.split()) <= MAX_WORDS


def unreachable(gold: Gold) -> list[str]:
    """Names of gold that no `@name[value]` answer can get right: a value with `]` or a line break, an odd name."""
    best = " ".join(f"@{name}[{value}]" for name, value in gold)
    return [name for name, right in right_parts(best, gold).items() if not right]
