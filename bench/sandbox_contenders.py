"""The contenders of `bench.sandbox` behind one interface, the Jupyter kernel excepted (`sandbox_jupyter`)."""

from __future__ import annotations

import ast
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol

from bench.sandbox_processes import pss_mb, tree
from datapm_rl.errors import UserError
from datapm_rl.sandbox import Sandbox, Session

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}


class Notebook(Protocol):
    """The state of one trajectory."""

    def run(self, code: str) -> str:
        """What the code printed. Raises RuntimeError when it failed."""

    def branch(self) -> Notebook:
        """Another in the same state."""

    def close(self) -> None:
        """Leaves no process and no file."""


class Contender(Protocol):
    """A way to run trajectories. `per_round`: it plays so many for one of the slowest contender's."""

    name: str
    per_round: int

    def start(self) -> Notebook:
        """A new notebook, ready to run code, beside a copy of the table."""

    def pss_mb(self, notebooks: list[Any]) -> tuple[float, float]:
        """MB per notebook: its own processes', and its share of what all have in common."""


class Ours:
    """This executor. `level`: run at this isolation level and no other; None: as it chooses."""

    name = "this executor"
    per_round = 5

    def __init__(self, data: Path, workspaces: Path, level: int | None):
        options: dict[str, Any] = {"workspace_root": workspaces}
        if level is not None:
            if "max_level" not in inspect.signature(Sandbox).parameters:
                raise UserError("--level: this sandbox has no isolation levels; leave it out")
            options |= {"min_level": level, "max_level": level}
        self._data = data
        self.sandbox = Sandbox(**options)

    def start(self) -> Notebook:
        return _OurNotebook(self.sandbox.session(self._data))

    def pss_mb(self, notebooks: list[Any]) -> tuple[float, float]:
        zygote = int(str(self.sandbox.health()["zygote_pid"]))
        return pss_mb(tree(zygote)) / len(notebooks), pss_mb({zygote}) / len(notebooks)


class _OurNotebook:
    def __init__(self, session: Session):
        self._session = session
        self.close = session.close

    def run(self, code: str) -> str:
        result = self._session.run(code)
        if result.status != "ok":
            raise RuntimeError(f"{result.status} {result.cause or ''}: {result.error}")
        return result.stdout

    def branch(self) -> Notebook:
        return _OurNotebook(self._session.branch())


class Replay:
    """A fresh interpreter per step that runs all earlier code first, without its prints."""

    name = "replay"
    per_round = 1

    def __init__(self, data: Path):
        self._data = data

    def start(self) -> Notebook:
        return ReplayNotebook(self._data, [])

    def pss_mb(self, notebooks: list[Any]) -> tuple[float, float]:
        """While a step runs: between steps there is no process."""
        waiting = [notebook.start_interpreter("print('ready', flush=True)\ninput()") for notebook in notebooks]
        for process in waiting:
            process.stdout.readline()
        used = pss_mb({process.pid for process in waiting}) / len(notebooks)
        for process in waiting:
            process.communicate("\n")
        return used, 0.0


class ReplayNotebook:
    """The code so far, and a folder for its files."""

    def __init__(self, data: Path, code: list[str]):
        self._data = data
        self._code = code
        self._folder = copied(data)

    def run(self, code: str) -> str:
        process = self.start_interpreter(code)
        printed, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(errors)
        self._code.append(_without_prints(code))
        return printed

    def start_interpreter(self, code: str) -> subprocess.Popen[str]:
        """Runs all code so far, then this."""
        return subprocess.Popen(
            [sys.executable, "-c", "\n".join([*self._code, code])],
            cwd=self._folder,
            env=os.environ | ONE_THREAD,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def branch(self) -> Notebook:
        return ReplayNotebook(self._data, [*self._code])

    def close(self) -> None:
        shutil.rmtree(self._folder)


def copied(data: Path) -> Path:
    """A new folder with a copy of the data files."""
    folder = Path(tempfile.mkdtemp(dir=data.parent))
    for path in data.iterdir():
        shutil.copy(path, folder)
    return folder


def _without_prints(code: str) -> str:
    module = ast.parse(code)
    module.body = [statement for statement in module.body if not _is_print(statement)]
    return ast.unparse(module)


def _is_print(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Name)
        and statement.value.func.id == "print"
    )
