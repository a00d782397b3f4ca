"""The project's own rollout engine for CPU: transformers models, batched and KV-cached (docs/architecture.md)."""

from datapm_rl.engine.engine import CpuEngine
from datapm_rl.engine.sampling import Generation, Sampling

__all__ = ["CpuEngine", "Generation", "Sampling"]
