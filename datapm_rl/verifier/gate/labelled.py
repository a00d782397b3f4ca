"""A labelled set: trajectories whose steps have known right scores. JSON lines, one trajectory per line.

    {"task": {"id", "question", "answer_format", "data_dir", "files", "reference", ...}, "steps": [{"index", "text",
     "code", "observation", "status", ...}, ...], "labels": [1, 0.5, 0, ...], "kinds": ["right", "grounding", ...]}

`task` and `steps` are `trajectory.Task` and `trajectory.Step` as JSON; the task has no gold. A relative `data_dir` is
below the file's folder, so that the folder can be moved. A kind says why the label is what it is:

| kind | label | meaning |
|---|---|---|
| right | 1 | right and helpful |
| benign | 1 | right, and looks like an error: prints a warning, fills values where none is missing, shows no rows |
| recovery | 1 | mends an error of an earlier step, or looks for its cause |
| grounding | 0.5 | an error that the agent can see and mend: a wrong name, a wrong type |
| silent | 0 | runs, and makes data or result wrong |
| follows | 0 | builds on a silent error: its value or answer is wrong because of it |
| other | any | none of these (labels of people) |
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapm_rl.errors import UserError
from datapm_rl.tracking.jsonl import write_atomically
from datapm_rl.trajectory import Step, StepStatus, Task, to_json

LABELS = (0.0, 0.5, 1.0)
KINDS: dict[str, float | None] = {
    "right": 1.0,
    "benign": 1.0,
    "recovery": 1.0,
    "grounding": 0.5,
    "silent": 0.0,
    "follows": 0.0,
    "other": None,
}
"""Kind -> its label; None: any."""

_Kinds = dict[str, tuple[type, ...]]
_TASK: _Kinds = {"id": (str,), "question": (str,), "data_dir": (str,), "files": (list,)}
_TASK_MORE: _Kinds = {"answer_format": (str,), "reference": (str,), "grader": (str,), "split": (str,), "meta": (dict,)}
_STEP: _Kinds = {"text": (str,), "status": (str,)}
_STEP_MORE: _Kinds = {
    "index": (int,),
    "thought": (str,),
    "code": (str, type(None)),
    "answer": (str, type(None)),
    "observation": (str, type(None)),
    "cause": (str, type(None)),
    "wall_s": (int, float),
    "span": (list,),
}
_ROW: _Kinds = {"task": (dict,), "steps": (list,), "labels": (list,), "kinds": (list,)}


@dataclass(frozen=True)
class LabelledTrajectory:
    """A trajectory; `labels[k]` in {0, 0.5, 1} and `kinds[k]` (a key of `KINDS`) are those of `steps[k]`."""

    task: Task
    steps: tuple[Step, ...]
    labels: tuple[float, ...]
    kinds: tuple[str, ...]


def write_labelled(path: Path, trajectories: Sequence[LabelledTrajectory]) -> None:
    """Write a set, atomically. Data folders below the file's folder are written relative to it, gold is left out."""
    folder, lines = path.parent.resolve(), []
    for item in trajectories:
        task = to_json(item.task.public())
        del task["gold"]
        data_dir = Path(item.task.data_dir)
        if data_dir.is_relative_to(folder):
            task["data_dir"] = str(data_dir.relative_to(folder))
        row = {"task": task, "steps": to_json(item.steps), "labels": list(item.labels), "kinds": list(item.kinds)}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    write_atomically(path, "".join(lines))


def read_labelled(path: Path) -> list[LabelledTrajectory]:
    """The trajectories of a set. UserError, with line and field, for whatever is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"labelled set {path} cannot be read ({error}): give a file of JSON lines in UTF-8") from None
    found = []
    # not splitlines(): JSON strings may hold U+2028 and its kin
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            found.append(_trajectory(line, path.parent.resolve(), f"{path}:{number}"))
    if not found:
        raise UserError(f"labelled set {path} is empty: build one with python -m datapm_rl.evaluate prm --build FOLDER")
    return found


def set_fingerprint(trajectories: Sequence[LabelledTrajectory]) -> str:
    """sha256 of trajectories, labels and data files; it does not depend on where they lie."""
    digest, files = hashlib.sha256(), {}
    for item in trajectories:
        row = to_json(item)
        row["task"]["data_dir"] = ""
        digest.update(json.dumps(row, sort_keys=True).encode())
        for path in _data_files(item.task):
            if path not in files:
                with path.open("rb") as file:
                    files[path] = hashlib.file_digest(file, "sha256").digest()
            digest.update(files[path])
    return digest.hexdigest()


def _data_files(task: Task) -> Iterator[Path]:
    yield from (Path(task.data_dir) / file for file in task.files)


def _trajectory(line: str, folder: Path, where: str) -> LabelledTrajectory:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}): write one trajectory per line") from None
    _check(row, _ROW, {}, where)
    task = _task(row["task"], folder, where)
    steps = tuple(_step(step, at, f"{where}: steps[{at}]") for at, step in enumerate(row["steps"]))
    if not steps:
        raise UserError(f"{where}: 'steps' is empty; a trajectory has at least one step")
    for field in ("labels", "kinds"):
        if len(row[field]) != len(steps):
            raise UserError(f"{where}: {field!r} has {len(row[field])} entries for {len(steps)} steps; give one each")
    for at, (label, kind) in enumerate(zip(row["labels"], row["kinds"], strict=True)):
        if isinstance(label, bool) or label not in LABELS:
            raise UserError(f"{where}: labels[{at}] is {json.dumps(label)}; a label is 0, 0.5 or 1")
        if kind not in KINDS:
            raise UserError(f"{where}: kinds[{at}] is {json.dumps(kind)}; a kind is one of {', '.join(KINDS)}")
        if KINDS[kind] not in (None, label):
            raise UserError(f"{where}: labels[{at}] is {label}, but a step of kind {kind!r} has label {KINDS[kind]}")
    return LabelledTrajectory(task, steps, tuple(map(float, row["labels"])), tuple(row["kinds"]))


def _task(row: dict[str, Any], folder: Path, where: str) -> Task:
    if "gold" in row:
        raise UserError(f"{where}: 'task' has 'gold', which no verifier may see; remove it")
    _check(row, _TASK, _TASK_MORE, f"{where}: 'task'")
    if not row["files"] or not all(isinstance(file, str) and file for file in row["files"]):
        raise UserError(f"{where}: task.files must hold file names below task.data_dir")
    values = {"answer_format": "", **row}
    values |= {"data_dir": str(folder / row["data_dir"]), "files": tuple(row["files"]), "gold": ()}
    task = Task(**values)
    for path in _data_files(task):
        if not path.is_file():
            raise UserError(f"{where}: task.files names {path}, which is not there; move it along with the set")
    return task


def _step(row: Any, at: int, where: str) -> Step:
    _check(row, _STEP, _STEP_MORE, where)
    if row["status"] not in list(StepStatus):
        raise UserError(f"{where}.status is {row['status']!r}; it is one of {', '.join(StepStatus)}")
    if row.get("index", at + 1) != at + 1:
        raise UserError(f"{where}.index is {row['index']}, but the step is number {at + 1}; steps count from 1")
    if row["status"] == StepStatus.ANSWER and row.get("answer") is None:
        raise UserError(f"{where} has status 'answer' and no answer; give its text")
    values = {**row, "index": at + 1, "status": StepStatus(row["status"]), "span": tuple(row.get("span", (0, 0)))}
    return Step(**values)


def _check(row: Any, required: _Kinds, optional: _Kinds, where: str) -> None:
    """`row` is an object with these keys, of these types."""
    if not isinstance(row, dict):
        raise UserError(f"{where} is {type(row).__name__}, not a JSON object with the keys {', '.join(required)}")
    if missing := [key for key in required if key not in row]:
        raise UserError(f"{where} has no {missing[0]!r}; it needs {', '.join(required)}")
    for key, value in row.items():
        types = (required | optional).get(key)
        if types is None:
            near = difflib.get_close_matches(key, [*required, *optional], n=1, cutoff=0.0)[0]
            raise UserError(f"{where} has the unknown key {key!r}: the nearest is {near!r}")
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise UserError(f"{where}: {key!r} is {json.dumps(value)[:60]}, which is no {types[0].__name__}")
