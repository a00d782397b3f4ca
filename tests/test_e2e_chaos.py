"""Processes of a run are killed in mid-run: it goes on, or ends with a checkpoint and one sentence.

The survivable deaths share one run. The others are marked `chaos`: `python -m pytest -m chaos`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("verl")
from twin_runs import TESTS, finish, kill, pid_of_actor, rows, start, trained, wait_for_step

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("chaos")


def test_a_run_outlives_its_agent_loop_worker_reward_worker_and_sandbox(run_dir):
    run = run_dir / "dabench"
    process = start(run_dir, "dabench", "trainer.total_training_steps=5")
    for step, victim in enumerate(("RolloutWorker", "RewardLoopWorker", "SandboxActor"), start=1):
        wait_for_step(process, run, step)
        time.sleep(0.7)  # into the next step's rollout
        kill(process, victim)
    code, out, err = finish(process)
    assert code == 0, out + err
    attempts = rows(run / "trajectories.jsonl")
    assert Counter(row["step"] for row in attempts) == dict.fromkeys(range(1, 6), 16)
    metrics = trained(run)
    assert metrics[-1]["workers/replaced_agent_loop_workers"] == metrics[-1]["workers/replaced_reward_workers"] == 1
    assert metrics[-1]["workers/redispatched_prompts"] >= 1
    assert max(row["missing/share"] for row in metrics) < 0.5


def ends_with_one_sentence(process: subprocess.Popen, run: Path, code: int, *texts: str, within: float = 150) -> None:
    began = time.monotonic()
    found, _, err = finish(process, timeout=within)
    assert found == code, err
    said = [line for line in err.splitlines() if line.strip()]
    assert len(said) == 1, err
    for text in (*texts, "to go on: python -m datapm_rl.train", "checkpoint of step"):
        assert text in said[0]
    assert time.monotonic() - began < within
    assert (run / "checkpoints" / "latest_checkpointed_iteration.txt").is_file()


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("victim", "code", "text"),
    [
        ("WorkerDict", 1, "died"),
        ("SimpleStorageUnit", 1, "died"),
        ("TransferQueueController", 1, "died"),
        ("Runner", 1, "died"),
        ("CpuServer", 1, "hf_cpu_server_0_0 died"),
        ("raylet", 1, "died"),
        ("gcs_server", 1, "died"),
    ],
)
def test_what_cannot_be_replaced_ends_the_run_with_a_checkpoint_and_one_sentence(victim, code, text, run_dir):
    name = f"run.name={victim}"
    process = start(run_dir, "dabench_outcome", name, "trainer.total_training_steps=40")
    wait_for_step(process, run_dir / victim, 2)
    kill(process, victim)
    ends_with_one_sentence(process, run_dir / victim, code, text)
    code, out, err = finish(start(run_dir, "dabench_outcome", name, "trainer.total_training_steps=4"))
    assert code == 0, out + err


@pytest.mark.chaos
def test_a_dead_verifier_pool_ends_the_run_with_a_checkpoint_and_one_sentence(run_dir):
    deadlines = ("prm.deadline_s=20", "prm.trajectory_deadline_s=40")
    process = start(run_dir, "dabench", "run.name=pool", "trainer.total_training_steps=40", *deadlines)
    wait_for_step(process, run_dir / "pool", 2)
    os.kill(pid_of_actor(process, "hf_cpu_reward_server_0_0"), signal.SIGKILL)
    ends_with_one_sentence(process, run_dir / "pool", 3, "have no reward", within=300)


@pytest.mark.chaos
def test_a_dead_endpoint_ends_the_run_with_a_checkpoint_and_one_sentence(run_dir):
    script = f"{TESTS / 'e2e_verifier_script.py'}:answer"
    command = [sys.executable, str(TESTS / "stub_endpoint.py"), "--script", script, "--latency", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as endpoint:
        address = endpoint.stdout.readline().strip()
        settings = ("run.name=endpoint", "prm_pool=none", f"prm.endpoint={address}", "prm.model=null", "prm.tools=[]")
        process = start(run_dir, "dabench", *settings, "trainer.total_training_steps=40", "prm.deadline_s=20")
        wait_for_step(process, run_dir / "endpoint", 2)
        endpoint.kill()
    ends_with_one_sentence(process, run_dir / "endpoint", 3, "have no reward", within=300)
