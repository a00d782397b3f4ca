"""Start Ray for a run, or connect to a cluster, with the environment that its processes need.

On a CPU machine the start of a run is mostly imports: ten processes, started one after the other as they are needed,
each import verl for seven seconds. Here the raylet starts `WORKERS` of them at once, and they import side by side
(`preloaded.py`). Ray gives them away only to jobs without an environment of their own, so the run's is set in this
process, which the raylet and its workers are children of.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

WORKERS = 10
"""Ray processes of a run with one trainer rank, without the rank itself, which verl gives an environment of its own."""


def start(config: DictConfig) -> None:
    """`ray.init` with the arguments of `ray_kwargs.ray_init`."""
    arguments: dict[str, Any] = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    runtime_env = OmegaConf.to_container(OmegaConf.create(get_ppo_ray_runtime_env(config)))
    variables = {**runtime_env.pop("env_vars", {}), "TRANSFER_QUEUE_ENABLE": "1", **worker_environment()}
    if config.trainer.device == "cpu" and not arguments.get("address"):
        preload = {
            "RAY_preload_python_modules": "datapm_rl.verl_plugin.preloaded",
            "RAY_worker_maximum_startup_concurrency": str(WORKERS),
        }
        os.environ.update({**variables, **preload})
        arguments.pop("runtime_env", None)
    else:
        arguments["runtime_env"] = {**runtime_env, "env_vars": variables}
    ray.init(**{"logging_level": logging.ERROR, **arguments})


def worker_environment() -> dict[str, str]:
    """Environment of all Ray processes: one thread each, no network look-ups."""
    return {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
