"""The sandbox actors of a run: one on each node that can run agent loops, found by the node's id."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf

from datapm_rl.errors import InfraError
from datapm_rl.sandbox import Limits
from datapm_rl.sandbox.actor import get_or_create_sandbox_actor

PREFIX = "datapm_sandbox"
_HEALTH_S = 10.0


def start_sandboxes(config: DictConfig) -> dict[str, Any]:
    """Start them: node -> actor. Keep the handles: an actor lives as long as its creator's handle does."""
    # plain values: a list of the configuration drags all of it along, and Ray restarts no actor with large arguments
    sandbox = OmegaConf.to_container(config.sandbox, resolve=True)
    limits = Limits(**{limit.name: sandbox[limit.name] for limit in dataclasses.fields(Limits)})
    names = ("preload", "keep", "max_snapshots", "min_level", "max_level", "read_only", "recycle_after")
    settings = {"limits": limits, **{name: sandbox[name] for name in names}}
    if config.prm.verifier == "none":
        settings["keep"] = "last"  # nobody branches
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    actors = [
        get_or_create_sandbox_actor(settings, config.sandbox.cores, config.sandbox.lease_s, node_id=node, name=PREFIX)
        for node in nodes
    ]
    return dict(zip(nodes, actors, strict=True))


def isolation_reports(actors: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Node -> the proof of its isolation level. Raises UserError when a node cannot reach `min_level`."""
    reports = dict(zip(actors, ray.get([actor.isolation.remote() for actor in actors.values()]), strict=True))
    for node, report in reports.items():
        print(f"sandbox of node {node[:8]}: {report.summary()}", flush=True)
    return {node: report.as_dict() for node, report in reports.items()}


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


def sandbox_metrics() -> dict[str, float]:
    """Of all nodes: the lowest isolation level, and counts since the start. A node that does not answer is left out."""
    nodes = [f"{PREFIX}_{node['NodeID']}" for node in ray.nodes() if node["Alive"]]
    found = []
    for name in nodes:
        with contextlib.suppress(InfraError, ray.exceptions.RayError):
            found.append(ray.get(sandbox_handle(name).health.remote(), timeout=_HEALTH_S))
    if not found:
        return {}
    counts = ("steps", "infra_errors", "swept", "rebuilt", "diverged", "tampered")
    totals = {f"sandbox/{name}": float(sum(health[name] for health in found)) for name in counts}
    return {"sandbox/level": float(min(health["level"] for health in found)), **totals}
