"""The generative verifier in real runs: over an endpoint, over verl's reward-model pool, and by the policy itself."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_parts import is_poisoned

pytest.importorskip("verl")
pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TESTS = Path(__file__).parent
SMALL = (
    "tasks.train=60",
    "tasks.heldout=4",
    "tasks.unseen_tables=4",
    "policy.sft_updates=150",
    "policy.sft_demonstrations=300",
    "trainer.total_training_steps=2",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "prm.verifier=generative",
    "prm.tools=[]",
)


def train(run_dir: Path, name: str, *overrides: str) -> list[dict]:
    """Trajectories of a small run that ends well."""
    command = [sys.executable, "-m", "datapm_rl.train", "+recipe=smoke", f"run.dir={run_dir}", f"run.name={name}"]
    environment = {**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [*command, *SMALL, *overrides], cwd=TESTS.parent, env=environment, text=True, capture_output=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in (run_dir / name / "trajectories.jsonl").read_text().splitlines()]


def training_rows(run: Path) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "train"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("verified")


@pytest.fixture(scope="module")
def endpoint():
    """A stub endpoint in a process of its own."""
    script = f"{TESTS / 'e2e_verifier_script.py'}:answer"
    command = [sys.executable, str(TESTS / "stub_endpoint.py"), "--script", script, "--latency", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture(scope="module")
def endpoint_run(run_dir, endpoint) -> tuple[Path, list[dict]]:
    """A run over the endpoint in which some sessions cannot be opened, none of some tasks: (folder, trajectories)."""
    loops = f"actor_rollout_ref.rollout.agent.agent_loop_config_path={TESTS / 'faulty_loops.yaml'}"
    rows = train(run_dir, "endpoint", f"prm.endpoint={endpoint}", loops, "agent.quarantine_after=1")
    return run_dir / "endpoint", rows


def test_verifier_behind_an_endpoint_runs_its_code_on_the_agents_state(endpoint_run):
    run, attempts = endpoint_run
    verdicts = [pair for row in attempts for pair in zip(row["steps"], row["verdicts"], strict=True)]
    assert verdicts
    assert all(verdict["score"] in (0.0, 1.0) for _, verdict in verdicts), [v["cause"] for _, v in verdicts]
    for step, verdict in verdicts:
        checked, judged = verdict["trace"]
        assert checked["status"] == "ok"
        assert judged["reply"].endswith("</summary>")
        loaded = "df" in checked["output"]
        assert verdict["score"] == float(loaded)
        if step["index"] == 1 and step["status"] == "ok" and "df = pd.read_csv" in step["code"]:
            assert loaded, "the code runs in the state after the step"
    row = training_rows(run)[0]
    assert (row["verifier/turns_mean"], row["verifier/executions_mean"]) == (2.0, 1.0)
    assert row["verifier/completion_tokens_mean"] > 0
    assert row["verifier/missing_share"] == 0


def test_failing_sessions_are_sampled_again_and_trained_around(endpoint_run):
    run, attempts = endpoint_run
    assert len(attempts) == 32
    again = [row["reward"] for row in attempts if row["reward"]["given_up"]]
    assert {cause for reward in again for cause in reward["given_up"]} == {"sandbox_lost"}
    assert any(reward["total"] is not None for reward in again)
    missing = [row["reward"] for row in attempts if row["reward"]["missing_cause"]]
    assert all(reward["total"] is None and reward["given_up"] for reward in missing)
    assert all(row["actor/grad_norm"] > 0 for row in training_rows(run))


def test_poisoned_tasks_are_replaced_quarantined_and_counted(endpoint_run):
    run, attempts = endpoint_run
    assert not any(is_poisoned(row["task_id"]) for row in attempts)
    rows = training_rows(run)
    failed = sum(row["group/failed"] for row in rows)
    assert failed == sum(row["group/refilled"] for row in rows) > 0
    lost = [row for row in attempts if row["reward"]["missing_cause"]]
    assert sum(row.get("missing/sandbox_lost", 0) for row in rows) == 4 * failed + len(lost)
    out = [json.loads(line) for line in (run / "quarantine.jsonl").read_text().splitlines()]
    assert len(out) == rows[-1]["group/quarantined"] == failed
    assert all(is_poisoned(row["task_id"]) and row["causes"] == {"sandbox_lost": 4} for row in out)


@pytest.fixture
def ray_session():
    import ray

    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", configure_logging=False)
    yield ray
    ray.shutdown()


def test_policy_judges_itself_and_a_cancelled_verification_ends_in_its_worker(ray_session, tmp_path):
    from chain_model import build_chain_model

    from datapm_rl.chat import ChatSampling
    from datapm_rl.errors import InfraError
    from datapm_rl.trajectory import Step, Task
    from datapm_rl.verl_plugin.cpu_rollout import CpuServer
    from datapm_rl.verl_plugin.policy_chat import PolicyChat
    from datapm_rl.verl_plugin.reward_client import RewardClient

    @ray_session.remote(name="reward_loop_worker_0", max_concurrency=10)
    class Worker:
        def __init__(self):
            self.ended: list[str] = []

        async def compute_score(self, payload):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.ended.append(payload["kind"])
                raise

        async def seen(self):
            return self.ended

    async def play():
        say = [{"role": "user", "content": "right?"}]
        chat = PolicyChat("hf_cpu")
        with pytest.raises(InfraError, match="no rollout server"):
            await chat.complete(say, ChatSampling(max_tokens=16), 5)
        folder = build_chain_model(tmp_path / "policy")
        server = ray_session.remote(CpuServer).options(name="hf_cpu_server_0_0", num_cpus=0)
        handle = server.remote(str(folder), seed=0, max_len=512, max_batch=4, load_weights=True)
        reply = await chat.complete(say, ChatSampling(max_tokens=16), 60)
        assert "<score>1</score>" in reply.text
        del handle

        worker = Worker.remote()
        client = RewardClient(1, key="t", deadline_s=60)
        task = Task("t", "", "", "", (), ())
        call = asyncio.create_task(client.verify(task, "box", "id", [], [], Step(1, "x")))
        await asyncio.sleep(1)
        call.cancel()
        for _ in range(50):
            if await worker.seen.remote():
                break
            await asyncio.sleep(0.1)
        assert await worker.seen.remote() == ["verify"]
        late = RewardClient(1, key="t", deadline_s=0.3)
        with pytest.raises(TimeoutError):
            await late.verify(task, "box", "id", [], [], Step(1, "x"))
        await asyncio.sleep(1)
        assert await worker.seen.remote() == ["verify"] * 2

    asyncio.run(play())
