"""A trainer that hangs on a dead process is ended; one that merely takes its time to end is left alone."""

from __future__ import annotations

import pytest

pytest.importorskip("verl")

from datapm_rl.errors import InfraError
from datapm_rl.verl_plugin import watchdog
from datapm_rl.verl_plugin.watchdog import GRACE_S, LOOK_S, Watchdog

pytestmark = pytest.mark.unit


class World:
    """Ray's table of actors, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        self.lost_of_ray: list[str] = []
        self.states = {
            "create_colocated_worker_cls.<locals>.WorkerDict": "ALIVE",
            "TransferQueueController": "ALIVE",
            "RewardLoopWorker": "ALIVE",
        }

    def actors(self) -> dict:
        self.looks += 1
        return {str(n): {"ActorClassName": n, "State": state} for n, state in self.states.items()}


@pytest.fixture
def world(monkeypatch) -> World:
    world = World()
    monkeypatch.setattr(watchdog, "actors", world.actors)
    monkeypatch.setattr(Watchdog, "lost_of_ray", lambda self: world.lost_of_ray)
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: world.now)
    return world


def seconds_until_end(world: World, dog: Watchdog, at_most: float) -> float | None:
    began = world.now
    while world.now < began + at_most:
        world.now += 0.3
        try:
            dog.look()
        except InfraError:
            return world.now - began
    return None


def test_dead_trainer_worker_ends_a_run_that_hangs_on_it(world):
    dog = Watchdog()
    assert seconds_until_end(world, dog, 100) is None
    world.states["create_colocated_worker_cls.<locals>.WorkerDict"] = "DEAD"
    assert GRACE_S <= seconds_until_end(world, dog, 100) <= GRACE_S + 2 * LOOK_S + 1


def test_driver_does_not_ask_a_dead_ray_what_died(world):
    dog = Watchdog()
    world.lost_of_ray = ["gcs_server"]
    assert seconds_until_end(world, dog, 100) <= LOOK_S + 1
    assert world.looks == 0


def test_reward_worker_is_replaced_by_others_and_ends_nothing(world):
    world.states["RewardLoopWorker"] = "DEAD"
    assert seconds_until_end(world, Watchdog(), 300) is None


def test_table_of_actors_is_not_read_at_every_look(world):
    seconds_until_end(world, Watchdog(), 60)
    assert world.looks <= 60 / LOOK_S


def test_what_died_is_named(world):
    world.states["TransferQueueController"] = "DEAD"
    assert Watchdog.dead() == ["TransferQueue's controller"]
