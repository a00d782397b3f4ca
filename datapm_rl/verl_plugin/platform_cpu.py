"""A verl platform for machines without an accelerator: device "cpu", collectives over gloo, logical GPUs.

verl places its workers on Ray resource "GPU". On CPU the run declares logical GPUs (`ray_init.num_gpus`), which are
slots and nothing else. verl falls back to CUDA when it finds no platform, so this one reports itself available
exactly when CUDA is not. Loaded at the end of `verl/__init__.py`: it must import nothing heavy.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _device_module() -> types.ModuleType:
    """`torch.cpu`, completed by the memory and RNG functions that verl calls on `torch.cuda`."""
    module = types.ModuleType("datapm_rl.verl_plugin.cpu_device")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(module, name, getattr(torch.cpu, name))
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, lambda *args, **kwargs: 0)
    for name in ("empty_cache", "reset_peak_memory_stats", "ipc_collect", "set_device"):
        setattr(module, name, lambda *args, **kwargs: None)
    overrides = {
        "mem_get_info": lambda *args, **kwargs: (0, 0),
        "get_device_name": lambda *args, **kwargs: "CPU",
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *args, **kwargs: torch.set_rng_state(state),
        "current_device": lambda: "cpu",
        "is_available": lambda: False,  # verl's memory reports become no-ops
    }
    for name, function in overrides.items():
        setattr(module, name, function)
    return module


_DEVICE_MODULE = _device_module()


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """verl's view of a machine whose device is the CPU."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return not torch.cuda.is_available()

    def current_device(self) -> str:
        return "cpu"  # verl calls tensor.to(current_device()): an index would mean cuda:0

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: Any) -> None:
        pass

    def synchronize(self, device_index: Any = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"  # logical ones, see the module docstring

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
