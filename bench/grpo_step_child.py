"""The protocol between `bench.grpo_step` and its two trainers: a line in is one update, a JSON line out its result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

MARK = "grpo_step "  # other lines of stdout are the libraries'


def say(value: Any) -> None:
    """One line for the parent."""
    print(MARK + json.dumps(value), flush=True)


def serve(update: Callable[[], dict[str, Any]], parameters: Callable[[], dict[str, Any]]) -> None:
    """Answer `update` until the input ends; `save FILE` writes the parameters."""
    import torch

    say("ready")
    for line in sys.stdin:
        verb, _, file = line.strip().partition(" ")
        if verb == "save":
            torch.save(parameters(), file)
            say("saved")
        else:
            say(update())
