"""A kill while a checkpoint is written leaves the one before it usable, whatever the kill has cut off."""

from __future__ import annotations

import os

import pytest

from datapm_rl.tracking.checkpoints import LATEST, drop_old, folder_of, is_whole, point_to_newest, seal, whole_steps

pytestmark = pytest.mark.unit

FILES = (
    "actor/model_world_size_1_rank_0.pt",
    "actor/optim_world_size_1_rank_0.pt",
    "actor/extra_state_world_size_1_rank_0.pt",
    "actor/huggingface/model.safetensors",
    "transfer_queue/controller_state.pkl",
    "data.pt",
)


@pytest.fixture
def checkpoints(tmp_path):
    return tmp_path / "checkpoints"


def write(checkpoints, step, *, sealed=True):
    folder = folder_of(checkpoints, step)
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
    (checkpoints / LATEST).write_text(str(step))  # as verl does it: in place, before the seal
    if sealed:
        seal(folder)
    return folder


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [None, 0, 999])
def test_checkpoint_with_a_file_cut_off_is_not_resumed_from(checkpoints, name, size):
    write(checkpoints, 2)
    path = write(checkpoints, 3) / name
    path.unlink() if size is None else os.truncate(path, size)
    assert point_to_newest(checkpoints) == 2
    assert (checkpoints / LATEST).read_text() == "2"


def test_kill_before_the_seal_or_within_it_loses_one_checkpoint_only(checkpoints):
    write(checkpoints, 2)
    folder = write(checkpoints, 3, sealed=False)
    assert point_to_newest(checkpoints) == 2
    (folder / "whole.json").write_text('{"data.pt": 10')
    assert point_to_newest(checkpoints) == 2


@pytest.mark.parametrize("marker", ["", "7", None])
def test_lost_marker_of_verl_is_found_again(checkpoints, marker):
    for step in (2, 10):
        write(checkpoints, step)
    (checkpoints / LATEST).unlink() if marker is None else (checkpoints / LATEST).write_text(marker)
    assert point_to_newest(checkpoints) == 10  # not "2", which sorts after "10"


def test_without_a_whole_checkpoint_training_starts_anew(checkpoints):
    assert point_to_newest(checkpoints) is None
    write(checkpoints, 1, sealed=False)
    assert point_to_newest(checkpoints) is None
    assert not (checkpoints / LATEST).exists()


def test_broken_checkpoints_do_not_push_whole_ones_out(checkpoints):
    """verl counts folders: with two kept, a whole one, a torn one and a torn one leave nothing to resume from."""
    for step in (1, 2, 3):
        write(checkpoints, step)
    write(checkpoints, 4, sealed=False)
    drop_old(checkpoints, keep=2)
    assert whole_steps(checkpoints) == [2, 3]
    assert not folder_of(checkpoints, 4).exists()
    drop_old(checkpoints, keep=None)
    assert whole_steps(checkpoints) == [2, 3]


def test_file_added_later_is_noticed(checkpoints):
    folder = write(checkpoints, 1)
    assert is_whole(folder)
    (folder / "actor" / "model_world_size_2_rank_1.pt").touch()
    assert not is_whole(folder)
