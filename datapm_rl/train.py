"""`python -m datapm_rl.train +recipe=NAME [key=value ...]`: prepare, train, export, report.

The command is idempotent: the same command resumes an unfinished run from its last checkpoint, and says so when the
run is finished. Exit codes: 0 finished, 2 bad input, 3 stopped by the missing-data rule, 4 nothing left to
train though `trainer.total_training_steps` is not reached, 130 stopped on request, 1 anything else (with the path of
the log).
"""

from __future__ import annotations

import os
import shlex
import sys

# Before torch, transformers, Ray: one thread per process, no look-ups of a model hub.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("RAY_task_events_report_interval_ms", "0")  # nobody reads them without a dashboard
os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: any other program would starve the run

from datapm_rl.compose import CONFIG_DIR, compose_config, in_order, recipes
from datapm_rl.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if any(text.startswith("-") for text in arguments):
        return _hydra_flags(arguments)
    try:
        if not any(text.startswith("+recipe=") for text in arguments):
            raise UserError(f"give a recipe: +recipe=NAME, where NAME is one of {', '.join(recipes())}")
        config = compose_config(arguments)
        from datapm_rl.run import run

        return run(config, command=_command(arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped before training; to go on: {_command(arguments)}", file=sys.stderr)
        return 130


def _command(arguments: list[str]) -> str:
    return f"python -m datapm_rl.train {shlex.join(arguments)}"


def _hydra_flags(arguments: list[str]) -> int:
    """`--cfg job`, `--help` and Hydra's other flags, which print and do not train."""
    import hydra

    from datapm_rl.config import register_schema

    register_schema()
    overrides = [text for text in arguments if "=" in text and not text.startswith("-")]
    sys.argv[1:] = [*(text for text in arguments if text not in overrides), *in_order(overrides)]
    hydra.main(config_path=str(CONFIG_DIR), config_name="train", version_base=None)(lambda config: None)()
    return 0


if __name__ == "__main__":
    sys.exit(main())
