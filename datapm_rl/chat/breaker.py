"""A circuit breaker: an endpoint that keeps failing is left alone, then probed by one request.

    closed --n failures in a row--> open --cool-down over, next caller--> half-open --success--> closed
                                      ^------------------failure--------------'

The cool-down doubles from one opening to the next, with jitter, up to a maximum; a success resets it. Each admitted
request holds a *ticket*. What comes of a ticket from before the last change of state is stale and ignored, so that
in the half-open state only the probe decides.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from enum import StrEnum


class BreakerState(StrEnum):
    """What the breaker lets through."""

    CLOSED = "closed"  # every request
    OPEN = "open"  # none until the cool-down is over
    HALF_OPEN = "half_open"  # none but the probe, which is on its way


class Breaker:
    """The breaker of one endpoint, for one event loop. Times in seconds.

    `failures` in a row open it. `clock` and `uniform(low, high)` are given by tests.

    >>> breaker = Breaker(failures=1)
    >>> ticket = breaker.admit()
    >>> breaker.settle(ticket, False)
    >>> breaker.state, breaker.admit()
    (<BreakerState.OPEN: 'open'>, None)
    """

    def __init__(
        self,
        failures: int = 5,
        cool_down_s: float = 1.0,
        max_cool_down_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ):
        self.state = BreakerState.CLOSED
        self._failures, self._first_s, self._max_s = failures, cool_down_s, max_cool_down_s
        self._clock, self._uniform = clock, uniform
        self._epoch = 0  # counts the changes of state; a ticket is the epoch it was given in
        self._in_a_row = 0
        self._cool_down_s = cool_down_s
        self._probe_at = 0.0

    def ready_in(self) -> float:
        """Seconds until `admit` can give a ticket: 0 now, infinity while a probe is on its way."""
        if self.state is BreakerState.HALF_OPEN:
            return math.inf
        return max(0.0, self._probe_at - self._clock()) if self.state is BreakerState.OPEN else 0.0

    def admit(self) -> int | None:
        """A ticket for one request, to be given back to `settle`; None: not now. After the cool-down, the probe's."""
        if self.ready_in() > 0:
            return None
        if self.state is BreakerState.OPEN:
            self._become(BreakerState.HALF_OPEN)
        return self._epoch

    def settle(self, ticket: int, alive: bool | None) -> None:
        """What came of a request: the endpoint is alive, or not, or None: nothing was learnt (it was cancelled)."""
        if ticket != self._epoch:
            return
        if alive:
            self._in_a_row, self._cool_down_s = 0, self._first_s
            if self.state is BreakerState.HALF_OPEN:
                self._become(BreakerState.CLOSED)
        elif self.state is BreakerState.HALF_OPEN:
            if alive is False:
                self._start_cool_down()
            self._become(BreakerState.OPEN)  # a cancelled probe leaves the way to the next one free at once
        elif alive is False:
            self._in_a_row += 1
            if self._in_a_row >= self._failures:
                self._start_cool_down()
                self._become(BreakerState.OPEN)

    def _start_cool_down(self) -> None:
        self._probe_at = self._clock() + self._uniform(self._cool_down_s / 2, self._cool_down_s)
        self._cool_down_s = min(2 * self._cool_down_s, self._max_s)

    def _become(self, state: BreakerState) -> None:
        self.state = state
        self._epoch += 1
