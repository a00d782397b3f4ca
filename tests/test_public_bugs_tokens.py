"""Public bugs of trainers in tokens and masks of multi-turn rollouts, tried on ours. All of them: docs/training.md."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.agent import AgentLimits, ChatTokens, Generation, Rollout, run_agent
from datapm_rl.dialects import get_dialect
from datapm_rl.engine.tiny import byte_tokenizer
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import StepStatus, StopReason, Task

pytestmark = pytest.mark.unit
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")

TASK = Task("t", "How many?", "@n[value]", "/d", ("a.csv",), (("n", "3"),))
CODE = "<Analyze>Look.</Analyze><Code>print(3)</Code>"
ANSWER = "<Analyze>Done.</Analyze><Answer>@n[3]</Answer>"

QWEN = (  # closes a turn with its special token AND a newline; makes up a system prompt; wants roles to alternate
    "{% if messages[0].role != 'system' %}<|system|>\nBe good.<|end|>\n{% endif %}"
    "{% for m in messages %}{% if not loop.first and m.role == messages[loop.index0 - 1].role %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    chosen = byte_tokenizer()
    chosen.chat_template = QWEN
    return chosen


class Says:
    """A model whose turns are given ids; like an engine it ends a turn that fits with the end-of-turn token."""

    def __init__(self, tokenizer, *turns: str | list[int]):
        self.turns = [tokenizer.encode(t, add_special_tokens=False) if isinstance(t, str) else t for t in turns]
        self.end = tokenizer.eos_token_id
        self.prompts: list[list[int]] = []

    async def __call__(self, ids: list[int], limit: int) -> Generation:
        self.prompts.append(list(ids))
        turn = [*self.turns[len(self.prompts) - 1], self.end]
        return Generation(turn[:limit], [-1.0] * len(turn[:limit]), "stop" if len(turn) <= limit else "length")


class Prints:
    def __init__(self, text: str = "3"):
        self.text = text

    async def run(self, code: str) -> ExecutionResult:
        return ExecutionResult(StepStatus.OK, stdout=self.text)


async def rollout(tokenizer, model, text: str = "3", **limits) -> Rollout:
    return await run_agent(
        TASK,
        dialect=get_dialect("deepanalyze"),
        tokens=ChatTokens(tokenizer),
        generate=model,
        session=Prints(text),
        limits=AgentLimits(**{"max_turns": 6, "turn_tokens": 200, "response_tokens": 4000, **limits}),
    )


def rendered(tokenizer, *turns: tuple[str, str]) -> list[int]:
    """The conversation rendered at once by the template."""
    dialect = get_dialect("deepanalyze")
    messages = [
        {"role": "system", "content": dialect.system_prompt},
        {"role": "user", "content": dialect.user_message(TASK)},
    ]
    for assistant, observation in turns:
        messages.append({"role": "assistant", "content": assistant})
        messages.append({"role": "user", "content": dialect.wrap_observation(observation)})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


async def test_separator_after_the_end_of_turn_token_is_not_lost(tokenizer):
    """verl PR#6921: generation stops at the end-of-turn token, the template's newline behind it was never appended."""
    model = Says(tokenizer, CODE, CODE, ANSWER)
    await rollout(tokenizer, model)
    assert model.prompts[2] == rendered(tokenizer, (CODE, "3"), (CODE, "3"))


async def test_template_with_a_default_system_prompt_or_alternating_roles_adds_nothing(tokenizer):
    """verl#6501, #6500, #6477, #3948: the system prompt measured by rendering odd conversations."""
    ids = ChatTokens(tokenizer).after_turn(tokenizer.encode(CODE, add_special_tokens=False), "seen")
    assert tokenizer.decode(ids) == "<|end|>\n<|user|>\nseen<|end|>\n<|assistant|>\n"


async def test_observation_keeps_its_head_and_its_tail(tokenizer):
    """verl PR#6313: the wrong end was cut, and the final line was lost."""
    text = "first line\n" + "x" * 500 + "\nlast line"
    result = await rollout(tokenizer, Says(tokenizer, CODE, ANSWER), text, response_tokens=4000)
    long = get_dialect("deepanalyze").observation_body(ExecutionResult(StepStatus.OK, stdout=text), 100)
    assert (long.startswith("first line"), long.endswith("last line")) == (True, True)
    assert text in tokenizer.decode(result.response_ids), "below the limit nothing is cut"


async def test_sampled_ids_that_no_encoding_gives_are_kept(tokenizer):
    """SkyRL#1278, NeMo-RL PR#1337, verl#3960: decoded and encoded again, other ids are trained on."""
    odd = tokenizer.encode("<Analyze>", add_special_tokens=False)
    byte = tokenizer.convert_tokens_to_ids("ÿ")  # the byte 0xff: never part of UTF-8
    odd = [*odd, byte, *tokenizer.encode(CODE[len("<Analyze>") :], add_special_tokens=False)]
    assert tokenizer.encode(tokenizer.decode(odd), add_special_tokens=False) != odd
    model = Says(tokenizer, odd, ANSWER)
    result = await rollout(tokenizer, model)
    assert result.response_ids[: len(odd)] == odd
    assert model.prompts[1][len(result.prompt_ids) :][: len(odd)] == odd
    assert result.trajectory.stop_reason is StopReason.ANSWERED


async def test_row_is_as_long_as_all_its_turns_and_not_as_one(tokenizer):
    """rllm PR#575: a merged response cut at the limit of one turn, without a warning."""
    result = await rollout(tokenizer, Says(tokenizer, *[CODE] * 4, ANSWER), turn_tokens=60)
    assert len(result.response_ids) > 4 * 60
    assert result.trajectory.steps[-1].span[1] == len(result.response_ids)


async def test_turn_cut_right_behind_its_code_goes_on_as_any_other(tokenizer):
    """miles PR#1323: a truncated turn in the middle broke what was checked of later ones."""
    model = Says(tokenizer, CODE, ANSWER)
    result = await rollout(tokenizer, model, turn_tokens=len(tokenizer.encode(CODE, add_special_tokens=False)))
    assert model.prompts[1] == rendered(tokenizer, (CODE, "3"))
    assert len(result.trajectory.steps) == 2


async def test_members_of_a_group_share_nothing(tokenizer):
    """AReaL#432: one list of messages for all members, which grows with each."""
    models = [Says(tokenizer, CODE, ANSWER) for _ in range(4)]
    results = await asyncio.gather(*(rollout(tokenizer, model) for model in models))
    assert [model.prompts for model in models] == [models[0].prompts] * 4
    assert len({id(result.response_ids) for result in results}) == 4


turn = st.one_of(
    st.sampled_from([CODE, ANSWER, "<Code>print(", "I do not know", ""]),
    st.text("<>/CodeAnswer \n", max_size=30),
    st.lists(st.integers(0, 255), min_size=1, max_size=30),
)


@given(st.lists(turn, min_size=6, max_size=6), st.integers(1, 60), st.integers(1, 400), st.text(max_size=80))
@settings(max_examples=60)
def test_ids_mask_and_log_probs_never_part_ways(turns, turn_tokens, response_tokens, text):
    """trl#5144, slime PR#2207, #1440, RLinf PR#318: a mask of another length, or of other tokens, than the ids."""
    tokenizer = TOKENIZER
    result = asyncio.run(
        rollout(tokenizer, Says(tokenizer, *turns), text, turn_tokens=turn_tokens, response_tokens=response_tokens)
    )
    assert len(result.response_ids) == len(result.response_mask) == len(result.response_logprobs) <= response_tokens
    spans = [range(*step.span) for step in result.trajectory.steps]
    assert [i for i, trained in enumerate(result.response_mask) if trained] == [i for span in spans for i in span]
    assert all(p == 0.0 for p, m in zip(result.response_logprobs, result.response_mask, strict=True) if not m)


TOKENIZER = byte_tokenizer()
TOKENIZER.chat_template = QWEN


def test_failed_rollout_has_no_token_to_train_on():
    """agentcore-rl-toolkit PR#122: a pad row with response_mask [1] enters the loss and the group."""
    pytest.importorskip("verl")
    from datapm_rl.trajectory import Trajectory
    from datapm_rl.verl_plugin.output import missing_info, rewarded_output

    row = rewarded_output(Rollout(Trajectory(TASK), [1]), missing_info("sandbox_lost"), filler=9).as_dict()
    assert (row["response_mask"].tolist(), row["rm_scores"].tolist()) == ([0], [0.0])


def test_verls_padding_rows_neither_train_nor_vote():
    """verl#473, #606: a batch that no divisor fits is filled up with copies of a real row."""
    pytest.importorskip("verl")
    import torch
    from verl.trainer.ppo.padding_utils import construct_minimal_padding_template

    row = {"response_mask": torch.ones(3), "rm_scores": torch.ones(3), "position_ids": torch.arange(4)}
    padding, tag = construct_minimal_padding_template(row, {"status": "success"}, eos_token_id=0)
    assert tag["is_padding"]
    assert all(padding[name].sum() == 0 for name in ("response_mask", "loss_mask", "rm_scores"))


def test_prompt_that_is_too_long_is_refused_and_not_cut(tmp_path):
    """agentcore-rl-toolkit PR#104: cut from the left, the rules of the system prompt vanish."""
    pytest.importorskip("verl")
    import json

    from omegaconf import OmegaConf

    from datapm_rl.errors import UserError
    from datapm_rl.verl_plugin.dataset import TaskDataset

    (tmp_path / "a.csv").write_text("x\n1\n")
    row = {"id": "t", "question": "How many?", "format": "@n[value]", "files": ["a.csv"], "gold": [["n", "1"]]}
    (tmp_path / "tasks.jsonl").write_text(json.dumps({**row, "split": "train"}))
    config = OmegaConf.create({"dialect": "deepanalyze", "max_prompt_length": 10})
    with pytest.raises(UserError, match=r"task t has a prompt of \d+ tokens"):
        TaskDataset(f"{tmp_path}/tasks.jsonl#train", TOKENIZER, config)
