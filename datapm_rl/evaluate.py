"""`python -m datapm_rl.evaluate PART ...`: measurements that need no training run.

    prm       a verifier against labelled steps (docs/verifier.md, "Gate")
    release   files of the official DataPRM release: scored, and the best of N (docs/verifier.md)

Each part is one subcommand, in its own module. Exit codes: 0 done, 2 bad input, 1 a failure of ours, 130 stopped on
request.
"""

from __future__ import annotations

import argparse
import sys

from datapm_rl.errors import InfraError, UserError
from datapm_rl.verifier.gate import command as gate
from datapm_rl.verifier.release import command as release

PARTS = (gate, release)
"""Modules with `add_parser`, which adds a subcommand whose `run` takes the parsed arguments."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m datapm_rl.evaluate", description=(__doc__ or "").split("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    for part in PARTS:
        part.add_parser(parts)
    parsed = parser.parse_args(arguments)
    try:
        parsed.run(parsed)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except InfraError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; to go on, give the same command", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
