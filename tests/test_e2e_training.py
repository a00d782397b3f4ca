"""Real runs of the smoke recipe: verl's trainer, Ray, the sandbox, the engine, the verifier. About a minute each."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("verl")
pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TESTS = Path(__file__).parent
STEPS = 4


def command(run_dir: Path, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "datapm_rl.train", "+recipe=smoke", f"run.dir={run_dir}", *overrides]


def start(run_dir: Path, *overrides: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "WANDB_MODE": "offline"}
    return subprocess.Popen(
        command(run_dir, *overrides),
        cwd=TESTS.parent,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen, timeout: float = 400) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_step(process: subprocess.Popen, run: Path, step: int, timeout: float = 300) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"ended before step {step}: {process.communicate()}")
        if (run / "checkpoints" / f"global_step_{step}" / "data.pt").exists():
            return
        time.sleep(0.2)
    pytest.fail(f"step {step} was not reached in {timeout} s")


def prompts(run: Path) -> list[tuple[int, str]]:
    """(step, task) of every trajectory, in a fixed order within a step."""
    return sorted((row["step"], row["task_id"]) for row in rows(run / "trajectories.jsonl"))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """Parent of all runs of this file: tasks and policy are built once."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def whole_run(run_dir) -> tuple[Path, str]:
    code, out, err = finish(start(run_dir))
    assert code == 0, out + err
    return run_dir / "smoke", out


def test_smoke_run_leaves_everything_it_promises(whole_run):
    run, out = whole_run
    metrics = rows(run / "metrics.jsonl")
    assert [row["step"] for row in metrics if row["kind"] == "train"] == list(range(1, STEPS + 1))
    assert [row["step"] for row in metrics if row["kind"] == "validation"] == [0, 2, 4]
    trained = [row for row in metrics if row["kind"] == "train"]
    assert all(row["missing/share"] == 0 for row in trained)
    assert all(row["actor/grad_norm"] > 0 for row in trained), "no step changed the weights"
    assert max(row["actor/rollout_prob_diff_max"] for row in trained) < 1e-3, "rollout and trainer disagree"
    attempts = rows(run / "trajectories.jsonl")
    assert len(attempts) == STEPS * 16
    assert all(len(row["verdicts"]) == len(row["steps"]) for row in attempts)
    assert all(row["sandbox/level"] >= 2 and row["sandbox/infra_errors"] == 0 for row in trained)
    [proof] = json.loads((run / "isolation.json").read_text()).values()
    assert set(proof["probes"].values()) == {"held"}
    for name in ("config.yaml", "versions.json", "fingerprints.json", "summary.json", "curves.png"):
        assert (run / name).is_file(), name
    assert any((run / "tensorboard").iterdir())
    assert any((run / "wandb").iterdir())
    for text in ("held-out", "95 % interval", "reference: knows the reference program", str(run)):
        assert text in out


def test_process_reward_is_what_the_paper_says(whole_run):
    """Eq. 10, then eq. 8, recomputed from the records."""
    for row in rows(whole_run[0] / "trajectories.jsonl"):
        reward = row["reward"]
        scores = [*(verdict["score"] for verdict in row["verdicts"][:-1]), reward["acc"]]
        present = [score for score in scores if score is not None]
        assert reward["total"] == pytest.approx(0.5 * reward["acc"] + 0.5 * sum(present) / len(present))


def test_exported_model_differs_from_the_cold_start_and_loads(whole_run):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, _ = whole_run
    trained = AutoModelForCausalLM.from_pretrained(run / "model").state_dict()
    start_folder = next((run.parent / "cache" / "policies").glob("policy-*"))
    cold = AutoModelForCausalLM.from_pretrained(start_folder).state_dict()
    assert trained.keys() == cold.keys()
    assert any(not torch.equal(trained[name], cold[name]) for name in cold)
    assert AutoTokenizer.from_pretrained(run / "model").chat_template


def test_finished_run_says_so_at_once(whole_run):
    code, out, _ = finish(start(whole_run[0].parent), timeout=60)
    assert code == 0
    assert "is finished" in out


@pytest.mark.parametrize("kill", [False, pytest.param(True, marks=pytest.mark.chaos)], ids=["stopped", "killed"])
def test_interrupted_run_ends_as_an_uninterrupted_one(kill, run_dir, whole_run):
    name = f"interrupted_{kill}"
    run = run_dir / name
    process = start(run_dir, f"run.name={name}")
    wait_for_step(process, run, random.randint(1, STEPS - 2) if kill else 1)
    if kill:
        time.sleep(random.uniform(0, 3))
        process.kill()
        process.communicate()
    else:
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        assert code == 130
        assert "stands; to go on: python -m datapm_rl.train" in err
    code, out, err = finish(start(run_dir, f"run.name={name}"))
    assert code == 0, out + err
    assert prompts(run) == prompts(whole_run[0])
    assert {path.name for path in run.iterdir()} == {path.name for path in whole_run[0].iterdir()}
    assert len(list((run / "checkpoints").glob("global_step_*"))) == 2
    steps = [(row["kind"], row["step"]) for row in rows(run / "metrics.jsonl")]
    assert sorted(steps) == sorted((row["kind"], row["step"]) for row in rows(whole_run[0] / "metrics.jsonl"))


@pytest.mark.chaos
def test_broken_verifier_stops_the_run_with_a_checkpoint(run_dir):
    code, _, err = finish(start(run_dir, "run.name=broken", "prm.verifier=e2e_parts:BrokenVerifier"))
    assert code == 3, err
    assert "have no reward" in err
    assert "no_verdicts; verdicts: " in err
    assert "x unreachable" in err
    assert "Traceback" not in err
    assert (run_dir / "broken" / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "0"
