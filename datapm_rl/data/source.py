"""What a reader gives: drafts of tasks with their place in the source, rows that could not be read, rows left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from datapm_rl.errors import UserError

FILES = "files"
"""Folder of the data files in a prepared folder."""


class Problem(NamedTuple):
    """A bad row: its place (`file:line`), and what is wrong with it and what to do."""

    where: str
    text: str


@dataclass
class Draft:
    """A task before it is checked. `row` has the keys of a task file (`benchmarks/task_file.py`)."""

    where: str
    row: dict[str, Any]
    content: dict[str, Path | bytes]  # for each name in row["files"]: the file, or what is to be in it


@dataclass
class Source:
    """All that a reader found."""

    name: str
    drafts: list[Draft] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)  # rows that could not be made a draft
    left_out: Counter[str] = field(default_factory=Counter)  # reason -> rows that are fine and of no use here
    inputs: list[Path] = field(default_factory=list)  # files that hold the questions
    evaluation: bool = False  # an evaluation set: trained on only when the user says so
    notes: list[str] = field(default_factory=list)  # sentences that belong into the summary


def prepared_name(path: str) -> str:
    """Name in the prepared folder of a data file that is called `path` in the source; absolute ones stay (refused)."""
    return path if path.startswith("/") else f"{FILES}/{path.removeprefix('./')}"


def need_file(path: Path, what: str) -> Path:
    """`path`, or a UserError that says what was expected there."""
    if not path.is_file():
        raise UserError(f"{path} is not there: --source must be {what}")
    return path


def json_lines(path: Path, problems: list[Problem]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line; lines that hold none are added to `problems`."""
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        where = f"{path.name}:{number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            problems.append(Problem(where, f"is not UTF-8 ({error.reason} at byte {error.start}); convert the file"))
        except (ValueError, RecursionError) as error:
            problems.append(Problem(where, f"is not JSON ({error}); write one JSON object per line"))
        else:
            if isinstance(row, dict):
                yield where, row
            else:
                problems.append(Problem(where, f"is {type(row).__name__}, not a JSON object; write one per line"))
