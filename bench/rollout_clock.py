"""A simulated clock for asyncio: waits cost no real time, and a busy machine does not change what they are.

`SimulatedLoop.time` jumps to the next timer as soon as nothing is left to do, and also counts the CPU seconds of the
loop's own thread, so the code under test pays for what it computes: as one process, where a recipe has many. Real work
in threads (the sandbox) is given a duration: the clock does not pass its end before the work is done (`timed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait for timers: it moves the clock to the next one, unless real work holds it."""

    jumped_s = 0.0
    holds = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout <= 0:
            return list(super().select(timeout))
        if self.holds:
            return list(super().select(None))  # the work's thread wakes the loop
        events = list(super().select(0))
        if not events:
            self.jumped_s += timeout
        return events


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module docstring. `time` is in simulated seconds and starts at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self._cpu_before_s = time.thread_time()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.jumped_s + time.thread_time() - self._cpu_before_s

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The clock counts nothing but CPU seconds while work outside the loop is waited for."""
        self._jumping.holds += 1
        try:
            yield
        finally:
            self._jumping.holds -= 1


def simulate(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run` on a simulated clock."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(coroutine)


def running_loop() -> SimulatedLoop:
    """The running loop. Only inside of `simulate`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop


async def timed(work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Real work that takes so many simulated seconds, whatever it takes here. Such works overlap."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(seconds)
    with running_loop().held():
        return await task
