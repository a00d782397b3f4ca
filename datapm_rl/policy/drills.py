"""Copy drills: short exercises beside the demonstrations that teach to copy what is seen.

A model this small first learns to guess (this table's usual value, this question's usual answer) and may never come
to copy. A drill puts something there that cannot be guessed, and trains on its copy alone:

* number drill: a random number as the last observation; trained is the answer turn;
* value drill: another category's value in the question; trained is that value in the code.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from datapm_rl.dialects import Dialect
from datapm_rl.policy.demonstrations import Demonstration, answer_turn
from datapm_rl.policy.rendering import Message


@dataclass(frozen=True)
class Drill:
    """A conversation whose last turn is trained: all of it, or only its tokens that are `word`."""

    messages: list[Message]
    word: str | None = None


def make_drills(demonstrations: Sequence[Demonstration], dialect: Dialect, rng: random.Random) -> list[Drill]:
    """The drills that the demonstrations allow: none, one or two for each."""
    values = sorted({d.task.meta["value"] for d in demonstrations} - {""})
    drills = []
    for demonstration in demonstrations:
        if demonstration.task.meta["family"] != "best_group":  # there the answer is a name
            drills.append(_number_drill(demonstration, dialect, rng))
        if f"= '{demonstration.task.meta['value']}'" in demonstration.messages[-3]["content"]:
            drills.append(_value_drill(demonstration, rng.choice(values)))
    return drills


def _number_drill(demonstration: Demonstration, dialect: Dialect, rng: random.Random) -> Drill:
    """[system, user, last code turn, random number, answer]."""
    scale = rng.choice((10, 100, 9000))
    number = rng.choice((str(rng.randint(0, 80)), *(f"{rng.uniform(0, scale):.1f}" for _ in range(3))))
    messages = demonstration.messages
    seen = {"role": "user", "content": dialect.wrap_observation(number)}
    answer = {"role": "assistant", "content": answer_turn(demonstration.task, number)}
    return Drill([*messages[:2], messages[-3], seen, answer])


def _value_drill(demonstration: Demonstration, value: str) -> Drill:
    """[system, user, last code turn], the question's value replaced in both."""
    old = demonstration.task.meta["value"]
    system, user, code = demonstration.messages[0], demonstration.messages[1], demonstration.messages[-3]
    asked = user["content"].replace(f" is {old}?", f" is {value}?")
    written = code["content"].replace(f"= '{old}'", f"= '{value}'")
    return Drill([system, user | {"content": asked}, code | {"content": written}], word=value)
