"""Verifying with real code at realistic latencies, in one run: python -m bench.verification

The endpoint is a stub process that takes as long as DataPRM does, scaled down (`verification_plan`); client, loop,
prompts, sandbox and schedule are the real ones. All contenders meet the same replies and latencies.

* serial      the official loop: one verification after another, after the rollout; each in a workspace of its own where
              the code of all steps so far runs again, and each piece of the verifier's code runs on a replay of all of
              it. (Kinder than the original, which starts an interpreter and imports pandas each time.)
* parallel    after the rollout, so many verifications at a time, on branches; those of a trajectory in order
* streaming   verification beside the rollout: step t is judged while the policy writes step t + 1. Twice: with a policy
              that takes 1.5 verifications for a turn, and with one that takes half of one

"ideal" is the time that replies alone take: of all of them divided by the concurrency, or of the longest trajectory.
The critical path of a streamed trajectory is its rollout with the verifications that cannot overlap it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.sandbox_trajectory import write_table
from bench.verification_contenders import Attempt, attempts, parallel, serial, streaming, stub
from bench.verification_plan import SCALE, SECONDS, plan
from datapm_rl.sandbox import Limits, Sandbox


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5, help="of a trajectory, at most 10")
    parser.add_argument("--concurrency", type=int, default=16, help="verifications at a time")
    parser.add_argument("--serial", type=int, default=3, help="trajectories that the serial loop gets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there, too")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-verification-") as folder, stub() as url:
        data = Path(folder) / "data"
        data.mkdir()
        write_table(data)
        found = attempts(data, args.trajectories, args.steps)
        limits = Limits(wall_s=30)
        with Sandbox(limits, workspace_root=Path(folder) / "work", keep="all") as sandbox:
            numbers = measure(found, sandbox, url, args.concurrency, args.serial)
    numbers["load"] = [load, os.getloadavg()[0]]
    show(numbers)
    if args.json:
        args.json.write_text(json.dumps(numbers, indent=1) + "\n")


def measure(
    found: Sequence[Attempt], sandbox: Sandbox, url: str, concurrency: int, serial_count: int
) -> dict[str, Any]:
    """All numbers, in seconds as they passed here."""
    plans = [[plan(attempt.task.id, step.index).seconds for step in attempt.steps] for attempt in found]
    count, total = sum(map(len, plans)), sum(map(sum, plans))
    one = total / count
    numbers: dict[str, Any] = {"scale": SCALE, "concurrency": concurrency, "verifications": count, "replies_s": one}
    numbers["serial_s"] = asyncio.run(serial(found[:serial_count], sandbox, url))
    numbers["serial_replies_s"] = statistics.mean(second for row in plans[:serial_count] for second in row)
    wall, verdicts = asyncio.run(parallel(found, sandbox, url, concurrency))
    assert all(verdict.score == 1.0 for verdict in verdicts), [v.cause for v in verdicts if v.score != 1.0]
    numbers["parallel_s"] = wall / count
    numbers["ideal_s"] = max(total / concurrency, max(map(sum, plans))) / count
    for name in ("turns", "executions"):
        numbers[name] = statistics.mean(verdict.cost[name] for verdict in verdicts)
    for name, share in (("slow", 1.5), ("fast", 0.5)):
        rows = asyncio.run(streaming(found[:concurrency], sandbox, url, concurrency, share * SECONDS * SCALE))
        numbers[f"streaming_{name}"] = {
            "turn_in_verifications": share,
            "lag_in_verifications": statistics.mean(row.lag_s for row in rows) / one,
            "post_hoc_in_verifications": count / len(found),
            "wall_over_critical_path": statistics.mean(row.wall_s / row.critical_s for row in rows),
        }
    return numbers


def show(numbers: dict[str, Any]) -> None:
    """The table."""
    serial_s, parallel_s = numbers["serial_s"], numbers["parallel_s"]
    count, turns, executions = numbers["verifications"], numbers["turns"], numbers["executions"]
    print(f"{count} verifications of {turns:.2f} turns and {executions:.2f} executions")
    print(f"one paper second is {numbers['scale']:g} s here; load {numbers['load'][0]:.1f} to {numbers['load'][1]:.1f}")
    print(f"{'':28}{'s per verification':>20}{'x serial':>10}")
    print(f"{'serial (official loop)':28}{serial_s:20.3f}{1:10.1f}")
    print(f"{'parallel':28}{parallel_s:20.3f}{serial_s / parallel_s:10.1f}   wanted >= 7.5 (the paper's own)")
    print(f"{'ideal at ' + str(numbers['concurrency']) + ' at a time':28}{numbers['ideal_s']:20.3f}")
    print(f"parallel reaches {numbers['ideal_s'] / parallel_s:.2f} of the ideal   wanted >= 0.90")
    for name in ("slow", "fast"):
        row = numbers[f"streaming_{name}"]
        print(
            f"streaming, a turn takes {row['turn_in_verifications']} verifications: reward ready "
            f"{row['lag_in_verifications']:.2f} verifications after the end (post hoc "
            f"{row['post_hoc_in_verifications']:.1f}; wanted <= 1.2 for the first), wall time "
            f"{row['wall_over_critical_path']:.3f} of the critical path (wanted <= 1.10)"
        )


if __name__ == "__main__":
    main()
