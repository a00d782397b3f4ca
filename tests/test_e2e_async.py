"""Real asynchronous runs, killed and gone on with: each prompt is trained on once, by weights that are not too old."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from datapm_rl.tracking.checkpoints import folder_of, is_whole, whole_steps
from datapm_rl.tracking.jsonl import read_rows

pytest.importorskip("verl")
# In CI, the twin of dabench_async is killed and goes on (tests/test_e2e_recipes.py).
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.chaos]

STEPS, BATCH, GROUP, AHEAD, THRESHOLD = 4, 4, 4, 4, 2
SIZES = [
    "tasks.train=60",
    "tasks.heldout=4",
    "tasks.unseen_tables=4",
    "policy.sft_updates=150",
    "policy.sft_demonstrations=300",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.v1.separate_async.parameter_sync_step=2",
]


def start(run_dir: Path, mode: str, *overrides: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "datapm_rl.train", "+recipe=smoke", f"+mode={mode}", f"run.dir={run_dir}"]
    return subprocess.Popen(
        [*command, f"run.name={mode}", *SIZES, *overrides],
        cwd=Path(__file__).parent.parent,
        env={
            **os.environ,
            "WANDB_MODE": "offline",
            "PYTHONPATH": str(Path(__file__).parent),
            "DATAPM_TEST_OUTAGE": str(run_dir / "outage"),
        },
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def kill_after(process: subprocess.Popen, run: Path, step: int, timeout: float = 300) -> None:
    end = time.monotonic() + timeout
    while not is_whole(folder_of(run / "checkpoints", step)):
        if process.poll() is not None or time.monotonic() > end:
            pytest.fail(f"step {step} was not reached: {process.communicate(timeout=30)}")
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)


def wait_for_step(process: subprocess.Popen, run: Path, step: int, timeout: float = 300) -> None:
    end = time.monotonic() + timeout
    while step not in train_rows(run):
        if process.poll() is not None or time.monotonic() > end:
            pytest.fail(f"step {step} was not reached: {process.communicate(timeout=30)}")
        time.sleep(0.1)


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=400)
    return process.returncode, out, err


def dispatch_order(run: Path) -> list[str]:
    """Ids of the training tasks in the order in which an uninterrupted run dispatches them."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import create_rl_sampler

    config = OmegaConf.load(run / "config.yaml")
    tasks = [
        task["id"] for task in read_rows(Path(config.data.train_files[0].split("#")[0])) if task["split"] == "train"
    ]
    return [tasks[index] for index in create_rl_sampler(config.data, tasks)]


def train_rows(run: Path) -> dict[int, dict]:
    return {row["step"]: row for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"}


def check_prompts(run: Path) -> None:
    """Each prompt that was dispatched is trained on once, or in flight, or was replaced because its group failed."""
    trained = Counter(row["task_id"] for row in read_rows(run / "trajectories.jsonl"))
    assert set(trained.values()) == {GROUP}, "a prompt was trained on twice"
    others = AHEAD + sum(int(row["group/failed"]) for row in train_rows(run).values())
    dispatched = set(dispatch_order(run)[: len(trained) + others])
    assert len(dispatched - trained.keys()) == others, "a prompt was lost: one was trained on that is dispatched later"


def check_steps(run: Path) -> None:
    rows, metrics = read_rows(run / "trajectories.jsonl"), train_rows(run)
    assert Counter(row["step"] for row in rows) == dict.fromkeys(range(1, STEPS + 1), BATCH * GROUP)
    for row in rows:
        first, last = row["weight_versions"]
        assert 0 <= first <= last <= row["step"] - 1
        assert row["step"] - 1 - first < THRESHOLD
    assert metrics.keys() == set(range(1, STEPS + 1))
    for step, row in metrics.items():
        versions = [row["weight_versions"] for row in rows if row["step"] == step]
        assert row["async/staleness_max"] == max(step - 1 - first for first, _ in versions)
        assert row["async/span_max"] == max(last - first + 1 for first, last in versions)
    assert max(row["async/staleness_max"] for row in metrics.values()) == 1, "rollout did not run ahead of training"


@pytest.mark.parametrize("mode", ["separate_async", "colocate_async"])
def test_killed_async_run_trains_every_prompt_exactly_once(tmp_path, mode):
    run = tmp_path / mode
    process = start(tmp_path, mode)
    kill_after(process, run, 2)
    code, out, err = finish(start(tmp_path, mode))
    assert code == 0, out + err
    check_prompts(run)
    check_steps(run)
    assert (run / "model" / "config.json").is_file()


@pytest.mark.parametrize("mode", ["separate_async", "colocate_async"])
def test_stopped_async_run_trains_every_prompt_exactly_once(tmp_path, mode):
    run = tmp_path / mode
    process = start(tmp_path, mode)
    wait_for_step(process, run, 1)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130, err
    code, out, err = finish(start(tmp_path, mode))
    assert code == 0, out + err
    check_prompts(run)
    check_steps(run)


@pytest.mark.parametrize("mode", ["separate_async", "colocate_async"])
def test_outage_within_a_step_loses_no_prompt(tmp_path, mode):
    """Without an earlier checkpoint: the stop saves a step of which some mini-batches were trained on, others not."""
    run = tmp_path / mode
    overrides = (
        "prm.verifier=e2e_parts:OutageVerifier",
        "trainer.save_freq=100",
        "trainer.total_training_steps=6",
        "agent.refills=0",
    )
    process = start(tmp_path, mode, *overrides)
    wait_for_step(process, run, 2)
    (tmp_path / "outage").touch()
    code, _, err = finish(process)
    assert code == 3, err
    assert whole_steps(run / "checkpoints"), "no checkpoint"
    (tmp_path / "outage").unlink()
    code, out, err = finish(start(tmp_path, mode, *overrides))
    assert code == 0, out + err
    check_prompts(run)
    assert train_rows(run).keys() == set(range(1, 7))
