"""The tables of `bench.sandbox`: contenders side by side with ratios, and what was wanted beside what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.sandbox_contenders import Ours, Replay
from bench.sandbox_measure import Measured

COLUMNS = (Ours.name, Replay.name, "Jupyter")
_NOT_INSTALLED = "not installed"

Results = Mapping[str, Measured | None]


@dataclass
class Goal:
    """`measured` is None where it could not be measured, and then so is `met`."""

    what: str
    wanted: str
    measured: float | None
    met: bool | None


def quantile(values: list[float], fraction: float) -> float:
    """The value below which that fraction lies (nearest rank)."""
    return sorted(values)[math.ceil(fraction * len(values)) - 1]


def steps_per_s(m: Measured) -> float:
    """On all cores, of the median round."""
    return statistics.median(m.steps_per_s)


def cpu_ms_per_step(m: Measured) -> float:
    """Of whole trajectories, of the median round."""
    return statistics.median(m.cpu_ms_per_step)


def memory_mb(m: Measured) -> float | None:
    """Per session, with its share of what sessions have in common."""
    return None if m.own_mb is None or m.shared_mb is None else m.own_mb + m.shared_mb


def goals(results: Results) -> list[Goal]:
    """The issue's numbers. Those beside Jupyter are unmeasured where it is not installed."""
    ours, replay, jupyter = (results[name] for name in COLUMNS)
    assert ours
    assert replay
    branch = quantile(ours.big_branch_ms, 0.5)
    return [
        _goal("steps/s on all cores, times replay's", steps_per_s(ours) / steps_per_s(replay), least=20),
        _goal("the same by CPU time", cpu_ms_per_step(replay) / cpu_ms_per_step(ours), least=20),
        _goal(
            "steps/s on all cores, times Jupyter's",
            steps_per_s(ours) / steps_per_s(jupyter) if jupyter else None,
            least=3,
        ),
        _goal("the same by CPU time", cpu_ms_per_step(jupyter) / cpu_ms_per_step(ours) if jupyter else None, least=3),
        _goal("memory per session with its share, MB of PSS", memory_mb(ours), most=30),
        _goal("branch of the big state, p50, ms", branch, most=10),
    ]


def _goal(what: str, value: float | None, least: float | None = None, most: float | None = None) -> Goal:
    wanted = f">= {least}" if least is not None else f"<= {most}"
    if value is None or math.isnan(value):
        return Goal(what, wanted, None, None)
    return Goal(what, wanted, value, value >= least if least is not None else value <= (most or 0))


def print_goals(table: list[Goal]) -> None:
    """Wanted, measured, met."""
    print(f"\n{'':46}{'wanted':>10}{'measured':>10}  met")
    for goal in table:
        measured = "-" if goal.measured is None else f"{goal.measured:.1f}"
        met = {None: "-", True: "yes", False: "NO"}[goal.met]
        print(f"{goal.what:46}{goal.wanted:>10}{measured:>10}  {met}")


def print_table(results: Results, state_mb: int) -> None:
    """A row per quantity; behind the others' numbers, how many times better ours is."""
    print(f"{'':40}" + "".join(f"{name:>26}" for name in COLUMNS))
    _print_times(results, "session start, ms p50 / p95", lambda m: m.start_ms)
    _print_times(results, "step, ms p50 / p95", lambda m: m.step_ms)
    _print_times(results, "branch, ms p50 / p95", lambda m: m.branch_ms)
    _print_times(results, "branch and close, ms p50 / p95", lambda m: m.branch_close_ms)
    _print_times(results, f"branch of {state_mb} MB, ms p50 / p95", lambda m: m.big_branch_ms)
    _print_row(results, "memory per session, MB of PSS", lambda m: m.own_mb)
    _print_row(results, "  with its share of the zygote", memory_mb)
    _print_row(results, "all cores: steps/s", steps_per_s, more_is_better=True)
    _print_row(results, "all cores: CPU ms per step", cpu_ms_per_step)


def _print_times(results: Results, label: str, times: Callable[[Measured], list[float]]) -> None:
    def text(m: Measured) -> str:
        return f"{quantile(times(m), 0.5):.1f} / {quantile(times(m), 0.95):.1f}"

    _print_row(results, label, lambda m: quantile(times(m), 0.5), text)


def _print_row(
    results: Results,
    label: str,
    value: Callable[[Measured], float | None],
    text: Callable[[Measured], str] | None = None,
    more_is_better: bool = False,
) -> None:
    ours = results[COLUMNS[0]]
    base = value(ours) if ours else None
    cells = []
    for name in COLUMNS:
        measured = results[name]
        number = value(measured) if measured else None
        if measured is None:
            cells.append(_NOT_INSTALLED)
        elif number is None or math.isnan(number):
            cells.append("-")
        else:
            cell = text(measured) if text else f"{number:.1f}"
            if measured is not ours and base and number:
                cell += f"{base / number if more_is_better else number / base:8.1f}x"
            cells.append(cell)
    print(f"{label:40}" + "".join(f"{cell:>26}" for cell in cells))
