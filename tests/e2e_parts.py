"""Broken parts that end-to-end runs load by name (`prm.verifier=e2e_parts:BrokenVerifier`, `faulty_loops.yaml`)."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from datapm_rl.errors import InfraError
from datapm_rl.trajectory import Verdict
from datapm_rl.verifier.base import VerificationRequest


class BrokenVerifier:
    """A verifier whose endpoint is down."""

    name = "broken"

    async def verify(self, request: VerificationRequest):
        raise ConnectionRefusedError("nobody listens")


class OutageVerifier:
    """A verifier whose endpoint is down while the file DATAPM_TEST_OUTAGE exists."""

    name = "outage"

    async def verify(self, request: VerificationRequest):
        if Path(os.environ["DATAPM_TEST_OUTAGE"]).exists():
            raise ConnectionRefusedError("nobody listens")
        return Verdict(0.5, verifier=self.name)


def fails(task_id: str, seed: int) -> bool:
    """About 15 % of sessions, the same ones in every run."""
    return zlib.crc32(f"{task_id}/{seed}".encode()) % 100 < 15


def is_poisoned(task_id: str) -> bool:
    """About one task in five: none of its sessions can be opened."""
    return zlib.crc32(task_id.encode()) % 5 == 0


def faulty_agent_loop():
    """The agent loop with sessions that cannot be opened (verl is imported only where it is used)."""
    from datapm_rl.verl_plugin.agent_loop import DataAgentLoop

    class FaultyAgentLoop(DataAgentLoop):
        async def _open_session(self, task, seed):
            if is_poisoned(task.id) or fails(task.id, seed):
                raise InfraError("sandbox_lost", "injected")
            return await super()._open_session(task, seed)

    return FaultyAgentLoop


def __getattr__(name: str):
    if name == "FaultyAgentLoop":
        return faulty_agent_loop()
    raise AttributeError(name)
