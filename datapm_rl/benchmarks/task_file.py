"""Task files: one JSON object per line, and the data files beside it. Benchmarks and a user's own data look the same.
The same vocabulary in parquet, as `python -m datapm_rl.data` writes it, is `task_parquet.py`.

    {"id": "q1", "question": "What is the mean fare?", "format": "@mean_fare[value]", "files": ["titanic.csv"],
     "gold": [["mean_fare", "34.65"]], "grader": "dabench", "split": "train", "reference": "", "meta": {}}

`files` are paths below the task file's folder (or below `files_dir`, when that is given): a flat folder of CSVs beside
the task file needs bare names, CSVs in a sub-folder are `sub/name.csv`. `gold` is [[name, value], ...] or
{name: value}. The keys from `grader` on have the defaults shown. Whatever is wrong with a row is one sentence that
begins with `file:line`.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from datapm_rl.benchmarks.task_parquet import TASKS, parquet_rows
from datapm_rl.benchmarks.task_row import task_of
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task, to_json

_HEADER_BYTES = 1 << 20


def load_tasks(path: str | Path, files_dir: str | Path | None = None) -> list[Task]:
    """The tasks of a file, JSON lines or `.parquet`, in its order. UserError: anything that would only fail later."""
    path = Path(path)
    folder = (Path(files_dir) if files_dir is not None else path.parent).resolve()
    tasks: list[Task] = []
    lines: dict[str, int] = {}
    checked: set[Path] = set()
    for number, row in parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path):
        where = f"{path}:{number}"
        task = task_of(row, folder, where)
        if task.id in lines:
            raise UserError(f"{where}: id {task.id!r} is already taken by row {lines[task.id]}; ids must differ")
        lines[task.id] = number
        _check_files(task, checked, where)
        tasks.append(task)
    if not tasks:
        raise UserError(f"{path} has no tasks: it is empty; write one task per line")
    return tasks


def task_file(path: str | Path) -> Path:
    """The absolute path of a task file. A folder that `python -m datapm_rl.data` wrote means its tasks.parquet."""
    path = Path(path).expanduser().resolve()
    return path / TASKS if (path / TASKS).is_file() else path


def fingerprint(tasks: Iterable[Task]) -> dict[str, Any]:
    """What a run was made of: {"tasks": sha256 of all tasks as JSON, "files": {name below the data folder: sha256}}.

    It does not depend on where the files lie. Files of the same name below different folders get the folder's name.
    """
    digest = hashlib.sha256()
    paths: dict[Path, str] = {}
    for task in tasks:
        digest.update(json.dumps(to_json(task) | {"data_dir": ""}, sort_keys=True).encode())
        for file in task.files:
            paths[Path(task.data_dir) / file] = file
    names = list(paths.values())
    files = {
        file if names.count(file) == 1 else f"{path.parent.name}/{path.name}": _sha256(path)
        for path, file in sorted(paths.items())
    }
    return {"tasks": digest.hexdigest(), "files": files}


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number from 1, parsed JSON) of the lines that are not blank."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"task file {path} does not exist: check the path") from None
    except UnicodeDecodeError as error:
        raise UserError(f"task file {path} is not UTF-8 ({error.reason} at byte {error.start}): convert it") from None
    except OSError as error:
        raise UserError(f"task file {path} cannot be read ({error.strerror})") from None
    # not splitlines(): JSON strings may hold U+2028 and its kin
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number} is not JSON ({error}): write one JSON object per line") from None


def _check_files(task: Task, checked: set[Path], where: str) -> None:
    """Each file is there, and each CSV has a header. A file that several tasks share is looked at once."""
    for file in task.files:
        path = Path(task.data_dir) / file
        if path in checked:
            continue
        checked.add(path)
        if not path.is_file():
            raise UserError(f"{where}: task {task.id!r} names the file {file!r}, but {path} is not there")
        try:
            problem = _problem(path)
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            raise UserError(f"{where}: task {task.id!r} names {path}, which cannot be used: {problem}")


def _problem(path: Path) -> str | None:
    """Why a data file is no use, by its first line alone; None if it looks right."""
    with path.open("rb") as file:
        head = file.readline(_HEADER_BYTES)
    if not head:
        return "it is empty"
    if path.suffix.lower() != ".csv":
        return None
    if b"\0" in head:
        return "it is binary, not CSV"
    try:
        line = head.decode("utf-8-sig").splitlines()[0]  # old Macs end lines with \r
        header = next(csv.reader([line]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        return f"its header cannot be read as UTF-8 CSV ({error})"
    return None if any(cell.strip() for cell in header) else "it has no header line"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
