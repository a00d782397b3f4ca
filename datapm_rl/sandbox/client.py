"""A session behind a node's sandbox actor, for agent loops and verifiers: every call has a deadline.

A failure of ours never reaches the caller of `run` as an exception: it is a result with status INFRA_ERROR and a
cause. `open` and `branch` raise `InfraError` (there is no session to speak of), `UserError` for bad input.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from datapm_rl.errors import InfraError, UserError, cause_of
from datapm_rl.sandbox.calling import REPLY_S, PendingCall
from datapm_rl.sandbox.calls import Reply, call_key, failure
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.sandbox.session import LoggedRun, undo_last
from datapm_rl.trajectory import StepStatus

_T = TypeVar("_T")
Answer = Callable[[str, dict[str, Any]], Awaitable[Reply]]
_LOST = ("session_unknown", "actor_lost", "sandbox_lost")
_PAUSES_S = (0.0, 1.0, 5.0, 15.0)


class RemoteSession:
    """A session by id. Satisfies `datapm_rl.verifier.base.CodeRunner`.

    `deadline_s` is per call, waiting for a core included: well above `Limits.wall_s`. The one that opened the session
    keeps its code log, and rebuilds it under the same id when the actor lost it.
    """

    def __init__(self, actor: Any, session_id: str, deadline_s: float):
        self._actor = actor
        self._id = session_id
        self._deadline_s = deadline_s
        self._origin: tuple[str, list[str] | None, int] | None = None  # of a session opened here
        self._log: list[LoggedRun] = []

    @property
    def id(self) -> str:
        """The session's id, by which another process reaches it (a verifier that branches it)."""
        return self._id

    @classmethod
    async def open(
        cls, actor: Any, data_dir: str, files: list[str] | None = None, seed: int = 0, deadline_s: float = 300.0
    ) -> RemoteSession:
        """A new session on the actor's node, for which a dead actor may come back. Raises InfraError, UserError."""
        session = cls(actor, uuid.uuid4().hex, deadline_s)
        for pause_s in (*_PAUSES_S, None):
            try:
                await _call(actor.open, (session.id, data_dir, files, seed), deadline_s)
                break
            except InfraError as error:
                if pause_s is None or error.cause != "actor_lost":
                    raise
                await asyncio.sleep(pause_s)
        session._origin = (data_dir, files, seed)
        return session

    async def run(self, code: str, answer: Answer | None = None) -> ExecutionResult:
        """Run code; never raises. With `answer`, it has the tools of `inside.calls`, and `answer` answers them.

        The deadline is for each part between two calls.
        """
        replies: dict[str, Reply] | None = None if answer is None else {}
        result = await self._run(code, answer, replies)
        if result.cause in _LOST and self._origin is not None and await self._reopened():
            result = await self._run(code, answer, replies)
        if result.undoes_previous:
            undo_last(self._log)
        if result.status is not StepStatus.INFRA_ERROR:
            self._log.append(LoggedRun.of(code, result, replies))
        return result

    async def _run(self, code: str, answer: Answer | None, replies: dict[str, Reply] | None) -> ExecutionResult:
        if answer is None or replies is None:
            return await self._execute(self._actor.run, (self._id, code))
        event = await self._execute(self._actor.run, (self._id, code, True))
        while isinstance(event, PendingCall):
            try:
                reply = await asyncio.wait_for(_awaitable(answer(event.name, event.arguments)), REPLY_S)
            except Exception as error:  # the boundary to whoever answers
                reply = failure(error)
            replies[call_key(event.name, event.arguments)] = reply
            event = await self._execute(self._actor.reply, (self._id, event.call_id, reply))
        return event

    async def _reopened(self) -> bool:
        """Whether the session could be rebuilt from the log. An actor that died takes seconds to come back."""
        assert self._origin is not None
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            with contextlib.suppress(InfraError, UserError):
                await _call(self._actor.open, (self._id, *self._origin, self._log), self._deadline_s)
                return True
        return False

    async def probe(self, code: str, step: int | None = None, clean: bool = False) -> ExecutionResult:
        """Run code once on a throwaway `branch`, in one remote call where a branch takes three; never raises."""
        return await self._execute(self._actor.probe, (self._id, step, code, clean))

    async def _execute(self, method: Any, arguments: tuple[Any, ...]) -> Any:
        try:
            return await _call(method, arguments, self._deadline_s)
        except (InfraError, UserError) as error:
            return ExecutionResult(StepStatus.INFRA_ERROR, error=str(error), cause=cause_of(error))

    @contextlib.asynccontextmanager
    async def branch(self, step: int | None = None, clean: bool = False) -> AsyncIterator[RemoteSession]:
        """A private copy of the state after the `step`-th run (default: the newest), closed at the end of the block.

        Its first result has `tampered`. `clean`: only its data, in a process where the agent's code never ran.
        """
        session_id = await _call(self._actor.branch, (self._id, step, clean), self._deadline_s)
        twin = RemoteSession(self._actor, session_id, self._deadline_s)
        try:
            yield twin
        finally:
            await twin.close()

    async def close(self) -> None:
        """Close the session. Failures are ignored: the lease ends it otherwise."""
        self._origin = None
        with contextlib.suppress(InfraError):
            await _call(self._actor.close, (self._id,), self._deadline_s)


async def _call(method: Any, arguments: tuple[Any, ...], deadline_s: float) -> Any:
    """A remote call within a deadline; what fails is an InfraError, or the UserError that the actor raised."""
    try:
        return await asyncio.wait_for(_awaitable(method.remote(*arguments)), deadline_s)
    except Exception as error:  # the boundary: Ray raises many kinds, and wraps ours in RayTaskError
        inner = getattr(error, "cause", error)
        if isinstance(inner, UserError | InfraError):
            raise inner from None
        raise InfraError(cause_of(error), str(error)[:500]) from None


async def _awaitable(reference: Awaitable[_T]) -> _T:
    """Ray's references are awaitable but no coroutines, which `wait_for` wants."""
    return await reference
