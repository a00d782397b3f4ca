"""The three places where verl 0.9.1 assumes CUDA and offers no hook, and the engine registration for device "cpu".

Each patch names the line of verl that it mends. Another version of verl must be read again, so it is refused.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

VERL_VERSION = "0.9.1"


def apply() -> None:
    """Patch verl for CPU, once per process."""
    found = version("verl")
    if found != VERL_VERSION:
        raise RuntimeError(f"datapm_rl patches verl {VERL_VERSION} on CPU, found {found}: install verl=={VERL_VERSION}")

    import verl.workers.engine.fsdp.transformer_impl as fsdp
    import verl.workers.engine_workers as engine_workers
    from verl.utils import distributed, fsdp_utils
    from verl.workers.engine import EngineRegistry

    # verl/workers/engine/fsdp/transformer_impl.py:1143,1594 register FSDP2 for cuda and npu only.
    for model_type, engine in (
        ("language_model", fsdp.FSDPEngineWithLMHead),
        ("value_model", fsdp.FSDPEngineWithValueHead),
    ):
        if "cpu" not in EngineRegistry._engines[model_type]["fsdp2"]:
            EngineRegistry.register(model_type, ["fsdp2"], device="cpu")(engine)

    # transformer_impl.py:459: the reference model is offloaded with pinned memory, which needs an accelerator.
    fsdp.CPUOffloadPolicy = lambda pin_memory=True: None

    # verl/utils/fsdp_utils.py:1146 keeps old weights (separate_async) by moving them to the CPU: what is there already
    # is not copied, and the "old" weights change with every update.
    save = fsdp_utils.fsdp2_sharded_save_to_cpu

    def save_copies(model: Any) -> tuple[dict[str, Any], Any]:
        shards, spec = save(model)
        return {name: (tensor.clone(), rule) for name, (tensor, rule) in shards.items()}, spec

    fsdp_utils.fsdp2_sharded_save_to_cpu = save_copies

    # verl/utils/distributed.py:63 joins "cpu:gloo" and "cpu:gloo", and torch refuses a device named twice.
    original = distributed.initialize_global_process_group_ray

    def initialize(timeout_second: int | None = None, backend: str | None = None) -> Any:
        return original(timeout_second, backend or "cpu:gloo")

    engine_workers.initialize_global_process_group_ray = initialize
