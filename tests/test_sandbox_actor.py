"""The actor's class and the client, without a cluster: admission, leases, deadlines, failures as results."""

import asyncio
import time

import pytest
from sandbox_remote import Remote

from datapm_rl.errors import InfraError, UserError
from datapm_rl.sandbox import Limits
from datapm_rl.sandbox.actor import SandboxActor
from datapm_rl.sandbox.client import RemoteSession
from datapm_rl.trajectory import StepStatus

pytestmark = pytest.mark.unit


class Broken:
    """An actor whose every call fails or hangs."""

    def __init__(self, failure):
        self._failure = failure

    async def run(self, *_arguments):
        if self._failure is None:
            await asyncio.sleep(60)
        raise self._failure

    open = branch = close = probe = run


@pytest.fixture
async def actor(tmp_path):
    actor = SandboxActor({"limits": Limits(wall_s=5), "preload": (), "workspace_root": tmp_path / "root"}, 2, 1.0)
    yield actor
    await actor.shutdown()


async def test_a_session_behind_the_client_runs_branches_and_closes(actor, tmp_path):
    session = await RemoteSession.open(Remote(actor), str(tmp_path), [], seed=0, deadline_s=10)
    await session.run("x = 1")
    async with session.branch() as twin:
        assert (await twin.run("x += 1; x")).value == "2"
        assert (await actor.health())["sessions"] == 2
    assert (await session.probe("x += 5; x")).value == "6"
    assert (await session.probe("x", step=0)).status is StepStatus.ERROR
    assert (await session.run("x")).value == "1", "a probe leaves nothing"
    assert (await actor.health())["sessions"] == 1
    await session.close()
    await session.close()
    assert (await actor.health())["sessions"] == 0
    assert (await session.run("x")).cause == "session_unknown"
    with pytest.raises(InfraError, match="session_unknown"):
        async with session.branch():
            pass


async def test_steps_wait_for_a_core_and_waiting_is_not_their_time(actor, tmp_path):
    sessions = [await RemoteSession.open(Remote(actor), str(tmp_path), []) for _ in range(6)]
    started = time.monotonic()
    results = await asyncio.gather(*[session.run("import time; time.sleep(0.2)") for session in sessions])
    assert time.monotonic() - started >= 0.6
    assert max(result.wall_s for result in results) < 0.5


async def test_a_session_that_nobody_touches_is_swept_and_one_in_use_is_not(actor, tmp_path):
    idle = await RemoteSession.open(Remote(actor), str(tmp_path), [])
    await idle.run("x = 1")
    used = await RemoteSession.open(Remote(actor), str(tmp_path), [])
    result = await used.run("import time; time.sleep(2); 1")
    assert result.value == "1"
    assert (await actor.health())["swept"] == 1
    assert (await RemoteSession(Remote(actor), idle.id, 10).probe("x")).cause == "session_unknown"
    assert (await idle.run("x")).value == "1", "rebuilt from the log that the client keeps"
    assert (await RemoteSession(Remote(actor), idle.id, 10).probe("x")).value == "1", "under the same id"
    assert (await used.run("2")).value == "2"


async def test_a_step_that_was_undone_is_not_replayed_when_the_actor_loses_the_session(actor, tmp_path):
    session = await RemoteSession.open(Remote(actor), str(tmp_path), [])
    await session.run("x = 1")
    await session.run("import os; os.register_at_fork(before=lambda: os._exit(0)); x = 2")
    result = await session.run("x = 3")
    assert (result.status, result.undoes_previous) == (StepStatus.DIED, True)
    await actor.close(session.id)
    assert (await session.run("x")).value == "1"


async def test_bad_data_is_the_users_error_through_the_client(actor, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        await RemoteSession.open(Remote(actor), str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("failure", "cause"),
    [(None, "deadline"), (ConnectionRefusedError(), "unreachable"), (InfraError("sandbox_lost"), "sandbox_lost")],
)
async def test_a_failing_actor_is_a_result_with_a_cause_from_run_and_an_error_from_open(failure, cause):
    remote = Remote(Broken(failure))
    result = await RemoteSession(remote, "s0", deadline_s=0.1).run("1")
    assert (result.status, result.cause) == (StepStatus.INFRA_ERROR, cause)
    with pytest.raises(InfraError) as caught:
        await RemoteSession.open(remote, "/data", deadline_s=0.1)
    assert caught.value.cause == cause
    await RemoteSession(remote, "s0", deadline_s=0.1).close()
