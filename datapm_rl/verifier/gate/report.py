"""The summary of a verifier on a labelled set: `summary.json`, which training reads, and a table for people."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from datapm_rl import __version__
from datapm_rl.trajectory import Verdict
from datapm_rl.verifier.gate.labelled import LABELS, LabelledTrajectory
from datapm_rl.verifier.gate.metrics import measure

TITLES = {
    "agreement": "raw agreement",
    "kappa": "quadratic weighted kappa",
    "first_error_f1": "F1 on the first wrong step",
    "silent_recall": "silent errors found",
    "false_alarm_rate": "grounding errors scored 0",
    "missing_share": "missing verdicts",
}


def summary(
    header: dict[str, Any], trajectories: Sequence[LabelledTrajectory], verdicts: Sequence[Sequence[Verdict]]
) -> dict[str, Any]:
    """Everything that was measured, JSON-ready. `header` as in `run.header_of`; it holds no address and no key."""
    scores = measure(trajectories, verdicts)
    given = [verdict for row in verdicts for verdict in row]
    return {
        "version": __version__,
        **header,
        "trajectories": len(trajectories),
        "steps": len(given),
        "kinds": dict(Counter(kind for item in trajectories for kind in item.kinds)),
        "confusion": {"labels": LABELS, "rows": "label", "columns": "score", "counts": scores.confusion},
        "metrics": {name: dataclasses.asdict(metric) for name, metric in scores.metrics.items()},
        "by_kind": _by_kind(trajectories, verdicts),
        "missing": scores.missing,
        "cost": _cost(given),
        "tampered": sum(bool(verdict.tampered) for verdict in given),
        "cut": sum(bool(verdict.cut) for verdict in given),
    }


def table(report: dict[str, Any]) -> str:
    """The summary for a terminal."""
    settings = report["settings"]
    model = f" ({settings['model']})" if settings["model"] else ""
    lines = [
        f"verifier {settings['verifier']}{model}: {report['trajectories']} trajectories, {report['steps']} steps",
        "",
        f"{'':28}{'value':>8}{'95 % interval':>19}{'n':>7}",
    ]
    for name, metric in report["metrics"].items():
        lines.append(f"{TITLES[name]:28}{_number(metric['value']):>8}{_interval(metric):>19}{metric['n']:>7}")
    lines += ["", f"{'label':>8}{'scored 0':>12}{'0.5':>8}{'1':>8}"]
    for label, row in zip(LABELS, report["confusion"]["counts"], strict=True):
        lines.append(f"{label:>8g}{row[0]:>12}{row[1]:>8}{row[2]:>8}")
    lines += ["", "mean score by kind: " + _pairs(report["by_kind"], "{:.2f}")]
    if report["missing"]:
        lines.append("missing by cause: " + _pairs(report["missing"], "{}"))
    if report["cost"]:
        lines.append("per verification: " + _pairs(report["cost"], "{:.3g}"))
    return "\n".join(lines)


def _by_kind(trajectories: Sequence[LabelledTrajectory], verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """Kind of step -> mean score; kinds without a score are left out."""
    found: dict[str, list[float]] = {}
    for item, row in zip(trajectories, verdicts, strict=True):
        for kind, verdict in zip(item.kinds, row, strict=True):
            if verdict.score is not None:
                found.setdefault(kind, []).append(verdict.score)
    return {kind: sum(scores) / len(scores) for kind, scores in found.items()}


def _cost(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Means over the verdicts that tell: turns, executions, tool_calls, tokens, seconds."""
    names = dict.fromkeys(name for verdict in verdicts for name in verdict.cost)
    told = {name: [verdict.cost[name] for verdict in verdicts if name in verdict.cost] for name in names}
    return {name: sum(values) / len(values) for name, values in told.items()}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(metric: dict[str, Any]) -> str:
    return "-" if metric["value"] is None else f"{metric['low']:.3f} to {metric['high']:.3f}"


def _pairs(values: dict[str, Any], form: str) -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in values.items())
