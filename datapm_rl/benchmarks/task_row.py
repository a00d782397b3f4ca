"""One row of a task file, checked: the vocabulary is the same in JSON lines and in parquet.

Whatever is wrong with a row is one sentence that begins with its place (`file:line`).
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path, PurePosixPath
from typing import Any

from datapm_rl.benchmarks.grading import check_rule
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task

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


def task_of(row: Any, folder: Path, where: str) -> Task:
    """The task of a row whose files are below `folder`; whether they are there is not looked at. UserError: a fault."""
    _check_keys(row, where)
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


def _check_keys(row: Any, where: str) -> None:
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
