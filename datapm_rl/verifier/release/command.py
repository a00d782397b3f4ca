"""`python -m datapm_rl.evaluate release`: score the release's files with a verifier, then choose the best of N.

The same command goes on where it stopped. Without `--input-files` it only reads result files, the release's own too.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from pathlib import Path

from datapm_rl.config import SandboxConfig
from datapm_rl.errors import InfraError, UserError
from datapm_rl.sandbox import Limits, Sandbox
from datapm_rl.sandbox.workspace import data_files
from datapm_rl.tracking.jsonl import Row, append_rows, write_atomically
from datapm_rl.verifier.aggregate import RULES
from datapm_rl.verifier.registry import endpoint_chat, make_verifier
from datapm_rl.verifier.release.best_of_n import best_of_n, choice_line
from datapm_rl.verifier.release.gold import Gold, read_gold
from datapm_rl.verifier.release.reader import Candidate, input_path, read_candidates
from datapm_rl.verifier.release.results import read_results, resume
from datapm_rl.verifier.release.score import Scoring, score
from datapm_rl.verifier.release.settings import check_same_settings, read_settings
from datapm_rl.verifier.release.statistics import statistics
from datapm_rl.verifier.release.table import by_number, table

_STOPPED = 3  # exit code, as of a training run that the missing-data rule stops


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments. Names are the release's where it has one."""
    add = parser.add_argument
    add("--input-files", metavar="TEMPLATE", help="input files, {} for the number: 'dir/results_{}.json'")
    add("--number", type=int, default=0, help="number of the first file (default 0)")
    add("--skip", type=int, default=1, metavar="COUNT", help="how many files, one candidate per task each (default 1)")
    add("--data-dir", type=Path, help="the benchmark's data files")
    add("--output-dir", type=Path, required=True, help="for result_{number}.jsonl and best_of_N.jsonl")
    add("--samples", type=int, default=1, help="verifications of each candidate (default 1)")
    add("--concurrency", type=int, default=8, help="candidates at a time (default 8)")
    add("--final-step-index", type=int, default=10, help="the agent's turn limit: DABStep 10 (default), SAB 15")
    add("--aggregation", choices=list(RULES), default="mean", help="of step scores, to choose by (default mean)")
    add("--gold", type=Path, help="JSON lines {task_id, answer, grader}: print the accuracy too")
    add("overrides", nargs="*", metavar="prm.KEY=VALUE", help="settings of the verifier and the sandbox")


def run(args: argparse.Namespace) -> int:
    """Carry the command out; returns its exit code. UserError: bad input."""
    for name in ("skip", "samples", "concurrency", "final_step_index"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(args, name)}: give 1 or more")
    gold = read_gold(args.gold) if args.gold else None
    paths = {
        number: args.output_dir / f"result_{number}.jsonl" for number in range(args.number, args.number + args.skip)
    }
    code = _score(args, paths) if args.input_files else 0
    _report(args, paths, gold)
    return code


def _score(args: argparse.Namespace, paths: dict[int, Path]) -> int:
    prm, sandbox = read_settings(args.overrides)
    if args.data_dir is None:
        raise UserError("--input-files needs --data-dir, the folder of the benchmark's data files")
    candidates = [each for number in paths for each in read_candidates(input_path(args.input_files, number), number)]
    for files in {each.files for each in candidates}:
        data_files(args.data_dir, files)
    _make_folder(args.output_dir)
    done = {number: resume(path) for number, path in paths.items()}
    left = [each for each in candidates if str(each.task_id) not in done[each.number]]
    print(f"{len(candidates)} candidates, {len(candidates) - len(left)} of them are done", flush=True)
    if not left:
        return 0
    verifier = make_verifier(prm, lambda: endpoint_chat(prm))
    assert verifier is not None, "prm.verifier=none was refused"
    check_same_settings(args.output_dir, prm, samples=args.samples, final_step_index=args.final_step_index)
    finished = 0

    def write(candidate: Candidate, row: Row) -> None:
        nonlocal finished
        append_rows(paths[candidate.number], [row])
        finished += 1
        if finished % 10 == 0 or finished == len(left):
            print(f"scored {finished} of {len(left)}", flush=True)

    with _sandbox(sandbox) as place:
        scoring = Scoring(
            verifier,
            place,
            args.data_dir.resolve(),
            samples=args.samples,
            concurrency=args.concurrency,
            max_turns=args.final_step_index,
            deadline_s=prm.deadline_s,
            tamper_policy=prm.tamper_policy,
            max_missing_share=prm.max_missing_share,
        )
        try:
            asyncio.run(score(left, scoring, write))
        except InfraError as error:
            print(f"stopped: {error.detail}; the same command goes on once it answers", file=sys.stderr)
            return _STOPPED
    return 0


def _report(args: argparse.Namespace, paths: dict[int, Path], gold: Gold | None) -> None:
    """Print statistics and tables over the result files that are there, and write what was chosen."""
    results = {number: read_results(path) for number, path in paths.items() if path.exists()}
    if not results:
        raise UserError(f"{args.output_dir} has no result_{args.number}.jsonl: give --input-files to make it")
    print(statistics([row for rows in results.values() for row in rows]))
    print(table(results, gold))
    if gold:
        print(by_number(results, args.aggregation, gold))
    target = args.output_dir / f"best_of_{len(results)}.jsonl"
    write_atomically(target, "".join(choice_line(each) for each in best_of_n(results, args.aggregation)))
    print(f"written: {target}")


def _sandbox(config: SandboxConfig) -> Sandbox:
    """States older than the newest are not branched from: no process is kept for them."""
    limits = Limits(**{limit.name: getattr(config, limit.name) for limit in dataclasses.fields(Limits)})
    return Sandbox(
        limits,
        config.preload,
        keep="last",
        min_level=config.min_level,
        max_level=config.max_level,
        read_only=config.read_only,
        recycle_after=config.recycle_after,
    )


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output-dir {path} cannot be made ({error.strerror}): name another") from None
