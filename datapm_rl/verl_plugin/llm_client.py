"""verl's clients of the rollout servers, whose calls end in the server when their caller gives up.

verl awaits the server's reply; when that await is cancelled (a turn's or a group's deadline) the server would go on
decoding for nobody. Here the remote call is cancelled too: vLLM aborts the request, the CPU engine frees its row.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient


class _CancelledInServer:
    """Mixin over a client of verl."""

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        server_id, server = await super()._acquire_server(request_id, **extra)
        return server_id, _Server(server)


class _Client(_CancelledInServer, LLMServerClient):
    """For verl's mode `sync`."""


class _AsyncClient(_CancelledInServer, FullyAsyncLLMServerClient):
    """For verl's async modes, whose client goes on with what a weight update interrupted."""


def cancelling(client: LLMServerClient) -> LLMServerClient:
    """The client of a trainer, with calls that are cancelled in the server."""
    kind = _AsyncClient if isinstance(client, FullyAsyncLLMServerClient) else _Client
    return kind(config=client.config, load_balancer_handle=client._load_balancer)


class _Server:
    """A server's handle, as far as verl's client uses it: `server.generate.remote(...)`."""

    def __init__(self, handle: Any):
        self._handle = handle

    @property
    def generate(self) -> _Server:
        return self

    async def remote(self, **arguments: Any) -> Any:
        call = self._handle.generate.remote(**arguments)
        try:
            return await call
        except asyncio.CancelledError:
            ray.cancel(call)
            raise
