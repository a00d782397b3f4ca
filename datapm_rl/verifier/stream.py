"""Streaming verification of one trajectory: step t is verified while the policy already generates step t + 1.

Verifications of a trajectory run one after the other, in order (step t needs the verdicts of the steps before it);
the caller goes on meanwhile. When the trajectory ends, usually only the last verdict is outstanding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from datapm_rl.errors import cause_of
from datapm_rl.trajectory import Step, Verdict

Verify = Callable[[list[Step], list[Verdict], Step], Awaitable[Verdict]]
"""From the history, its verdicts and the current step to a verdict. What it raises is a missing verdict."""


class VerdictStream:
    """The verdicts of one trajectory, coming in.

    >>> stream = VerdictStream(verify)                                          # doctest: +SKIP
    >>> stream.submit(step)                                                     # returns at once
    >>> verdicts = await stream.finish(deadline_s=30)                           # one per submitted step
    """

    def __init__(self, verify: Verify):
        self._verify = verify
        self._steps: list[Step] = []
        self._verdicts: list[Verdict] = []
        self._worker: asyncio.Task[None] | None = None
        self._closed: str | None = None  # the cause of verdicts that will not come

    def submit(self, step: Step) -> None:
        """Queue the next finished step. Needs a running event loop. RuntimeError after `finish` or `cancel`."""
        if self._closed is not None:
            raise RuntimeError("the stream of verdicts is closed")
        self._steps.append(step)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def finish(self, deadline_s: float) -> list[Verdict]:
        """All verdicts, one per submitted step; those that are not there after `deadline_s` seconds are missing."""
        try:
            if self._worker is not None and self._closed is None:
                await asyncio.wait([self._worker], timeout=deadline_s)
        finally:
            self._close("trajectory_deadline")
        late = len(self._steps) - len(self._verdicts)
        return self._verdicts + [Verdict(score=None, cause=self._closed) for _ in range(late)]

    def cancel(self) -> None:
        """Stop at once; verdicts that are not there yet are missing with cause "cancelled"."""
        self._close("cancelled")

    def _close(self, cause: str) -> None:
        if self._closed is None:
            self._closed = cause
            if self._worker is not None:
                self._worker.cancel()

    async def _work(self) -> None:
        while len(self._verdicts) < len(self._steps):
            done = len(self._verdicts)
            verdict = await self._one(self._steps[:done], list(self._verdicts), self._steps[done])
            if self._closed is not None:
                return  # too late: the caller has counted it as missing
            self._verdicts.append(verdict)

    async def _one(self, history: list[Step], verdicts: list[Verdict], step: Step) -> Verdict:
        try:
            return await self._verify(history, verdicts, step)
        except Exception as error:  # the boundary: a failed verification is missing data, and the next one goes on
            return Verdict(score=None, cause=cause_of(error), rationale=str(error)[:500])
