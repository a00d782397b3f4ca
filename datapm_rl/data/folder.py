"""A user's own folder: data files, and questions in `questions.csv` or `questions.jsonl` (docs/training.md, "Data")."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datapm_rl.data.answers import default_format, gold_of
from datapm_rl.data.source import Draft, Problem, Source, json_lines, prepared_name
from datapm_rl.errors import UserError

_NAMES = ("questions.csv", "questions.jsonl")
EXPECTED = f"a folder with data files and {' or '.join(_NAMES)}, or such a questions file itself"
_OWN = ("id", "question", "answer", "gold", "file", "files", "format", "grader", "split", "reference")
_DATA = (".csv", ".tsv", ".xlsx", ".xls", ".json", ".parquet", ".txt")


def read(path: Path, files: Path | None) -> Source:
    """All questions of the folder, in the file's order."""
    questions = _questions(path)
    folder = files or questions.parent
    source = Source(path.resolve().name if path.is_dir() else path.stem, inputs=[questions])
    data = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in _DATA and p.name not in _NAMES)
    only = data if len(data) == 1 else []  # with one data file, no question needs to name it
    rows = (
        _csv_rows(questions, source.problems) if questions.suffix == ".csv" else json_lines(questions, source.problems)
    )
    for where, row in rows:
        source.drafts.append(_draft(where, row, folder, only))
    return source


def _questions(path: Path) -> Path:
    found = [path / name for name in _NAMES if (path / name).is_file()] if path.is_dir() else [path]
    if len(found) == 1 and found[0].is_file() and found[0].suffix in (".csv", ".jsonl"):
        return found[0]
    what = f"has both {' and '.join(_NAMES)}" if len(found) > 1 else "has no questions file"
    raise UserError(f"{path} {what}: --source must be {EXPECTED}")


def _csv_rows(path: Path, problems: list[Problem]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place of the row's last line, cells that are not empty)."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}): convert it") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    if "question" not in (reader.fieldnames or []):
        raise UserError(f"{path} has no column 'question' in its first line: it is to have {', '.join(_OWN)}")
    try:
        for row in reader:
            where = f"{path.name}:{reader.line_num}"
            if None in row:
                problems.append(Problem(where, "has more cells than the first line; quote cells that hold commas"))
                continue
            yield where, {key: cell for key, cell in row.items() if cell not in ("", None)}
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num} is not CSV ({error}): quote cells that hold quotes") from None


def _draft(where: str, row: dict[str, Any], folder: Path, only: list[str]) -> Draft:
    names = row.get("files", row.get("file", only))
    if isinstance(names, str):
        names = [name.strip() for name in names.split(";") if name.strip()]
    names = names if isinstance(names, list) else [names]
    gold = row.get("gold") or (gold_of(row["answer"]) if row.get("answer") not in (None, "") else [])
    text = "\0".join([str(row.get("question", "")), *map(str, names)])
    task: dict[str, Any] = {
        "id": str(row.get("id", f"q-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:10]}")),
        "question": row.get("question", ""),
        "format": row.get("format") or default_format(_pairs(gold)),
        "files": [prepared_name(name) if isinstance(name, str) else name for name in names],
        "gold": gold,
        "meta": {key: value for key, value in row.items() if key not in _OWN},
    }
    task |= {key: row[key] for key in ("grader", "split", "reference") if key in row}
    content: dict[str, Path | bytes] = {prepared_name(n): folder / n for n in names if isinstance(n, str)}
    return Draft(where, task, content)


def _pairs(gold: Any) -> list[tuple[str, str]]:
    """Gold as far as it is in form; the check names what is not."""
    pairs = list(gold.items()) if isinstance(gold, dict) else gold if isinstance(gold, list) else []
    return [(str(pair[0]), str(pair[1])) for pair in pairs if isinstance(pair, list | tuple) and len(pair) == 2]
