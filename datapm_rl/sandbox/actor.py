"""One sandbox per node, as an async Ray actor: admission by cores, sessions by id, leases.

Agent loops and verifiers on a node share its actor (`get_or_create_sandbox_actor`). At most `cores` steps run at a
time; a step's wait for its turn is not in its `wall_s`. A session that nobody touched for `lease_s` is closed.
The actor never forks and its event loop never blocks: the sandbox's calls run in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from datapm_rl.errors import InfraError, UserError
from datapm_rl.sandbox.calling import CallingRun, PendingCall
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.sandbox.sandbox import Sandbox
from datapm_rl.sandbox.selfcheck import IsolationReport
from datapm_rl.sandbox.session import LoggedRun, Session
from datapm_rl.trajectory import StepStatus

_T = TypeVar("_T")
_CALLS_AT_ONCE = 1000  # waiting calls are cheap coroutines; the semaphore bounds what runs


@dataclass
class _Lease:
    session: Session
    touched: float  # monotonic seconds
    running: int = 0
    calling: dict[str, CallingRun] = field(default_factory=dict)  # by the id of the call that waits for its reply


class SandboxActor:
    """The class behind the actor; `get_or_create_sandbox_actor` makes it remote."""

    def __init__(self, settings: Mapping[str, Any], cores: int, lease_s: float):
        """`settings`: arguments of `Sandbox`."""
        self._sandbox: Sandbox | None = None
        try:
            self._sandbox = Sandbox(**settings)
        except (UserError, InfraError) as error:  # raised by each call: Ray would only say that the actor died
            self._failure = error
        self._turns = asyncio.Semaphore(cores)
        # beside the running steps, the short calls (open, branch, close) get threads of their own
        self._threads = ThreadPoolExecutor(2 * cores + 2, thread_name_prefix="sandbox")
        self._leases: dict[str, _Lease] = {}
        self._lease_s = lease_s
        self._numbers = itertools.count()
        self._counts = {"steps": 0, "infra_errors": 0, "swept": 0, "tampered": 0}
        self._sweeper: asyncio.Task[None] | None = None

    async def open(
        self, session_id: str, data_dir: str, files: list[str] | None, seed: int, log: Sequence[LoggedRun] = ()
    ) -> None:
        """A new session of this id, or one rebuilt from its log in place of one that was lost.

        Raises UserError or InfraError as `Sandbox.session` does.
        """
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep_forever())
        await self.close(session_id)
        self._add(session_id, await self._in_thread(self._ready().session, data_dir, files, seed, log))

    async def run(self, session_id: str, code: str, calls: bool = False) -> ExecutionResult | PendingCall:
        """Run code in a session when its turn comes. An unknown or swept id: INFRA_ERROR "session_unknown".

        `calls`: it has tools (`inside.calls`). A use of one comes back in place of the result, for `reply`.
        """
        lease = self._leases.get(session_id)
        if lease is None:
            return self._count(ExecutionResult(StepStatus.INFRA_ERROR, cause="session_unknown"))
        if calls:
            run = CallingRun(functools.partial(lease.session.run, code), self._turns, self._use(lease))
            return await self._next_event(run, lease)
        with self._use(lease):
            async with self._turns:
                return self._count(await self._in_thread(lease.session.run, code))

    async def reply(self, session_id: str, call_id: str, reply: dict[str, Any]) -> ExecutionResult | PendingCall:
        """Answer a call of running code; its next call or its result. A call may have been given up meanwhile."""
        lease = self._leases.get(session_id)
        run = lease.calling.pop(call_id, None) if lease is not None else None
        if lease is None or run is None:
            return self._count(ExecutionResult(StepStatus.INFRA_ERROR, cause="session_unknown"))
        run.reply(call_id, reply)
        return await self._next_event(run, lease)

    async def branch(self, session_id: str, step: int | None = None, clean: bool = False) -> str:
        """The id of a branch of a session, or of a clean room. Raises InfraError ("session_unknown", ...)."""
        lease = self._leases.get(session_id)
        if lease is None:
            raise InfraError("session_unknown", session_id)
        with self._use(lease):
            return self._add(
                f"{session_id}.{next(self._numbers)}", await self._in_thread(_branch, lease.session, step, clean)
            )

    async def probe(self, session_id: str, step: int | None, code: str, clean: bool = False) -> ExecutionResult:
        """Run code once on a throwaway branch that is checked for tampering: `branch`, `run`, `close` in one call."""
        lease = self._leases.get(session_id)
        if lease is None:
            return self._count(ExecutionResult(StepStatus.INFRA_ERROR, cause="session_unknown"))
        with self._use(lease):
            async with self._turns:
                return self._count(await self._in_thread(_probe, lease.session, step, code, clean))

    async def close(self, session_id: str) -> None:
        """Close a session; an unknown id is none."""
        lease = self._leases.pop(session_id, None)
        if lease is not None:
            await self._in_thread(lease.session.close)

    async def health(self) -> dict[str, Any]:
        """What `Sandbox.health` tells, and counts: sessions, steps, infra_errors, swept, tampered (probes)."""
        return {**self._ready().health(), "sessions": len(self._leases), **self._counts}

    async def isolation(self) -> IsolationReport:
        """The proof of the isolation level."""
        return self._ready().isolation

    async def shutdown(self) -> None:
        """Close the sandbox; the actor is useless after it. (A killed actor leaves nothing behind either.)"""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._leases.clear()
        if self._sandbox is not None:
            await self._in_thread(self._sandbox.close)

    def _ready(self) -> Sandbox:
        if self._sandbox is None:
            raise self._failure
        return self._sandbox

    def _add(self, session_id: str, session: Session) -> str:
        self._leases[session_id] = _Lease(session, time.monotonic())
        return session_id

    @contextlib.contextmanager
    def _use(self, lease: _Lease) -> Iterator[None]:
        """A session in use, waiting for its turn included, is never swept."""
        lease.running += 1
        try:
            yield
        finally:
            lease.running -= 1
            lease.touched = time.monotonic()

    async def _next_event(self, run: CallingRun, lease: _Lease) -> ExecutionResult | PendingCall:
        with self._use(lease):
            event = await run.next_event()
        if not isinstance(event, PendingCall):
            return self._count(event)
        lease.calling[event.call_id] = run
        return event

    def _count(self, result: ExecutionResult) -> ExecutionResult:
        self._counts["steps"] += 1
        self._counts["infra_errors"] += result.status is StepStatus.INFRA_ERROR
        self._counts["tampered"] += bool(result.tampered)
        return result

    async def _in_thread(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(function, *arguments))

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 4)
            expired = time.monotonic() - self._lease_s
            for session_id, lease in list(self._leases.items()):
                if not lease.running and lease.touched < expired:
                    self._counts["swept"] += 1
                    await self.close(session_id)


def _branch(session: Session, step: int | None, clean: bool) -> Session:
    return session.branch(step, check=not clean, clean=clean)


def _probe(session: Session, step: int | None, code: str, clean: bool) -> ExecutionResult:
    try:
        with _branch(session, step, clean) as twin:
            return twin.run(code)
    except InfraError as error:
        return ExecutionResult(StepStatus.INFRA_ERROR, error=error.detail or None, cause=error.cause)


def get_or_create_sandbox_actor(
    settings: Mapping[str, Any] | None = None,
    cores: int | None = None,
    lease_s: float = 600.0,
    node_id: str | None = None,
    name: str = "datapm_sandbox",
) -> Any:
    """A handle of the node's sandbox actor, made at the first call (default: this node).

    `settings`: arguments of `Sandbox`. `cores`: how many steps run at a time (default: the CPUs that this process may
    use). `lease_s`: seconds until an untouched session is closed (a later run rebuilds it); more than the longest turn
    of the policy plus a verification.

    Keep the handle: the actor lives as long as handles of its creator do. The settings of the first call count.
    """
    node_id = node_id or ray.get_runtime_context().get_node_id()
    # restarted when it dies: its clients rebuild their sessions from their logs
    remote = ray.remote(num_cpus=0, max_concurrency=_CALLS_AT_ONCE, max_restarts=-1)(SandboxActor)
    return remote.options(
        name=f"{name}_{node_id}",
        get_if_exists=True,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
    ).remote(dict(settings or {}), cores or len(os.sched_getaffinity(0)), lease_s)
