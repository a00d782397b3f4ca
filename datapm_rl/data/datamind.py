"""DataMind's training questions (zjunlp on Hugging Face), as far as its format is public.

Two files hold them, and either is read:

    datamind_12k.json   (DataMind-12K, for SFT) a list of {id | task_id, messages: [{role, content}, ...], filename |
                        db_id, level}: the question is the first user message, gold is the last `<answer>`
    train.parquet       (DataMind-Data, folder rl) verl's layout: prompt, data_source, reward_model.ground_truth (text,
                        or {ground_truth, task_id}), extra_info {index, question}, db_id

The fields are those that the authors' code and public readers of these files use; the files themselves were not seen.
Data files lie in `train_files` beside them, or in `--files`. A row names its file in `filename`, or else its question
does. Questions to databases and answers that equality cannot grade (the authors ask a model) are left out.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from datapm_rl.data.answers import default_format, is_closed
from datapm_rl.data.source import Draft, Problem, Source, prepared_name
from datapm_rl.errors import UserError

_NAMES = ("datamind_12k.json", "train.parquet")
EXPECTED = f"{' or '.join(_NAMES)} (or their folder), with the data files in train_files/ beside it or in --files"
_DATABASE, _NO_JUDGE = "a question to a database", "free text, which needs a model as judge"
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_KINDS = "(?:csv|tsv|xlsx|xls|json|txt)"
_FILE = re.compile(rf"[\"'`]([^\"'`\n]+\.{_KINDS})[\"'`]|([^\s\"'`<>|:,]+\.{_KINDS})\b", re.IGNORECASE)


def read(path: Path, files: Path | None) -> Source:
    """The questions to data files with short answers, in the file's order."""
    found = [path / name for name in _NAMES if (path / name).is_file()] if path.is_dir() else [path]
    if len(found) != 1 or not found[0].is_file():
        raise UserError(f"{path} is not {EXPECTED}")
    path = found[0]
    folder = files or path.parent / "train_files"
    if not folder.is_dir():
        raise UserError(f"{folder} is not there: the data files must be in train_files/ beside {path.name}, or --files")
    source = Source("datamind", inputs=[path])
    names = _data_files(folder)
    for number, row in enumerate(_rows(path), start=1):
        where = f"{path.name}:{number}"
        if not isinstance(row, dict) or not isinstance(row.get("messages", row.get("prompt")), list):
            source.problems.append(Problem(where, f"has neither 'messages' nor 'prompt'; --source must be {EXPECTED}"))
        elif _of_database(row):
            source.left_out[_DATABASE] += 1
        elif not is_closed(answer := _answer(row)):
            source.left_out[_NO_JUDGE] += 1
        else:
            source.drafts.append(_draft(where, row, number, answer, names))
    return source


def _data_files(folder: Path) -> dict[str, Path]:
    """Files below the folder by base name, by which rows name them."""
    names: dict[str, Path] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and names.setdefault(file.name, file) != file:
            raise UserError(f"{names[file.name]} and {file} have one name, by which rows name them: keep one of them")
    return names


def _rows(path: Path) -> list[Any]:
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_table(path).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{path} is not parquet ({error}): --source must be {EXPECTED}") from None
    try:
        rows = json.loads(path.read_bytes())
    except ValueError as error:  # of UnicodeDecodeError as well
        raise UserError(f"{path} is not JSON ({error}): --source must be {EXPECTED}") from None
    if not isinstance(rows, list):
        raise UserError(f"{path} is not a list of rows: --source must be {EXPECTED}")
    return rows


def _of_database(row: dict[str, Any]) -> bool:
    source, info = str(row.get("data_source") or "").lower(), row.get("extra_info") or {}
    return bool(row.get("db_id") or info.get("db_id") or "sql" in source or "bird" in source)


def _messages(row: dict[str, Any], role: str) -> list[str]:
    messages = row.get("messages", row.get("prompt")) or []
    return [str(each.get("content") or "") for each in messages if isinstance(each, dict) and each.get("role") == role]


def _answer(row: dict[str, Any]) -> str:
    reward = row.get("reward_model")
    if isinstance(reward, dict):
        truth = reward.get("ground_truth")
        return str((truth.get("ground_truth") if isinstance(truth, dict) else truth) or "").strip()
    answers = [answer for said in _messages(row, "assistant") for answer in _ANSWER.findall(said)]
    return answers[-1].strip() if answers else ""


def _draft(where: str, row: dict[str, Any], number: int, answer: str, names: dict[str, Path]) -> Draft:
    info = row.get("extra_info") or {}
    question = next(iter(_messages(row, "user")), "")
    named = row.get("filename") or info.get("filename")
    wanted = (
        [named] if isinstance(named, str) else named or [quoted or bare for quoted, bare in _FILE.findall(question)]
    )
    wanted = list(dict.fromkeys(Path(str(name)).name for name in wanted))
    if not named:
        wanted = [name for name in wanted if name in names]
    for name in wanted:  # the agent finds its files in its working directory
        question = re.sub(rf"(?:[\w.-]*/)+{re.escape(name)}", name, question)
    gold = [("answer", answer)] if answer else []
    key = next((str(row[k]) for k in ("id", "task_id") if row.get(k) not in (None, "")), str(info.get("index", number)))
    task = {
        "id": f"datamind-{key}",
        "question": question,
        "format": default_format(gold),
        "files": [prepared_name(name) for name in wanted],
        "gold": gold,
        "grader": "dabench",
        "meta": {"level": row["level"]} if isinstance(row.get("level"), str) else {},
    }
    return Draft(where, task, {prepared_name(name): names.get(name, Path(name)) for name in wanted})
