"""What three steps of training must have left if GPUs, vLLM, sandbox, verifier and trainer work together."""

from __future__ import annotations

import math
from typing import Any

Finding = tuple[bool, str, str]  # well, what was looked at, what was found

# vLLM computes in bf16 and by other kernels than the trainer, so these are never 0. The limits are chosen, not
# measured: other weights, another temperature or a shifted token give whole nats.
MAX_KL = 0.02  # nat per token
MAX_WEIGHT_OFF = 0.05  # mean importance weight, from 1
MAX_MISSING = 0.1  # share


def judge(rows: list[dict[str, Any]], attempts: list[dict[str, Any]], steps: int) -> list[Finding]:
    """Findings on metric rows of training steps and on their trajectories, both as the run directory has them."""
    if not rows:
        return [(False, "steps", f"0 of {steps}")]
    return [
        (len(rows) == steps, "steps", f"{len(rows)} of {steps}"),
        _finite(rows),
        _at_least_one(rows, "actor/grad_norm", "gradient"),
        _at_most(rows, "rollout_corr/k3_kl", MAX_KL, "rollout against trainer: KL"),
        _near_one(rows, "rollout_corr/is_mean", "rollout against trainer: weights"),
        _reported(rows, "actor/rollout_prob_diff_max", "rollout against trainer: largest"),
        _at_most(rows, "missing/share", MAX_MISSING, "trajectories without a reward"),
        _at_least_one(rows, "sandbox/steps", "pieces of code run in the sandbox"),
        _at_most(rows, "sandbox/infra_errors", 0, "sandbox errors of our own"),
        _verdicts(attempts),
    ]


def _values(rows: list[dict[str, Any]], key: str) -> list[float]:
    return [math.nan if row.get(key) is None else float(row[key]) for row in rows]


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def _finite(rows: list[dict[str, Any]]) -> Finding:
    keys = ("reward/total_mean", "actor/grad_norm", "actor/entropy")
    bad = [key for key in keys if not all(map(math.isfinite, _values(rows, key)))]
    return not bad, "finite numbers", f"not in {', '.join(bad)}" if bad else f"reward {_listed(_values(rows, keys[0]))}"


def _at_least_one(rows: list[dict[str, Any]], key: str, name: str) -> Finding:
    values = _values(rows, key)
    return any(value > 0 for value in values), name, f"{key} {_listed(values)}, wanted above 0"


def _at_most(rows: list[dict[str, Any]], key: str, limit: float, name: str) -> Finding:
    values = _values(rows, key)
    return all(value <= limit for value in values), name, f"{key} {_listed(values)}, wanted at most {limit:g}"


def _near_one(rows: list[dict[str, Any]], key: str, name: str) -> Finding:
    values = _values(rows, key)
    well = all(abs(value - 1) <= MAX_WEIGHT_OFF for value in values)
    return well, name, f"{key} {_listed(values)}, wanted 1 within {MAX_WEIGHT_OFF}"


def _reported(rows: list[dict[str, Any]], key: str, name: str) -> Finding:
    values = _values(rows, key)
    return all(map(math.isfinite, values)), name, f"{key} {_listed(values)}, single tokens differ in bf16"


def _verdicts(attempts: list[dict[str, Any]]) -> Finding:
    """The stand-in gives 1 to every step, after having run its code: anything else is a fault of ours."""
    verdicts = [verdict for attempt in attempts for verdict in attempt["verdicts"] if not verdict["skipped"]]
    scores = [verdict["score"] for verdict in verdicts if verdict["score"] is not None]
    ran = sum(any(entry.get("status") == "ok" for entry in verdict["trace"]) for verdict in verdicts)
    found = f"{len(scores)} of {len(verdicts)} with a score, {ran} ran code"
    well = bool(scores) and set(scores) == {1.0} and min(len(scores), ran) >= (1 - MAX_MISSING) * len(verdicts)
    return well, "verdicts", f"{found}, wanted {1 - MAX_MISSING:.0%}, each score 1"
