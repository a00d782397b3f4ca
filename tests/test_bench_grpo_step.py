"""`bench.grpo_step` gives both trainers a batch that trains, and they make the same update of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.grpo_step import Trainer, _free_port, compare
from bench.grpo_step_batch import MINI_BATCHES, SHAPES, make_batch, write_model


@pytest.mark.unit
@pytest.mark.parametrize("name", SHAPES)
def test_both_trainers_get_the_same_batch_and_every_group_has_an_advantage(name):
    shape = SHAPES[name]
    batch = make_batch(shape)
    assert batch == make_batch(shape), "each trainer makes it for itself"
    assert [len(row) for row in batch.masks] == [len(row) for row in batch.responses]
    assert all(row[0] == row[-1] == 1 for row in batch.masks)
    assert any(0 in row for row in batch.masks), "observations"
    assert all(shape.response[0] <= len(row) <= shape.response[1] for row in batch.responses)
    for group in set(batch.groups):
        members = [row for row in range(shape.rows) if batch.groups[row] == group]
        assert len(members) == shape.group
        assert len({tuple(batch.prompts[row]) for row in members}) == 1
        assert len({batch.rewards[row] for row in members}) > 1


@pytest.mark.unit
def test_a_folder_without_trl_is_named_with_the_command_that_fills_it(tmp_path):
    command = [sys.executable, "-m", "bench.grpo_step", "--trl", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"pip install --no-deps --target {tmp_path}" in done.stderr


@pytest.mark.e2e
def test_our_worker_makes_two_optimizer_steps_of_a_batch(tmp_path):
    pytest.importorskip("verl")
    write_model(SHAPES["quick"], tmp_path / "model")
    with Trainer("bench.grpo_step_ours", "quick", str(tmp_path / "model"), str(_free_port())) as ours:
        updates = [ours.ask("update") for _ in range(2)]
    for update in updates:
        assert len(update["grad_norms"]) == MINI_BATCHES
        assert all(norm > 0 for norm in update["grad_norms"])
        assert sum(update["parts"].values()) == pytest.approx(update["seconds"])
    assert updates[0]["grad_norms"] != updates[1]["grad_norms"], "the second starts from other weights"


@pytest.mark.e2e
@pytest.mark.skipif("DATAPM_RL_TRL" not in os.environ, reason="DATAPM_RL_TRL names no folder with TRL in it")
def test_both_make_the_same_update():
    pytest.importorskip("verl")
    found = compare("quick", Path(os.environ["DATAPM_RL_TRL"]), repeats=1)
    ours, theirs = found["first_grad_norms"]
    assert ours == pytest.approx(theirs, rel=2e-3)
    assert found["cosine_of_first_update"] > 0.9999
