"""A session: the state of one trajectory, as a chain of parked snapshots.

`_states[k]` is the process that holds the state after the k-th run. A run that was stopped (time limit, crash) adds
the state before it once more: variables roll back, files in the workspace do not.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from datapm_rl.errors import InfraError
from datapm_rl.sandbox.conversation import Report, converse
from datapm_rl.sandbox.process import Lost, Process, meet, new_socket
from datapm_rl.sandbox.result import ExecutionResult, Limits
from datapm_rl.sandbox.workspace import remove_workspace
from datapm_rl.sandbox.zygote import Zygote
from datapm_rl.trajectory import StepStatus

_REPORTED = {status.value: status for status in (StepStatus.OK, StepStatus.ERROR, StepStatus.MEMORY, StepStatus.LIMIT)}
_END_S = 5.0  # for a killed process to be gone: it may have gigabytes to give back


class Session:
    """Made by `Sandbox.session` and `Session.branch`. One run at a time; `branch` and `close` at any time.

    Thread-safe. After `close`, a run is an INFRA_ERROR with cause "session_closed".
    """

    def __init__(self, zygote: Zygote, root: Process, workspace: Path, limits: Limits, keep: str):
        self.workspace = workspace
        self.limits = limits
        self._zygote = zygote
        self._keep = keep
        self._root = root  # of the original session: finds what killed steps left, of branches too
        self._is_branch = False
        self._states: list[Process | None] = [root]  # None: dropped
        self._running: set[Process] = set()
        self._closed = False
        self._run_lock = threading.Lock()
        self._lock = threading.Lock()  # guards the fields above; held for a fork at most, never for a step
        zygote.sessions.add(self)

    def run(self, code: str) -> ExecutionResult:
        """Run code in the session's state. Blocks; never raises for what the code does.

        An exception keeps what ran before it. A step that is stopped leaves the variables as they were before it.
        """
        with self._run_lock:
            read_end, write_end = os.pipe()
            try:
                try:
                    process = self._start(code, write_end)
                finally:
                    os.close(write_end)
                return self._finish(process, converse(process, read_end, self.limits))
            except InfraError as error:
                return ExecutionResult(StepStatus.INFRA_ERROR, error=error.detail or None, cause=error.cause)
            finally:
                os.close(read_end)

    def branch(self, step: int | None = None) -> Session:
        """A session of its own that starts from the state after the `step`-th run (0: the start; default: newest).

        It has a private copy of the workspace as it is now. It costs no process until its first run, which forks
        from this session's snapshot. Raises InfraError when the state cannot be had (cause "snapshot_dropped":
        retention `keep="last"` has only the start and the newest), ValueError for a wrong step.
        """
        with self._lock:
            source = self._state(step)
            self._zygote.hold(source)
        try:
            workspace = self._zygote.workspaces.duplicate(self.workspace)
        except BaseException:
            self._zygote.forget(source)
            raise
        twin = Session(self._zygote, self._root, workspace, self.limits, self._keep)
        twin._states, twin._is_branch = [source], True
        self._zygote.adopt(source)
        return twin

    def close(self) -> None:
        """Kill the session's processes and remove its workspace. Branches live on. Again is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for process in self._running:
                process.stop()  # the thread that waits for it lets go of it
            for process in {id(process): process for process in self._states if process}.values():
                self._zygote.forget(process)
        self._zygote.sessions.discard(self)
        remove_workspace(self.workspace)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _start(self, code: str, output: int) -> Process:
        with self._lock:
            source = self._state(None)
            request = {
                "code": code,
                "keep": self.limits.output_kb << 10,
                # the snapshot that a branch starts from is at home in the original's workspace
                "cwd": str(self.workspace) if self._is_branch and source is self._states[0] else None,
            }
            process = self._fork(source, request, output)
            self._running.add(process)
        return process

    def _state(self, step: int | None) -> Process:
        self._zygote.check_alive()
        if self._closed:
            raise InfraError("session_closed", "the session was closed")
        if step is not None and not 0 <= step < len(self._states):
            raise ValueError(f"no step {step}: the session has {len(self._states) - 1} runs")
        process = self._states[-1 if step is None else step]
        if process is None:
            raise InfraError("snapshot_dropped", f'the state after step {step} was dropped; use keep="all"')
        return process

    def _fork(self, source: Process, request: dict[str, Any], output: int) -> Process:
        """Have a parked process fork. Raises InfraError."""
        ours, theirs = new_socket()
        with source.forking:
            try:
                with theirs:
                    source.ask(request, (theirs.fileno(), output))
                process = meet(ours)
            except Lost as error:
                ours.close()
                self._zygote.check_alive()
                raise InfraError("fork_failed" if error.fork_failed else "snapshot_lost", str(error)) from None
            self._zygote.register(process)
        if self._is_branch:
            self._zygote.adopt(process)
        return process

    def _finish(self, process: Process, report: Report) -> ExecutionResult:
        """Commit the step's process as the newest state, or kill it and repeat the state before it."""
        with self._lock:
            self._running.discard(process)
            if self._closed:
                self._zygote.forget(process)
                raise InfraError("session_closed", "the session was closed during the step")
            result = _result(report)
            if report.frame is None or result.status is StepStatus.DIED:
                process.stop()
                process.wait_end(_END_S)  # what it started is an orphan only then
                self._zygote.forget(process)
                self._zygote.sweep(self._root)
                self._states.append(self._newest_living())
            else:
                self._states.append(process)
                self._drop()
        return result

    def _newest_living(self) -> Process:
        """Where a stopped step rolls back to: the state before it, unless the step killed that process too."""
        states = [process for process in self._states if process]
        return next((process for process in reversed(states) if process.alive()), states[0])

    def _drop(self) -> None:
        """Retention "last": the start and the newest stay."""
        if self._keep == "all":
            return
        kept = (self._states[0], self._states[-1])
        dropped = {id(process): process for process in self._states if process and process not in kept}
        for process in dropped.values():
            self._zygote.forget(process)
        self._states = [process if process in kept else None for process in self._states]


def _result(report: Report) -> ExecutionResult:
    """The step's own words are checked: a frame may be forged, text may hold lone surrogates."""
    frame = report.frame
    if frame is None:
        return ExecutionResult(report.status, report.output, None, report.error, report.wall_s)
    status = _REPORTED.get(str(frame.get("status")))
    value, error = frame.get("value"), frame.get("error")
    if status is None or not isinstance(value, str | None) or not isinstance(error, str | None):
        return ExecutionResult(StepStatus.DIED, report.output, None, "the step's report is forged", report.wall_s)
    return ExecutionResult(status, report.output, _clean(value), _clean(error), report.wall_s)


def _clean(text: str | None) -> str | None:
    return text if text is None else text.encode("utf-8", "backslashreplace").decode("utf-8")
