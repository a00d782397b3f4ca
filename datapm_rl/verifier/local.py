"""Verification without Ray: a session of a local `Sandbox` as verifiers want it, and a stored trajectory verified.

`LocalSession` has the interface of `sandbox.client.RemoteSession`: the blocking calls run in threads. A stored
trajectory is verified by running its code again, step by step; each verification works on a branch of the state that
the step left, as it would have in the rollout.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from datapm_rl.config import SandboxConfig
from datapm_rl.errors import InfraError
from datapm_rl.sandbox import ExecutionResult, Limits, Sandbox, Session
from datapm_rl.trajectory import Step, StepStatus, Task, Verdict
from datapm_rl.verifier.base import Answer, CodeRunner, Record, VerificationRequest, Verifier, verify_or_missing
from datapm_rl.verifier.trust import CheckedBranches

_T = TypeVar("_T")

# Not asyncio's own threads: a run that waits for a tool's answer holds its thread, and the answer may need one there.
_THREADS = ThreadPoolExecutor(64, thread_name_prefix="local-sandbox")


def local_sandbox(config: SandboxConfig) -> Sandbox:
    """A sandbox in this process, as a run's settings say. Raises what `Sandbox` raises."""
    return Sandbox(
        limits=Limits(**{limit.name: getattr(config, limit.name) for limit in dataclasses.fields(Limits)}),
        preload=list(config.preload),
        keep="last",  # a replay branches from the newest state alone
        min_level=config.min_level,
        max_level=config.max_level,
        read_only=list(config.read_only),
        recycle_after=config.recycle_after,
    )


class LocalSession:
    """A session of a sandbox in this process. Satisfies `CodeRunner`, and is what `CheckedBranches` works with."""

    def __init__(self, session: Session):
        self._session = session

    @classmethod
    async def open(
        cls, sandbox: Sandbox, data_dir: str, files: Sequence[str] | None = None, seed: int = 0
    ) -> LocalSession:
        """A new session. Raises InfraError or UserError, as `Sandbox.session` does."""
        return cls(await _made(lambda: sandbox.session(data_dir, files, seed)))

    async def run(self, code: str, answer: Answer | None = None) -> ExecutionResult:
        """Run code; never raises for what it does. `answer` answers the calls of tools that the code makes."""
        if answer is None:
            return await _in_thread(lambda: self._session.run(code))
        loop, pending, over = asyncio.get_running_loop(), set[Future[dict[str, Any]]](), threading.Event()

        async def answered(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            return await answer(name, arguments)

        def blocking(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            future = asyncio.run_coroutine_threadsafe(answered(name, arguments), loop)
            pending.add(future)
            if over.is_set():  # cancelled between the two lines above
                future.cancel()
            return future.result()

        try:
            return await _in_thread(lambda: self._session.run(code, answer=blocking))
        finally:  # a cancelled verification does not leave its thread waiting for an answer
            over.set()
            for future in list(pending):
                future.cancel()

    async def probe(self, code: str, step: int | None = None, clean: bool = False) -> ExecutionResult:
        """Run code once on a throwaway `branch`; never raises for what it does."""

        def on_branch() -> ExecutionResult:
            try:
                with self._session.branch(step, check=not clean, clean=clean) as twin:
                    return twin.run(code)
            except InfraError as error:
                return ExecutionResult(StepStatus.INFRA_ERROR, error=error.detail or None, cause=error.cause)

        return await _in_thread(on_branch)

    @contextlib.asynccontextmanager
    async def branch(self, step: int | None = None, clean: bool = False) -> AsyncIterator[LocalSession]:
        """A private copy of the state after the `step`-th run (default: the newest), closed at the end of the block.

        `clean`: only its data, in a process where the agent's code never ran. Raises InfraError.
        """
        twin = LocalSession(await _made(lambda: self._session.branch(step, check=not clean, clean=clean)))
        try:
            yield twin
        finally:
            await twin.close()

    async def close(self) -> None:
        """End the session."""
        await _in_thread(self._session.close)


async def verify_replayed(
    verifier: Verifier,
    task: Task,
    steps: Sequence[Step],
    sandbox: Sandbox,
    *,
    deadline_s: float,
    max_turns: int,
    tamper_policy: str = "clean_room",
    strict: bool = True,
    on_replay: Callable[[Step, ExecutionResult], None] = lambda step, result: None,
    on_verdict: Callable[[Step, Record], None] = lambda step, record: None,
) -> list[Verdict]:
    """Verdicts of a stored trajectory, one per step, each given with the verifier's own earlier ones in view.

    Step t's code runs in the session, then the verifier judges step t on a branch. `deadline_s` is for one
    verification, `max_turns` the agent's limit. `strict`: a step whose code now ends in another status than it did
    is missing, cause "replay_diverged", and so are those after it; without, the replay's state is taken as it is
    (trajectories of another machine). `on_replay` gets each step with what its code did now, `on_verdict` with what
    its verification did. A sandbox that fails makes the rest missing with its cause. UserError: data that is not there.
    """
    verdicts: list[Verdict] = []
    lost: str | None = None
    try:
        session = await LocalSession.open(sandbox, task.data_dir, task.files)
    except InfraError as error:
        return [Verdict(None, cause=error.cause, verifier=verifier.name) for _ in steps]

    @contextlib.asynccontextmanager
    async def fresh() -> AsyncIterator[CodeRunner]:
        pristine = await LocalSession.open(sandbox, task.data_dir, task.files)
        try:
            yield pristine
        finally:
            await pristine.close()

    try:
        runs = 0
        for position, step in enumerate(steps):
            if lost is None and step.code is not None:
                result = await session.run(step.code)
                runs += 1
                on_replay(step, result)
                if result.status is StepStatus.INFRA_ERROR:
                    lost = result.cause
                elif strict and result.status is not step.status:
                    lost = "replay_diverged"
            if lost is not None:
                verdicts.append(Verdict(None, cause=lost, verifier=verifier.name))
                continue
            branches = CheckedBranches(session, runs, tamper_policy)
            request = VerificationRequest(
                task=task,
                history=list(steps[:position]),
                verdicts=list(verdicts),
                step=step,
                branch=branches.branch,
                probe=branches.probe,
                fresh=fresh,
                max_turns=max_turns,
                deadline_s=deadline_s,
            )
            verdicts.append(branches.judged(await verify_or_missing(verifier, request)))
            on_verdict(step, request.record)
    finally:
        await session.close()
    return verdicts


async def _in_thread(function: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(_THREADS, function)


async def _made(make: Callable[[], Session]) -> Session:
    """A session made in a thread. One that comes when nobody waits for it any more is closed."""

    def close_unwanted(done: asyncio.Future[Session]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().close()

    future = asyncio.get_running_loop().run_in_executor(_THREADS, make)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(close_unwanted)
        raise
