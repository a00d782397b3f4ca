"""`python -m datapm_rl.data KIND --source PATH --out FOLDER`: questions and files become a folder that trains.

    dabench      DABench's folder: questions and labels as JSON lines, tables
    tablebench   TableBench.jsonl
    datamind     DataMind's training questions
    folder       a folder of yours: data files, and questions.csv or questions.jsonl

Every row is checked and every bad row is named. FOLDER gets tasks.parquet (verl's layout; `tasks.path` of a run),
files/ and fingerprint.json. Exit codes: 0 written, 2 bad input and nothing written (docs/training.md, "Data").
"""

from __future__ import annotations

import argparse
import sys

from datapm_rl.data.command import BY_FILE, READERS, run
from datapm_rl.dialects import DIALECTS
from datapm_rl.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m datapm_rl.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, reader in READERS.items():
        _add_options(kinds.add_parser(kind, help=reader.EXPECTED, description=reader.__doc__), reader.EXPECTED)
    try:
        return run(parser.parse_args(arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130


def _add_options(parser: argparse.ArgumentParser, expected: str) -> None:
    add = parser.add_argument
    add("--source", required=True, metavar="PATH", help=expected)
    add("--out", required=True, metavar="FOLDER", help="the folder to write")
    add("--files", metavar="FOLDER", help="where the data files are, if not where the source has them")
    add(
        "--split",
        metavar="NAME",
        help=f"split of all tasks (train, heldout, ...), or {BY_FILE}: train and heldout without a common data file",
    )
    add("--heldout", type=_share, metavar="SHARE", help=f"share of tasks held out by {BY_FILE} (0.2)")
    add("--seed", type=int, default=0, metavar="N", help=f"seed of {BY_FILE} (0)")
    add(
        "--against",
        nargs="+",
        default=[],
        metavar="TASKS",
        help="evaluation sets (task files or prepared folders) with which no data file and no question may be shared",
    )
    add("--dialect", default="deepanalyze", choices=sorted(DIALECTS), help="wording of the column prompt (deepanalyze)")
    add(
        "--skip-bad",
        action="store_true",
        help="leave bad rows out; without it one bad row means that nothing is written",
    )
    add("--force", action="store_true", help="replace the prepared folder of that name")


def _share(text: str) -> float:
    share = float(text)
    if not 0.0 < share < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return share


if __name__ == "__main__":
    sys.exit(main())
