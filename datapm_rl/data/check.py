"""Every row of a source checked: all faults of all rows, not the first alone."""

from __future__ import annotations

import csv
import io
import warnings
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from datapm_rl.benchmarks.overlap import Seen, content_key, question_key
from datapm_rl.benchmarks.task_row import task_of
from datapm_rl.data.answers import unreachable
from datapm_rl.data.source import Draft, Problem, Source
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task

_SEPARATORS = {".csv": ",", ".tsv": "\t"}


@dataclass
class Checked:
    """A draft without faults: its task (files below the prepared folder), and each file's `content_key` by name."""

    draft: Draft
    task: Task
    keys: dict[str, str]


def check(source: Source, evaluation: Seen) -> tuple[list[Checked], list[Problem]]:
    """(rows without a fault, all faults in the source's order of rows, those of the reader first)."""
    from tqdm import tqdm

    good: list[Checked] = []
    problems = list(source.problems)
    ids: dict[str, str] = {}
    asked: dict[Any, str] = {}
    files = _Files()
    for draft in tqdm(source.drafts, desc="checking", unit="row", delay=3, leave=False):
        task, fault = _task(draft)
        texts = [fault] if fault else []
        texts += [text for name, content in draft.content.items() if (text := files.fault(name, content))]
        if task is not None and not texts:
            keys = {name: files.key(content) for name, content in draft.content.items()}
            texts = _task_faults(task, keys, ids, asked, evaluation)
            ids.setdefault(task.id, draft.where)
            asked.setdefault((question_key(task.question), frozenset(keys.values())), draft.where)
            if not texts:
                good.append(Checked(draft, task, keys))
        problems += [Problem(draft.where, text) for text in texts]
    return good, problems


def _task(draft: Draft) -> tuple[Task | None, str | None]:
    """(task, None), or (None, what is wrong with the row)."""
    try:
        task = task_of(draft.row, Path("/"), draft.where)
    except UserError as error:
        return None, str(error).removeprefix(draft.where).lstrip(": ")
    try:
        " ".join([task.id, task.question, task.answer_format, *task.files, *(v for _, v in task.gold)]).encode()
    except UnicodeEncodeError as error:
        return None, f"holds text that is no Unicode ({error.reason}); write it anew"
    return task, None


def _task_faults(
    task: Task, keys: dict[str, str], ids: dict[str, str], asked: dict[Any, str], evaluation: Seen
) -> list[str]:
    texts = []
    if task.id in ids:
        texts.append(f"id {task.id!r} is already taken by {ids[task.id]}; give it another")
    elif (same := (question_key(task.question), frozenset(keys.values()))) in asked:
        texts.append(f"asks the same of the same data as {asked[same]}; remove one")
    if task.grader == "dabench" and (names := unreachable(task.gold)):
        texts.append(
            f"no answer can match gold of {names[0]!r}: in @name[value] a name has letters, digits and _ alone and a "
            "value has neither ']' nor a line break; reword it"
        )
    if shared := evaluation.shared(task.question, keys):
        texts.append(f"{shared}, which is for evaluation; leave it out")
    return texts


class _Files:
    """Faults and keys of data files, each file looked at once."""

    def __init__(self) -> None:
        self._faults: dict[Path | bytes, str | None] = {}
        self._keys: dict[Path | bytes, str] = {}

    def fault(self, name: str, content: Path | bytes) -> str | None:
        if content not in self._faults:
            self._faults[content] = _file_fault(content, PurePosixPath(name).suffix.lower())
        text = self._faults[content]
        return text and f"file {PurePosixPath(name).name}: {text}"

    def key(self, content: Path | bytes) -> str:
        if content not in self._keys:
            self._keys[content] = content_key(content if isinstance(content, bytes) else content.read_bytes())
        return self._keys[content]


def _file_fault(content: Path | bytes, suffix: str) -> str | None:
    """Why a data file is no use, or None. Tables are really parsed, by pandas."""
    if isinstance(content, Path):
        if not content.is_file():
            return f"is not in {content.parent.name or 'the data files'}; put it there or correct the name"
        try:
            content = content.read_bytes()
        except OSError as error:
            return f"cannot be read ({error.strerror}); mend its permissions"
    if not content.strip():
        return "is empty; replace it"
    if suffix not in _SEPARATORS:
        return None
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16; convert it to UTF-8"
    if b"\0" in content:
        return "is binary and not a table of text; replace it"
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return f"is not UTF-8 (byte {error.start}{_other_encoding(content)}); convert it"
    return _table_fault(text, _SEPARATORS[suffix])


def _table_fault(text: str, separator: str) -> str | None:
    import pandas as pd

    try:
        if not any(cell.strip() for cell in next(csv.reader([text.splitlines()[0]], delimiter=separator), [])):
            return "has no header line; name its columns in the first line"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame = pd.read_csv(io.StringIO(text), sep=separator, low_memory=False)
    except (ValueError, csv.Error) as error:  # pandas' parser errors are ValueErrors
        return f"cannot be read as a table ({str(error).strip().splitlines()[0]}); mend it"
    return None if len(frame) else "has a header and no rows; replace it"


def _other_encoding(content: bytes) -> str:
    readable = []
    for encoding in ("cp1252", "gb18030"):
        try:
            content.decode(encoding)
        except UnicodeDecodeError:
            continue
        readable.append(encoding)
    return f", it can be read as {' or '.join(readable)}" if readable else ""
