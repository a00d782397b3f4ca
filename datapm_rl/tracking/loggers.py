"""Where metrics go: `metrics.jsonl` first, then TensorBoard and Weights & Biases.

`metrics.jsonl` is the run's record, so a failure to write it is the run's. The other two are views: when one fails it
is dropped with one warning, and training goes on.

W&B is online if WANDB_API_KEY is set, else offline (`wandb sync` uploads it later); WANDB_MODE overrules. The W&B run
has an id kept in the run's directory, so a resumed run goes on in the same W&B run.
"""

from __future__ import annotations

import logging
import math
import os
import uuid
from typing import Any, Protocol

from datapm_rl.tracking.jsonl import Row
from datapm_rl.tracking.run_dir import RunDir

logger = logging.getLogger(__name__)

WANDB_ID = "wandb_id.txt"
WANDB_PROJECT = "datapm_rl"
WANDB_TIMEOUT_S = 30.0


class View(Protocol):
    """A viewer's log."""

    def log(self, row: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Scalars below `tensorboard/`; steps that a resume makes again replace the old ones."""

    def __init__(self, run_dir: RunDir, config: dict[str, Any], resume: bool):
        from torch.utils.tensorboard import SummaryWriter

        last = max((row["step"] for row in run_dir.metrics()), default=-1)
        self.writer = SummaryWriter(str(run_dir.tensorboard), purge_step=last + 1 if resume else None)

    def log(self, row: dict[str, float], step: int) -> None:
        for name, value in row.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A W&B run, online or offline."""

    def __init__(self, run_dir: RunDir, config: dict[str, Any], resume: bool):
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self.run = wandb.init(
            project=WANDB_PROJECT,
            name=run_dir.path.name,
            id=_wandb_id(run_dir, resume),
            resume="allow" if mode == "online" else None,  # offline runs of one id are joined by `wandb sync --append`
            mode=mode,  # type: ignore[arg-type]
            dir=str(run_dir.path),
            config=config,
            settings=wandb.Settings(console="off", silent=True, init_timeout=WANDB_TIMEOUT_S),
        )

    def log(self, row: dict[str, float], step: int) -> None:
        self.run.log(row, step=step)

    def close(self) -> None:
        self.run.finish()


class Tracker:
    """Logs rows of metrics. On resume, call it after `RunDir.truncate_after`."""

    views = (TensorBoard, WeightsAndBiases)

    def __init__(self, run_dir: RunDir, config: dict[str, Any], resume: bool):
        self.run_dir = run_dir
        self._open: list[View] = []
        for view in self.views:
            try:
                self._open.append(view(run_dir, config, resume))
            except Exception as error:  # the boundary: a viewer's failure is not the run's
                _warn(view.__name__, error)

    def log(self, row: Row, step: int, kind: str) -> None:
        """Log one row; `kind` is "train" or "validation"."""
        self.run_dir.append_metrics(row, step, kind)
        numbers = {name: float(value) for name, value in row.items() if _is_number(value)}
        for view in list(self._open):
            try:
                view.log(numbers, step)
            except Exception as error:
                self._open.remove(view)
                _warn(type(view).__name__, error)

    def close(self) -> None:
        """Flush and close all views."""
        for view in self._open:
            try:
                view.close()
            except Exception as error:
                _warn(type(view).__name__, error)
        self._open = []


def _wandb_id(run_dir: RunDir, resume: bool) -> str:
    path = run_dir.path / WANDB_ID
    if resume and path.is_file():
        return path.read_text().strip()
    identifier = uuid.uuid4().hex[:8]
    run_dir.write_text(WANDB_ID, identifier + "\n")
    return identifier


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, str) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _warn(view: str, error: Exception) -> None:
    logger.warning("%s is off for the rest of this run: %s", view, str(error).split("\n")[0] or type(error).__name__)
