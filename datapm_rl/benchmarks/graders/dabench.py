"""DABench's official closed-form rule, as its script behaves.

An answer holds `@name[value]` pairs anywhere in its text; a value ends at the first `]` and does not span lines. Names
are case-sensitive, and of a repeated name the last pair counts, in the answer as in the gold. A value is right if the
texts are equal or the numbers (as Python's `float` reads them) differ by less than 1e-6: so `34.650` and `3.465e1` are
34.65, while `34.65%`, `$34.65` and `Yes` for `yes` are wrong.

One difference, on purpose: the official script leaves a question without an answer out of the denominator. Here it
is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PAIR = re.compile(r"@(\w+)\[(.*?)\]")
_TOLERANCE = 1e-6


def values(answer: str) -> dict[str, str]:
    """The `@name[value]` pairs of an answer."""
    return dict(_PAIR.findall(answer))


def right_parts(prediction: str, gold: Sequence[tuple[str, str]]) -> dict[str, bool]:
    """Gold name -> whether the prediction has it right."""
    found = values(prediction)
    return {name: name in found and same_value(found[name], value) for name, value in dict(gold).items()}


def same_value(value: str, gold: str) -> bool:
    """Whether two values are the same text or the same number."""
    if value == gold:
        return True
    try:
        return abs(float(value) - float(gold)) < _TOLERANCE
    except ValueError:
        return False
