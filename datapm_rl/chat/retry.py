"""How often and how soon a failed request is sent again: exponential back-off with full jitter, within the deadline."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from datapm_rl.chat.failure import EndpointFailure


@dataclass(frozen=True)
class RetryPolicy:
    """Bounds for one call, besides its deadline. Times in seconds.

    The n-th pause is drawn from [0, min(base_s * 2^(n-1), max_s)], and comes after what the endpoint asks for
    (Retry-After). `attempt_s` ends a request that hangs, so that another can be tried; without it, one request may
    take until the deadline. It must exceed the slowest reply: a reply under way cannot be told from a hang.
    """

    attempts: int = 6
    base_s: float = 0.5
    max_s: float = 20.0
    attempt_s: float = math.inf

    def until(self, deadline: float) -> AsyncRetrying:
        """Retries up to a time of the running loop. A pause that would pass it is not begun: the failure stands."""
        jitter = wait_random_exponential(multiplier=self.base_s, max=self.max_s)
        loop = asyncio.get_running_loop()

        def pause(state: RetryCallState) -> float:
            return _failure(state).retry_after + jitter(state)

        def enough(state: RetryCallState) -> bool:
            return state.attempt_number >= self.attempts or loop.time() + state.upcoming_sleep >= deadline

        return AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, EndpointFailure) and error.retried),
            stop=enough,
            wait=pause,
            reraise=True,
        )


def _failure(state: RetryCallState) -> EndpointFailure:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, EndpointFailure)  # nothing else is retried
    return error
