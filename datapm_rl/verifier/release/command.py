"""`python -m datapm_rl.evaluate release`: score the release's files with a verifier, then choose the best of N.

The same command goes on where it stopped. Without `--input-files` it only reads result files, the release's own too.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from datapm_rl.config import OwnConfig
from datapm_rl.errors import UserError
from datapm_rl.sandbox.workspace import data_files
from datapm_rl.tracking.jsonl import Row, append_rows, write_atomically
from datapm_rl.tracking.lock import only_process
from datapm_rl.verifier.aggregate import RULES
from datapm_rl.verifier.gate.check import identity
from datapm_rl.verifier.local import local_sandbox
from datapm_rl.verifier.overrides import own_config
from datapm_rl.verifier.registry import check_settings, served_verifier
from datapm_rl.verifier.release.best_of_n import best_of_n, choice_line
from datapm_rl.verifier.release.gold import Gold, read_gold
from datapm_rl.verifier.release.reader import Candidate, input_path, read_candidates
from datapm_rl.verifier.release.results import read_results, resume
from datapm_rl.verifier.release.score import Scoring, score
from datapm_rl.verifier.release.settings import check_same_settings
from datapm_rl.verifier.release.statistics import statistics
from datapm_rl.verifier.release.table import by_number, table


def add_parser(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand `release`. Its options have the release's names where it has one."""
    parser = parts.add_parser("release", help="score files of the official release, and choose the best of N")
    add = parser.add_argument
    add("--input-files", metavar="TEMPLATE", help="input files, {} for the number: 'dir/results_{}.json'")
    add("--number", type=int, default=0, help="number of the first file (default: 0)")
    add("--skip", type=int, default=1, metavar="COUNT", help="how many files, one candidate per task each (default: 1)")
    add("--data-dir", type=Path, help="the benchmark's data files")
    add("--output-dir", type=Path, required=True, help="for result_{number}.jsonl and best_of_N.jsonl")
    add("--samples", type=int, default=1, help="passes of the verifier over each candidate (default: 1)")
    add("--concurrency", type=int, default=8, help="candidates at a time (default: 8)")
    add("--final-step-index", type=int, default=10, help="the agent's turn limit: DABStep 10 (default), SAB 15")
    add("--aggregation", choices=list(RULES), default="mean", help="of step scores, to choose by (default: mean)")
    add("--gold", type=Path, help="JSON lines {task_id, answer, grader}: shows the accuracy too")
    add("settings", nargs="*", metavar="key=value", help="settings, such as prm.endpoint=http://host:port/v1")
    parser.set_defaults(run=release)


def release(arguments: argparse.Namespace) -> None:
    """Run the subcommand. Raises UserError, and InfraError "verifier_out"."""
    for name in ("skip", "samples", "concurrency", "final_step_index"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(arguments, name)} must be at least 1")
    gold = read_gold(arguments.gold) if arguments.gold else None
    numbers = range(arguments.number, arguments.number + arguments.skip)
    paths = {number: arguments.output_dir / f"result_{number}.jsonl" for number in numbers}
    if arguments.input_files:
        _score(arguments, paths)
    elif absent := [path for path in paths.values() if not path.exists()]:
        raise UserError(f"{absent[0]} does not exist: give --input-files to make it")
    _report(arguments, paths, gold)


def _score(arguments: argparse.Namespace, paths: dict[int, Path]) -> None:
    """Score the candidates that have no whole row yet."""
    turns = f"agent.max_turns={arguments.final_step_index}"
    config = own_config(["prm.verifier=generative", turns, *arguments.settings])
    check_settings(config.prm)
    if config.prm.verifier in ("none", "reference"):
        raise UserError(f"prm.verifier={config.prm.verifier} cannot score these files: give generative")
    candidates = _candidates(arguments, list(paths))
    _make_folder(arguments.output_dir)
    with only_process(arguments.output_dir, "another --output-dir"):
        _score_left(arguments, paths, config, candidates)


def _score_left(
    arguments: argparse.Namespace, paths: dict[int, Path], config: OwnConfig, candidates: list[Candidate]
) -> None:
    done = {number: resume(path) for number, path in paths.items()}
    left = [each for each in candidates if str(each.task_id) not in done[each.number]]
    print(f"{len(candidates)} candidates, {len(candidates) - len(left)} of them are done", file=sys.stderr, flush=True)
    if not left:
        return
    scoring_of = {"max_turns": config.agent.max_turns, "samples": arguments.samples}
    check_same_settings(arguments.output_dir, identity(config.prm) | scoring_of)
    finished = 0

    def write(candidate: Candidate, row: Row) -> None:
        nonlocal finished
        append_rows(paths[candidate.number], [row])
        finished += 1
        if finished % 10 == 0 or finished == len(left):
            print(f"scored {finished} of {len(left)}", file=sys.stderr, flush=True)

    async def run() -> None:
        async with served_verifier(config.prm) as verifier:
            assert verifier is not None
            with local_sandbox(config.sandbox) as sandbox:
                scoring = Scoring(
                    verifier,
                    sandbox,
                    arguments.data_dir.resolve(),
                    concurrency=arguments.concurrency,
                    deadline_s=config.prm.deadline_s,
                    tamper_policy=config.prm.tamper_policy,
                    max_missing_share=config.prm.max_missing_share,
                    **scoring_of,
                )
                await score(left, scoring, write)

    asyncio.run(run())


def _candidates(arguments: argparse.Namespace, numbers: list[int]) -> list[Candidate]:
    """All candidates, once it is certain that their data files are there."""
    if arguments.data_dir is None:
        raise UserError("--input-files needs --data-dir, the folder of the benchmark's data files")
    template = arguments.input_files
    candidates = [each for number in numbers for each in read_candidates(input_path(template, number), number)]
    for files in {each.files for each in candidates}:
        data_files(arguments.data_dir, files)
    return candidates


def _report(arguments: argparse.Namespace, paths: dict[int, Path], gold: Gold | None) -> None:
    """Print statistics and tables over the result files, and write what was chosen."""
    results = {number: read_results(path) for number, path in paths.items()}
    print(statistics([row for rows in results.values() for row in rows]))
    print(table(results, gold))
    if gold:
        print(by_number(results, arguments.aggregation, gold))
    target = arguments.output_dir / f"best_of_{len(results)}.jsonl"
    write_atomically(target, "".join(choice_line(each) for each in best_of_n(results, arguments.aggregation)))
    print(target)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output-dir {path} cannot be made ({error.strerror}): name another") from None
