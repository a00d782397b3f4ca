"""Tasks that are not sampled any more, because their groups failed again and again.

A task whose groups fail (fewer than two members with a reward) `after` times is quarantined for the rest of the run.
The counts belong to the trainer's state: they are saved in each checkpoint's folder and go on from there. The run's
`quarantine.jsonl` says which tasks are out and why; a task whose line somebody deletes is sampled again after the
next resume.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datapm_rl.tracking.jsonl import read_rows, write_atomically

STATE = "quarantine.json"
"""Name of the counts in a checkpoint's folder."""


class Quarantine:
    """Failures per task, kept in `path` once they are `after` or more."""

    def __init__(self, path: Path, after: int):
        self.path = path
        self.after = after
        self._failures: dict[str, list[dict[str, Any]]] = {}

    @property
    def tasks(self) -> set[str]:
        """The quarantined tasks' ids."""
        return {task_id for task_id, failures in self._failures.items() if len(failures) >= self.after}

    def add(self, task_id: str, question: str, causes: Mapping[str, int], step: int) -> None:
        """Count a failed group of a task: its missing members by cause."""
        failures = self._failures.setdefault(task_id, [])
        failures.append({"step": step, "causes": dict(causes), "question": question})
        if len(failures) >= self.after:
            self._write()

    def save(self, folder: Path) -> None:
        """Write the counts into a checkpoint's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / STATE, json.dumps(self._failures, ensure_ascii=False) + "\n")

    def load(self, folder: Path | None) -> None:
        """Take the counts of a checkpoint; None is a new run. Tasks whose line was deleted start anew."""
        state = folder / STATE if folder is not None else None
        self._failures = json.loads(state.read_text()) if state is not None and state.is_file() else {}
        listed = {row["task_id"] for row in read_rows(self.path)}
        for task_id in self.tasks - listed:
            del self._failures[task_id]
        self._write()

    def _write(self) -> None:
        rows = [_row(task_id, failures) for task_id, failures in self._failures.items() if len(failures) >= self.after]
        if rows:
            write_atomically(self.path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        else:
            self.path.unlink(missing_ok=True)


def _row(task_id: str, failures: list[dict[str, Any]]) -> dict[str, Any]:
    causes: Counter[str] = sum((Counter(failure["causes"]) for failure in failures), Counter())
    last = failures[-1]
    steps = [failure["step"] for failure in failures]
    return {"task_id": task_id, "question": last["question"], "step": last["step"], "steps": steps, "causes": causes}
