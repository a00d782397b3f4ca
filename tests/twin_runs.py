"""Runs of the recipes' CPU twins in processes of their own, as small as they get."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

TESTS = Path(__file__).parent
TINY = (
    "tasks.tables=[penguins]",
    "tasks.train=40",
    "tasks.heldout=4",
    "tasks.unseen_tables=0",
    "policy.sft_updates=60",
    "policy.sft_demonstrations=150",
    "trainer.total_training_steps=2",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.save_freq=1",
)


def start(run_dir: Path, recipe: str, *overrides: str) -> subprocess.Popen:
    """`+recipe=NAME +scale=cpu` with tiny sizes; later overrides win."""
    command = [sys.executable, "-m", "datapm_rl.train", f"+recipe={recipe}", "+scale=cpu", f"run.dir={run_dir}"]
    return subprocess.Popen(
        [*command, *TINY, *overrides],
        cwd=TESTS.parent,
        env={**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": str(TESTS)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen, timeout: float = 400) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; a run that does not end is killed with all that it started."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        for child in [*psutil.Process(process.pid).children(recursive=True), process]:
            child.kill()
        raise
    return process.returncode, out, err


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trained(run: Path) -> list[dict[str, Any]]:
    """Metrics of the training steps."""
    return [row for row in rows(run / "metrics.jsonl") if row["kind"] == "train"]


def wait_for_step(process: subprocess.Popen, run: Path, step: int, timeout: float = 200) -> None:
    """Wait until the metrics of `step` are there."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if any(row["step"] >= step for row in trained(run)):
            return
        if process.poll() is not None:
            pytest.fail(f"ended before step {step}: {process.communicate()}")
        time.sleep(0.2)
    process.kill()
    pytest.fail(f"step {step} was not reached in {timeout} s")


def actors(process: subprocess.Popen, name: str) -> list[psutil.Process]:
    """Ray processes of a run whose actor class contains `name`, or that are `raylet` or `gcs_server`."""
    return [child for child in psutil.Process(process.pid).children(recursive=True) if _is(child, name)]


def _is(child: psutil.Process, name: str) -> bool:
    try:
        title = " ".join(child.cmdline())
        return child.name() == name or (title.startswith("ray::") and name in title)
    except psutil.Error:
        return False


_ASK_RAY = """
import sys
from ray._private.state import GlobalState
from ray._raylet import GcsClientOptions

state = GlobalState()
state._initialize_global_state(GcsClientOptions.create(sys.argv[1], None, True, True))
print(*(row["Pid"] for row in state.actor_table(None, None, None).values() if row["Name"] == sys.argv[2]))
"""


def pid_of_actor(process: subprocess.Popen, name: str) -> int:
    """The process of the actor that Ray knows by `name`; asked with the environment of the run's Ray, for its token."""
    raylet = actors(process, "raylet")[0]
    address = next(found[1] for line in raylet.cmdline() if (found := re.match(r"--gcs-address=(\S+)", line)))
    command = [sys.executable, "-c", _ASK_RAY, address, name]
    asked = subprocess.run(command, env=raylet.environ(), capture_output=True, text=True, timeout=60)
    assert asked.stdout.strip().isdigit(), f"Ray knows no actor {name}: {asked.stdout}{asked.stderr[-1000:]}"
    return int(asked.stdout)


def kill(process: subprocess.Popen, name: str) -> None:
    """kill -9 of the first process that `actors` finds."""
    victims = actors(process, name)
    assert victims, f"no actor {name} in {[' '.join(c.cmdline()) for c in actors(process, '')]}"
    victims[0].send_signal(signal.SIGKILL)
