"""One run of code: fork the state before it, follow the child, and keep it as the state after it or be rid of it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from datapm_rl.errors import InfraError
from datapm_rl.sandbox.calls import Answer, Calls
from datapm_rl.sandbox.conversation import Report, converse, over_quota
from datapm_rl.sandbox.inside import kernel
from datapm_rl.sandbox.process import Process
from datapm_rl.sandbox.result import ExecutionResult, Limits
from datapm_rl.sandbox.root import Root, StateLost
from datapm_rl.trajectory import StepStatus

_REPORTED = {status.value: status for status in (StepStatus.OK, StepStatus.ERROR, StepStatus.MEMORY, StepStatus.LIMIT)}
_END_S = 5.0  # for a killed process to be gone: it may have gigabytes to give back
_ROLLED_BACK = "; variables and files are as they were before this step"


class RunningStep:
    """From its start to its end. `stop` at any time, the rest by one thread."""

    def __init__(
        self,
        root: Root,
        limits: Limits,
        workspace: Path,
        source: Process,
        request: dict[str, Any],
        answer: Answer | None = None,
    ):
        """Start it. Raises StateLost, InfraError."""
        self._root, self._limits, self._workspace, self._request = root, limits, workspace, request
        self._output, write_end = os.pipe()
        self._calls = Calls(answer) if answer else None
        fds = (write_end, self._calls.theirs.fileno()) if self._calls else (write_end,)
        try:
            self._process = root.fork(source, request, fds)
        except BaseException:
            self._close()
            raise
        finally:
            os.close(write_end)
            if self._calls:
                self._calls.theirs.close()
        self._process.running = True

    def stop(self) -> None:
        """Kill it; `finish` returns soon."""
        self._process.stop()

    def finish(self) -> tuple[Process | None, ExecutionResult]:
        """Blocks until it ends or is stopped. The process in the state after it, None: rolled back."""
        try:
            report = self._converse()
        except BaseException:  # KeyboardInterrupt
            self._end()
            raise
        result = _result(report)
        if report.frame is not None and result.status is not StepStatus.DIED:
            if not (full := over_quota(self._workspace, self._limits, self._process)):
                try:
                    return self._settled(), result
                except (StateLost, InfraError) as error:
                    lost = f"the state cannot be continued ({error})"
                    result = replace(result, status=StepStatus.DIED, value=None, error=lost)
            else:
                result = replace(result, status=StepStatus.LIMIT, value=None, error=full)
        self._end()
        return None, replace(result, error=(result.error or "") + _ROLLED_BACK, rolled_back=True)

    def _converse(self) -> Report:
        try:
            return converse(self._process, self._output, self._limits, self._workspace, self._root.process, self._calls)
        finally:
            self._close()

    def _close(self) -> None:
        os.close(self._output)
        if self._calls:
            self._calls.close()

    def _end(self) -> None:
        self._process.running = False
        self._process.stop()
        self._process.wait_end(_END_S)
        self._root.sweep()
        self._root.zygote.forget(self._process)

    def _settled(self) -> Process:
        """Without the processes that the step left; without its threads, which do not survive a fork."""
        process = self._process
        process.running = False
        if kernel.children(process.pid):
            self._root.sweep()
        if not process.ping():
            raise StateLost("it reported before its end")
        if kernel.thread_count(process.pid) <= 1:
            return process
        nothing = {"op": "run", "code": "", "calls": False}
        request = {**self._request, **nothing, "cwd": None, "changeable": None, "check": False}
        renewal = RunningStep(self._root, self._limits, self._workspace, process, request)
        heir = renewal._process
        try:
            report = renewal._converse()
        finally:
            heir.running = False
        if report.frame is None:
            self._root.zygote.forget(heir)
            raise StateLost("a fork of it does not answer")
        self._root.zygote.forget(process)
        return heir


def _result(report: Report) -> ExecutionResult:
    """The step's own words are checked: a frame may be forged, text may hold lone surrogates."""
    frame = report.frame
    if frame is None:
        return ExecutionResult(report.status, report.output, None, report.error, report.wall_s)
    status = _REPORTED.get(str(frame.get("status")))
    value, error, tampered = frame.get("value"), frame.get("error"), frame.get("tampered")
    if (
        status is None
        or not isinstance(value, str | None)
        or not isinstance(error, str | None)
        or not isinstance(tampered, list)
    ):
        return ExecutionResult(StepStatus.DIED, report.output, None, "the step's report is forged", report.wall_s)
    names = tuple(_clean(str(name)[:200]) for name in tampered[:20])
    return ExecutionResult(status, report.output, _clean(value), _clean(error), report.wall_s, tampered=names)


def _clean(text: Any) -> Any:
    return text if text is None else text.encode("utf-8", "backslashreplace").decode("utf-8")
