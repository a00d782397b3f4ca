"""Registers the loss and the CPU rollout engine with verl, and on CPU the FSDP2 engine and three patches.

verl imports this module (`actor_rollout_ref.model.external_lib`) in each process that builds a model config: task
runner, trainer workers (before the engine is built), agent-loop workers.
"""

from __future__ import annotations

from verl.utils.device import get_device_name
from verl.workers.rollout import base, replica

import datapm_rl.verl_plugin.policy_loss  # noqa: F401

ROLLOUT_NAME = "hf_cpu"


def _replica_class() -> type[replica.RolloutReplica]:
    from datapm_rl.verl_plugin.cpu_rollout import CpuReplica

    return CpuReplica


# verl has a registration function for replicas and none for their weight adapters.
base._ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "datapm_rl.verl_plugin.cpu_rollout.CpuServerAdapter"
replica.RolloutReplicaRegistry.register(ROLLOUT_NAME, _replica_class)

if get_device_name() == "cpu":
    from datapm_rl.verl_plugin import cpu_patches

    cpu_patches.apply()
