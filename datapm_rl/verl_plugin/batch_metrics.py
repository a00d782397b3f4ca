"""Metrics and trajectory records of one batch, from what the agent loops left in verl's TransferQueue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import transfer_queue as tq

from datapm_rl.algorithm import has_no_signal
from datapm_rl.reward.overlong import CUT_OFF
from datapm_rl.verl_plugin.groups import Extra, missing_verdicts
from datapm_rl.verl_plugin.output import vote


def fetch(batch: Any) -> list[Extra]:
    """The extra fields of a batch's trajectories, verl's padding rows left out."""
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
    return [getattr(extra, "data", extra) for extra in data["extra_fields"]]


def reward_metrics(trajectories: list[Extra]) -> dict[str, float]:
    """Means over the scored trajectories, those left out by choice among them, and the verdicts of all."""
    scored = [extra for extra in trajectories if extra["reward_extra_info"]["missing_cause"] is None]
    infos = [extra["reward_extra_info"] for extra in scored]
    attempts = [extra["trajectory"] for extra in scored]
    metrics = {
        "reward/total_mean": _mean(info["total"] for info in infos),
        "reward/outcome_mean": _mean(info["acc"] for info in infos),
        "reward/process_mean": _mean(info["process"] for info in infos if info["process"] is not None),
        "reward/override_rate": _mean(info["overridden"] for info in infos if info["overridden"] is not None),
        "reward/overlong_share": _mean(attempt["stop_reason"] in CUT_OFF for attempt in attempts),
        "reward/overlong_penalty_mean": _mean(info["overlong_penalty"] for info in infos),
        "agent/turns_mean": _mean(len(attempt["steps"]) for attempt in attempts),
        "agent/error_steps_mean": _mean(
            sum(step["status"] not in ("ok", "answer") for step in attempt["steps"]) for attempt in attempts
        ),
        "agent/answered_share": _mean(attempt["stop_reason"] == "answered" for attempt in attempts),
        "group/zero_variance_share": _zero_variance_share(scored),
        **verifier_metrics(trajectories),
    }
    return {name: value for name, value in metrics.items() if not np.isnan(value)}


COSTS = ("turns", "executions", "tool_calls", "prompt_tokens", "completion_tokens", "seconds", "queued_s")
"""Columns of Table 7, per verification; see `verifier.base.Record.cost`."""


def verifier_metrics(trajectories: list[Extra]) -> dict[str, float]:
    """Of all verdicts: scores, costs (Table 7), missing by cause; how often the last one agrees with the outcome."""
    verdicts = [verdict for extra in trajectories for verdict in extra["trajectory"]["verdicts"]]
    skipped = sum(verdict["skipped"] for verdict in verdicts)
    verdicts = [verdict for verdict in verdicts if not verdict["skipped"]]
    if not verdicts:
        return {}
    metrics = {
        "verifier/skipped": float(skipped),
        "verifier/missing_share": _mean(verdict["score"] is None for verdict in verdicts),
        "verifier/tampered_share": _mean(bool(verdict["tampered"]) for verdict in verdicts),
        "verifier/cut_share": _mean(bool(verdict["cut"]) for verdict in verdicts),
    }
    for score in (0.0, 0.5, 1.0):
        metrics[f"verifier/score_{score:g}"] = _mean(verdict["score"] == score for verdict in verdicts)
    for name in COSTS:
        metrics[f"verifier/{name}_mean"] = _mean(
            verdict["cost"][name] for verdict in verdicts if name in verdict["cost"]
        )
    for cause, count in missing_verdicts(trajectories).items():
        metrics[f"verifier/missing_{cause}"] = float(count)
    last = [
        (extra["trajectory"]["verdicts"][-1]["score"], extra["reward_extra_info"]["acc"])
        for extra in trajectories
        if extra["trajectory"]["verdicts"]
    ]
    metrics["verifier/outcome_agreement"] = _mean(
        (score > 0.5) == (outcome > 0.5) for score, outcome in last if score is not None and outcome is not None
    )
    return metrics


def validation_metrics(
    sources: list[str], infos: dict[str, list], turns: list[int], main_split: str
) -> dict[str, float]:
    """Accuracy per split over the scored tasks, with their number; the main split is reported as `heldout`.

    A source `split@sampled` gives `split/sampled_accuracy` alone.
    """
    metrics: dict[str, float] = {}
    for source in dict.fromkeys(sources):
        rows = [index for index, other in enumerate(sources) if other == source]
        scores = [infos["acc"][index] for index in rows if infos["acc"][index] is not None]
        split, _, sampled = source.partition("@")
        name = "heldout" if split == main_split else split
        if scores:
            metrics[f"{name}/{'sampled_accuracy' if sampled else 'accuracy'}"] = float(np.mean(scores))
        if not sampled:
            metrics[f"{name}/n"] = float(len(scores))
            metrics[f"{name}/missing"] = float(len(rows) - len(scores))
            metrics[f"{name}/turns_mean"] = float(np.mean([turns[index] for index in rows]))
    return metrics


def trajectory_rows(trajectories: list[Extra], step: int) -> list[dict[str, Any]]:
    """One JSON-ready record per trajectory: task, steps with verdicts, reward."""
    rows = []
    for extra in trajectories:
        attempt = dict(extra["trajectory"])
        task = attempt.pop("task")
        rows.append(
            {
                "step": step,
                "task_id": task["id"],
                "question": task["question"],
                "files": task["files"],
                **attempt,
                "outcome": extra["reward_extra_info"]["acc"],
                "reward": extra["reward_extra_info"],
            }
        )
    return rows


def _zero_variance_share(scored: list[Extra]) -> float:
    groups: dict[str, list[float | None]] = {}
    for extra in scored:
        groups.setdefault(extra["trajectory"]["task"]["id"], []).append(vote(extra["reward_extra_info"]))
    return _mean(has_no_signal(totals) for totals in groups.values())


def _mean(values: Iterable[Any]) -> float:
    collected = [float(value) for value in values]
    return float(np.mean(collected)) if collected else float("nan")
