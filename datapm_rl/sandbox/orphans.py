"""Finding and killing what a killed step has left behind.

A step's processes may leave its process group and its session, but not the tree: orphans go to the nearest
subreaper, which is the session's root (it runs no code), or the zygote when the root has ended. There, a child that
is no process of ours is one to kill.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from datapm_rl.sandbox.inside import kernel
from datapm_rl.sandbox.process import ended, open_pidfd, send_kill

_PATIENCE_S = 2.0


def kill_orphans(subreaper: int, forking: threading.Lock, ours: Callable[[], set[int]]) -> None:
    """Kill the subreaper's children that are not `ours`, and the orphans that their deaths bring, until none.

    `forking` is held by whoever has the subreaper fork, until the child is among `ours`. Gives up after 2 s.
    """
    give_up = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up:
        with forking:
            orphans = set(kernel.children(subreaper)) - ours()
        if not orphans:
            return
        pidfds = [pidfd for pidfd in map(open_pidfd, orphans) if pidfd >= 0]
        for pidfd in pidfds:
            send_kill(pidfd)
        for pidfd in pidfds:
            ended(pidfd, give_up - time.monotonic())
            os.close(pidfd)
