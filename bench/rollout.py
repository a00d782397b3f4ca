"""verl's order of rollout and reward beside ours, on simulated H20s, in one run: python -m bench.rollout

Real: the agent loop, tokens, dialect, `VerdictStream`, `Scheduler`, `GenerativeVerifier` with its prompts, budget and
reader, the reward, and the sandbox (in the first two rows; the others replay what its code gave). Simulated: the two
engines (`rollout_engine`: arithmetic from the H20's data sheet), what the models say (`rollout_plan`: Table 7 of
DataPRM), the trainer's update (`rollout_trainer`) and the clock (`rollout_clock`: waits cost no real time, so load of
the machine does not move simulated numbers). Not there: Ray, TransferQueue, HTTP. All is one asyncio process.

* stock, sync             reward after the trajectory: verl's RewardLoop with the reward model in a pool of its own
* stock, sync, in turn    the same with verl's colocated reward model: all rollouts, then all rewards, then the update,
                          each on all 8 GPUs
* ours, sync              step t is verified while the policy writes step t + 1; the final answer is not verified, since
                          eq. 10 replaces its score (`prm.verify_answers: false`, as in the recipes)
* stock, ours, async      rollout goes on during the update, one batch ahead (verl's separate_async)

Then what-if lines: with the final answer verified (what the order alone gives), and with a verifier half and twice as
slow.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench.rollout_engine import DATAPRM, Model
from bench.rollout_plan import batch
from bench.rollout_play import COLOCATED, OURS, STOCK
from bench.rollout_session import RealSessions, RecordedSessions, Sessions
from bench.rollout_trainer import APART, IN_TURN, RECIPE, Batch, Numbers, Run
from bench.sandbox_processes import CpuClock
from bench.sandbox_trajectory import write_table
from datapm_rl.sandbox import Limits, Sandbox

STOCK_SYNC, TURN_SYNC, OURS_SYNC = "stock, sync", "stock, sync, in turn", "ours, sync"
STOCK_ASYNC, OURS_ASYNC = "stock, async", "ours, async"
_FASTER, _IDLE = 1.3, 0.10  # wanted

Rows = dict[str, Numbers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small batch, no what-if lines: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there, too")
    args = parser.parse_args()
    prompts, group, steps = (2, 2, 1) if args.quick else (32, 4, 3)
    clock, load = CpuClock(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-rollout-") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        write_table(data)
        batches = [batch(str(data), number, prompts, group) for number in range(steps + 2)]
        with Sandbox(Limits(wall_s=120), workspace_root=Path(folder) / "work", keep="all") as sandbox:
            recorded = RecordedSessions(sandbox, str(data))
            rows = measure(RealSessions(sandbox), recorded, clock, batches)
            show(rows, prompts * group, [load, os.getloadavg()[0]], clock.refused)
            if not args.quick:
                rows |= what_if(recorded, clock, batches, rows)
    if args.json:
        temporary = args.json.with_name(args.json.name + ".tmp")
        temporary.write_text(json.dumps({name: asdict(row) for name, row in rows.items()}, indent=1) + "\n")
        temporary.replace(args.json)


def measure(real: Sessions, recorded: Sessions, clock: CpuClock, batches: Sequence[Batch]) -> Rows:
    """The rows of the table."""
    return {
        STOCK_SYNC: Run(real, clock, RECIPE, STOCK, batches[:1]).sync(),
        OURS_SYNC: Run(real, clock, RECIPE, OURS, batches[:1]).sync(),
        TURN_SYNC: Run(recorded, clock, IN_TURN, COLOCATED, batches[:1]).sync(),
        STOCK_ASYNC: Run(recorded, clock, APART, STOCK, batches).asynchronous(),
        OURS_ASYNC: Run(recorded, clock, APART, OURS, batches).asynchronous(),
    }


def show(rows: Rows, trajectories: int, load: list[float], refused: str | None) -> None:
    """The table, and what was wanted. `trajectories`: of a step."""
    stock, ours = rows[STOCK_SYNC], rows[OURS_SYNC]
    print(
        f"{stock.steps:.2f} turns and {stock.tokens:.0f} tokens per trajectory, {stock.verifier_tokens:.0f} tokens per "
        f"verification; load {load[0]:.1f} to {load[1]:.1f}; {sum(row.real_s for row in rows.values()):.0f} s"
    )
    print(f"{'':24}{'per s':>8}{'x stock':>9}{'idle':>7}{'lag s':>8}{'PRM busy':>10}{'verdict s, worst':>18}")
    for name, row in rows.items():
        print(
            f"{name:24}{row.trajectories_per_s:8.3f}{row.trajectories_per_s / stock.trajectories_per_s:9.2f}"
            f"{row.idle:7.0%}{row.lag_s:8.0f}{row.prm_busy:10.0%}"
            f"{row.verification_s:10.0f}{row.slowest_verification_s:8.0f}"
        )
    own, without_sandbox = 1e3 * ours.own_cpu_s, 1e3 * rows[OURS_ASYNC].own_cpu_s
    print(
        f"own overhead per trajectory: {own:.0f} ms of CPU ({own / ours.steps:.1f} per step), of which "
        f"{own - without_sandbox:.0f} ms call the sandbox; the sandbox's processes, user code included: "
        + (f"not counted ({refused})" if refused else f"{1e3 * ours.sandbox_cpu_s:.0f} ms")
    )
    step_s = trajectories / stock.trajectories_per_s
    print(
        f"a step of {STOCK_SYNC} takes {step_s:.0f} s, its rollout {stock.rollout_s:.0f}: what runs beside the rollout "
        f"can make it {step_s / (step_s - stock.rollout_s):.2f} times as fast at most"
    )
    for name, first, second in (("sync", STOCK_SYNC, OURS_SYNC), ("async", STOCK_ASYNC, OURS_ASYNC)):
        _goal(f"trajectories/s, {name}, ours / stock", _ratio(rows, second, first), f">= {_FASTER}", _is_faster)
    _goal("trajectories/s, ours async / stock sync", _ratio(rows, OURS_ASYNC, STOCK_SYNC), f">= {_FASTER}", _is_faster)
    _goal("trainer idle, ours async", rows[OURS_ASYNC].idle, f"<= {_IDLE}", lambda idle: idle <= _IDLE)


def what_if(recorded: Sessions, clock: CpuClock, batches: Sequence[Batch], rows: Rows) -> Rows:
    """Further rows, printed as they come."""
    found: Rows = {}

    def pair(name: str, order: str, prm: Model = DATAPRM, final: bool | None = None) -> tuple[Numbers, Numbers]:
        sync = Run(recorded, clock, RECIPE, order, batches[:1], prm, final).sync()
        asynchronous = Run(recorded, clock, APART, order, batches, prm, final).asynchronous()
        found[f"{name}, {order}, sync"], found[f"{name}, {order}, async"] = sync, asynchronous
        return sync, asynchronous

    def line(name: str, base: Sequence[Numbers], ours: Sequence[Numbers]) -> None:
        ratios = [our.trajectories_per_s / their.trajectories_per_s for our, their in zip(ours, base, strict=True)]
        print(f"{name}: ours / stock {ratios[0]:.2f} sync, {ratios[1]:.2f} async; idle {ours[1].idle:.0%}", flush=True)

    base = (rows[STOCK_SYNC], rows[STOCK_ASYNC])
    line("final answer verified too", base, pair("final too", OURS, final=True))
    for times in (0.5, 2.0):
        prm = replace(DATAPRM, slowness=times)
        name = f"verifier x {times} as slow"
        line(name, pair(name, STOCK, prm), pair(name, OURS, prm))
    return found


def _ratio(rows: Rows, ours: str, stock: str) -> float:
    return rows[ours].trajectories_per_s / rows[stock].trajectories_per_s


def _is_faster(ratio: float) -> bool:
    return ratio >= _FASTER


def _goal(what: str, value: float, wanted: str, met: Callable[[float], bool]) -> None:
    print(f"{what:42}{value:7.2f}   wanted {wanted}: {'yes' if met(value) else 'NO'}", flush=True)


if __name__ == "__main__":
    main()
