"""The prepared folder: tasks.parquet, files/, fingerprint.json. It is there as a whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datapm_rl.benchmarks.task_file import load_tasks
from datapm_rl.benchmarks.task_parquet import TASKS, write_parquet
from datapm_rl.data.check import Checked
from datapm_rl.dialects import Dialect
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task

FINGERPRINT = "fingerprint.json"


def check_free(out: Path, force: bool) -> None:
    """UserError unless `out` may be written. `force` gives up a folder that this module wrote, and no other."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / FINGERPRINT).is_file():
        raise UserError(f"{out} is there and is no prepared folder: choose another --out")
    if not force:
        raise UserError(f"{out} is there already: give --force to replace it, or another --out")


def write_folder(
    out: Path, rows: list[Checked], source: str, dialect: Dialect, facts: Callable[[list[Task]], dict[str, Any]]
) -> list[Task]:
    """Write the folder beside its place, read it back as a run would, then rename it. The tasks as a run loads them.

    `facts` makes fingerprint.json from these tasks.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    part.mkdir()
    try:
        for row in rows:
            for name, content in row.draft.content.items():
                _copy(content, part / name)
        write_parquet(part / TASKS, [row.task for row in rows], source, dialect)
        tasks = load_tasks(part / TASKS)
        (part / FINGERPRINT).write_text(json.dumps(facts(tasks), indent=1, ensure_ascii=False) + "\n")
        _put(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return tasks


def _copy(content: Path | bytes, target: Path) -> None:
    """Copied and not hard-linked: a link changes with its original."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        target.write_bytes(content)
    else:
        shutil.copyfile(content, target)


def _put(part: Path, out: Path) -> None:
    old = out.with_name(f".{out.name}.{os.getpid()}.old")
    if out.exists():
        out.rename(old)
    part.rename(out)
    shutil.rmtree(old, ignore_errors=True)
