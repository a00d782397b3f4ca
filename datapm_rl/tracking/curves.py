"""A run's metrics as one picture. Several runs can be laid over each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from datapm_rl.tracking.intervals import wilson
from datapm_rl.tracking.jsonl import Row
from datapm_rl.tracking.run_dir import RunDir

TRAIN_PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("reward", {"reward/total_mean": "total", "reward/outcome_mean": "outcome", "reward/process_mean": "process"}),
    ("turns and failed steps", {"agent/turns_mean": "turns", "agent/error_steps_mean": "failed steps"}),
    ("entropy", {"actor/entropy": "entropy"}),
    ("missing share", {"missing/share": "missing"}),
    ("seconds", {"time/step_s": "step", "time/rollout_s": "rollout", "time/update_s": "update"}),
)
STYLES = ("-", "--", ":", "-.")


def draw_curves(run_dir: RunDir, others: Sequence[RunDir] = ()) -> Path:
    """Draw `curves.png` of a run, with `others` laid over it (another line style each); returns its path."""
    figure = Figure(figsize=(13, 7), layout="constrained")  # no pyplot: no global state, no window system
    panels = figure.subplots(2, 3).flatten()
    for number, run in enumerate([run_dir, *others]):
        style = STYLES[number % len(STYLES)]
        prefix = f"{run.path.name}: " if others else ""
        _draw_accuracy(panels[0], run.metrics("validation"), style, prefix)
        for panel, (_, metrics) in zip(panels[1:], TRAIN_PANELS, strict=True):
            _draw_metrics(panel, run.metrics("train"), metrics, style, prefix)
    titles = ["held-out accuracy, 95 % interval", *(title for title, _ in TRAIN_PANELS)]
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("step")
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8)
    panels[0].set_ylim(0, 1)
    panels[4].set_ylim(bottom=0)
    figure.suptitle(run_dir.path.name)
    target = run_dir.path / "curves.png"
    temporary = target.with_name(".curves.png.tmp")
    figure.savefig(temporary, format="png", dpi=110)
    os.replace(temporary, target)
    return target


def _draw_accuracy(panel: Axes, rows: list[Row], style: str, prefix: str) -> None:
    for metric, label, colour in (
        ("heldout/accuracy", "held-out", "tab:blue"),
        ("heldout/sampled_accuracy", "held-out, sampled", "tab:cyan"),
        ("unseen_tables/accuracy", "unseen tables", "tab:gray"),
    ):
        measured = [row for row in rows if row.get(metric) is not None]
        if not measured:
            continue
        steps = [row["step"] for row in measured]
        shares = [row[metric] for row in measured]
        bounds = [wilson(row[metric], row.get(metric.partition("/")[0] + "/n", 0)) for row in measured]
        panel.plot(steps, shares, style, marker="o", markersize=3, color=colour, label=prefix + label)
        panel.fill_between(steps, [low for low, _ in bounds], [high for _, high in bounds], color=colour, alpha=0.15)


def _draw_metrics(panel: Axes, rows: list[Row], metrics: dict[str, str], style: str, prefix: str) -> None:
    for number, (metric, label) in enumerate(metrics.items()):
        points = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
        if points:
            steps, values = zip(*points, strict=True)
            panel.plot(steps, values, style, color=f"C{number}", label=prefix + label)
