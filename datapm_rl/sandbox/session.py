"""A session: the notebook of one trajectory. Its code log is the truth: what was lost is rebuilt from it."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from datapm_rl.errors import InfraError
from datapm_rl.sandbox.calls import Answer, Recorder, Reply
from datapm_rl.sandbox.chain import Chain
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.sandbox.root import StateLost
from datapm_rl.trajectory import StepStatus

if TYPE_CHECKING:
    from datapm_rl.sandbox.sandbox import Sandbox

_TRIES = 5  # to run a step, with states that are lost each time


@dataclass(frozen=True)
class Origin:
    """From what a session was made: data files, their folder if all of it may be read, seed."""

    sources: tuple[Path, ...]
    readable: tuple[Path, ...]
    seed: int


@dataclass(frozen=True)
class LoggedRun:
    """A run as the code log keeps it. `shown`: what the agent saw, to compare; addresses, which differ, left out.

    `replies`: to the calls that the code made, by `calls.call_key`; None: it had no tools.
    """

    code: str
    status: StepStatus
    rolled_back: bool
    shown: str
    replies: Mapping[str, Reply] | None = None

    @classmethod
    def of(cls, code: str, result: ExecutionResult, replies: Mapping[str, Reply] | None = None) -> LoggedRun:
        """The entry for a run that was no INFRA_ERROR."""
        text = "\n".join(map(str, (result.stdout, result.value, result.error)))
        return cls(code, result.status, result.rolled_back, re.sub(r"0x[0-9a-f]{6,}", "0x", text), replies)


def undo_last(log: list[LoggedRun], first: int = 0) -> bool:
    """Have a replay skip the last run, from `first` on, that left a state; whether there was one."""
    for at in reversed(range(first, len(log))):
        if not log[at].rolled_back:
            log[at] = replace(log[at], rolled_back=True)
            return True
    return False


class Session:
    """Made by `Sandbox.session` and `Session.branch`. One run at a time; `branch` and `close` at any time.

    Thread-safe. After `close`, a run is an INFRA_ERROR with cause "session_closed".
    """

    def __init__(
        self,
        sandbox: Sandbox,
        origin: Origin,
        chain: Chain,
        log: list[LoggedRun] | None,
        first: int = 0,
        check: bool = False,
        left_out: tuple[str, ...] = (),
    ):
        self._sandbox = sandbox
        self._origin = origin
        self._chain = chain
        self._log = log  # None: of a clean room, which no code leads to
        self._first = first  # log entries before this branch was made
        self._check = check
        self.left_out = left_out  # of a clean room: variables that are no data (functions, models, open files)
        self._closed = False
        self._run_lock = threading.Lock()

    @property
    def workspace(self) -> Path:
        """The folder in which code runs. It changes when the session is rebuilt."""
        return self._chain.workspace

    def run(self, code: str, answer: Answer | None = None) -> ExecutionResult:
        """Run code in the session's state. Blocks; never raises for what the code does.

        An exception keeps what ran before it. A step that is stopped leaves variables and files as they were before
        it. A lost state (the zygote ended, a snapshot was killed) is rebuilt from the code log first; a state that is
        lost again by itself was made so, and the step has DIED. INFRA_ERROR: nothing was run; it may be tried again.

        With `answer`, the code has the functions of `inside.calls`, each use of which calls `answer` in a thread.
        Its time is not the step's.
        """
        if not isinstance(code, str):
            raise TypeError(f"code is a text, got {type(code).__name__}")
        with self._run_lock:
            check, self._check = self._check, False
            recorder = Recorder(answer) if answer else None
            try:
                result = self._run(code, check, recorder)
            except InfraError as error:
                self._check = check
                return ExecutionResult(StepStatus.INFRA_ERROR, error=error.detail or None, cause=error.cause)
            if self._log is not None:
                self._log.append(LoggedRun.of(code, result, recorder.replies if recorder else None))
            self._sandbox.retention.after_run(self._chain)
            return result

    def _run(self, code: str, check: bool, answer: Answer | None) -> ExecutionResult:
        own_ends = 0
        for _ in range(_TRIES):
            self._check_open()
            try:
                return self._chain.run(code, check, answer=answer)
            except StateLost as error:
                lost = error
            own_ends += not lost.ours
            if own_ends == 2:
                break
            try:
                self._rebuild()
            except InfraError as error:
                if lost.ours or error.cause != "replay_diverged":
                    raise
                self._chain.repeat()  # it ended itself, and took care not to be replayed
                message = f"the state before this step ends when it is continued ({lost})"
                return ExecutionResult(StepStatus.DIED, error=message, rolled_back=True)
        else:
            raise InfraError("sandbox_lost", str(lost))
        return self._without_newest(lost)

    def _without_newest(self, lost: StateLost) -> ExecutionResult:
        """The newest state ends when it is continued: go back to the one before the step that made it so."""
        error = f"the state after the step before ends when it is continued ({lost}); that step is undone"
        if self._log is None:
            raise InfraError("snapshot_lost", error)
        undone = undo_last(self._log, self._first)
        if undone:
            self._rebuild()
        self._chain.repeat()
        return ExecutionResult(StepStatus.DIED, error=error, rolled_back=True, undoes_previous=undone)

    def branch(self, step: int | None = None, check: bool = False, clean: bool = False) -> Session:
        """A session of its own that starts from the state after the `step`-th run (0: the start; default: newest).

        It has the variables and a private copy of the files as they were then. It costs no process until its first
        run, which forks from this session's snapshot; a state that was dropped is rebuilt by running the log again.
        `check`: the first result tells in `tampered` which functions the code before had replaced.
        `clean`: a clean room, a process in which the agent's code never ran, gets the variables that are data, so what
        is computed there is computed by the real libraries; `left_out` names the others.

        Raises InfraError when the state cannot be had, ValueError for a wrong step.
        """
        self._check_open()
        chain = self._chain
        newest = len(chain.states) - 1
        if step is not None and not 0 <= step <= newest:
            raise ValueError(f"no step {step}: the session has {newest} runs")
        step = newest if step is None else step
        log = None if self._log is None else self._log[: self._first + step]
        twin = chain.branch(step)
        if twin is None:
            if log is None:
                raise InfraError("snapshot_lost", "a clean room cannot be rebuilt from the code log")
            twin = self._sandbox.replay(self._origin, log)
            twin.cut(len(log))
        else:
            self._sandbox.retention.used(chain, step)
        if clean:
            room, left_out = self._sandbox.clean_room(self._origin, twin)
            return self._sandbox.adopt(Session(self._sandbox, self._origin, room, None, left_out=left_out))
        first = len(log) if log is not None else 0
        return self._sandbox.adopt(Session(self._sandbox, self._origin, twin, log, first, check))

    def fresh(self) -> Session:
        """A session in the start state with a private copy of the newest files. Raises InfraError."""
        self._check_open()
        chain = self._chain
        twin = chain.branch(0)
        if twin is None:
            twin = self._sandbox.replay(self._origin, [])
        try:
            twin.restore(chain.files())
        except StateLost as error:
            twin.close()
            raise InfraError("snapshot_lost", str(error)) from None
        except BaseException:
            twin.close()
            raise
        return self._sandbox.adopt(Session(self._sandbox, self._origin, twin, []))

    def close(self) -> None:
        """Kill the session's processes and remove its workspace. Branches live on. Again is harmless."""
        self._closed = True
        self._sandbox.forget(self)
        self._sandbox.retention.forget(self._chain)
        self._chain.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InfraError("session_closed", "the session was closed")

    def _rebuild(self) -> None:
        if self._log is None:
            raise InfraError("snapshot_lost", "a clean room cannot be rebuilt from the code log")
        lost = self._chain
        for patience in (True, True, False):
            try:
                rebuilt = self._sandbox.replay(self._origin, self._log)
                break
            except InfraError as error:  # the new one was lost as well
                if error.cause != "replay_lost" or not patience:
                    raise
        rebuilt.cut(self._first)
        self._chain = rebuilt
        self._sandbox.retention.forget(lost)
        lost.close()
        if self._closed:  # meanwhile
            rebuilt.close()
