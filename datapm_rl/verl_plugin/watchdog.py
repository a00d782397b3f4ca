"""The driver's look at a run's processes: a run that lost one it cannot do without ends, instead of waiting for ever.

The trainer notices most deaths by itself and ends with a better message. It may also hang on one: a read from a
TransferQueue unit that is gone never returns. So the driver reads Ray's table of actors now and then, and gives the
trainer `GRACE_S` to end after a vital one died.
"""

from __future__ import annotations

import time

from ray._private import worker
from ray._private.state import actors

from datapm_rl.errors import InfraError

LOOK_S = 5.0
GRACE_S = 30.0

VITAL = {
    "WorkerDict": "a trainer worker",
    "DetachActorWorker": "a trainer worker",
    "CheckpointEngineWorker": "a rollout worker of the separate pool",
    "TransferQueueController": "TransferQueue's controller",
    "SimpleStorageUnit": "a storage unit of TransferQueue",
    "GlobalRequestLoadBalancer": "the load balancer of the rollout servers",
}
"""Actors that nobody replaces: part of their class name, and what they are."""


class Watchdog:
    """Call `look` as often as convenient."""

    def __init__(self) -> None:
        self.looked = time.monotonic()
        self.missed_at: float | None = None

    def look(self) -> None:
        """Raises InfraError "worker_lost" when Ray itself is gone, or a vital actor has been dead for `GRACE_S`."""
        now = time.monotonic()
        if now - self.looked < LOOK_S:
            return
        self.looked = now
        if lost := self.lost_of_ray():  # the table of actors cannot be read any more
            raise InfraError("worker_lost", f"Ray's {lost[0]} died (killed, or out of memory)")
        dead = self.dead()
        if not dead:
            return
        self.missed_at = self.missed_at or now
        if now - self.missed_at >= GRACE_S:
            raise InfraError("worker_lost", f"{dead[0]} died (killed, or out of memory)")

    @staticmethod
    def lost_of_ray() -> list[str]:
        """Dead processes of Ray that this driver started; none where it connected to a cluster."""
        return [kind for kind, _ in worker._global_node.dead_processes() if kind in ("gcs_server", "raylet")]

    @staticmethod
    def dead() -> list[str]:
        """What the dead vital actors are."""
        names = [row["ActorClassName"] for row in actors().values() if row["State"] == "DEAD"]
        return [what for name in names for part, what in VITAL.items() if part in name]
