"""What can be known to be wrong before anything starts, each as one sentence (`UserError`)."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import socket
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from datapm_rl.config import STAND_IN
from datapm_rl.dialects import get_dialect
from datapm_rl.errors import UserError
from datapm_rl.preflight_algorithm import check_algorithm
from datapm_rl.preflight_async import check_mode
from datapm_rl.preflight_groups import check_groups
from datapm_rl.preflight_placement import check_given, check_placement
from datapm_rl.sandbox import Limits
from datapm_rl.verifier.gate.check import check_gate
from datapm_rl.verifier.registry import CHATTING, check_settings, endpoint_chat
from datapm_rl.verifier.trust import POLICIES

MIN_FREE_GB = 2.0
"""Disk that a run of a small model needs for checkpoints and Ray's session; a real model needs more."""

COUNTS = (
    "trainer.total_training_steps",
    "trainer.total_epochs",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "agent.max_turns",
    "agent.turn_tokens",
    "agent.observation_chars",
    "tasks.train",
    "policy.sft_updates",
    "policy.sft_batch",
    "policy.sft_demonstrations",
    "sandbox.cores",
    "sandbox.max_snapshots",
    "sandbox.recycle_after",
    "reward.num_workers",
)
"""Settings that are whole numbers from 1 on (verl's own have no type)."""


def check_config(config: DictConfig) -> None:
    """Impossible values and combinations of the configuration."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", config.run.name) or config.run.name == "cache":
        raise UserError(f"run.name={config.run.name!r} names a directory: use letters, digits, '.', '_' and '-' alone")
    for key in COUNTS:
        value = OmegaConf.select(config, key)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UserError(f"{key}={value} must be a whole number, at least 1")
    for key in ("trainer.save_freq", "trainer.test_freq"):
        if not isinstance(OmegaConf.select(config, key), int):
            raise UserError(f"{key}={OmegaConf.select(config, key)} must be a whole number of steps (-1: never)")
    check_given(config)
    check_groups(config)
    check_mode(config)
    get_dialect(config.agent.dialect)
    prm = config.prm
    check_settings(prm)
    _check_served(config)
    check_gate(prm)
    if not 0.0 <= prm.beta <= 1.0:
        raise UserError(f"prm.beta={prm.beta} is outside [0, 1]: it weighs process against outcome reward (eq. 8)")
    if prm.verifier == "none" and prm.beta > 0:
        raise UserError(f"prm.verifier=none gives no process reward: set prm.beta=0 (it is {prm.beta})")
    if not 0.0 < prm.max_missing_share <= 1.0:
        raise UserError(f"prm.max_missing_share={prm.max_missing_share} is outside (0, 1]")
    n, batch = config.actor_rollout_ref.rollout.n, config.data.train_batch_size
    if not isinstance(n, int) or n < 2:
        raise UserError(f"actor_rollout_ref.rollout.n={n}: GRPO compares members of a group, it needs at least 2")
    mini = config.actor_rollout_ref.actor.ppo_mini_batch_size
    if batch % mini:
        raise UserError(
            f"data.train_batch_size={batch} is no multiple of actor_rollout_ref.actor.ppo_mini_batch_size={mini}"
        )
    if prm.deadline_s <= config.sandbox.wall_s:
        raise UserError(
            f"prm.deadline_s={prm.deadline_s} must be longer than sandbox.wall_s={config.sandbox.wall_s}: a slow step "
            "of the agent would count as a lost one of ours"
        )
    if config.sandbox.lease_s < prm.trajectory_deadline_s:
        raise UserError(
            f"sandbox.lease_s={config.sandbox.lease_s} is shorter than prm.trajectory_deadline_s="
            f"{prm.trajectory_deadline_s}: sessions would be closed while their verdicts are awaited"
        )
    if prm.tamper_policy not in POLICIES:
        raise UserError(f"prm.tamper_policy={prm.tamper_policy!r} is none of {', '.join(POLICIES)}")
    _check_sandbox(config.sandbox)
    actor, tokens = config.actor_rollout_ref.actor, config.data.max_prompt_length + config.data.max_response_length
    if actor.use_dynamic_bsz and tokens > actor.ppo_max_token_len_per_gpu:
        raise UserError(
            f"data.max_prompt_length + data.max_response_length = {tokens} tokens do not fit "
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={actor.ppo_max_token_len_per_gpu}: raise it"
        )
    check_algorithm(config)


def _check_served(config: DictConfig) -> None:
    """Whether someone answers a verifier that asks a model: endpoints, verl's reward-model pool, or the policy."""
    prm, pool = config.prm, config.reward.reward_model
    if prm.verifier not in CHATTING or (prm.verifier == "self_reward" and prm.endpoint is None):
        return
    if prm.endpoint != "pool":
        endpoint_chat(prm)
        return
    if not pool.enable or not pool.enable_resource_pool or pool.rollout.free_cache_engine:
        raise UserError(
            "prm.endpoint=pool needs verl's reward-model pool, awake while the policy generates: add +prm_pool=verl"
        )
    if prm.model != STAND_IN:
        check_model_folder(Path(str(prm.model)), key="prm.model")


def _check_sandbox(sandbox: DictConfig) -> None:
    Limits(**{limit.name: sandbox[limit.name] for limit in dataclasses.fields(Limits)})
    if sandbox.memory_mb < 256:
        raise UserError(f"sandbox.memory_mb={sandbox.memory_mb} must be at least 256: pandas alone needs that")
    if sandbox.keep not in ("last", "all", "lru"):
        raise UserError(f"sandbox.keep={sandbox.keep!r} is none of last, all, lru")
    if not 0 <= sandbox.min_level <= sandbox.max_level <= 4:
        raise UserError(
            f"sandbox.min_level={sandbox.min_level} and sandbox.max_level={sandbox.max_level} must be isolation levels "
            "from 0 to 4, the first not above the second"
        )


def check_machine(config: DictConfig, run_parent: Path) -> None:
    """Cores, disk and ports of this machine."""
    cores = os.cpu_count() or 1
    if cores < 2:
        raise UserError(f"this machine has {cores} core: a run needs at least 2, for rollout and sandbox side by side")
    existing = run_parent
    while not existing.exists():
        existing = existing.parent
    if not os.access(existing, os.W_OK):
        raise UserError(f"{existing} is not writable: choose another run.dir")
    if config.trainer.device == "cuda" and not _has_gpu():
        raise UserError(
            "this recipe needs GPUs (trainer.device=cuda) and this machine shows none: run it on a GPU node, or its "
            "small twin here, with +scale=cpu"
        )
    check_placement(config)
    free = shutil.disk_usage(existing).free / 1e9
    if free < MIN_FREE_GB:
        raise UserError(f"{existing} has {free:.1f} GB free, a run needs {MIN_FREE_GB:g}: free some or set run.dir")
    for key, value in config.ray_kwargs.ray_init.items():
        if str(key).endswith("port") and value:
            _check_port(f"ray_kwargs.ray_init.{key}", int(value))


def check_model_folder(folder: Path, key: str = "policy.path") -> None:
    """A Hugging Face folder that a run can load, and talk to. `key`: the setting that names it."""
    if not folder.is_dir():
        raise UserError(f"{key}={folder} is not a folder: give a Hugging Face model folder on this machine")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json: {key} must be a Hugging Face model folder")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise UserError(f"{folder} has no weights (*.safetensors): download the whole model folder")
    for weights in folder.glob("*.safetensors"):
        _check_weights(weights)
    config_file = folder / "tokenizer_config.json"
    if not config_file.is_file():
        raise UserError(f"{folder} has no tokenizer_config.json: download the whole model folder")
    try:
        tokenizer = json.loads(config_file.read_text())
        json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise UserError(f"{folder} has a broken config file ({error}): download the model folder again") from error
    templates = [folder / "chat_template.jinja", folder / "chat_template.json"]
    if not tokenizer.get("chat_template") and not any(path.is_file() for path in templates):
        raise UserError(f"{folder} has no chat template: add chat_template.jinja, or use an instruct model")


def _check_weights(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt"):  # reads the header alone
            pass
    except SafetensorError as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}): download it again") from error


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _check_port(key: str, port: int) -> None:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(f"port {port} ({key}) is taken: stop what uses it, or choose another") from error
