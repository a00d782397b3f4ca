"""DABench (InfiAgent, `examples/DA-Agent/data`): da-dev-questions.jsonl, da-dev-labels.jsonl, da-dev-tables/*.csv."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datapm_rl.data.source import Draft, Problem, Source, json_lines, need_file, prepared_name

EXPECTED = "DABench's folder, with da-dev-questions.jsonl, da-dev-labels.jsonl and da-dev-tables/"
_KEYS = ("id", "question", "constraints", "format", "file_name")


def read(path: Path, files: Path | None) -> Source:
    """All questions with their labels, in the file's order."""
    questions = need_file(path / "da-dev-questions.jsonl", EXPECTED)
    labels = need_file(path / "da-dev-labels.jsonl", EXPECTED)
    source = Source("dabench", inputs=[questions, labels], evaluation=True)
    golds = _golds(labels, source.problems)
    for where, row in json_lines(questions, source.problems):
        if missing := [key for key in _KEYS if key not in row]:
            text = f"has no key {missing[0]!r}; a question of DABench has {', '.join(_KEYS)}"
            source.problems.append(Problem(where, text))
        elif row["id"] not in golds:
            text = f"question {row['id']!r} has no label in {labels.name}; add it there"
            source.problems.append(Problem(where, text))
        else:
            source.drafts.append(_draft(where, row, golds[row["id"]], files or path / "da-dev-tables"))
    return source


def _golds(path: Path, problems: list[Problem]) -> dict[Any, Any]:
    golds: dict[Any, Any] = {}
    for where, row in json_lines(path, problems):
        if not isinstance(row.get("id"), int | str) or "common_answers" not in row:
            problems.append(Problem(where, "has no 'id' and 'common_answers'; a label of DABench has both"))
        elif row["id"] in golds:
            problems.append(Problem(where, f"labels question {row['id']!r} a second time; remove one label"))
        else:
            golds[row["id"]] = row["common_answers"]
    return golds


def _draft(where: str, row: dict[str, Any], gold: Any, tables: Path) -> Draft:
    name = prepared_name(str(row["file_name"]))
    question = f"{row['question']}\nConstraints: {row['constraints']}" if row["constraints"] else row["question"]
    task = {
        "id": f"dabench-{row['id']}",
        "question": question,
        "format": row["format"],
        "files": [name],
        "gold": gold,
        "grader": "dabench",
        "meta": {key: row[key] for key in ("concepts", "level") if key in row},
    }
    return Draft(where, task, {name: tables / str(row["file_name"])})
