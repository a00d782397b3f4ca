"""Which checkpoints of a run can be trusted: verl writes many files in place, and a kill may come between any two.

A checkpoint is a folder `global_step_N`. When all of it is written, `seal` adds `whole.json` with the size of every
file. A folder without it, or in which a size differs, is not gone on with.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from datapm_rl.tracking.jsonl import write_atomically

SEAL = "whole.json"
LATEST = "latest_checkpointed_iteration.txt"
"""verl's file with the number of the newest checkpoint."""


def folder_of(checkpoints: Path, step: int) -> Path:
    """Folder of the checkpoint after `step`."""
    return checkpoints / f"global_step_{step}"


def seal(folder: Path) -> None:
    """Say that `folder` is written whole."""
    write_atomically(folder / SEAL, json.dumps(_sizes(folder)))


def is_whole(folder: Path) -> bool:
    """Whether `folder` is sealed and has all its files at the sizes they had then."""
    try:
        sealed = json.loads((folder / SEAL).read_text())
    except (OSError, ValueError):
        return False
    return sealed == _sizes(folder)


def whole_steps(checkpoints: Path) -> list[int]:
    """Steps of the whole checkpoints, oldest first."""
    return [_step(folder) for folder in _folders(checkpoints) if is_whole(folder)]


def point_to_newest(checkpoints: Path) -> int | None:
    """Make verl resume from the newest whole checkpoint; returns its step, None if there is none."""
    steps = whole_steps(checkpoints)
    if not steps:
        (checkpoints / LATEST).unlink(missing_ok=True)
        return None
    write_atomically(checkpoints / LATEST, str(steps[-1]))
    return steps[-1]


def drop_old(checkpoints: Path, keep: int | None) -> None:
    """Remove all but the `keep` newest whole checkpoints, and what is left of others. `keep` None keeps all."""
    steps = whole_steps(checkpoints)
    kept = set(steps if keep is None else steps[-keep:])
    for folder in _folders(checkpoints):
        if _step(folder) not in kept:
            shutil.rmtree(folder)


def _folders(checkpoints: Path) -> list[Path]:
    return sorted(checkpoints.glob("global_step_*"), key=_step)


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("global_step_"))


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != SEAL)
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(files)}
