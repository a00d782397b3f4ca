"""A labelled set by construction, over the builtin benchmark: what is wrong in which step is known, not judged."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from datapm_rl.benchmarks.builtin import build
from datapm_rl.benchmarks.task_file import load_tasks
from datapm_rl.dialects import get_dialect
from datapm_rl.errors import UserError
from datapm_rl.sandbox import Sandbox
from datapm_rl.trajectory import Task
from datapm_rl.verifier.gate.attempt import Discarded, attempt
from datapm_rl.verifier.gate.labelled import LabelledTrajectory, write_labelled
from datapm_rl.verifier.gate.moves import SCENARIOS
from datapm_rl.verifier.gate.situation import Unfit

SET_FILE = "labelled.jsonl"
DIALECT = "deepanalyze"  # what DataPRM reads
TRIES = 200  # tasks tried for one trajectory
HELDOUT, UNSEEN = 300, 100  # tasks to draw from


@dataclass(frozen=True)
class Built:
    """A set, and what was thrown away: "scenario: step t ..." -> trajectories. Tasks without a place do not count."""

    trajectories: list[LabelledTrajectory]
    discarded: dict[str, int]


def build_labelled_set(
    tasks: Sequence[Task], count: int, seed: int, sandbox: Sandbox, said: Callable[[int], None] = lambda done: None
) -> Built:
    """`count` trajectories, the scenarios in equal shares. `tasks`: of the builtin benchmark, with gold.

    The same arguments give the same set. `said` hears how many there are. UserError: the tasks cannot carry a scenario.
    """
    rng = random.Random(seed)
    order = list(tasks)
    rng.shuffle(order)
    dialect = get_dialect(DIALECT)
    found: list[LabelledTrajectory] = []
    discarded: Counter[str] = Counter()
    names = list(SCENARIOS)
    while len(found) < count:
        name = names[len(found) % len(names)]
        for _ in range(TRIES):
            task = order.pop(0)
            order.append(task)
            try:
                found.append(attempt(task, SCENARIOS[name], sandbox, dialect, rng))
                break
            except Unfit:
                continue
            except Discarded as reason:
                discarded[f"{name}: {reason}"] += 1
        else:
            raise UserError(f"no trajectory {name!r} could be built from {len(order)} tasks; give more tasks")
        said(len(found))
    return Built(found, dict(discarded.most_common()))


def build_folder(
    folder: Path, count: int, seed: int, sandbox: Sandbox, said: Callable[[int], None] = lambda done: None
) -> Built:
    """Write a set, `labelled.jsonl` and the files that it needs, as a folder that can be moved.

    Its questions are held out by the same `seed` in a run (`run.seed`). UserError: the folder holds something else.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / SET_FILE).is_file():
        raise UserError(f"{folder} is not empty and no labelled set; give another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        benchmark, work = Path(scratch) / "benchmark", Path(scratch) / "set"
        path = build(benchmark, seed=seed, train_tasks=0, heldout_tasks=HELDOUT, unseen_tasks=UNSEEN)
        built = build_labelled_set(load_tasks(path), count, seed, sandbox, said)
        for file in sorted({file for item in built.trajectories for file in item.task.files}):
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(benchmark / file, work / file)
        moved = [replace(item, task=replace(item.task, data_dir=str(work.resolve()))) for item in built.trajectories]
        write_labelled(work / SET_FILE, moved)
        if folder.exists():
            shutil.rmtree(folder)
        work.rename(folder)
    return built
