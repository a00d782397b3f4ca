"""`python -m datapm_rl.evaluate prm`: build a labelled set, or score a verifier on one."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

from datapm_rl.config import OwnConfig
from datapm_rl.errors import UserError
from datapm_rl.tracking.jsonl import write_atomically
from datapm_rl.tracking.lock import only_process
from datapm_rl.tracking.progress import clock
from datapm_rl.verifier.gate.labelled import LabelledTrajectory, read_labelled
from datapm_rl.verifier.gate.report import summary, table
from datapm_rl.verifier.gate.run import RESULTS_FILE, Results, header_of, verify_set
from datapm_rl.verifier.local import local_sandbox
from datapm_rl.verifier.overrides import own_config
from datapm_rl.verifier.registry import check_settings, served_verifier

SUMMARY_FILE = "summary.json"
_PROGRESS_S = 5.0


def add_parser(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand `prm`."""
    parser = parts.add_parser("prm", help="a verifier against labelled steps; or build such a set")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--set", type=Path, help="labelled set to score a verifier on (labelled.jsonl)")
    what.add_argument("--build", type=Path, metavar="FOLDER", help="build a labelled set over the builtin tables")
    parser.add_argument("--out", type=Path, help="folder of the results; the same one goes on (default: gate)")
    parser.add_argument("--concurrency", type=int, default=4, help="trajectories at a time (default: 4)")
    parser.add_argument("--count", type=int, default=500, help="trajectories to build (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="of the built set; as run.seed: questions held out there")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings, such as prm.verifier=generative")
    parser.set_defaults(run=prm)


def prm(arguments: argparse.Namespace) -> None:
    """Run the subcommand. Raises UserError."""
    config = own_config(arguments.settings)
    for name in ("count", "concurrency"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name} {getattr(arguments, name)} must be at least 1")
    if arguments.build:
        _build(arguments.build, arguments.count, arguments.seed, config)
    else:
        _score(arguments.set, arguments.out or Path("gate"), arguments.concurrency, config)


def _build(folder: Path, count: int, seed: int, config: OwnConfig) -> None:
    from datapm_rl.verifier.gate.construct import SET_FILE, build_folder  # needs the demonstrator, and with it torch

    progress = _Progress(count)
    with local_sandbox(config.sandbox) as sandbox:
        built = build_folder(folder, count, seed, sandbox, progress.at)
    kinds: dict[str, int] = {}
    for kind in (kind for item in built.trajectories for kind in item.kinds):
        kinds[kind] = kinds.get(kind, 0) + 1
    print(f"{folder / SET_FILE}: {count} trajectories, {sum(kinds.values())} steps")
    print(", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items(), key=lambda item: -item[1])))
    print(f"thrown away, since a step did not come out as planned: {sum(built.discarded.values())}")
    for reason, number in built.discarded.items():
        print(f"  {number:4} {reason}")


def _score(path: Path, out: Path, concurrency: int, config: OwnConfig) -> None:
    check_settings(config.prm)
    trajectories = read_labelled(path)
    header = header_of(trajectories, config)
    out.mkdir(parents=True, exist_ok=True)
    with only_process(out, "another --out"):
        results = Results(out / RESULTS_FILE, header)
        asyncio.run(_verify(trajectories, config, results, concurrency))
    report = summary(header, trajectories, [results.done[number] for number in range(len(trajectories))])
    write_atomically(out / SUMMARY_FILE, json.dumps(report, indent=1) + "\n")
    print(table(report))
    print(f"\n{out / SUMMARY_FILE}")


async def _verify(
    trajectories: list[LabelledTrajectory], config: OwnConfig, results: Results, concurrency: int
) -> None:
    progress = _Progress(len(trajectories))

    def said() -> None:
        progress.at(len(results.done), results.missing)

    async with served_verifier(config.prm) as verifier:
        if verifier is None:
            raise UserError("prm.verifier=none has no verdicts: name the verifier to measure")
        with local_sandbox(config.sandbox) as sandbox:
            await verify_set(trajectories, verifier, config, sandbox, results, concurrency, said)


class _Progress:
    """A line on stderr every few seconds: how far, and the time left by the pace since the start of this process."""

    def __init__(self, total: int):
        self._total, self._start, self._last = total, time.monotonic(), 0.0
        self._before: int | None = None  # what an earlier process has done

    def at(self, done: int, missing: int = 0) -> None:
        """`done` trajectories, with so many missing verdicts."""
        now = time.monotonic()
        self._before = done - 1 if self._before is None else self._before
        if now - self._last < _PROGRESS_S and done < self._total:
            return
        self._last = now
        left = (now - self._start) / (done - self._before) * (self._total - done)
        lost = f", {missing} verdicts missing" if missing else ""
        print(
            f"[{now - self._start:4.0f} s] {done}/{self._total}{lost}, ETA {clock(left)}", file=sys.stderr, flush=True
        )
