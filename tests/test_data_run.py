"""A run takes prepared folders: to train on, and to validate on as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from data_parts import own_folder, prepare, question
from omegaconf import OmegaConf

from datapm_rl.compose import compose_config
from datapm_rl.engine.tiny import byte_tokenizer
from datapm_rl.errors import UserError
from datapm_rl.prepare import evaluation_sets, prepare_tasks
from datapm_rl.run import resolve

pytestmark = pytest.mark.unit


@pytest.fixture
def mine(tmp_path):
    source = own_folder(
        tmp_path / "my_questions", *(question(i, i % 6, answer=f"gold-{i}") for i in range(12)), tables=6
    )
    assert prepare("folder", source, tmp_path / "mine", "--heldout", "0.3") == 0
    return tmp_path / "mine"


@pytest.fixture
def bench(tmp_path):
    source = own_folder(tmp_path / "bench_questions", question(50, 0), question(51, 1))
    for index in range(2):
        (source / f"t{index}.csv").write_text(f"other\n{index}\n")
    assert prepare("folder", source, tmp_path / "bench", "--split", "test") == 0
    return tmp_path / "bench"


def settings(tasks: Path, *evaluation: Path, **more: object):
    config = compose_config(["+recipe=smoke"])
    config.tasks.path, config.tasks.evaluation = str(tasks), [str(path) for path in evaluation]
    for key, value in more.items():
        config.tasks[key] = value
    return config


def test_prepared_folders_are_trained_and_validated_on(mine, bench, tmp_path):
    config = settings(mine, bench)
    path, tasks = prepare_tasks(config, tmp_path, print)
    assert path == mine / "tasks.parquet"
    sets = evaluation_sets(config)
    resolved = resolve(config, path, ["heldout"], sets, tmp_path / "policy")
    assert resolved.data.val_files[-1] == f"{bench}/tasks.parquet#*:bench"

    dataset = pytest.importorskip("datapm_rl.verl_plugin.dataset")
    data = OmegaConf.create({"dialect": "deepanalyze", "max_prompt_length": 10**6, "sampled_temperature": 0.5})
    held = dataset.TaskDataset(list(resolved.data.val_files), byte_tokenizer(), data)
    train = dataset.TaskDataset(resolved.data.train_files[0], byte_tokenizer(), data)
    assert [row["data_source"] for row in held.rows].count("bench") == 2
    assert {row["data_source"] for row in held.rows} >= {"heldout", "bench"}
    assert len(train) == sum(task.split == "train" for task in tasks)
    for row in train.rows:  # what the policy, its sandbox and the verifier may see
        assert "gold-" not in json.dumps([row["raw_prompt"], row["extra_info"]])
        assert "gold-" in row["reward_model"]["ground_truth"]


def test_an_evaluation_set_is_enough_to_validate_on(mine, bench, tmp_path):
    config = settings(mine, bench, validation_splits=[])
    path, _ = prepare_tasks(config, tmp_path, print)
    resolved = resolve(config, path, [], evaluation_sets(config), tmp_path / "policy")
    assert list(resolved.data.val_files) == [f"{bench}/tasks.parquet#*:bench"]
    assert resolved.trainer.test_freq == config.trainer.test_freq


def test_training_does_not_start_on_a_file_of_an_evaluation_set(mine, bench, tmp_path):
    (bench / "files" / "t0.csv").write_bytes((mine / "files" / "t0.csv").read_bytes().replace(b"\n", b"\r\n"))
    (bench / "files" / "t1.csv").write_bytes((mine / "files" / "t1.csv").read_bytes())
    with pytest.raises(UserError, match=r"overlap in \d tasks .*also that of task 'q-.*bench/tasks.parquet.*--against"):
        prepare_tasks(settings(mine, bench), tmp_path, print)


def test_training_set_as_its_own_evaluation_is_refused(mine, tmp_path):
    with pytest.raises(UserError, match="training and evaluation overlap"):
        prepare_tasks(settings(mine, mine), tmp_path, print)


def test_two_sets_of_one_name_are_not_mixed_in_one_metric(mine, bench, tmp_path):
    with pytest.raises(UserError, match="'bench', which is taken"):
        evaluation_sets(settings(mine, bench, bench / "tasks.parquet"))
    (tmp_path / "heldout.jsonl").write_text("")
    with pytest.raises(UserError, match="'heldout', which is taken"):
        evaluation_sets(settings(mine, tmp_path / "heldout.jsonl"))
