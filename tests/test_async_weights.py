"""New weights under running rollouts: who sampled which token, and who goes on where, with verl's own client."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl")

from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

from datapm_rl.engine.tiny import byte_tokenizer, random_model
from datapm_rl.verl_plugin import weight_transfer
from datapm_rl.verl_plugin.cpu_rollout import CpuServer
from datapm_rl.verl_plugin.weight_transfer import RayStoreEngine

pytestmark = pytest.mark.unit
torch.set_num_threads(1)

PROMPT = list(range(20))
LONG = {"max_tokens": 400, "ignore_eos": True, "logprobs": True, "seed": 1}


class Local:
    """An actor's handle without Ray: `handle.method.remote(...)` is a coroutine."""

    def __init__(self, actor):
        self._actor = actor

    def __getattr__(self, name):
        return SimpleNamespace(remote=getattr(self._actor, name))


class Client(FullyAsyncLLMServerClient):
    """verl's client over servers in this process; the first one is asked until it is taken away."""

    def __init__(self, *servers):
        super().__init__(
            config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="hf_cpu")))
        )
        self.servers = list(servers)

    async def _acquire_server(self, request_id, **_):
        return "server", Local(self.servers[0])

    def _release_server(self, *_, **__): ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy")
    random_model().save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return str(path)


@pytest.fixture
async def server(folder):
    server = CpuServer(folder, seed=0, max_len=1024, max_batch=1, load_weights=True)
    yield server
    await server.engine.close()


@pytest.fixture
def weights():
    return {name: tensor.numpy() for name, tensor in random_model(seed=1).state_dict().items()}


async def steps(server, count):
    async with asyncio.timeout(10):
        while server.engine.stats()["steps"] < count:
            await asyncio.sleep(0.002)


async def update(server, weights, version):
    """As `colocate_async` does it: abort, write, go on."""
    await server.abort_all_requests()
    await server.load_weights(weights, last=True, version=version)
    await server.resume_generation()


def versions(output):
    return output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]


async def test_turn_cut_off_by_an_update_goes_on_and_knows_both_weights(server, weights):
    await server.load_weights(weights, last=True, version=2)
    client = Client(server)
    cut = asyncio.create_task(client.generate("cut", prompt_ids=PROMPT, sampling_params=LONG))
    waiting = asyncio.create_task(client.generate("waiting", prompt_ids=PROMPT, sampling_params=LONG))
    await steps(server, 10)
    await update(server, weights, version=3)
    outputs = await asyncio.gather(cut, waiting)
    assert [versions(output) for output in outputs] == [(2, 3), (3, 3)], "it had no token of the weights before"
    for output in outputs:
        assert len(output.token_ids) == len(output.log_probs) == LONG["max_tokens"]
        assert output.stop_reason != "aborted"


async def test_server_that_leaves_the_balancer_parks_nobody(folder, server, weights):
    other = CpuServer(folder, seed=1, max_len=1024, max_batch=1, load_weights=True)
    client = Client(server, other)
    running = asyncio.create_task(client.generate("running", prompt_ids=PROMPT, sampling_params=LONG))
    await steps(server, 10)
    await server.abort_all_requests(reject_request=True)
    late = asyncio.create_task(client.generate("late", prompt_ids=PROMPT, sampling_params=LONG))
    await asyncio.sleep(0.1)
    client.servers.remove(server)
    async with asyncio.timeout(20):
        outputs = await asyncio.gather(running, late)
    assert [len(output.token_ids) for output in outputs] == [LONG["max_tokens"]] * 2
    await update(server, weights, version=5)  # a plain abort parks again
    assert versions(await Client(server).generate("r", prompt_ids=PROMPT, sampling_params=LONG)) == (5, 5)
    await other.engine.close()


@pytest.fixture
def no_ray(monkeypatch):
    """Ray's object store as futures; the mailbox in this process."""

    def put(value):
        future = asyncio.get_running_loop().create_future()
        future.set_result(value)
        return future

    monkeypatch.setattr(weight_transfer.ray, "put", put)
    return Local(weight_transfer._Mailbox())


@pytest.mark.parametrize("bucket_size", [1, 1 << 30])
async def test_every_receiver_gets_all_weights_once_and_a_second_transfer_starts_clean(no_ray, bucket_size):
    sent = dict(random_model().state_dict())
    master, idle = RayStoreEngine(bucket_size, is_master=True), RayStoreEngine(bucket_size)
    receivers = [RayStoreEngine(bucket_size) for _ in range(2)]
    for engine, number in [(master, -1), (idle, -1), *((engine, index) for index, engine in enumerate(receivers))]:
        engine.init_process_group(no_ray, number)
    for _ in range(2):
        await no_ray.open.remote(2)
        drained = iter(sent.items())
        *_, first, second = await asyncio.gather(
            master.send_weights(iter(sent.items())),
            idle.send_weights(drained),
            *(_collect(engine) for engine in receivers),
        )
        assert next(drained, None) is None, "a rank that does not send takes part in the all-gathers"
        for received in (first, second):
            assert [name for name, _ in received] == list(sent)
            assert all(torch.equal(tensor, sent[name]) for name, tensor in received)


async def _collect(engine):
    return [pair async for pair in engine.receive_weights()]


async def test_what_is_sent_is_a_copy(no_ray):
    """The trainer goes on to its next update while receivers read."""
    sender, receiver = RayStoreEngine(1 << 30, is_master=True), RayStoreEngine(1 << 30)
    await no_ray.open.remote(1)
    sender.init_process_group(no_ray, -1)
    receiver.init_process_group(no_ray, 0)
    weight = torch.ones(3)
    await sender.send_weights(iter([("w", weight)]))
    weight.zero_()
    [(_, received)] = await _collect(receiver)
    assert received.tolist() == [1, 1, 1]
