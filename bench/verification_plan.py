"""What the model of `bench.verification` says, and how long it takes: Table 7 of DataPRM, scaled down.

A verification has 2.57 replies and 0.87 executions on average (a reply more than there are executions; 0.70 of the
first replies cannot be read and are asked for again) and takes 24.66 s. All of it is drawn from the names of trajectory
and step, so every contender meets the same replies and the same latencies. `answer` is the script of the stub endpoint
(`tests/stub_endpoint.py`).
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import re
from dataclasses import dataclass
from typing import Any

SECONDS = 24.66
"""Of one verification (Table 7)."""
TURNS = 2.57
SCALE = float(os.environ.get("BENCH_SCALE", "0.15"))
"""Seconds here for one of the paper's."""

_EXECUTIONS = (0, 1, 2, 3)
_SHARES = (0.35, 0.45, 0.18, 0.02)  # mean 0.87
_UNREADABLE = 0.70
_SPREAD = 0.35  # of the latency's logarithm
CODE = "<reasoning>Check it.</reasoning>\n<code>\n```python\nprint(df.groupby(df.columns[1]).size().max())\n```\n"
_VERDICT = "<reasoning>It holds.</reasoning>\n<score>1</score>\n<summary>The step is right.</summary>"
_PARAGRAPH = re.compile(r"# Current Paragraph\n\[Paragraph_(\d+)\]")


@dataclass(frozen=True)
class Plan:
    """The replies of one verification and the seconds that each takes, unscaled."""

    replies: tuple[str, ...]
    latencies: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Of all replies, as they are served here."""
        return sum(self.latencies) * SCALE


def plan(trajectory: str, step: int) -> Plan:
    """The plan for one step of a trajectory."""
    digest = hashlib.sha256(f"{trajectory}/{step}".encode()).digest()
    draw = random.Random(digest)
    replies = [CODE] * draw.choices(_EXECUTIONS, _SHARES)[0] + [_VERDICT]
    if draw.random() < _UNREADABLE:
        replies.insert(0, "Let me see.")
    mean = SECONDS / TURNS
    return Plan(tuple(replies), tuple(draw.lognormvariate(math.log(mean) - _SPREAD**2 / 2, _SPREAD) for _ in replies))


def answer(body: dict[str, Any], index: int) -> Any:
    """The next reply: which verification it is, and how far, shows in the conversation."""
    from stub_answers import Answer

    messages = body["messages"]
    said = sum(message["role"] == "assistant" for message in messages)
    prompt = messages[1]["content"]
    paragraph = _PARAGRAPH.search(prompt)
    assert paragraph
    trajectory = prompt.split("trajectory ", 1)[1].split(":", 1)[0]
    chosen = plan(trajectory, int(paragraph[1]))
    return Answer(chosen.replies[said], latency_s=chosen.latencies[said] * SCALE, usage=(7500, 800))
