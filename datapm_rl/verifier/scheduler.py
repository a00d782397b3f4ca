"""Which verifications run now: at most so many at a time, first come, first served, each within its deadline.

That is fair among trajectories, since none has more than one verification waiting or running: step t + 1 waits for
the verdict of step t (`stream.VerdictStream`). So a trajectory of thirty steps does not hold up one of three. The
wait for a turn is not part of a verification's deadline. The deadline of a whole trajectory, which covers it, is its
stream's.
"""

from __future__ import annotations

import asyncio
import time

from datapm_rl.trajectory import Verdict
from datapm_rl.verifier.base import VerificationRequest, Verifier, verify_or_missing


class Scheduler:
    """Runs the verifications of many trajectories in one event loop."""

    def __init__(self, verifier: Verifier, concurrency: int):
        """`concurrency`: verifications at a time."""
        self._verifier = verifier
        self._turns = asyncio.Semaphore(concurrency)

    async def verify(self, request: VerificationRequest) -> Verdict:
        """The verdict of one step; never raises but when it is cancelled, which ends the verification at once.

        Its cost has "queued_s", the seconds it waited.
        """
        asked = time.monotonic()
        async with self._turns:
            request.record.started = time.monotonic()
            verdict = await verify_or_missing(self._verifier, request)
            verdict.cost["queued_s"] = request.record.started - asked
            return verdict
