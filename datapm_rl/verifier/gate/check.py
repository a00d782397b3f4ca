"""Training asks for a minimum: is there a gate's summary, is it of this verifier, is the verifier good enough?"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from datapm_rl.config import PrmConfig
from datapm_rl.errors import UserError

MINIMA = {"min_kappa": "kappa", "min_silent_recall": "silent_recall"}
"""Setting -> the metric of the summary that it is about."""

NOT_IDENTITY = frozenset(
    {"beta", "endpoint", "tokenizer", "concurrency", "deadline_s", "trajectory_deadline_s", "max_missing_share"}
    | {"gate_report", *MINIMA}
)
"""Settings that do not make another verifier: where it is served, how long one waits, what verdicts are used for."""


def identity(prm: PrmConfig) -> dict[str, Any]:
    """The settings that make a verifier what it is: kind, model, switches, sampling. Holds no address and no key."""
    names = [field.name for field in dataclasses.fields(PrmConfig) if field.name not in NOT_IDENTITY]
    values = {name: getattr(prm, name) for name in names}
    return {name: list(value) if name == "tools" else value for name, value in values.items()}


def check_gate(prm: PrmConfig) -> None:
    """UserError if a minimum is set and `prm.gate_report` does not show that the verifier reaches it."""
    minima = {name: getattr(prm, name) for name in MINIMA if getattr(prm, name) is not None}
    if not minima:
        return
    if not prm.gate_report:
        raise UserError(
            f"prm.{next(iter(minima))} is set and prm.gate_report names no summary: measure the verifier with "
            "python -m datapm_rl.evaluate prm, and give the path of its summary.json"
        )
    report = _read(prm.gate_report)
    measured, wanted = report["settings"], identity(prm)
    for name in sorted(measured.keys() | wanted.keys()):
        if measured.get(name) != wanted.get(name):
            raise UserError(
                f"prm.gate_report={prm.gate_report} is of another verifier: its prm.{name} is {measured.get(name)}, "
                f"here it is {wanted.get(name)}; measure this one with python -m datapm_rl.evaluate prm"
            )
    for setting, minimum in minima.items():
        _check_minimum(report["metrics"].get(MINIMA[setting], {}), setting, minimum, prm.gate_report)


def _check_minimum(metric: dict[str, Any], setting: str, minimum: float, path: str) -> None:
    name, value = MINIMA[setting], metric.get("value")
    if value is None:
        raise UserError(f"{path} has no {name} (it could not be measured), and prm.{setting}={minimum} asks for it")
    if value < minimum:
        raise UserError(
            f"the verifier's {name} is {value:.3f} (95 % interval {metric['low']:.3f} to {metric['high']:.3f}, "
            f"n {metric['n']}; {path}), below prm.{setting}={minimum}: take a better verifier, or lower the minimum"
        )


def _read(path: str) -> dict[str, Any]:
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"prm.gate_report={path} cannot be read ({error}): give a summary.json of python -m datapm_rl.evaluate prm"
        ) from None
    if not isinstance(report, dict) or not all(isinstance(report.get(key), dict) for key in ("settings", "metrics")):
        raise UserError(
            f"prm.gate_report={path} is no summary of python -m datapm_rl.evaluate prm: give its summary.json"
        )
    return report
