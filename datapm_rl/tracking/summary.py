"""The table at the end of a run, made from its directory alone."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from datapm_rl.tracking.intervals import wilson
from datapm_rl.tracking.jsonl import Row
from datapm_rl.tracking.progress import percent, split_title
from datapm_rl.tracking.run_dir import RunDir

VERIFIERS = {
    "reference": "reference: knows the reference program; stands in for a trained PRM",
    "none": "none: no step scores, the reward is the outcome alone",
}
UNSEEN_NOTE = (
    "  Unseen tables: a small model trained from scratch has a closed vocabulary and cannot name columns that it\n"
    "  never saw, so this stays near zero. A pretrained policy (policy.path=FOLDER) can name them."
)


def summarise(run_dir: RunDir) -> str:
    """Text for the screen: accuracies before and after, best step, missing data, verifier, where the files are."""
    validations = [row for row in run_dir.metrics("validation") if _accuracies(row)]
    lines = ["", *_accuracy_table(run_dir, validations), ""]
    lines.append(f"  best step    {_best_step(validations)}")
    lines.append(f"  missing      {_missing(run_dir.metrics('train'))}")
    verifier = _setting(run_dir, "prm.verifier")
    lines.append(f"  verifier     {VERIFIERS.get(verifier, verifier or 'unknown')}")
    lines.append(f"  run          {run_dir.path.resolve()}")
    shows_unseen = any("unseen_tables/accuracy" in row for row in validations)
    if shows_unseen and run_dir.path.joinpath("config.yaml").is_file() and _setting(run_dir, "policy.path") is None:
        lines += ["", UNSEEN_NOTE]
    return "\n".join(lines) + "\n"


def _accuracy_table(run_dir: RunDir, validations: list[Row]) -> list[str]:
    if not validations:
        return ["  no validation was made"]
    first, last = validations[0], validations[-1]
    decoding = {False: ", greedy", True: ", sampled"}.get(_setting(run_dir, VALIDATION_SAMPLES), "")
    before = "before training" if first["step"] == 0 else f"step {first['step']}"
    lines = [f"  {'accuracy (95 % interval)':<28}{before:<26}{'step ' + str(last['step']):<26}change"]
    for metric in _accuracies(last):
        split, _, name = metric.partition("/")
        title = split_title(split) + (", sampled" if name == "sampled_accuracy" else decoding)
        change = f"{100 * (last[metric] - first[metric]):+.1f} points" if metric in _accuracies(first) else ""
        lines.append(f"  {title:<28}{_with_interval(first, metric):<26}{_with_interval(last, metric):<26}{change}")
    counts = {split_title(m.partition("/")[0]): f"{last[m]:.0f}" for m in last if m.endswith("/n")}
    lines.append("  n scored     " + ", ".join(f"{title} {count}" for title, count in counts.items()))
    return lines


VALIDATION_SAMPLES = "actor_rollout_ref.rollout.val_kwargs.do_sample"


def _accuracies(row: Row) -> list[str]:
    """Names of the accuracies that a validation row has, held-out first."""
    names = [m for m in row if m.partition("/")[2] in ("accuracy", "sampled_accuracy") and row[m] is not None]
    return sorted(names, key=lambda name: (not name.startswith("heldout/"), name.startswith("unseen_tables/")))


def _with_interval(row: Row, metric: str) -> str:
    if row.get(metric) is None:
        return "not measured"
    n = row.get(metric.partition("/")[0] + "/n")
    if not n:
        return percent(row[metric])
    low, high = wilson(row[metric], n)
    return f"{percent(row[metric])} ({100 * low:.1f} to {100 * high:.1f})"


def _best_step(validations: list[Row]) -> str:
    measured = [row for row in validations if row.get("heldout/accuracy") is not None]
    if not measured:
        return "unknown: held-out accuracy was not measured"
    best = max(measured, key=lambda row: (row["heldout/accuracy"], -row["step"]))
    return f"{best['step']} (held-out {percent(best['heldout/accuracy'])}, chosen on these same tasks)"


def _missing(rows: list[Row]) -> str:
    causes: dict[str, float] = {}
    for row in rows:
        for metric, value in row.items():
            if metric.startswith("missing/") and metric != "missing/share" and value:
                cause = metric.removeprefix("missing/")
                causes[cause] = causes.get(cause, 0) + value
    if not causes:
        return "none"
    by_count = sorted(causes.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:.0f} x {cause}" for cause, count in by_count) + " (masked, not scored)"


def _setting(run_dir: RunDir, key: str) -> Any:
    """A setting of the run; None without a configuration or where its value depends on something else."""
    path = run_dir.path / "config.yaml"
    if not path.is_file():
        return None
    try:
        return OmegaConf.select(OmegaConf.load(path), key)
    except OmegaConfBaseException:
        return None
