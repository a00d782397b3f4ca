"""`python -m datapm_rl.doctor sandbox [--min-level N] [--max-level N] [--json]`: exits with 1 when a check fails."""

from __future__ import annotations

import argparse
import sys

from datapm_rl.doctor.sandbox import report
from datapm_rl.errors import InfraError, UserError


def main() -> int:
    """Parse, check, print."""
    parser = argparse.ArgumentParser(prog="python -m datapm_rl.doctor", description="Checks this machine before a run.")
    parts = parser.add_subparsers(dest="part", required=True)
    sandbox = parts.add_parser("sandbox", help="at which level this machine can confine the agents' code, and proof")
    sandbox.add_argument("--min-level", type=int, default=2, help="as sandbox.min_level in a run (default: 2)")
    sandbox.add_argument("--max-level", type=int, default=4, help="try nothing better than this (default: 4)")
    sandbox.add_argument("--json", action="store_true", help="for programs")
    arguments = parser.parse_args()
    try:
        print(report(arguments.min_level, arguments.max_level, arguments.json))
    except (UserError, InfraError) as error:
        print(f"doctor: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
