"""Which states keep their process: a state without one is rebuilt from the code log when somebody branches from it."""

from __future__ import annotations

import collections
import threading
from typing import Literal

from datapm_rl.sandbox.chain import Chain

Keep = Literal["last", "all", "lru"]

_MOST_OF_A_SESSION = 48  # the kernel's limit of a session's processes has room for these (`root`)


class Retention:
    """The start and the newest state of a session always stay. Of the others

    "last" keeps none, "all" keeps all (about 7 MB each), "lru" keeps those used last, `most` in all sessions together;
    both at most the newest 48 of a session. Thread-safe.
    """

    def __init__(self, keep: Keep, most: int):
        self._keep = keep
        self._most = most
        self._lock = threading.Lock()
        self._used: collections.OrderedDict[tuple[Chain, int], None] = collections.OrderedDict()

    def after_run(self, chain: Chain) -> None:
        """The newest state of a chain has become the last but one."""
        step = len(chain.states) - 2
        if self._keep == "last":
            chain.drop(step)
            return
        chain.drop(step - _MOST_OF_A_SESSION)
        if self._keep == "lru" and step > 0:
            self._touch(chain, step)

    def used(self, chain: Chain, step: int) -> None:
        """Somebody branched from a state."""
        if self._keep == "lru" and 0 < step < len(chain.states) - 1:
            self._touch(chain, step)

    def forget(self, chain: Chain) -> None:
        """A chain was closed."""
        with self._lock:
            for key in [key for key in self._used if key[0] is chain]:
                del self._used[key]

    def _touch(self, chain: Chain, step: int) -> None:
        with self._lock:
            self._used[chain, step] = None
            self._used.move_to_end((chain, step))
            surplus = [self._used.popitem(last=False)[0] for _ in range(len(self._used) - self._most)]
        for other, old in surplus:
            other.drop(old)
