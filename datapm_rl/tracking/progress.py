"""The run on the screen: one line per phase, per training step, per validation. Plain text, so it reads in any log.

    [  41 s] starting Ray and the trainer
    [  66 s] before training: held-out 35.0 % (n 200)
    [  81 s] step  1/30  reward 0.412  outcome 0.350  process 0.474  turns 3.2  12.3 s  ETA 6:10

The driver shows what the trainer, another process, appends to `metrics.jsonl`: `Progress.update` is called now and
then and prints what is new. A validation is printed with its step's line, whichever of the two rows comes first.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from datapm_rl.tracking.jsonl import Row, parse_rows
from datapm_rl.tracking.run_dir import RunDir

COUNTER_S = 5.0
"""Seconds between two lines of one phase that differ in a number alone ("cold start 20/900")."""
ETA_STEPS = 10
"""The time left is judged by this many latest steps."""


class Follower:
    """Gives each row of a growing JSON-lines file once, also over the rewriting that a resume does."""

    def __init__(self, path: Path):
        self.path = path
        self._inode: int | None = None
        self._offset = 0
        self._seen: set[tuple] = set()

    def new_rows(self) -> Iterator[Row]:
        """Rows that were not given before. A row is known by its kind, step and time."""
        try:
            handle = open(self.path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            return
        with handle:
            status = os.fstat(handle.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._inode, self._offset = status.st_ino, 0
            handle.seek(self._offset)
            data = handle.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for row in parse_rows(whole, self.path):
            key = (row["kind"], row["step"], row["time"])
            if key not in self._seen:
                self._seen.add(key)
                yield row


class Progress:
    """Prints a run's phases and new steps, not a resumed run's old ones. `total_steps` 0 means unknown: no ETA."""

    def __init__(self, run_dir: RunDir, total_steps: int = 0):
        self.total_steps = total_steps
        self._follower = Follower(run_dir.metrics_path)
        list(self._follower.new_rows())
        self._start = time.monotonic()
        self._times: deque[float] = deque(maxlen=ETA_STEPS + 1)
        self._validation: Row | None = None  # waits for the line of its step
        self._last_step: int | None = None
        self._phase_kind, self._phase_at = "", 0.0

    def phase(self, text: str) -> None:
        """Say what is done now. Counting ("validation 120/400") does not flood the screen."""
        kind, now = re.sub(r"\d+", "#", text), time.monotonic()
        if kind == self._phase_kind and now - self._phase_at < COUNTER_S:
            return
        self._phase_kind, self._phase_at = kind, now
        self._print(text)

    def update(self) -> None:
        """Print what the trainer has written since the last call."""
        for row in self._follower.new_rows():
            if row["kind"] == "train":
                self._step(row)
            else:
                self._validated(row)

    def _step(self, row: Row) -> None:
        self._times.append(row["time"])
        validation, self._validation, self._last_step = self._validation, None, row["step"]
        if validation and validation["step"] != row["step"]:  # its step was printed by an earlier process
            self._print(f"after step {validation['step']}: {accuracy_text(validation)}")
            validation = None
        self._print(step_line(row, validation, self.total_steps, self._seconds_left(row)))

    def _validated(self, row: Row) -> None:
        if row["step"] == 0:
            self._print(f"before training: {accuracy_text(row)}")
        elif row["step"] == self._last_step:
            self._print(f"after step {row['step']}: {accuracy_text(row)}")
        else:
            self._validation = row

    def _seconds_left(self, row: Row) -> float | None:
        if not self.total_steps:
            return None
        per_step: float | None = row.get("time/step_s")
        if len(self._times) > 1:  # better: validations and checkpoints are in it
            per_step = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
        return None if per_step is None else per_step * (self.total_steps - row["step"])

    def _print(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:4.0f} s] {text}", flush=True)


def step_line(row: Row, validation: Row | None, total_steps: int, seconds_left: float | None) -> str:
    """One line for a training step; what was not measured is left out."""
    width = len(str(total_steps)) if total_steps else 1
    parts = [f"step {row['step']:>{width}}" + (f"/{total_steps}" if total_steps else "")]
    for name, metric, form in (
        ("reward", "reward/total_mean", ".3f"),
        ("outcome", "reward/outcome_mean", ".3f"),
        ("process", "reward/process_mean", ".3f"),
        ("turns", "agent/turns_mean", ".1f"),
    ):
        if row.get(metric) is not None:
            parts.append(f"{name} {row[metric]:{form}}")
    if row.get("time/step_s") is not None:
        parts.append(f"{row['time/step_s']:.1f} s")
    if seconds_left is not None:
        parts.append(f"ETA {clock(seconds_left)}")
    if row.get("missing/share"):
        parts.append(f"missing {percent(row['missing/share'])}")
    if row.get("group/quarantined"):
        parts.append(f"tasks in quarantine {row['group/quarantined']:.0f}")
    if validation:
        parts.append(accuracy_text(validation))
    return "  ".join(parts)


def accuracy_text(row: Row) -> str:
    """A validation row's accuracies: `held-out 41.5 % (n 200), sampled 40.0 %, unseen tables 2.0 % (n 50)`."""
    parts = []
    for metric, value in sorted(row.items(), key=lambda item: not item[0].startswith("heldout/")):
        split, _, name = metric.partition("/")
        if name == "accuracy" and value is not None:
            count = f" (n {row[f'{split}/n']:.0f})" if f"{split}/n" in row else ""
            parts.append(f"{split_title(split)} {percent(value)}{count}")
        elif name == "sampled_accuracy" and value is not None:
            parts.append(f"{split_title(split)}, sampled {percent(value)}")
    return ", ".join(parts) or "validation: no task was scored"


def split_title(split: str) -> str:
    """How a split is called in text."""
    return {"heldout": "held-out"}.get(split, split.replace("_", " "))


def percent(share: float) -> str:
    """0.415 -> "41.5 %"."""
    return f"{100 * share:.1f} %"


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
