"""What a recipe needs of its user and of the machine: paths, GPUs, and a mini-batch that divides among them."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from datapm_rl.errors import UserError


def check_given(config: DictConfig) -> None:
    """All paths that the recipe needs and were not given, in one sentence (`UserError`)."""
    needed, twin = {}, ""
    if config.trainer.device != "cpu":  # the builtin tasks and the small policy are for the CPU
        needed["tasks.path"] = "a task file with a train split"
        needed["policy.path"] = "the policy's Hugging Face folder"
        twin = ", or +scale=cpu for the recipe's small twin on a CPU"
    if config.prm.endpoint == "pool":
        needed["prm.model"] = "the verifier's Hugging Face folder"
    missing = [f"{key}=PATH ({what})" for key, what in needed.items() if OmegaConf.select(config, key) is None]
    if missing:
        raise UserError(f"{config.run.name} needs {', '.join(missing)}: add what is named here to the command{twin}")


def gpus(config: DictConfig) -> dict[str, int]:
    """GPUs of the run by what they are for; logical ones on a CPU."""
    rollout, pool = config.actor_rollout_ref.rollout, config.reward.reward_model
    placed = {"trainer": config.trainer.nnodes * config.trainer.n_gpus_per_node}
    if config.trainer.v1.trainer_mode.endswith("separate_async"):
        placed["rollout"] = rollout.nnodes * rollout.n_gpus_per_node
    if pool.enable and pool.enable_resource_pool:
        placed["verifier"] = pool.nnodes * pool.n_gpus_per_node
    return placed


def check_placement(config: DictConfig) -> None:
    """UserError: verl could not place the run, or could not split a mini-batch, and would say so after minutes."""
    placed, actor = gpus(config), config.actor_rollout_ref.actor
    ranks = placed["trainer"] // actor.ulysses_sequence_parallel_size
    rows = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    if ranks < 1 or rows % ranks:
        raise UserError(
            f"a mini-batch of actor_rollout_ref.actor.ppo_mini_batch_size={actor.ppo_mini_batch_size} prompts x "
            f"actor_rollout_ref.rollout.n={config.actor_rollout_ref.rollout.n} = {rows} rows does not divide among "
            f"{ranks} data-parallel trainer ranks: change trainer.n_gpus_per_node, or the mini-batch"
        )
    ray_init = config.ray_kwargs.ray_init
    if ray_init.get("address"):  # a cluster, whose GPUs are counted by verl
        return
    available = ray_init.get("num_gpus")
    if available is None:
        import torch

        available = torch.cuda.device_count()
    if sum(placed.values()) > available:
        listed = ", ".join(f"{name} {count}" for name, count in placed.items())
        raise UserError(
            f"{config.run.name} needs {sum(placed.values())} GPUs ({listed}) and this machine has {available}: lower "
            "trainer.n_gpus_per_node and the pools' n_gpus_per_node, or start Ray on all nodes and add "
            "+ray_kwargs.ray_init.address=auto"
        )
