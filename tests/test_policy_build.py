"""`build_policy`: a folder that transformers loads, equal for equal arguments, complete or absent."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from datapm_rl.benchmarks.builtin import build
from datapm_rl.benchmarks.task_file import load_tasks
from datapm_rl.errors import UserError
from datapm_rl.policy import SftConfig, build_policy, cache

pytestmark = pytest.mark.unit
TINY = SftConfig(demonstrations=60, updates=40, batch=8)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("b") / "b"
    path = build(folder, seed=0, train_tasks=120, heldout_tasks=10, unseen_tasks=0, tables=["iris", "cars"])
    return load_tasks(path)


@pytest.fixture(scope="module")
def train(tasks):
    return [task for task in tasks if task.split == "train"]


@pytest.fixture(scope="module")
def folder(train, tmp_path_factory):
    return build_policy(tmp_path_factory.mktemp("p"), tasks=train, seed=0, sft=TINY, report=lambda line: None)


def test_transformers_cannot_load_or_generate_with_the_folder(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "system", "content": "dropped"}, {"role": "user", "content": "What is the mean of sepal length?"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert prompt == "<user>What is the mean of sepal length?<assistant>"
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=5, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    text = tokenizer.decode(out[0, ids["input_ids"].shape[1] :])
    assert text.startswith("<Analyze>")  # 40 updates teach how a turn begins
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_facts_are_not_written(folder):
    facts = json.loads((folder / "policy.json").read_text())
    assert facts["parameters"] == sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder).parameters())
    assert 0 < facts["demonstrations_right"] < 1
    assert facts["sft_loss"] < 5  # an untrained model has log(vocabulary) > 6
    assert facts["seed"] == 0


def test_equal_arguments_give_other_weights(train, folder, tmp_path):
    torch.manual_seed(123)  # the caller's random state must neither matter nor be touched
    state = torch.random.get_rng_state()
    again = build_policy(tmp_path, tasks=train, seed=0, sft=TINY, report=lambda line: None)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert again.name == folder.name
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (again / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_it_is_built_again_although_it_is_there(train, folder, monkeypatch):
    monkeypatch.setattr(cache, "_write", None)  # calling it would raise
    lines = []
    assert build_policy(folder.parent, tasks=train, seed=0, sft=TINY, report=lines.append) == folder
    assert "there already" in lines[0]


def test_other_seed_tasks_or_settings_share_a_folder(train, folder, monkeypatch):
    monkeypatch.setattr(cache, "_write", lambda work, *rest: None)
    others = [
        build_policy(folder.parent, tasks=train, seed=1, sft=TINY),
        build_policy(folder.parent, tasks=train[1:], seed=0, sft=TINY),
        build_policy(folder.parent, tasks=train, seed=0, sft=SftConfig(updates=41)),
    ]
    assert len({folder, *others}) == 4


def test_a_build_that_fails_leaves_a_half_folder(train, tmp_path, monkeypatch):
    def fail(work, *rest):
        (work / "config.json").write_text("{}")
        raise RuntimeError("killed")

    monkeypatch.setattr(cache, "_write", fail)
    with pytest.raises(RuntimeError):
        build_policy(tmp_path, tasks=train, seed=0, sft=TINY)
    assert not list(tmp_path.iterdir())


def test_heldout_tasks_are_demonstrated(tasks, tmp_path):
    with pytest.raises(UserError, match="heldout"):
        build_policy(tmp_path, tasks=tasks, seed=0, sft=TINY)
    with pytest.raises(UserError, match="got none"):
        build_policy(tmp_path, tasks=[], seed=0, sft=TINY)
