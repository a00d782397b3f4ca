"""One member of a group in `DataAgentLoop`: sampled again when it is lost, given up in time, cancelled for real."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

pytest.importorskip("verl")

from omegaconf import OmegaConf

from datapm_rl.engine.tiny import byte_tokenizer
from datapm_rl.errors import InfraError
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import StepStatus, Task, Verdict, to_json
from datapm_rl.verl_plugin import agent_loop
from datapm_rl.verl_plugin.agent_loop import DataAgentLoop
from datapm_rl.verl_plugin.output import missing_info, reward_info

pytestmark = pytest.mark.unit

TASK = Task("t", "How many?", "@n[value]", "/d", ("a.csv",), gold=())
TURNS = ("<Analyze>Look.</Analyze><Code>print(3)</Code>", "<Analyze>Done.</Analyze><Answer>@n[3]</Answer>")


async def forever():
    await asyncio.sleep(3600)


class Session:
    id = "s"

    def __init__(self, world):
        self.world = world

    async def run(self, code):
        return ExecutionResult(StepStatus.OK, stdout="3\n")

    async def close(self):
        self.world.closed += 1
        if self.world.hangs == "close":
            await forever()


class World:
    """Rollout server, sandbox and reward worker of one member. `hangs` names what never answers."""

    def __init__(self, losses=(), hangs=None, rewards=()):
        self.losses, self.hangs, self.rewards = list(losses), hangs, list(rewards)
        self.opened: list[int] = []
        self.seeds: list[int] = []
        self.closed = 0
        self.cancelled: list[str] = []

    async def open(self, task, seed):
        self.opened.append(seed)
        if self.losses and (cause := self.losses.pop(0)):
            raise InfraError(cause)
        return Session(self)

    async def hang_at(self, name):
        if self.hangs == name:
            try:
                await forever()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise

    async def generate(self, request_id, prompt_ids, sampling_params):
        await self.hang_at("generate")
        self.seeds.append(sampling_params["seed"])
        turn = TURNS[min(byte_tokenizer().decode(prompt_ids).count("print(3)"), 1)]
        ids = byte_tokenizer().encode(turn, add_special_tokens=False)
        return SimpleNamespace(token_ids=ids, log_probs=None, stop_reason="completed", extra_fields={})


class Rewards:
    """In the place of RewardClient."""

    world: World

    def __init__(self, *_, **__): ...

    async def verify(self, task, sandbox, session_id, history, verdicts, step):
        await self.world.hang_at("verify")
        return Verdict(1.0)

    async def reward(self, trajectory, gold):
        await self.world.hang_at("reward")
        if self.world.rewards and (cause := self.world.rewards.pop(0)):
            return missing_info(cause)
        rewards = [0.0] * len(trajectory.steps)
        return reward_info(
            total=0.0, outcome=0.0, process=0.0, step_scores=[], step_rewards=rewards, overridden=False, cause=None
        )


@pytest.fixture
def play(monkeypatch):
    monkeypatch.setattr(agent_loop, "RewardClient", Rewards)
    monkeypatch.setattr(agent_loop, "local_sandbox_name", lambda: "box")
    monkeypatch.setattr(agent_loop, "CLOSE_S", 0.1)

    async def run(world: World, session: int = 0, step: int = 1, **agent):
        settings = {
            "dialect": "deepanalyze",
            "max_turns": 5,
            "turn_tokens": 200,
            "turn_deadline_s": 60.0,
            "observation_chars": 100,
            "group_deadline_s": 60.0,
            "refills": 1,
        }
        loop = object.__new__(DataAgentLoop)
        loop.config = OmegaConf.create(
            {
                "agent": {**settings, **agent},
                "prm": {"verifier": "custom", "trajectory_deadline_s": 60.0, "deadline_s": 60.0},
                "reward": {"num_workers": 1},
                "run": {"seed": 0},
                "overlong": {"policy": "none"},
            }
        )
        loop.rollout_config = SimpleNamespace(response_length=2000)
        loop.tokenizer = byte_tokenizer()
        loop.server_manager = world
        loop._open_session = world.open
        Rewards.world = world
        output = await asyncio.wait_for(
            loop.run(
                {"temperature": 1.0},
                uid="u",
                session_id=session,
                global_steps=step,
                extra_info={"task": json.dumps(to_json(TASK))},
                reward_model={"ground_truth": "[]"},
            ),
            30,
        )
        return output.extra_fields["reward_extra_info"], output

    return run


async def test_lost_member_is_sampled_again_and_the_record_tells(play):
    world = World(losses=["sandbox_lost"])
    info, output = await play(world)
    assert (info["missing_cause"], info["given_up"]) == (None, ["sandbox_lost"])
    assert len(set(world.opened)) == 2, "another attempt has another seed"
    assert output.as_dict()["response_mask"].sum() > 0


async def test_reward_that_is_missing_is_sampled_again(play):
    info, _ = await play(World(rewards=["no_verdicts"]))
    assert (info["missing_cause"], info["given_up"]) == (None, ["no_verdicts"])


async def test_member_is_given_up_after_so_many_refills(play):
    world = World(losses=["sandbox_lost", "unreachable", "sandbox_lost", "sandbox_lost"])
    info, output = await play(world, refills=2)
    assert (info["missing_cause"], info["given_up"]) == ("sandbox_lost", ["sandbox_lost", "unreachable"])
    assert len(world.opened) == 3
    assert output.as_dict()["response_mask"].sum() == 0


async def test_no_refill_means_one_attempt(play):
    world = World(losses=["sandbox_lost"])
    info, _ = await play(world, refills=0)
    assert (info["missing_cause"], info["given_up"], len(world.opened)) == ("sandbox_lost", [], 1)


async def test_seeds_depend_on_step_session_and_attempt_alone(play):
    worlds = [World(losses=["sandbox_lost"]) for _ in range(4)]
    for world, (session, step) in zip(worlds, [(0, 1), (0, 1), (1, 1), (0, 2)], strict=True):
        await play(world, session=session, step=step)
    assert worlds[0].opened == worlds[1].opened
    assert worlds[0].seeds == worlds[1].seeds
    assert len({seed for world in worlds[1:] for seed in world.opened}) == 6


async def test_grader_that_fails_is_not_asked_about_another_sample(play):
    world = World(rewards=["grader_bug_KeyError"])
    info, _ = await play(world)
    assert (info["missing_cause"], len(world.opened)) == ("grader_bug_KeyError", 1)


@pytest.mark.parametrize("hangs", ["generate", "verify", "reward"])
async def test_member_that_is_late_is_missing_and_all_its_work_is_cancelled(play, hangs):
    world = World(hangs=hangs)
    info, output = await play(world, group_deadline_s=0.3)
    assert (info["missing_cause"], info["given_up"]) == ("group_deadline", [])
    assert world.cancelled == [hangs]
    assert (len(world.opened), world.closed) == (1, 1)
    assert output.as_dict()["response_mask"].sum() == 0
    steps = output.extra_fields["trajectory"]["steps"]
    assert len(steps) == (2 if hangs == "reward" else 0), "what is known is kept"


async def test_deadline_is_the_groups_and_not_the_attempts(play):
    world = World(losses=["sandbox_lost"], hangs="generate")
    info, _ = await play(world, group_deadline_s=0.3, refills=5)
    assert (info["missing_cause"], info["given_up"]) == ("group_deadline", ["sandbox_lost"])


async def test_turn_that_is_late_has_its_own_cause_and_is_sampled_again(play):
    world = World(hangs="generate")
    info, _ = await play(world, turn_deadline_s=0.1)
    assert (info["missing_cause"], info["given_up"]) == ("deadline", ["deadline"])
    assert world.cancelled == ["generate", "generate"]


async def test_session_that_never_closes_holds_no_group(play):
    info, _ = await play(World(hangs="close"))
    assert info["missing_cause"] is None
