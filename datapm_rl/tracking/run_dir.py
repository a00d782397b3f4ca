"""The directory of a run: what lies where, and how it is written.

    settings.yaml       the settings as given: a resume must give the same
    config.yaml         the resolved configuration, data and model put in
    versions.json       versions of what computed it
    fingerprints.json   hashes of data and policy
    metrics.jsonl       one row per training step and per validation (docs/metrics.md)
    trajectories.jsonl  one row per trajectory: task, steps, verdicts, reward
    quarantine.jsonl    tasks that are not sampled any more, with causes; there only when there are some
    summary.json        facts of a finished run; there only when it is finished
    curves.png          metrics as pictures
    checkpoints/        the trainer's state, newest kept
    model/              the final policy as a Hugging Face folder
    logs/               what is not for the screen
    tensorboard/ wandb/ the same metrics for these viewers
    STOP                a request to stop after the current step

One process writes each file; all writes are whole or absent after a kill at any moment.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from datapm_rl.errors import UserError
from datapm_rl.tracking.jsonl import Row, append_rows, keep_rows, read_rows, write_atomically

PACKAGES = ("datapm_rl", "verl", "torch", "transformers", "ray", "tensordict", "TransferQueue", "numpy", "pandas")


class RunDir:
    """A run's directory, made if it is not there."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.metrics_path = self.path / "metrics.jsonl"
        self.trajectories_path = self.path / "trajectories.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.logs = self.path / "logs"
        self.tensorboard = self.path / "tensorboard"
        self._stop = self.path / "STOP"
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run's directory {self.path} ({error.strerror}): set run.dir") from error

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the run, atomically."""
        write_atomically(self.path / name, text)

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file of the run, atomically."""
        self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def append_metrics(self, row: Row, step: int, kind: str) -> None:
        """Append one row of metrics; `kind` is "train" or "validation"."""
        append_rows(self.metrics_path, [{"step": step, "kind": kind, "time": time.time(), **row}])

    def append_trajectories(self, rows: Iterable[Row]) -> None:
        """Append a step's trajectories; each row carries its "step"."""
        append_rows(self.trajectories_path, rows)

    def metrics(self, kind: str | None = None) -> list[Row]:
        """All rows of metrics, or those of one kind."""
        return [row for row in read_rows(self.metrics_path) if kind in (None, row["kind"])]

    def truncate_after(self, step: int) -> int:
        """Drop the rows of later steps than a checkpoint's, which will be made again; returns how many."""
        dropped = 0
        for path in (self.metrics_path, self.trajectories_path):
            dropped += keep_rows(path, lambda row: row["step"] <= step)
        return dropped

    def request_stop(self) -> None:
        """Ask the trainer to save a checkpoint and stop after its step."""
        self._stop.touch()

    def stop_requested(self) -> bool:
        """Whether somebody asked (also a user's `touch STOP`)."""
        return self._stop.exists()

    def clear_stop(self) -> None:
        """Forget an old request."""
        self._stop.unlink(missing_ok=True)


def versions() -> dict[str, Any]:
    """What computes a run, JSON-ready: versions, commit, machine.

    A package that is not installed is null, as is the commit outside a git clone.
    """
    return {
        "python": platform.python_version(),
        **{name: _installed(name) for name in PACKAGES},
        **_git_facts(Path(__file__).parent),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git_facts(folder: Path) -> dict[str, Any]:
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".") if commit else None
    return {"git_commit": commit, "git_changed": bool(changes) if commit else None}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
