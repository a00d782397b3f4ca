"""The sandbox beside a replaying interpreter and a Jupyter kernel, in one run: python -m bench.sandbox

Ten pandas steps over a table of 20,000 rows, the same for every contender; that all print the same is checked.

* this executor  `datapm_rl.sandbox.Sandbox`, pandas preloaded
* replay         a fresh interpreter per step runs all earlier code first, without its prints, as the official
                 DataPRM interpreter does; a branch runs all code again
* Jupyter        a kernel per trajectory (`pip install -e .[bench]`); a branch is a new kernel that runs all code again

"x" is how many times better this executor is. A branch is timed to the end of its first, trivial run. All cores: 2 x
cores workers play whole trajectories, start and end included, of which the median round counts; CPU is that of all
processes, this one and their exits included: on a busy machine trust it more than wall times. Memory is PSS after the
last step, of as many sessions at a time as a round on all cores plays; replay's while a step runs, between steps it
has none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.sandbox_contenders import Contender, Ours, Replay
from bench.sandbox_measure import Settings, measure
from bench.sandbox_processes import CpuClock
from bench.sandbox_table import COLUMNS, goals, print_goals, print_table
from bench.sandbox_trajectory import STEPS, write_table
from datapm_rl.errors import UserError


def jupyter(data: Path) -> Contender | None:
    """None where its packages are not installed."""
    try:
        from bench.sandbox_jupyter import Jupyter
    except ImportError:
        return None
    return Jupyter(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=6, help="rounds: trajectories alone, and per worker")
    parser.add_argument("--quick", action="store_true", help="one trajectory of two steps: does it run at all?")
    parser.add_argument("--level", type=int, help="isolation level of this executor; default: the best there is")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there, too")
    args = parser.parse_args()
    settings = Settings(args.trajectories, 2 * (os.cpu_count() or 1))
    if args.quick:
        settings = Settings(1, 1, STEPS[:2], state_mb=10, warm_up=False)
    clock = CpuClock()
    load_before = os.getloadavg()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-sandbox-") as folder, contextlib.ExitStack() as stack:
            data = Path(folder) / "data"
            data.mkdir()
            write_table(data)
            ours = Ours(data, Path(folder) / "workspaces", args.level)
            stack.enter_context(ours.sandbox)
            level = getattr(ours.sandbox, "level", None)
            contenders = [c for c in (ours, Replay(data), jupyter(data)) if c is not None]
            measured = measure(contenders, settings, clock)
    except UserError as error:
        sys.exit(str(error))
    results = dict.fromkeys(COLUMNS) | {c.name: m for c, m in zip(contenders, measured, strict=True)}
    machine = {
        "cores": os.cpu_count(),
        "workers": settings.workers,
        "level": level,
        "load_before": load_before,
        "load_after": os.getloadavg(),
        "cpu_clock": clock.refused or "perf task clock",
    }
    print(", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in machine.items()), end="\n\n")
    print_table(results, settings.state_mb)
    print_goals(goals(results))
    if args.json:
        numbers = {
            "machine": machine,
            "results": {name: m and asdict(m) for name, m in results.items()},
            "goals": [asdict(goal) for goal in goals(results)],
        }
        temporary = args.json.with_name(args.json.name + ".tmp")
        temporary.write_text(json.dumps(numbers, indent=1))
        temporary.replace(args.json)


if __name__ == "__main__":
    main()
