"""Trajectories that fill their budget of tokens (`overlong.policy`), after DAPO (arXiv 2503.14476), section 3.4.

    none    the reward stays as it is: cut off means no answer, and so an outcome of 0
    mask    overlong filtering: a trajectory that a token budget cut off has a reward, but is neither trained on nor
            votes in its group. It is left out by choice, so it counts nowhere as missing
    shape   soft overlong punishment (eq. 13): r_total - `penalty` * p, where p rises from 0 to 1 over the last
            `buffer_tokens` of the budget, and is 1 for a trajectory that was cut off

The budget is `data.max_response_length`: model and observation tokens. A trajectory whose turn was cut by
`agent.turn_tokens` was cut off too.
"""

from __future__ import annotations

from datapm_rl.trajectory import StopReason

POLICIES = ("none", "mask", "shape")

CUT_OFF = frozenset({StopReason.LENGTH, StopReason.CONTEXT})
"""The ends that a token budget caused: of one turn, and of the response."""

OVERLONG = "overlong"
"""Why a trajectory is left out under `mask`."""


def overlong_share(tokens: int, limit: int, buffer: int, stop_reason: StopReason | str) -> float:
    """p in [0, 1] of a response of `tokens` out of `limit`; `buffer` > 0, all in tokens."""
    if stop_reason in CUT_OFF:
        return 1.0
    return min(1.0, max(0.0, (tokens - (limit - buffer)) / buffer))
