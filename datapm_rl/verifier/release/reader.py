"""Input files of the release: JSON lists of records, one record per task, file i holding candidate i of each task.

    {"task_id": 5, "prompt": [{"role": "user", "content": "... Files:\\n..."}], "reasoning_trace": "<Analyze>...",
     "agent_answer": "...", "file_list": ["sub/a.csv"]}                        file_list: ScienceAgentBench alone

The last message of the prompt is the problem. Whatever is wrong with a file is one sentence that names the file, the
record (from 1) and the field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task

_SEPARATOR = "Files:\n"


@dataclass(frozen=True)
class Candidate:
    """One attempt at one task. `number` is that of its file. `files` is None without a `file_list`."""

    number: int
    task_id: str | int
    problem: str
    trace: str
    answer: Any
    files: tuple[str, ...] | None

    def task(self, data_dir: Path) -> Task:
        """The task for a verifier. Its data files are those of the record, else all of the data folder.

        `meta` has the problem as the policy saw it and, as "files", its part on files: what stands after `Files:`
        in the problem, else the names of the data files.
        """
        files = self.files
        if files is None:
            files = tuple(sorted(path.name for path in data_dir.iterdir() if path.is_file()))
        question, separator, described = self.problem.partition(_SEPARATOR)
        described = described.partition(_SEPARATOR)[0].strip() if separator else "\n".join(files)
        return Task(
            id=str(self.task_id),
            question=question.strip(),
            answer_format="",
            data_dir=str(data_dir),
            files=files,
            gold=(),
            meta={"problem": self.problem, "files": described},
        )


def input_path(template: str, number: int) -> Path:
    """The path of file `number`; UserError unless the template has one place for it."""
    try:
        path = template.format(number)
    except (IndexError, KeyError, ValueError):
        path = template
    if path == template:
        raise UserError(f"--input-files {template!r} has no place for a file's number: write it as {{}}")
    return Path(path)


def read_candidates(path: Path, number: int) -> list[Candidate]:
    """The candidates of one file, in its order."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"input file {path} does not exist: check --input-files, --number and --skip") from None
    except OSError as error:
        raise UserError(f"input file {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"input file {path} is not JSON ({error}): it must be a list of records") from None
    if not isinstance(records, list):
        raise UserError(f"input file {path} holds {_shown(records)}, not a list of records")
    candidates = [_candidate(record, number, f"{path}, record {at}") for at, record in enumerate(records, start=1)]
    first: dict[str, int] = {}
    for at, candidate in enumerate(candidates, start=1):
        taken = first.setdefault(str(candidate.task_id), at)
        if taken != at:
            raise UserError(f"{path}, record {at}: task_id {candidate.task_id!r} is already record {taken}'s")
    return candidates


def _candidate(record: Any, number: int, where: str) -> Candidate:
    if not isinstance(record, dict):
        raise UserError(f"{where} is {_shown(record)}, not an object")
    for key in ("task_id", "prompt", "reasoning_trace", "agent_answer"):
        if key not in record:
            raise UserError(f"{where} has no {key!r}")
    task_id, trace, files = record["task_id"], record["reasoning_trace"] or "", record.get("file_list")
    if isinstance(task_id, bool) or not isinstance(task_id, str | int):
        raise UserError(f"{where}: 'task_id' must be a string or a whole number, it is {_shown(task_id)}")
    if not isinstance(trace, str):
        raise UserError(f"{where}: 'reasoning_trace' must be a string, it is {_shown(trace)}")
    if files is not None and not (isinstance(files, list) and all(isinstance(file, str) for file in files)):
        raise UserError(f"{where}: 'file_list' must be a list of file names, it is {_shown(files)}")
    return Candidate(
        number,
        task_id,
        _problem(record["prompt"], where),
        trace,
        record["agent_answer"],
        None if files is None else tuple(files),
    )


def _problem(prompt: Any, where: str) -> str:
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    if not isinstance(last, dict) or not isinstance(last.get("content"), str):
        raise UserError(
            f"{where}: 'prompt' must be a list of chat messages whose last one has a text, it is {_shown(prompt)}"
        )
    return last["content"]


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)[:60]
