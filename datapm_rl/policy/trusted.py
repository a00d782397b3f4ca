"""Where the demonstrator's programs run: in this process, on cached frames, half a millisecond a program.

They are our own text, made from `idioms`, so they are trusted. A policy's code never runs here: it has the sandbox.
"""

from __future__ import annotations

import contextlib
import functools
import io
import traceback
from pathlib import Path

import numpy as np
import pandas as pd

from datapm_rl.policy import idioms
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import StepStatus, Task


class TrustedSession:
    """Runs the demonstrator's programs over one task's file in this process. Not for a policy's code."""

    def __init__(self, task: Task):
        self._load = idioms.LOAD.format(file=Path(task.files[0]).name)
        self._path = Path(task.data_dir) / task.files[0]
        self._names: dict[str, object] = {}

    def run(self, code: str) -> ExecutionResult:
        """What the sandbox would give for the same program (`wall_s` and `value` are not filled)."""
        if code.startswith(self._load):  # the file is read once per process, not once per program
            code = code[len(self._load) :]
            self._names |= {"pd": pd, "np": np, "df": _read(self._path).copy()}
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "<demonstration>", "exec"), self._names)
        except Exception as error:
            text = "".join(traceback.format_exception_only(error))
            return ExecutionResult(StepStatus.ERROR, printed.getvalue(), error=text)
        return ExecutionResult(StepStatus.OK, printed.getvalue())


@functools.lru_cache(maxsize=1024)
def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path)
