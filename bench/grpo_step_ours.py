"""Our side of `bench.grpo_step`: verl's actor worker under the settings of `dabench`'s CPU twin, without Ray.

An update is what a training step does between rollout and weight sync: log-probs of the batch, advantages (eq. 9),
and the mini-batches' updates. TransferQueue, which carries the batch between processes, is not in it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
os.environ.update({"MASTER_ADDR": "127.0.0.1", "VERL_LOGGING_LEVEL": "WARNING"})

import torch
from omegaconf import OmegaConf

from bench.grpo_step_batch import GRAD_CLIP, LR, MINI_BATCHES, SHAPES, WEIGHT_DECAY, Batch, Shape, make_batch
from bench.grpo_step_child import serve
from datapm_rl.compose import compose_config


def main() -> None:
    name, folder, port = sys.argv[1:]
    os.environ["MASTER_PORT"] = port
    torch.set_num_threads(1)
    shape = SHAPES[name]
    worker, temperature = _worker(shape, Path(folder))
    engine = worker.actor.engine
    spent: dict[str, float] = defaultdict(float)
    _timed(engine, "forward_step", spent)
    _timed(engine, "forward_backward_batch", spent)
    _timed(engine, "optimizer_step", spent)
    batch = make_batch(shape)

    def update() -> dict[str, Any]:
        return _update(worker, batch, shape, temperature, spent)

    serve(update, lambda: {name: value.full_tensor() for name, value in engine.module.state_dict().items()})


def _worker(shape: Shape, folder: Path) -> tuple[Any, float]:
    from verl.workers.engine_workers import ActorRolloutRefWorker

    import datapm_rl.verl_plugin.register  # noqa: F401  # patches verl for the CPU

    actor = "actor_rollout_ref.actor"
    config = compose_config(
        [
            "+recipe=dabench",
            "+scale=cpu",
            f"policy.path={folder}",
            f"{actor}.ppo_mini_batch_size={shape.prompts // MINI_BATCHES}",
            f"{actor}.optim.lr={LR}",
            f"{actor}.optim.lr_warmup_steps=0",
            f"{actor}.optim.weight_decay={WEIGHT_DECAY}",
            f"{actor}.grad_clip={GRAD_CLIP}",
            "actor_rollout_ref.rollout.temperature=1.0",
            f"actor_rollout_ref.rollout.n={shape.group}",
        ]
    )
    config.actor_rollout_ref.model.path = str(folder)
    resolved = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    worker = ActorRolloutRefWorker(resolved.actor_rollout_ref, "actor")
    worker.init_model()
    return worker, resolved.actor_rollout_ref.rollout.temperature


def _update(worker: Any, batch: Batch, shape: Shape, temperature: float, spent: dict[str, float]) -> dict[str, Any]:
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import response_from_nested

    from datapm_rl.verl_plugin.advantage import prm_grpo_trajectory

    spent.clear()
    began = time.perf_counter()
    data = _nested(batch)
    tu.assign_non_tensor(data, calculate_entropy=True, compute_loss=False, temperature=temperature)
    output = worker.compute_log_prob(data)
    data["old_log_probs"] = response_from_nested(output["log_probs"], data["response_mask"])
    old_s, spent["forward_step"], spent["forward_backward_batch"] = time.perf_counter() - began, 0.0, 0.0
    mask = data["response_mask"].to_padded_tensor(0)
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(shape.rows), mask.shape[1] - 1] = torch.tensor(batch.rewards)  # the sum is what counts
    advantages, _ = prm_grpo_trajectory(rewards, mask, index=batch.groups)
    data["advantages"] = _ragged([row[: len(ids)] for row, ids in zip(advantages, batch.responses, strict=True)])
    mini = shape.rows // MINI_BATCHES
    extra = {"global_batch_size": mini, "mini_batch_size": mini, "epochs": 1, "seed": 0}
    tu.assign_non_tensor(data, **extra, dataloader_kwargs={"shuffle": False}, calculate_entropy=False)
    metrics = tu.get(worker.update_actor(data), "metrics")
    whole = time.perf_counter() - began
    backward = spent["forward_backward_batch"] - spent["forward_step"]
    parts = {"old log-probs": old_s, "forward and loss": spent["forward_step"], "backward": backward}
    parts["optimizer"] = spent["optimizer_step"]
    parts["the rest"] = whole - sum(parts.values())
    return {"seconds": whole, "grad_norms": _numbers(metrics["grad_norm"]), "parts": parts}


def _numbers(values: Any) -> list[float]:
    return [float(value) for value in (values if isinstance(values, list) else [values])]


def _nested(batch: Batch) -> Any:
    from tensordict import TensorDict

    both = [[*prompt, *response] for prompt, response in zip(batch.prompts, batch.responses, strict=True)]
    columns = {
        "prompts": _ragged([torch.tensor(row) for row in batch.prompts]),
        "responses": _ragged([torch.tensor(row) for row in batch.responses]),
        "response_mask": _ragged([torch.tensor(row) for row in batch.masks]),
        "loss_mask": _ragged([torch.tensor(row) for row in batch.masks]),
        "input_ids": _ragged([torch.tensor(row) for row in both]),
        "position_ids": _ragged([torch.arange(len(row)) for row in both]),
    }
    return TensorDict(columns, batch_size=len(both))


def _ragged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _timed(engine: Any, name: str, spent: dict[str, float]) -> None:
    method: Callable[..., Any] = getattr(engine, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            spent[name] += time.perf_counter() - began

    setattr(engine, name, timed)


if __name__ == "__main__":
    main()
