"""The conversation with a process that runs a step: output, limits, report.

What it sends is JSON of bounded size, or it is killed. Nothing here waits for it longer than its time limit.
"""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapm_rl.sandbox.calls import Calls
from datapm_rl.sandbox.consumption import Consumption, consumption, nameless_bytes
from datapm_rl.sandbox.inside import kernel, wire
from datapm_rl.sandbox.output import OutputBuffer
from datapm_rl.sandbox.process import Process, hear
from datapm_rl.sandbox.result import Limits
from datapm_rl.sandbox.sweep import freeze, thaw
from datapm_rl.sandbox.tree import usage
from datapm_rl.trajectory import StepStatus

_OUTPUT_MAX = 64 << 20  # bytes printed in one step, above which it is killed
_FIRST_LOOK_S = 0.05  # a step shorter than this is not looked at by the watchdog
_LOOK_S = 0.25  # at most between two looks: memory fills at a gigabyte a second
_LOOK_CALLING_S = 1.0  # the same while a call is answered, for the step waits and many may


@dataclass
class Report:
    """How a step ended: `frame` is its own report, or None when it was stopped (`status` and `error` say why)."""

    frame: dict[str, Any] | None
    status: StepStatus
    error: str | None
    output: str
    wall_s: float


def converse(
    process: Process, output_fd: int, limits: Limits, workspace: Path, root: Process, calls: Calls | None
) -> Report:
    """Follow a running step to its end: drain its output, watch its limits, have its calls answered, take its report.

    The caller kills the process unless the report has a frame, and sweeps `root`, which may be frozen then. Blocks for
    at most `limits.wall_s` and a little, beside the time that calls wait for their answers.
    """
    return _Conversation(process, output_fd, limits, workspace, root, calls).hold()


def over_quota(workspace: Path, limits: Limits, process: Process) -> str | None:
    """What is wrong with the size of a step's files, deleted ones that it holds open included; None if nothing."""
    size, files = usage(workspace, limits.workspace_mb << 20, limits.workspace_files)
    if files > limits.workspace_files:
        return f"more than {limits.workspace_files} files and folders in the workspace"
    if size + nameless_bytes(process.pid) > limits.workspace_mb << 20:
        return f"more than {limits.workspace_mb} MB of files in the workspace"
    return None


class _Conversation:
    def __init__(
        self, process: Process, output_fd: int, limits: Limits, workspace: Path, root: Process, calls: Calls | None
    ):
        self.process, self.output_fd, self.limits, self.workspace = process, output_fd, limits, workspace
        self.root, self.calls = root, calls
        self.output = OutputBuffer(limits.output_kb << 10)
        # value and error: at most output_kb characters each, up to 12 bytes of JSON per character
        self.reader = wire.FrameReader(max_bytes=(limits.output_kb << 10) * 26 + 4096)
        self.start = time.monotonic()
        self.next_look = self.start + _FIRST_LOOK_S
        self.poller = select.poll()
        self.poller.register(process.sock, select.POLLIN)
        self.poller.register(output_fd, select.POLLIN)
        if process.pidfd >= 0:  # its death: its children may keep the socket open
            self.poller.register(process.pidfd, select.POLLIN)
        if calls is not None:
            calls.attend(self.poller, process.pid)
        os.set_blocking(output_fd, False)

    def hold(self) -> Report:
        while True:
            now = time.monotonic()
            end = self.start + self.limits.wall_s + self._answered_s()
            if now >= end:
                return self._stopped(StepStatus.TIMEOUT, f"time limit of {self.limits.wall_s:g} s exceeded")
            if now >= self.next_look and (over := self._look(now)):
                return self._stopped(*over)
            until = min(end, self.next_look)
            dead = self.process.pidfd < 0  # ended before we looked: what it reported is in the socket, or nothing is
            ready = [fd for fd, _event in self.poller.poll(0 if dead else max(0.0, until - now) * 1000 + 1)]
            if self.output_fd in ready and not self._read_output():
                self.poller.unregister(self.output_fd)
            if self.output.total > _OUTPUT_MAX:
                return self._stopped(StepStatus.OUTPUT, f"more than {_OUTPUT_MAX >> 20} MB printed")
            if self.process.sock.fileno() in ready and (report := self._read_report()):
                return report
            if self.calls is not None and (problem := self._serve(self.calls, ready)):
                return problem
            dead = dead or self.process.pidfd in ready
            if dead and self.process.sock.fileno() not in ready:
                return self._stopped(StepStatus.DIED, "the step's process ended (exit, crash or killed)")

    def _answered_s(self) -> float:
        return self.calls.waited() if self.calls is not None else 0.0

    def _serve(self, calls: Calls, ready: list[int]) -> Report | None:
        try:
            calls.serve(ready)
        except (OSError, wire.ProtocolError) as error:
            return self._stopped(StepStatus.DIED, f"the step's process broke its connection ({error})")
        return None

    def _look(self, now: float) -> tuple[StepStatus, str] | None:
        """The watchdog: more seldom the longer a step takes."""
        longest = _LOOK_CALLING_S if self.calls is not None and self.calls.pending else _LOOK_S
        self.next_look = now + min(longest, max(_FIRST_LOOK_S, (now - self.start) / 2))
        limits, used = self.limits, self._consumption()
        if used.tasks > limits.processes:
            return StepStatus.LIMIT, f"{used.tasks} processes and threads, limit {limits.processes}"
        if used.cpu_s > limits.cpu_s:
            return StepStatus.TIMEOUT, f"CPU time limit of {limits.cpu_s:g} s exceeded"
        if used.memory > limits.memory_mb << 20:
            return StepStatus.MEMORY, f"memory limit of {limits.memory_mb} MB exceeded"
        full = over_quota(self.workspace, limits, self.process)
        return (StepStatus.LIMIT, full) if full else None

    def _consumption(self) -> Consumption:
        """Several processes are counted while they stand still: a fork bomb outruns who counts, and takes all cores."""
        most = self.limits.processes
        if not kernel.children(self.process.pid):
            return consumption(self.process.pid, most)
        freeze(self.root)
        used = consumption(self.process.pid, most)
        if used.tasks <= most:
            thaw(self.root)
        return used

    def _read_output(self) -> bool:
        """False when there will be no more."""
        try:
            data = os.read(self.output_fd, 1 << 16)
        except BlockingIOError:
            return True
        self.output.feed(data)
        return bool(data)

    def _read_report(self) -> Report | None:
        try:
            data, sender = hear(self.process.sock)
            if data and sender != self.process.pid:
                return self._stopped(StepStatus.DIED, "another process answered for the step's")
            frames = self.reader.feed(data)
        except (OSError, wire.ProtocolError) as error:
            return self._stopped(StepStatus.DIED, f"the step's process broke its connection ({error})")
        if not data:
            return self._stopped(StepStatus.DIED, "the step's process ended (exit, crash or killed)")
        return self._report(frames[0], StepStatus.OK, None) if frames else None

    def _stopped(self, status: StepStatus, error: str) -> Report:
        return self._report(None, status, error)

    def _report(self, frame: dict[str, Any] | None, status: StepStatus, error: str | None) -> Report:
        wall_s = time.monotonic() - self.start - self._answered_s()
        before = -1
        while before != self.output.total and self.output.total <= _OUTPUT_MAX:  # what is still in the pipe
            before = self.output.total
            self._read_output()
        return Report(frame, status, error, self.output.text(), wall_s)
