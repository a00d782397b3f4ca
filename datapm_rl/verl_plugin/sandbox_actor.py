"""The sandbox actors of a run: one on each node that can run agent loops, found by the node's id."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import ray
from omegaconf import DictConfig

from datapm_rl.errors import InfraError
from datapm_rl.sandbox import Limits
from datapm_rl.sandbox.actor import get_or_create_sandbox_actor

PREFIX = "datapm_sandbox"


def start_sandboxes(config: DictConfig) -> list[Any]:
    """Start them. Keep the handles: an actor lives as long as its creator's handle does."""
    limits = Limits(**{limit.name: config.sandbox[limit.name] for limit in dataclasses.fields(Limits)})
    names = ("preload", "keep", "max_snapshots", "min_level", "max_level", "read_only", "recycle_after")
    settings = {"limits": limits, **{name: config.sandbox[name] for name in names}}
    if config.prm.verifier == "none":
        settings["keep"] = "last"  # nobody branches
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    return [
        get_or_create_sandbox_actor(settings, config.sandbox.cores, config.sandbox.lease_s, node_id=node, name=PREFIX)
        for node in nodes
    ]


@functools.cache
def local_sandbox_name() -> str:
    """Ray name of this node's sandbox actor."""
    return f"{PREFIX}_{ray.get_runtime_context().get_node_id()}"


def sandbox_handle(name: str) -> Any:
    """Handle of a sandbox actor. InfraError "sandbox_lost" if there is none of that name."""
    try:
        return ray.get_actor(name)
    except ValueError as error:
        raise InfraError("sandbox_lost", f"no actor {name}") from error
