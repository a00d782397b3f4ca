"""`python -m datapm_rl.doctor sandbox|gpu [...]`: looks at this machine before a run; 1 when a check fails."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from datapm_rl.doctor import gpu
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
    trial = parts.add_parser("gpu", help="three steps of the dabench graph with a small policy, and a verdict on them")
    trial.add_argument("--policy", type=Path, help="a Hugging Face folder, about 0.5B parameters")
    trial.add_argument("--dir", type=Path, default=Path("runs"), help="where the run is left (default: runs)")
    trial.add_argument("--gpus", type=int, help="use as many (default: all)")
    trial.add_argument("--twin", action="store_true", help="the same on a CPU, with tiny models")
    arguments = parser.parse_args()
    try:
        if arguments.part == "gpu":
            return _gpu(arguments)
        print(report(arguments.min_level, arguments.max_level, arguments.json))
    except (UserError, InfraError) as error:
        print(f"doctor: {error}", file=sys.stderr)
        return 1
    return 0


def _gpu(arguments: argparse.Namespace) -> int:
    if arguments.twin:
        count = 0
    else:
        visible = gpu.visible_gpus()
        count = visible if arguments.gpus is None else arguments.gpus
        if not 1 <= count <= visible:
            raise UserError(f"--gpus {count}: this machine shows {visible}, so give 1 to {visible}")
    well, text = gpu.check(arguments.dir.resolve(), arguments.policy and arguments.policy.resolve(), count)
    print(text)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
