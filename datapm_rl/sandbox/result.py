"""What comes back from running code, and the limits under which it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from datapm_rl.errors import UserError
from datapm_rl.trajectory import StepStatus

_OPEN_FILES = 256


@dataclass(frozen=True)
class ExecutionResult:
    """The result of one piece of code.

    `stdout`: what it printed (stdout and stderr interleaved), possibly shortened in the middle.
    `value`: repr of the last expression, None if there is none.
    `error`: the traceback, from the user's frames only, or why the step was stopped.
    `wall_s`: seconds of execution, queueing and the answering of calls excluded.
    `cause`: set for INFRA_ERROR alone.
    `rolled_back`: the step was stopped; variables and files are as before it.
    `undoes_previous`: and as before the step before it, whose state ends when it is continued.
    `tampered`: what of pandas, NumPy and the like was not the real thing when the code started; looked for on request,
    in a branch's first run.
    """

    status: StepStatus
    stdout: str = ""
    value: str | None = None
    error: str | None = None
    wall_s: float = 0.0
    cause: str | None = None
    rolled_back: bool = False
    undoes_previous: bool = False
    tampered: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Limits of one step. Exceeding one ends the step, not the session; see docs/sandbox.md for each one's status."""

    wall_s: float = 30.0  # seconds from start to end
    cpu_s: float = 120.0  # seconds of CPU of all the step's processes
    memory_mb: int = 2048  # data segment of a process, and resident memory of all the step's processes
    output_kb: int = 64  # printed text kept; the middle is dropped beyond it
    processes: int = 64  # processes and threads
    file_mb: int = 64  # size of one written file
    workspace_mb: int = 512  # sum of the workspace's files
    workspace_files: int = 10_000  # files and folders in the workspace

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            whole = limit.name not in ("wall_s", "cpu_s")
            if not isinstance(value, int if whole else int | float) or not value > 0:
                raise UserError(
                    f"sandbox limit {limit.name} is {value!r}; give a {'whole ' if whole else ''}number above 0"
                )

    def resources(self) -> dict[str, int]:
        """Of each process, by the names of setrlimit: backstops for a step whose trainer is gone or too late."""
        return {
            "DATA": self.memory_mb << 20,
            "AS": self.memory_mb << 22,  # shared mappings are outside the data segment
            "CPU": math.ceil(self.cpu_s) + 5,
            "FSIZE": self.file_mb << 20,
            "NOFILE": _OPEN_FILES,
            "CORE": 0,
        }
