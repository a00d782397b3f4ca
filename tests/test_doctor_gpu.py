"""The check of a GPU machine, as far as a machine without one can tell."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

pytest.importorskip("verl")
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from datapm_rl.compose import compose_config
from datapm_rl.doctor.gpu import overrides
from datapm_rl.doctor.gpu_verdict import judge
from datapm_rl.policy.stand_in_prm import build_stand_in_prm
from datapm_rl.preflight import check_config
from datapm_rl.preflight_placement import check_placement, gpus
from datapm_rl.run import resolve

pytestmark = pytest.mark.unit
REPO = Path(__file__).parents[1]
ROW = {
    "reward/total_mean": 0.4,
    "actor/grad_norm": 1.5,
    "actor/entropy": 0.6,
    "rollout_corr/k3_kl": 0.001,
    "rollout_corr/is_mean": 0.999,
    "actor/rollout_prob_diff_max": 0.2,
    "missing/share": 0.0,
    "sandbox/steps": 70,
    "sandbox/infra_errors": 0,
}
ATTEMPT = {"verdicts": [{"score": 1.0, "skipped": False, "trace": [{"status": "ok"}, {}]}] * 3}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_plan_for_any_number_of_gpus_passes_all_checks_and_fits(count, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    config = compose_config(overrides(tmp_path, count, tmp_path / "policy", tmp_path / "tasks.jsonl"))
    check_config(config)
    assert sum(gpus(config).values()) <= count
    check_placement(config)
    resolved = resolve(config, tmp_path / "tasks.jsonl", ["heldout"], {}, tmp_path / "policy")
    resolved = OmegaConf.create(OmegaConf.to_container(resolved, resolve=True))
    validate_config(resolved, need_reference_policy(resolved), need_critic(resolved))
    omega_conf_to_dataclass(resolved.actor_rollout_ref.actor)
    omega_conf_to_dataclass(resolved.actor_rollout_ref.rollout)
    assert resolved.actor_rollout_ref.rollout.name == "vllm"
    assert resolved.reward.reward_model.enable == (count > 1), "one GPU: the verifier's server is beside the trainer"


def test_healthy_run_is_well():
    assert [finding for finding in judge([ROW] * 3, [ATTEMPT] * 96, 3) if not finding[0]] == []


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("reward/total_mean", None, "finite numbers"),
        ("actor/grad_norm", float("nan"), "finite numbers"),
        ("rollout_corr/k3_kl", 0.4, "rollout against trainer: KL"),
        ("rollout_corr/k3_kl", None, "rollout against trainer: KL"),
        ("rollout_corr/is_mean", 0.7, "rollout against trainer: weights"),
        ("missing/share", 0.5, "trajectories without a reward"),
        ("sandbox/infra_errors", 2, "sandbox errors of our own"),
    ],
)
def test_one_bad_step_is_named(key, value, name):
    findings = judge([ROW, ROW | {key: value}, ROW], [ATTEMPT] * 96, 3)
    assert name in [found for well, found, _ in findings if not well]


def test_run_that_never_has_a_gradient_or_a_step_of_code_is_not_well():
    rows = [ROW | {"actor/grad_norm": 0.0, "sandbox/steps": 0}] * 3
    bad = [name for well, name, _ in judge(rows, [ATTEMPT], 3) if not well]
    assert bad == ["gradient", "pieces of code run in the sandbox"]


@pytest.mark.parametrize("change", [{"score": 0.0}, {"score": None}, {"trace": [{"status": "timeout"}]}])
def test_wrong_missing_or_idle_verdicts_are_not_well(change):
    attempt = copy.deepcopy(ATTEMPT)
    attempt["verdicts"][0] = attempt["verdicts"][0] | change
    assert not judge([ROW] * 3, [attempt] * 3, 3)[-1][0]
    assert not judge([ROW] * 3, [{"verdicts": []}], 3)[-1][0]


def test_too_few_steps_are_not_well():
    assert not judge([ROW], [ATTEMPT], 3)[0][0]
    assert not judge([], [], 3)[0][0]


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine may have a GPU")
@pytest.mark.parametrize(
    "command", [["bash", "launch/gpu_check.sh"], [sys.executable, "-m", "datapm_rl.doctor", "gpu"]]
)
def test_without_a_gpu_it_says_so_in_one_sentence(command):
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert len(done.stderr.strip().splitlines()) == 1
    assert "--twin" in done.stderr


def test_stand_in_has_sizes_that_gpu_engines_take(tmp_path):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(build_stand_in_prm(tmp_path))
    assert config.head_dim in (64, 128)
    assert config.hidden_size % config.head_dim == 0
    assert config.vocab_size % 64 == 0
