"""What comes back from running code, and the limits under which it runs."""

from __future__ import annotations

from dataclasses import dataclass

from datapm_rl.trajectory import StepStatus


@dataclass(frozen=True)
class ExecutionResult:
    """The result of one piece of code.

    `stdout`: what it printed (stdout and stderr interleaved), possibly shortened in the middle.
    `value`: repr of the last expression, None if there is none. `error`: the traceback, from the user's frames
    only. `wall_s`: seconds of execution, queueing excluded. `cause`: set for INFRA_ERROR alone.
    """

    status: StepStatus
    stdout: str = ""
    value: str | None = None
    error: str | None = None
    wall_s: float = 0.0
    cause: str | None = None


@dataclass(frozen=True)
class Limits:
    """Limits of a session. Exceeding one ends the step (not the session), except `memory_mb`, see docs/sandbox.md."""

    wall_s: float = 30.0  # seconds per step
    memory_mb: int = 2048  # data segment of one process
    output_kb: int = 64  # printed text kept per step; the middle is dropped beyond it
    processes: int = 64  # processes and threads of a session
    file_mb: int = 64  # size of one written file
