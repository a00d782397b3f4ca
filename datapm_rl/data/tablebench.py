"""TableBench: TableBench.jsonl, tables inline. Each distinct table becomes one CSV.

Kept are the question types that the official rule grades by equality: fact checking, numerical reasoning and impact
analysis. They are graded as `@answer[value]` by the rule `dabench`, which is stricter on text (case counts) and does
not strip punctuation from numbers. Left out are the types whose official rule is not equality.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from datapm_rl.benchmarks.overlap import content_key
from datapm_rl.data.answers import default_format
from datapm_rl.data.source import Draft, Problem, Source, json_lines, need_file, prepared_name

EXPECTED = "TableBench.jsonl, or the folder that holds it"
_KEYS = ("id", "qtype", "qsubtype", "question", "answer", "table")
_TEN_PERCENT = "graded within 10 %, for which there is no grader yet"
_FREE_TEXT = "free text, graded by ROUGE-L, for which there is no grader yet"
LEFT_OUT = {
    "ChartGeneration": "a chart, for which there is no grader yet",
    "CorrelationAnalysis": _TEN_PERCENT,
    "TrendForecasting": _TEN_PERCENT,
    "StatisticalAnalysis": _TEN_PERCENT,
    "AnomalyDetection": _FREE_TEXT,
    "CausalAnalysis": _FREE_TEXT,
    "DescriptiveAnalysis": _FREE_TEXT,
}
"""Question type -> why it is left out."""
_REPEATED = "a repetition of an earlier question under another type"


def read(path: Path, files: Path | None) -> Source:
    """The questions that equality grades, in the file's order."""
    path = need_file(path if path.is_file() else path / "TableBench.jsonl", EXPECTED)
    source = Source("tablebench", inputs=[path], evaluation=True)
    source.notes.append("graded by the rule dabench on @answer[value], not by TableBench's official script")
    seen: set[tuple[str, ...]] = set()
    for where, row in json_lines(path, source.problems):
        if missing := [key for key in _KEYS if key not in row]:
            text = f"has no key {missing[0]!r}; a row of TableBench has {', '.join(_KEYS)}"
            source.problems.append(Problem(where, text))
            continue
        kind, same = str(row["qsubtype"]), (str(row["id"]), str(row["question"]), str(row["answer"]))
        if kind in LEFT_OUT:
            source.left_out[f"{kind}: {LEFT_OUT[kind]}"] += 1
        elif same in seen:
            source.left_out[_REPEATED] += 1
        elif (content := _csv(row["table"])) is None:
            text = 'has no table {"columns": [...], "data": [[...]]} with rows of equal length; mend it'
            source.problems.append(Problem(where, text))
        else:
            source.drafts.append(_draft(where, row, content))
        seen.add(same)
    return source


def _draft(where: str, row: dict[str, Any], content: bytes) -> Draft:
    name = prepared_name(f"table_{content_key(content)[:12]}.csv")
    gold = [("answer", str(row["answer"]))] if str(row["answer"] or "").strip() else []
    task = {
        "id": f"tablebench-{row['id']}",
        "question": row["question"],
        "format": default_format(gold),
        "files": [name],
        "gold": gold,
        "grader": "dabench",
        "meta": {"qtype": row["qtype"], "qsubtype": row["qsubtype"]},
    }
    return Draft(where, task, {name: content})


def _csv(table: Any) -> bytes | None:
    """A table as CSV; None if it is none."""
    if not isinstance(table, dict):
        return None
    columns, data = table.get("columns"), table.get("data")
    if not isinstance(columns, list) or not columns or not isinstance(data, list):
        return None
    if not all(isinstance(cells, list) and len(cells) == len(columns) for cells in data):
        return None
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *data])  # None becomes an empty cell
    return text.getvalue().encode()
