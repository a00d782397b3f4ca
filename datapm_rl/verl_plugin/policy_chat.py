"""Self-rewarding in training: the verifier's replies come from the policy's own rollout servers.

verl starts reward workers before rollout servers, so the servers are looked up, by the names verl gives them, at the
first reply. Their weights are the policy's at that moment.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import ray

from datapm_rl.chat import ChatReply, ChatSampling, Message
from datapm_rl.chat.client import EndpointChat
from datapm_rl.errors import InfraError


class PolicyChat:
    """A `Chat` over the OpenAI-compatible endpoints of the rollout servers named `<rollout>_server_<n>_0`."""

    def __init__(self, rollout: str):
        self._rollout = rollout
        self._chat: EndpointChat | None = None
        self._lookup = asyncio.Lock()

    async def complete(self, messages: list[Message], sampling: ChatSampling, deadline_s: float) -> ChatReply:
        """As `Chat.complete`. InfraError "endpoint_unreachable" while there is no rollout server."""
        async with self._lookup:
            if self._chat is None:
                self._chat = EndpointChat(await asyncio.wait_for(self._addresses(), deadline_s))
        return await self._chat.complete(messages, sampling, deadline_s)

    async def _addresses(self) -> list[str]:
        servers: list[Any] = []
        for number in itertools.count():
            try:
                servers.append(ray.get_actor(f"{self._rollout}_server_{number}_0"))
            except ValueError:  # there is none of that number
                break
        if not servers:
            raise InfraError("endpoint_unreachable", f"no rollout server {self._rollout}_server_0_0 runs")
        found = await asyncio.gather(*(server.get_server_address.remote() for server in servers))
        return [f"http://{_host(host)}:{port}/v1" for host, port in found]


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
