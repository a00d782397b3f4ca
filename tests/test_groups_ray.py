"""Groups in the real TransferQueue, and a given-up turn in a real rollout server: one Ray for all of it."""

from __future__ import annotations

import asyncio
import itertools

import pytest

pytest.importorskip("verl")

import transfer_queue as tq
from group_parts import FAILED, GOOD, SILENT, SIZE, Rollouts, buffer, uids
from omegaconf import OmegaConf

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def ray_session():
    import ray

    ray.init(num_cpus=8, include_dashboard=False, logging_level="ERROR", configure_logging=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def queue(ray_session):
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield tq
    tq.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_evicted_groups_leave_nothing_behind_and_the_batch_is_whole(queue, kind):
    rollouts = Rollouts(queue, [FAILED, SILENT, [], [1.0, 0.0], *itertools.repeat(GOOD, 20)])
    made = buffer(kind, rollouts, batch=4, filtering=True)
    rollouts(4)
    batch, _ = made.sample(global_steps=1, partition_id="train", batch_size=4)
    sampled = list(uids(batch.keys))
    assert len(sampled) == 4
    assert not {"uid0", "uid1", "uid2"} & set(sampled)
    assert (len(made.groups.failed), len(made.groups.silent)) == (2, 1)
    assert made.groups.missing()["session_failed"] == (6 if "uid3" in sampled else 4)
    extras = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["extra_fields"])["extra_fields"]
    totals = [getattr(extra, "data", extra)["reward_extra_info"]["total"] for extra in extras]
    by_group = {
        uid: [t for key, t in zip(batch.keys, totals, strict=True) if key.startswith(f"{uid}_")] for uid in sampled
    }
    assert all(sorted(values) in (sorted(GOOD), [0.0, 1.0]) for values in by_group.values()), "rows of another group"
    queue.kv_clear(keys=batch.keys, partition_id="train")
    left = {key.split("_")[0] for key in queue.kv_list("train").get("train", {})}
    assert left <= set(rollouts.dispatched) - {"uid0", "uid1", "uid2"} - set(sampled)
    assert kind == "async" or not left, "sync keeps no surplus"
    if left:
        queue.kv_clear(keys=[f"{uid}_{n}_0" for uid in left for n in range(SIZE)] + list(left), partition_id="train")


def test_a_given_up_turn_is_given_up_in_the_server_too(ray_session):
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

    from datapm_rl.verl_plugin.llm_client import cancelling

    @ray_session.remote(max_concurrency=10)
    class Server:
        def __init__(self):
            self.ended = 0

        async def generate(self, **_):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.ended += 1
                raise

        async def seen(self):
            return self.ended

    @ray_session.remote
    class Balancer:
        def __init__(self, server):
            self.server, self.load = server, 0

        def require_acquire_fields(self):
            return []

        def require_release_fields(self):
            return []

        def acquire_server(self, request_id):
            self.load += 1
            return "one", self.server

        def release_server(self, server_id):
            self.load -= 1

        def loaded(self):
            return self.load

    server = Server.remote()
    balancer = Balancer.remote(server)
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "hf_cpu"}}})

    async def give_up(client):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.generate("r", prompt_ids=[1], sampling_params={"max_tokens": 4}), 1.0)

    async def play():
        assert (await server.seen.remote(), await balancer.loaded.remote()) == (0, 0)  # both are up
        for count, cls in enumerate((LLMServerClient, FullyAsyncLLMServerClient), start=1):
            client = cancelling(cls(config=config, load_balancer_handle=balancer))
            assert isinstance(client, cls)
            await give_up(client)
            for _ in range(100):
                if await server.seen.remote() == count:
                    break
                await asyncio.sleep(0.1)
            assert await server.seen.remote() == count, cls.__name__
        assert await balancer.loaded.remote() == 0

    asyncio.run(play())


def test_a_call_waits_for_a_dead_reward_worker_to_be_started_again_and_fails_when_nobody_does(ray_session, monkeypatch):
    from datapm_rl.errors import InfraError
    from datapm_rl.trajectory import Task, Trajectory
    from datapm_rl.verl_plugin import reward_client

    @ray_session.remote
    class Worker:
        async def compute_score(self, payload):
            return {"total": 0.5, "kind": payload["kind"]}

    def started():
        return Worker.options(name="reward_loop_worker_0").remote()

    client = reward_client.RewardClient(1, key="t", deadline_s=30.0)
    workers = [started()]

    async def play():
        asked = Trajectory(Task(id="t", question="?", answer_format="", data_dir="/", files=(), gold=()))
        assert (await client.reward(asked, gold=""))["total"] == 0.5
        ray_session.kill(workers.pop())
        waiting = asyncio.create_task(client.reward(asked, gold=""))
        await asyncio.sleep(2)
        assert not waiting.done()
        workers.append(started())
        assert (await waiting)["total"] == 0.5
        ray_session.kill(workers.pop())
        monkeypatch.setattr(reward_client, "REVIVAL_S", 2.0)
        with pytest.raises(InfraError, match="reward_worker_lost"):
            await client.reward(asked, gold="")

    asyncio.run(play())
