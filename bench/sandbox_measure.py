"""The measurements of `bench.sandbox`: trajectories alone, on all cores, branches of a big state, memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from bench.sandbox_contenders import Contender, Notebook
from bench.sandbox_processes import CpuClock, settle, tree
from bench.sandbox_trajectory import STEPS, big_state

_TRIVIAL = "1"
_Result = TypeVar("_Result")


@dataclass
class Settings:
    """How much is played. `workers`: trajectories at a time in the part on all cores."""

    rounds: int
    workers: int
    steps: Sequence[str] = tuple(STEPS)
    state_mb: int = 100
    warm_up: bool = True


@dataclass
class Measured:
    """Of one contender. Wall times in milliseconds, one entry per occurrence; MB are of PSS, per notebook."""

    start_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    branch_ms: list[float] = field(default_factory=list)
    branch_close_ms: list[float] = field(default_factory=list)
    big_branch_ms: list[float] = field(default_factory=list)
    own_mb: float | None = None
    shared_mb: float | None = None
    steps_per_s: list[float] = field(default_factory=list)  # on all cores, per round
    cpu_ms_per_step: list[float] = field(default_factory=list)  # the same


def measure(contenders: Sequence[Contender], settings: Settings, clock: CpuClock) -> list[Measured]:
    """Everything, interleaved: what else the machine does hits all contenders alike.

    Raises RuntimeError when a step fails, or prints different things in different contenders.
    """
    if settings.warm_up:
        _play_alone_and_compare(contenders, settings, [Measured() for _ in contenders])
    results = [Measured() for _ in contenders]
    for _ in range(settings.rounds):
        _play_alone_and_compare(contenders, settings, results)
        for contender, measured in zip(contenders, results, strict=True):
            _branch_big_state(contender, settings.state_mb, measured)
        for contender, measured in zip(contenders, results, strict=True):
            _play_on_all_cores(contender, settings, clock, measured)
    for contender, measured in zip(contenders, results, strict=True):
        _weigh(contender, settings, measured)
    return results


def _timed(into: list[float], call: Callable[[], _Result]) -> _Result:
    start = time.perf_counter()
    result = call()
    into.append((time.perf_counter() - start) * 1000)
    return result


def _play_alone_and_compare(contenders: Sequence[Contender], settings: Settings, results: Sequence[Measured]) -> None:
    printed: dict[str, list[str]] = {}
    for contender, measured in zip(contenders, results, strict=True):
        for _ in range(contender.per_round):
            printed[contender.name] = _play_alone(contender, settings, measured)
    for name, texts in printed.items():
        for number, (text, expected) in enumerate(zip(texts, printed[contenders[0].name], strict=True), 1):
            if text != expected:
                raise RuntimeError(f"step {number} printed in {name}:\n{text}\nin {contenders[0].name}:\n{expected}")


def _play_alone(contender: Contender, settings: Settings, measured: Measured) -> list[str]:
    notebook = _timed(measured.start_ms, contender.start)
    try:
        printed = [_timed(measured.step_ms, partial(notebook.run, code)) for code in settings.steps]
        _branch(notebook, measured.branch_ms, measured.branch_close_ms)
    finally:
        notebook.close()
    return printed


def _branch(notebook: Notebook, until_run: list[float], until_closed: list[float]) -> None:
    """A branch may be lazy, so its first run is part of it."""
    start = time.perf_counter()
    twin = notebook.branch()
    try:
        twin.run(_TRIVIAL)
        until_run.append((time.perf_counter() - start) * 1000)
    finally:
        twin.close()
    until_closed.append((time.perf_counter() - start) * 1000)


def _branch_big_state(contender: Contender, state_mb: int, measured: Measured) -> None:
    notebook = contender.start()
    try:
        notebook.run(big_state(state_mb))
        for _ in range(contender.per_round):
            _branch(notebook, measured.big_branch_ms, [])
    finally:
        notebook.close()


def _play_on_all_cores(contender: Contender, settings: Settings, clock: CpuClock, measured: Measured) -> None:
    """Whole trajectories, start and close included."""

    def play(_number: int) -> None:
        notebook = contender.start()
        try:
            for code in settings.steps:
                notebook.run(code)
        finally:
            notebook.close()

    trajectories = settings.workers * contender.per_round
    processes = len(tree(os.getpid()))
    cpu, start = clock.seconds(), time.perf_counter()
    with ThreadPoolExecutor(settings.workers) as pool:
        list(pool.map(play, range(trajectories)))
    steps = trajectories * len(settings.steps)
    measured.steps_per_s.append(steps / (time.perf_counter() - start))
    settle(processes)
    measured.cpu_ms_per_step.append((clock.seconds() - cpu) * 1000 / steps)


def _weigh(contender: Contender, settings: Settings, measured: Measured) -> None:
    """Memory of many notebooks after their last step: the more there are, the less each has of the common pages."""

    def play(_number: int) -> None:
        notebook = contender.start()
        notebooks.append(notebook)
        for code in settings.steps:
            notebook.run(code)

    notebooks: list[Notebook] = []
    try:
        with ThreadPoolExecutor(settings.workers) as pool:
            list(pool.map(play, range(settings.workers * contender.per_round)))
        measured.own_mb, measured.shared_mb = contender.pss_mb(notebooks)
    except PermissionError:
        return  # another user's processes: the levels with a user id per session, looked at without root
    finally:
        for notebook in notebooks:
            notebook.close()
