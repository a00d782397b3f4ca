"""Where the code of `bench.rollout` runs: in the real sandbox, or from a record of it. Both take the same stated time.

The record is for rows whose simulated seconds are asked for and not their CPU: what two cores execute in an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from bench.rollout_clock import timed
from bench.rollout_plan import EXECUTION_S, FORK_S, SESSION_S
from bench.sandbox_trajectory import STEPS
from bench.verification_plan import CODE
from datapm_rl.sandbox import ExecutionResult, Sandbox
from datapm_rl.trajectory import StepStatus, Task
from datapm_rl.verifier.local import LocalSession
from datapm_rl.verifier.trust import BranchingSession


class AgentSession(BranchingSession, Protocol):
    """A session of the agent."""

    async def run(self, code: str, answer: Any = None) -> ExecutionResult:
        """Run code."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


class Sessions(Protocol):
    """Opens sessions."""

    async def open(self, task: Task) -> AgentSession:
        """A new one over the task's files."""
        ...


class RealSessions:
    """Sessions of a sandbox."""

    def __init__(self, sandbox: Sandbox):
        self._sandbox = sandbox

    async def open(self, task: Task) -> AgentSession:
        return _Timed(await timed(LocalSession.open(self._sandbox, task.data_dir, task.files), SESSION_S))


class _Timed:
    def __init__(self, session: LocalSession):
        self._session = session

    async def run(self, code: str, answer: Any = None) -> ExecutionResult:
        return await timed(self._session.run(code, answer), EXECUTION_S)

    async def probe(self, code: str, step: int | None = None, clean: bool = False) -> ExecutionResult:
        return await timed(self._session.probe(code, step, clean), EXECUTION_S if code else FORK_S)

    @contextlib.asynccontextmanager
    async def branch(self, step: int | None = None, clean: bool = False) -> AsyncIterator[_Timed]:
        branch = self._session.branch(step, clean)
        twin = _Timed(await timed(branch.__aenter__(), FORK_S))
        try:
            yield twin
        finally:
            await timed(branch.__aexit__(None, None, None), 0)

    async def close(self) -> None:
        await timed(self._session.close(), 0)


class RecordedSessions:
    """Sessions that give what the sandbox gave, once, for each piece of code."""

    def __init__(self, sandbox: Sandbox, data: str):
        self._results: dict[str, ExecutionResult] = {}
        with sandbox.session(data) as session:
            for code in [*STEPS, CODE.split("```")[1].removeprefix("python\n")]:
                self._results[code.strip()] = session.run(code)

    async def open(self, task: Task) -> AgentSession:
        await asyncio.sleep(SESSION_S)
        return _Recorded(self._results)


class _Recorded:
    def __init__(self, results: Mapping[str, ExecutionResult]):
        self._results = results

    async def run(self, code: str, answer: Any = None) -> ExecutionResult:
        await asyncio.sleep(EXECUTION_S)
        return self._results[code.strip()]

    async def probe(self, code: str, step: int | None = None, clean: bool = False) -> ExecutionResult:
        if code:
            return await self.run(code)
        await asyncio.sleep(FORK_S)
        return ExecutionResult(StepStatus.OK)

    @contextlib.asynccontextmanager
    async def branch(self, step: int | None = None, clean: bool = False) -> AsyncIterator[_Recorded]:
        await asyncio.sleep(FORK_S)
        yield self

    async def close(self) -> None:
        pass
