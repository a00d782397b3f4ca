"""What verl does wrong on a CPU, and no more once the patches are in."""

from __future__ import annotations

import pytest

pytest.importorskip("verl")
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import datapm_rl.verl_plugin.register  # noqa: F401  applies the patches, once per process

pytestmark = pytest.mark.unit


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_weights_saved_for_later_do_not_change_with_the_model(group):
    """separate_async computes old log-probs of later mini-batches with them: an alias would be the new policy."""
    from verl.utils.fsdp_utils import fsdp2_sharded_load_from_cpu, fsdp2_sharded_save_to_cpu

    model = fully_shard(torch.nn.Linear(2, 2), mesh=group)
    before = model.weight.full_tensor().detach().clone()
    saved = fsdp2_sharded_save_to_cpu(model)
    with torch.no_grad():
        model.weight.add_(1.0)
    fsdp2_sharded_load_from_cpu(model, *saved)
    assert torch.equal(model.weight.full_tensor(), before)
