"""A session: the state of one trajectory, as a chain of parked snapshots.

`_states[k]` is the process that holds the state after the k-th run. A run that was stopped (time limit, crash) adds
the state before it once more: variables roll back, files in the workspace do not.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from datapm_rl.errors import InfraError
from datapm_rl.sandbox.process import Lost, Process, Report, converse, meet, new_socket
from datapm_rl.sandbox.result import ExecutionResult, Limits
from datapm_rl.sandbox.workspace import remove_workspace
from datapm_rl.sandbox.zygote import Zygote
from datapm_rl.trajectory import StepStatus

_REPORTED = {status.value: status for status in (StepStatus.OK, StepStatus.ERROR, StepStatus.MEMORY, StepStatus.LIMIT)}


class Session:
    """Made by `Sandbox.session` and `Session.branch`. One run at a time; `branch` and `close` at any time.

    Thread-safe. After `close`, a run is an INFRA_ERROR with cause "session_closed".
    """

    def __init__(self, zygote: Zygote, root: Process, workspace: Path, limits: Limits, keep: str):
        self.workspace = workspace
        self.limits = limits
        self._zygote = zygote
        self._root = root
        self._keep = keep
        self._states: list[Process | None] = [root]  # None: dropped
        self._running: set[Process] = set()
        self._closed = False
        self._run_lock = threading.Lock()
        zygote.sessions.add(self)
        self._lock = threading.Lock()  # guards the fields above; held for a fork at most, never for a step

    def run(self, code: str) -> ExecutionResult:
        """Run code in the session's state. Blocks; never raises for what the code does.

        An exception keeps what ran before it. A step that is stopped leaves the variables as they were before it.
        """
        with self._run_lock:
            return self._execute(code, step=None, workspace=None)

    def probe(self, code: str, step: int | None = None) -> ExecutionResult:
        """Run code on a throw-away copy of the state after the `step`-th run (default: the newest) and of the files.

        The same as `branch(step)`, one `run`, `close`, with one fork instead of two.
        """
        workspace = self._zygote.workspaces.duplicate(self.workspace)
        try:
            return self._execute(code, step, workspace)
        finally:
            remove_workspace(workspace)

    def branch(self, step: int | None = None) -> Session:
        """A session of its own that starts from the state after the `step`-th run (0: the start; default: newest).

        It has a private copy of the workspace as it is now. Raises InfraError when the state cannot be had (cause
        "snapshot_dropped": retention `keep="last"` has only the start and the newest), ValueError for a wrong step.
        """
        workspace = self._zygote.workspaces.duplicate(self.workspace)
        try:
            with self._lock:
                root = self._fork(self._state(step), {"op": "branch", "cwd": str(workspace)})
                self._zygote.adopt(root)
        except BaseException:
            remove_workspace(workspace)
            raise
        return Session(self._zygote, root, workspace, self.limits, self._keep)

    def close(self) -> None:
        """Kill the session's processes and remove its workspace. Branches live on. Again is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for process in self._running:
                process.stop()  # the thread that waits for it lets go of it
            for process in filter(None, self._states):
                self._zygote.forget(process)
        self._zygote.sessions.discard(self)
        remove_workspace(self.workspace)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _execute(self, code: str, step: int | None, workspace: Path | None) -> ExecutionResult:
        """`workspace` None: commit the state; else a throw-away run in that folder."""
        read_end, write_end = os.pipe()
        try:
            try:
                process = self._start(code, step, workspace, write_end)
            finally:
                os.close(write_end)
            report = converse(process, read_end, self.limits)
            return self._finish(process, report, commit=workspace is None)
        except InfraError as error:
            return ExecutionResult(StepStatus.INFRA_ERROR, error=error.detail or None, cause=error.cause)
        finally:
            os.close(read_end)

    def _start(self, code: str, step: int | None, workspace: Path | None, output: int) -> Process:
        request = {
            "op": "run",
            "code": code,
            "keep": self.limits.output_kb << 10,
            "throwaway": workspace is not None,
            "cwd": workspace and str(workspace),
        }
        with self._lock:
            process = self._fork(self._state(step), request, output)
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

    def _fork(self, source: Process, request: dict[str, Any], *fds: int) -> Process:
        """Have a parked process fork. Raises InfraError."""
        ours, theirs = new_socket()
        try:
            with theirs:
                source.ask(request, (theirs.fileno(), *fds))
            process = meet(ours)
        except Lost as error:
            ours.close()
            self._zygote.check_alive()
            raise InfraError("fork_failed" if error.fork_failed else "snapshot_lost", str(error)) from None
        self._zygote.register(process)
        return process

    def _finish(self, process: Process, report: Report, commit: bool) -> ExecutionResult:
        with self._lock:
            self._running.discard(process)
            if self._closed:
                self._zygote.forget(process)
                raise InfraError("session_closed", "the session was closed during the step")
            result = _result(report)
            stopped = report.frame is None or result.status is StepStatus.DIED
            if stopped or not commit:
                self._zygote.forget(process)
            if stopped:
                with contextlib.suppress(Lost):
                    self._root.ask({"op": "sweep", "keep": self._zygote.pids()})
            if commit:
                self._states.append(self._newest_living() if stopped else process)
                self._drop()
        return result

    def _newest_living(self) -> Process:
        """Where a stopped step rolls back to: the state before it, unless the step killed that process too."""
        living = (process for process in reversed(self._states) if process and process.alive())
        return next(living, self._root)

    def _drop(self) -> None:
        """Retention "last": the start and the newest stay."""
        if self._keep == "all":
            return
        newest = self._states[-1]
        for index in range(len(self._states) - 2, 0, -1):
            process = self._states[index]
            if process is None:
                return  # older ones went before
            if process is not newest and process is not self._root:
                self._zygote.forget(process)
            if process is not newest:
                self._states[index] = None if process is not self._root else process


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
