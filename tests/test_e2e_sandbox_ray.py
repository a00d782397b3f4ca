"""The sandbox actor in a real Ray: it is killed in mid-trajectory, its zygote too, and nothing is lost or left."""

import asyncio
import contextlib
import os
import signal
import time

import pytest

from datapm_rl.sandbox import Limits
from datapm_rl.sandbox.inside import kernel
from datapm_rl.trajectory import StepStatus

pytestmark = pytest.mark.e2e


@pytest.fixture
def ray_session():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", configure_logging=False)
    yield ray
    ray.shutdown()


def test_a_killed_actor_or_zygote_loses_no_trajectory_and_leaves_no_process_and_no_folder(ray_session, tmp_path):
    from datapm_rl.sandbox.actor import get_or_create_sandbox_actor
    from datapm_rl.sandbox.client import RemoteSession

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.csv").write_text("a\n1\n2\n")
    root = tmp_path / "root"
    settings = {"limits": Limits(wall_s=20), "workspace_root": root, "keep": "all"}
    actor = get_or_create_sandbox_actor(settings, cores=2)

    async def play():
        session = await RemoteSession.open(actor, str(tmp_path / "data"), ["t.csv"], seed=5, deadline_s=60)
        await session.run("df = pd.read_csv('t.csv'); import random; open('log', 'a').write('.')")
        drawn = (await session.run("random.random()")).value
        zygote = int((await actor.health.remote())["zygote_pid"])
        os.kill(zygote, signal.SIGKILL)
        assert (await session.run("len(df), open('log').read()")).value == "(2, '.')"

        zygote = int((await actor.health.remote())["zygote_pid"])
        owner = parent(zygote)
        while "ray" not in name(owner):
            owner = parent(owner)
        pids = kernel.descendants(owner)
        assert zygote in pids
        running = asyncio.create_task(session.run("import time; time.sleep(3); df['a'].sum()"))
        await asyncio.sleep(0.5)
        os.kill(owner, signal.SIGKILL)
        result = await running
        assert result.status is StepStatus.OK, result
        assert "3" in result.value
        assert await gone(pids)
        probe = await RemoteSession(actor, session.id, 60).probe("random.random()", step=1)
        assert probe.value == drawn, "the state after the first step, with its seed, under the old id"
        await session.close()
        assert (await actor.health.remote())["rebuilt"] >= 1
        await actor.shutdown.remote()
        assert list(root.iterdir()) == []

    asyncio.run(play())


async def gone(pids: set[int]) -> bool:
    give_up = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(0.05)
    return True


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


def name(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
        return file.read()
    return ""
