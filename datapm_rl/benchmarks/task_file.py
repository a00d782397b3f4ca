"""Task files: one JSON object per line, and the data files beside it. Benchmarks and a user's own data look the same.

    {"id": "q1", "question": "What is the mean fare?", "format": "@mean_fare[value]", "files": ["titanic.csv"],
     "gold": [["mean_fare", "34.65"]], "grader": "dabench", "split": "train", "reference": "", "meta": {}}

`files` are paths below the task file's folder (or below `files_dir`, when that is given): a flat folder of CSVs beside
the task file needs bare names, CSVs in a sub-folder are `sub/name.csv`. `gold` is [[name, value], ...] or
{name: value}. The keys from `grader` on have the defaults shown. Whatever is wrong with a row is one sentence that
begins with `file:line`.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from datapm_rl.benchmarks.grading import check_rule
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task, to_json

_Types = tuple[type, ...]
_REQUIRED: dict[str, _Types] = {
    "id": (str,),
    "question": (str,),
    "format": (str,),
    "files": (list,),
    "gold": (list, dict),
}
_OPTIONAL: dict[str, _Types] = {"grader": (str,), "split": (str,), "reference": (str,), "meta": (dict,)}
_TYPE_NAMES: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
_HEADER_BYTES = 1 << 20


def load_tasks(path: str | Path, files_dir: str | Path | None = None) -> list[Task]:
    """The tasks of a file, in its order. UserError: anything that would only fail later."""
    path = Path(path)
    folder = (Path(files_dir) if files_dir is not None else path.parent).resolve()
    tasks: list[Task] = []
    lines: dict[str, int] = {}
    checked: set[Path] = set()
    for number, line in _lines(path):
        where = f"{path}:{number}"
        task = _task(_row(line, where), folder, where)
        if task.id in lines:
            raise UserError(f"{where}: id {task.id!r} is already taken by line {lines[task.id]}; ids must differ")
        lines[task.id] = number
        _check_files(task, checked, where)
        tasks.append(task)
    if not tasks:
        raise UserError(f"{path} has no tasks: it is empty; write one JSON object per line")
    return tasks


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


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, text) of the lines that are not blank."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"task file {path} does not exist: check the path") from None
    except UnicodeDecodeError as error:
        raise UserError(f"task file {path} is not UTF-8 ({error.reason} at byte {error.start}): convert it") from None
    except OSError as error:
        raise UserError(f"task file {path} cannot be read ({error.strerror})") from None
    # not splitlines(): JSON strings may hold U+2028 and its kin
    yield from ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}): write one JSON object per line") from None
    if not isinstance(row, dict):
        raise UserError(f"{where} is {type(row).__name__}, not a JSON object with the keys {', '.join(_REQUIRED)}")
    if missing := [key for key in _REQUIRED if key not in row]:
        raise UserError(f"{where} has no key {missing[0]!r}: a task needs {', '.join(_REQUIRED)}")
    kinds = _REQUIRED | _OPTIONAL
    for key, value in row.items():
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, n=1, cutoff=0.0)[0]
            raise UserError(f"{where} has the unknown key {key!r}: the nearest is {near!r}; put extra data into 'meta'")
        if not isinstance(value, kinds[key]):
            wanted = " or ".join(_TYPE_NAMES[kind] for kind in kinds[key])
            raise UserError(f"{where}: {key!r} must be {wanted}, it is {json.dumps(value)[:60]}")
    return row


def _task(row: dict[str, Any], folder: Path, where: str) -> Task:
    for key in ("id", "question", "split"):
        if not row.get(key, "x").strip():
            raise UserError(f"{where}: {key!r} is empty")
    grader = row.get("grader", "dabench")
    try:
        check_rule(grader)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return Task(
        id=row["id"],
        question=row["question"],
        answer_format=row["format"],
        data_dir=str(folder),
        files=_files(row["files"], where),
        gold=_gold(row["gold"], where),
        grader=grader,
        split=row.get("split", "train"),
        reference=row.get("reference", ""),
        meta=row.get("meta", {}),
    )


def _files(files: list[Any], where: str) -> tuple[str, ...]:
    if not files:
        raise UserError(f"{where}: 'files' is empty; name at least one data file")
    bases: dict[str, str] = {}
    for file in files:
        if not isinstance(file, str) or not PurePosixPath(file).name:
            raise UserError(f"{where}: 'files' must hold file names, it holds {json.dumps(file)[:60]}")
        pure = PurePosixPath(file)
        if pure.is_absolute() or ".." in pure.parts:
            raise UserError(f"{where}: file {file!r} is not below the task file's folder; give a relative path")
        if pure.name in bases:
            raise UserError(
                f"{where}: files {bases[pure.name]!r} and {file!r} have one base name, but the agent gets all files "
                "in one folder; rename one"
            )
        bases[pure.name] = file
    return tuple(files)


def _gold(gold: list[Any] | dict[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    pairs = list(gold.items()) if isinstance(gold, dict) else gold
    if not pairs:
        raise UserError(f"{where} has no gold: give the answer as [[name, value], ...]")
    result = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str) or not pair[0]:
            raise UserError(f"{where}: 'gold' must hold [name, value] pairs, it holds {json.dumps(pair)[:60]}")
        name, value = pair
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise UserError(f"{where}: gold value of {name!r} must be a string or a number, it is {json.dumps(value)}")
        result.append((name, str(value)))
    return tuple(result)


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
        header = next(csv.reader([head.decode("utf-8-sig")]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        return f"its header cannot be read as UTF-8 CSV ({error})"
    return None if any(cell.strip() for cell in header) else "it has no header line"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
