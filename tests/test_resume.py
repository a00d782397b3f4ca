"""A run's directory is gone on with only by the run that it belongs to, from a checkpoint that is whole."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from datapm_rl.compose import compose_config
from datapm_rl.errors import InfraError, UserError, cause_of
from datapm_rl.resume import SETTINGS, check_same_data, check_same_settings, is_finished
from datapm_rl.tracking.checkpoints import folder_of, seal
from datapm_rl.tracking.run_dir import RunDir

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def config():
    return compose_config(["+recipe=smoke"])


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path / "run")


def checkpoint(run_dir, step):
    folder = folder_of(run_dir.checkpoints, step)
    folder.mkdir(parents=True)
    (folder / "data.pt").touch()
    seal(folder)


def test_directory_without_settings_belongs_to_nobody(run_dir, config):
    check_same_settings(run_dir, config)


def test_other_settings_are_refused_and_more_steps_are_not(run_dir, config):
    run_dir.write_text(SETTINGS, OmegaConf.to_yaml(config))
    changed = OmegaConf.create(OmegaConf.to_container(config))
    changed.trainer.total_training_steps = 99
    check_same_settings(run_dir, changed)
    changed.run.seed = 7
    with pytest.raises(UserError, match=r"run\.seed: 0 -> 7"):
        check_same_settings(run_dir, changed)


def test_changed_data_is_noticed_once_something_was_trained_on_it(run_dir):
    run_dir.write_json("fingerprints.json", {"tasks": "a"})
    check_same_data(run_dir, {"tasks": "b"})
    checkpoint(run_dir, 1)
    check_same_data(run_dir, {"tasks": "a"})
    with pytest.raises(UserError, match="not those that"):
        check_same_data(run_dir, {"tasks": "b"})


def test_run_is_finished_only_at_its_steps(run_dir, config):
    assert not is_finished(run_dir, config)
    run_dir.write_json("summary.json", {"steps": config.trainer.total_training_steps})
    assert is_finished(run_dir, config)
    longer = OmegaConf.create(OmegaConf.to_container(config))
    longer.trainer.total_training_steps += 1
    assert not is_finished(run_dir, longer)


def test_cause_behind_rays_wrapper_is_a_word():
    ray = pytest.importorskip("ray")

    def wrapped(error):
        return ray.exceptions.RayTaskError("run", "Traceback ...", error).as_instanceof_cause()

    assert cause_of(wrapped(InfraError("sandbox_lost"))) == "sandbox_lost"
    assert cause_of(wrapped(ValueError("a bug"))) == "bug_ValueError"
    assert cause_of(wrapped(ConnectionRefusedError())) == "unreachable"
    assert cause_of(ray.exceptions.ActorDiedError()) == "actor_lost"
    assert cause_of(ray.exceptions.GetTimeoutError()) == "deadline"
