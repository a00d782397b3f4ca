"""What the stub endpoint says in end-to-end runs: code on the branch first, then a verdict that follows its output."""

from __future__ import annotations

from typing import Any

CODE = (
    "<reasoning>Which frames are there?</reasoning><code>\n```python\n"
    "print(sorted(k for k, v in list(globals().items()) if hasattr(v, 'columns')))\n```\n"
)


def answer(body: dict[str, Any], index: int) -> str:
    """Steps after which the agent has no table are wrong, the others are fine."""
    last = body["messages"][-1]["content"]
    if "<interpreter>" not in last:
        return CODE
    score = "1" if "'df'" in last else "0"
    return f"<reasoning>Seen.</reasoning><score>{score}</score><summary>The agent has {last[14:40]!r}.</summary>"
