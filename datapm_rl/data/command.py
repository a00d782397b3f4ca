"""What `python -m datapm_rl.data` does with one source: read, check every row, split, write, say what was made."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from datapm_rl import __version__
from datapm_rl.benchmarks.overlap import Seen, content_key
from datapm_rl.benchmarks.task_file import fingerprint, load_tasks, task_file
from datapm_rl.benchmarks.task_parquet import TASKS
from datapm_rl.data import dabench, datamind, folder, tablebench
from datapm_rl.data.check import Checked, check
from datapm_rl.data.folder_out import check_free, write_folder
from datapm_rl.data.source import Problem, Source
from datapm_rl.data.split import split_by_file
from datapm_rl.dialects import get_dialect
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task

READERS = {"dabench": dabench, "tablebench": tablebench, "datamind": datamind, "folder": folder}
"""Kind of source -> module with `read(path, files)` and `EXPECTED`, which says what the path must be."""

BY_FILE = "by-file"


def run(options: argparse.Namespace) -> int:
    """Prepare a folder; the exit code: 2 if rows are bad and none may be skipped. UserError: nothing can be made."""
    out = Path(options.out)
    dialect = get_dialect(options.dialect)
    check_free(out, options.force)
    seen = Seen()
    for other in options.against:
        seen.add(load_tasks(task_file(other)), other)
    source = READERS[options.kind].read(Path(options.source), Path(options.files) if options.files else None)
    split = _split_rule(options, source)
    rows, problems = check(source, seen)
    if problems:
        _report(problems, source, skipped=options.skip_bad)
        if not options.skip_bad:
            return 2
    if not rows:
        raise UserError(f"{options.source} has no task that can be used: nothing was written")
    rows = _split(rows, split, options.heldout, options.seed)

    def facts(tasks: list[Task]) -> dict[str, Any]:
        return _facts(options, source, split, tasks, problems)

    tasks = write_folder(out, rows, source.name, dialect, facts)
    print(summary(out, source, tasks, len({problem.where for problem in problems})))
    return 0


def _split_rule(options: argparse.Namespace, source: Source) -> str | None:
    """The split to give to all tasks, `by-file`, or None: each row's own, else train."""
    split, by_share = options.split, options.heldout is not None
    if source.evaluation:
        if split == "train" or (by_share and split != BY_FILE):
            raise UserError(
                f"{source.name} is an evaluation set: to train on a part of it give --split {BY_FILE}, which holds out "
                "whole data files"
            )
        if split == BY_FILE:
            source.notes.append(f"a part of {source.name}, an evaluation set, is trained on: no benchmark results")
        return split or "heldout"
    if by_share and split not in (None, BY_FILE):
        raise UserError(f"--heldout splits by data file, --split {split} gives one split to all: give one of them")
    return BY_FILE if by_share else split


def _split(rows: list[Checked], split: str | None, share: float | None, seed: int) -> list[Checked]:
    if split is None:
        return rows
    splits = split_by_file(rows, 0.2 if share is None else share, seed) if split == BY_FILE else [split] * len(rows)
    return [replace(row, task=replace(row.task, split=name)) for row, name in zip(rows, splits, strict=True)]


def _report(problems: list[Problem], source: Source, skipped: bool) -> None:
    for where, text in problems:
        print(f"{where}: {text}", file=sys.stderr)
    bad = len({problem.where for problem in problems})
    end = "left out" if skipped else "nothing was written; mend them, or give --skip-bad to leave them out"
    print(f"{source.name}: {bad} bad rows: {end}", file=sys.stderr)


def _facts(
    options: argparse.Namespace, source: Source, split: str | None, tasks: list[Task], problems: list[Problem]
) -> dict[str, Any]:
    return {
        "made_by": f"python -m datapm_rl.data {options.kind}, datapm_rl {__version__}",
        "source": {path.name: content_key(path.read_bytes()) for path in source.inputs},
        "evaluation_set": source.evaluation,
        "split": {"rule": split or "each row's own", "seed": options.seed if split == BY_FILE else None},
        "against": [Path(other).name for other in options.against],
        "prompt_dialect": options.dialect,
        "counts": {
            "tasks": len(tasks),
            "splits": dict(Counter(task.split for task in tasks)),
            "graders": dict(Counter(task.grader for task in tasks)),
            "left_out": dict(source.left_out),
            "bad_rows": len({problem.where for problem in problems}),
        },
        "notes": source.notes,
        "bad_rows": [f"{where}: {text}" for where, text in problems],
        **fingerprint(tasks),
    }


def summary(out: Path, source: Source, tasks: list[Task], bad: int) -> str:
    """The table that ends a preparation."""
    files = {(task.split, file) for task in tasks for file in task.files}
    lines = [f"{source.name}: {out / TASKS}", f"  {'split':<16}{'tasks':>8}{'files':>8}  graders"]
    for name, count in Counter(task.split for task in tasks).items():
        graders = ", ".join(sorted({task.grader for task in tasks if task.split == name}))
        lines.append(f"  {name:<16}{count:>8}{sum(held == name for held, _ in files):>8}  {graders}")
    lines += [f"  left out {count:>5}  {reason}" for reason, count in source.left_out.items()]
    if bad:
        lines.append(f"  left out {bad:>5}  bad rows (fingerprint.json names them)")
    lines += [f"  {note}" for note in source.notes]
    return "\n".join(lines)
