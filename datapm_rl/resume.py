"""Whether a run's directory can be gone on with: the same settings, the same data, a checkpoint that is whole."""

from __future__ import annotations

import json
from typing import Any

from omegaconf import DictConfig, OmegaConf

from datapm_rl.compose import config_differences
from datapm_rl.errors import UserError
from datapm_rl.tracking.checkpoints import whole_steps
from datapm_rl.tracking.run_dir import RunDir

SETTINGS = "settings.yaml"
"""The settings as given, in the run's directory; `config.yaml` there has data and model put in."""

MAY_CHANGE = ("trainer.total_training_steps", "run.fresh")
"""Settings in which a resumed run may differ from its beginning."""


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
    if not saved.is_file() or not whole_steps(run_dir.checkpoints):
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


def unreached(at: int | None, target: int) -> str | None:
    """What to say when nothing is left to train and the newest checkpoint is of step `at`; None at the `target`."""
    if at == target:
        return None
    advice = f"give trainer.total_training_steps={at}" if at and at > target else "raise trainer.total_epochs"
    return (
        f"nothing is left to train, but the newest checkpoint is of step {at or 0} and not of "
        f"trainer.total_training_steps={target}: {advice}"
    )
