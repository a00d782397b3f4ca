"""Bad settings are one sentence that names the key and the nearest valid one, before anything starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from omegaconf import OmegaConf
from safetensors.numpy import save_file

from datapm_rl.compose import CONFIG_DIR, compose_config, config_differences, recipes
from datapm_rl.errors import UserError
from datapm_rl.preflight import check_config, check_machine, check_model_folder
from datapm_rl.prepare import total_steps
from datapm_rl.trajectory import Task

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def quickstart():
    return compose_config(["+recipe=quickstart"])


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["+recipe=quickstat"], "nearest is quickstart"),
        (["+recipe=quickstart", "run.nam=x"], "nearest is run.name"),
        (["+recipe=quickstart", "prm.bета=0"], "write key=value"),
        (
            ["+recipe=quickstart", "actor_rollout_ref.actor.optim.lrr=1"],
            "nearest is actor_rollout_ref.actor.optim.lr",
        ),
        (["+recipe=quickstart", "prm.beta=much"], "prm.beta"),
        (["+recipe=quickstart", "trainer=3=4"], "trainer"),
    ],
)
def test_wrong_override_names_the_key(overrides, named):
    with pytest.raises(UserError) as caught:
        compose_config(overrides)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_typo_in_a_recipe_is_found(tmp_path, monkeypatch):
    for name in ("train.yaml", "platform"):
        (tmp_path / name).symlink_to(CONFIG_DIR / name)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text("# @package _global_\ntrainer:\n  total_trainig_steps: 3\n")
    monkeypatch.setattr("datapm_rl.compose.CONFIG_DIR", tmp_path)
    with pytest.raises(UserError, match=r"total_trainig_steps in the recipe, the nearest is .*total_training_steps"):
        compose_config(["+recipe=mine"])


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_composes(name):
    config = compose_config([f"+recipe={name}"])
    assert OmegaConf.to_container(config, resolve=True)["run"]["name"] == name


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("prm.beta", 1.5, "outside [0, 1]"),
        ("prm.verifier", "none", "prm.beta=0"),
        ("prm.verifier", "refrence", "give reference, none, generative"),
        ("prm.verifier", "generative", "prm.endpoint=http://"),
        ("prm.verifier", "discriminative", "prm.model"),
        ("prm.scores", "quinary", "ternary, binary"),
        ("prm.rounds", 0, "at least 1"),
        ("prm.top_p", 7.0, "outside [0, 1]"),
        ("prm.temperature", -1.0, "outside [0, 2]"),
        ("prm.tools", ["query_web"], "query_document"),
        ("prm.context_tokens", 100, "room"),
        ("prm.trajectory_deadline_s", 60.0, "covers the wait"),
        ("prm.min_kappa", 0.5, "prm.gate_report"),
        ("sandbox.lease_s", 10.0, "verdicts are awaited"),
        ("prm.verifier", "no.such:Thing", "PYTHONPATH"),
        ("prm.verifier", ":x", "PYTHONPATH"),
        ("prm.verifier", "os:getcwd", "is no verifier"),
        ("run.name", "", "names a directory"),
        ("run.name", "..", "names a directory"),
        ("run.name", "a/b", "names a directory"),
        ("run.name", "cache", "names a directory"),
        ("prm.deadline_s", 1.0, "longer than sandbox.wall_s"),
        ("data.max_response_length", 9000, "do not fit"),
        ("sandbox.memory_mb", 1, "at least 256"),
        ("trainer.total_training_steps", 0, "at least 1"),
        ("trainer.total_training_steps", "abc", "whole number"),
        ("trainer.test_freq", "often", "whole number"),
        ("agent.dialect", "deepanalise", "deepanalyze"),
        ("agent.max_turns", 0, "at least 1"),
        ("actor_rollout_ref.rollout.n", 1, "at least 2"),
        ("data.train_batch_size", 15, "ppo_mini_batch_size"),
        ("algorithm.adv_estimator", "grpo", "prm.credit"),
        ("prm.max_missing_share", 0.0, "(0, 1]"),
    ],
)
def test_impossible_combination_is_refused(quickstart, key, value, said):
    config = OmegaConf.create(OmegaConf.to_container(quickstart))
    OmegaConf.update(config, key, value)
    with pytest.raises(UserError) as caught:
        check_config(config)
    assert said in str(caught.value)


def test_full_disk_is_refused(quickstart, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1e6})())
    with pytest.raises(UserError, match="GB free"):
        check_machine(quickstart, tmp_path)


def test_gpu_recipe_without_a_gpu_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("datapm_rl.preflight._has_gpu", lambda: False)
    with pytest.raises(UserError, match="needs GPUs"):
        check_machine(compose_config(["+recipe=dabench"]), tmp_path)


def test_one_core_is_refused(quickstart, tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with pytest.raises(UserError, match="needs at least 2"):
        check_machine(quickstart, tmp_path)


def test_taken_port_is_refused(quickstart, tmp_path):
    config = OmegaConf.create(OmegaConf.to_container(quickstart))
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config.ray_kwargs.ray_init.dashboard_port = port
        with pytest.raises(UserError, match=f"port {port} .*is taken"):
            check_machine(config, tmp_path)


def test_model_folder_without_chat_template_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a folder"):
        check_model_folder(tmp_path / "absent")
    with pytest.raises(UserError, match=r"no config.json"):
        check_model_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no weights"):
        check_model_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        check_model_folder(tmp_path)
    save_file({"weight": np.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match="no chat template"):
        check_model_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    check_model_folder(tmp_path)


def test_changed_setting_is_named_on_resume(quickstart):
    changed = OmegaConf.create(OmegaConf.to_container(quickstart))
    changed.prm.beta = 0.25
    changed.trainer.total_training_steps = 7
    assert config_differences(quickstart, changed, ignore=("trainer.total_training_steps",)) == [
        "prm.beta: 0.5 -> 0.25"
    ]


def test_command_prints_one_sentence_and_exits_2():
    done = subprocess.run(
        [sys.executable, "-m", "datapm_rl.train", "+recipe=quickstart", "run.sead=1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown key run.sead, the nearest is run.seed")
    assert len(done.stderr.strip().splitlines()) == 1


def test_command_without_a_recipe_lists_them(capsys):
    from datapm_rl.train import main

    assert main(["run.seed=1"]) == 2
    assert "quickstart" in capsys.readouterr().err


def test_fewer_epochs_than_steps_is_refused(quickstart):
    config = OmegaConf.create(OmegaConf.to_container(quickstart))
    task = Task(id="t", question="?", answer_format="", data_dir="/d", files=(), gold=())
    tasks = [replace(task, id=str(number)) for number in range(16)]
    config.trainer.total_epochs, config.trainer.total_training_steps = 3, 6
    assert total_steps(config, tasks) == 6
    config.trainer.total_training_steps = None
    assert total_steps(config, tasks) == 6
    config.trainer.total_training_steps = 7
    with pytest.raises(UserError, match=r"raise trainer\.total_epochs"):
        total_steps(config, tasks)
