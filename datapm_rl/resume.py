"""Whether a run's directory can be gone on with: the same settings, the same data, a checkpoint that is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from datapm_rl.compose import config_differences
from datapm_rl.errors import UserError
from datapm_rl.tracking.run_dir import RunDir

SETTINGS = "settings.yaml"
"""The settings as given, in the run's directory; `config.yaml` there has data and model put in."""

MAY_CHANGE = ("trainer.total_training_steps", "run.fresh")
"""Settings in which a resumed run may differ from its beginning."""

LATEST = "latest_checkpointed_iteration.txt"
"""verl's file with the number of the newest checkpoint."""


def check_same_settings(run_dir: RunDir, config: DictConfig) -> None:
    """UserError if the directory belongs to a run with other settings."""
    saved = run_dir.path / SETTINGS
    changed = config_differences(OmegaConf.load(saved), config, ignore=MAY_CHANGE) if saved.is_file() else []
    if changed:
        raise UserError(
            f"run {config.run.name} in {run_dir.path} was started with other settings ({'; '.join(changed[:3])}): "
            "give run.name=NAME for another run, or run.fresh=true to move the old one aside"
        )


def check_same_data(run_dir: RunDir, fingerprints: dict[str, Any]) -> None:
    """UserError if the run has a checkpoint that was trained on other tasks, files or another policy."""
    saved = run_dir.path / "fingerprints.json"
    if not saved.is_file() or not (run_dir.checkpoints / LATEST).is_file():
        return
    if json.loads(saved.read_text()) != json.loads(json.dumps(fingerprints)):
        raise UserError(
            f"tasks, data files or policy are not those that {run_dir.path} was trained on (fingerprints.json): "
            "restore them, give run.name=NAME for another run, or run.fresh=true to move the old one aside"
        )


def is_finished(run_dir: RunDir, config: DictConfig) -> bool:
    """Whether the run has made all the steps that the settings ask for."""
    summary = run_dir.path / "summary.json"
    steps = json.loads(summary.read_text())["steps"] if summary.is_file() else None
    return steps is not None and config.trainer.total_training_steps in (None, steps)


def latest_checkpoint(checkpoints: Path) -> Path:
    """Folder of the newest checkpoint."""
    return checkpoints / f"global_step_{int((checkpoints / LATEST).read_text())}"


def repair_latest(checkpoints: Path) -> None:
    """verl writes the name of the newest checkpoint in place: after a kill in between, find it again."""
    marker = checkpoints / LATEST
    complete = sorted(
        int(path.parent.name.removeprefix("global_step_"))
        for path in checkpoints.glob("global_step_*/data.pt")
        if any((path.parent / "actor").glob("model_*.pt"))
    )
    if not complete:
        marker.unlink(missing_ok=True)
        return
    try:
        named = int(marker.read_text())
    except (OSError, ValueError):
        named = -1
    if named not in complete:
        marker.write_text(str(complete[-1]))
