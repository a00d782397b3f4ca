"""Which sandbox actor serves a session: the one of the node on which the trajectory's agent loop runs."""

from __future__ import annotations

import functools

import ray


def sandbox_name(node_id: str) -> str:
    """Ray name of a node's sandbox actor, started by the runner."""
    return f"datapm_rl_sandbox_{node_id[:12]}"


@functools.cache
def local_sandbox_name() -> str:
    """Name of this node's sandbox actor."""
    return sandbox_name(ray.get_runtime_context().get_node_id())
