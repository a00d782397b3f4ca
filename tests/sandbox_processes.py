"""Processes below this one, as the kernel tells."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable


def processes() -> dict[int, str]:
    """All below this one, with name and state; zombies are among them.

    Looked for until two looks agree: a child whose parent ends during a look would be missed.
    """
    seen = _descendants()
    while (again := _descendants()).keys() != seen.keys():
        seen = again
    return again


def _descendants() -> dict[int, str]:
    facts = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as file:
            name, _, rest = file.read().rpartition(")")
            facts[int(pid)] = (int(rest.split()[1]), f"{name.partition('(')[2]} {rest.split()[0]}")
    found = {os.getpid()}
    while more := {pid for pid, (parent, _) in facts.items() if parent in found} - found:
        found |= more
    return {pid: facts[pid][1] for pid in found if pid in facts and pid != os.getpid()}


def holds_soon(condition: Callable[[], bool]) -> bool:
    """Whether it holds within 2 s."""
    give_up = time.monotonic() + 2.0
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True
