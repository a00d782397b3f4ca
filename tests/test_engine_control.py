"""Abort, resume, cancellation and weight updates leave the engine in a state one can trust."""

import asyncio
import copy

import numpy as np
import pytest
import torch

from datapm_rl.engine import CpuEngine, Sampling
from datapm_rl.engine.tiny import byte_tokenizer, random_model
from datapm_rl.errors import InfraError, UserError

pytestmark = pytest.mark.unit
torch.set_num_threads(1)

GREEDY = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
LONG = Sampling(max_tokens=900, ignore_eos=True)
PROMPT = list(range(20))


@pytest.fixture
async def engine():
    engine = CpuEngine(random_model(), byte_tokenizer(), max_batch=4)
    yield engine
    await engine.close()


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def full_forward(model, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    ids = torch.tensor([prompt + tokens])
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1], -1)
    return logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0]


async def test_abort_ends_running_and_waiting_requests_with_their_tokens_and_new_ones_wait_for_resume(engine):
    tasks = [asyncio.create_task(engine.generate(PROMPT, LONG, f"r{i}")) for i in range(6)]  # two have no row
    await until(lambda: engine.stats()["steps"] > 5)
    await engine.abort_all()
    outs = await asyncio.gather(*tasks)
    assert {out.stop_reason for out in outs} == {"aborted"}
    assert [len(out.token_ids) > 5 for out in outs] == [True] * 4 + [False] * 2
    assert all(len(out.token_ids) == len(out.logprobs) for out in outs)
    late = asyncio.create_task(engine.generate(PROMPT, GREEDY, "late"))
    await asyncio.sleep(0.05)
    assert not late.done()
    await engine.resume()
    assert (await late).stop_reason == "length"


async def test_an_aborted_request_goes_on_from_its_tokens(engine):
    task = asyncio.create_task(engine.generate(PROMPT, Sampling(temperature=0.0, max_tokens=900, ignore_eos=True), "r"))
    await until(lambda: engine.stats()["steps"] > 5)
    await engine.abort_all()
    first = await task
    await engine.resume()
    rest = await engine.generate(PROMPT + first.token_ids, GREEDY, "r")
    assert rest.cached_tokens == len(PROMPT) + len(first.token_ids) - 1
    whole = await engine.generate(
        PROMPT, Sampling(temperature=0.0, max_tokens=len(first.token_ids) + 12, ignore_eos=True), "other"
    )
    assert whole.token_ids == first.token_ids + rest.token_ids


async def test_a_cancelled_request_frees_its_row_wherever_it_is(engine):
    tasks = [asyncio.create_task(engine.generate(PROMPT, LONG, f"r{i}")) for i in range(6)]
    await until(lambda: engine.stats()["running"] == 4 and engine.stats()["waiting"] == 2)
    for task in tasks[1:]:
        task.cancel()
    await until(lambda: engine.stats()["running"] == 1 and engine.stats()["waiting"] == 0)
    assert (await tasks[0]).stop_reason == "length"
    assert (await engine.generate(PROMPT, GREEDY, "next")).stop_reason == "length"


async def test_new_weights_are_used_and_nothing_of_the_old_ones_is_left(engine):
    other = random_model(seed=5)
    before = await engine.generate(PROMPT, GREEDY, "s")  # parked: must not be reused under the new weights
    state = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    names = list(state)
    await engine.update_weights({name: state[name] for name in names[:5]}, last=False)
    await engine.update_weights({name: state[name].numpy() for name in names[5:]}, version=7)
    prompt = PROMPT + before.token_ids
    out = await engine.generate(prompt, GREEDY, "s")
    assert (out.cached_tokens, out.weight_version, before.weight_version) == (0, 7, 0)
    assert torch.allclose(torch.tensor(out.logprobs), full_forward(other, prompt, out.token_ids), atol=1e-4)
    await engine.update_weights(state)
    assert engine.stats()["weight_version"] == 8


async def test_a_request_that_crosses_an_update_goes_on_as_if_the_new_weights_had_read_all_of_it(engine):
    other = random_model(seed=5)
    task = asyncio.create_task(engine.generate(PROMPT, LONG, "r"))
    await until(lambda: engine.stats()["steps"] > 5)
    state = other.state_dict()
    half = dict(list(state.items())[:5])
    await engine.update_weights(half, last=False)
    steps = engine.stats()["steps"]
    await asyncio.sleep(0.05)
    assert engine.stats()["steps"] == steps, "decoded with half-updated weights"
    await engine.update_weights({name: state[name] for name in state if name not in half}, version=3)
    out = await task
    assert (out.weight_version, out.last_weight_version, len(out.token_ids)) == (0, 3, 900)
    new = full_forward(other, PROMPT, out.token_ids)
    assert torch.allclose(torch.tensor(out.logprobs[steps + 1 :]), new[steps + 1 :], atol=1e-3)
    assert not torch.allclose(torch.tensor(out.logprobs[: steps + 1]), new[: steps + 1], atol=1e-1)


@pytest.mark.parametrize("with_head", [True, False])
async def test_a_tied_output_layer_may_be_sent_or_left_out(with_head):
    model, other = (random_model("qwen2", tie_word_embeddings=True, seed=seed) for seed in (0, 5))
    engine = CpuEngine(model, byte_tokenizer())
    state = {name: tensor for name, tensor in other.state_dict().items() if with_head or name != "lm_head.weight"}
    assert ("lm_head.weight" in state) == with_head
    await engine.update_weights(state)
    out = await engine.generate(PROMPT, GREEDY, "r")
    assert torch.allclose(torch.tensor(out.logprobs), full_forward(other, PROMPT, out.token_ids), atol=1e-4)
    await engine.close()


async def test_wrong_updates_are_named_and_write_nothing(engine):
    state = engine_state = {name: tensor.clone() for name, tensor in random_model(seed=5).state_dict().items()}
    expected = (await engine.generate(PROMPT, GREEDY, "a")).token_ids
    with pytest.raises(UserError, match=r"'model\.nonsense'"):
        await engine.update_weights(state | {"model.nonsense": torch.zeros(1)})
    with pytest.raises(UserError, match=r"lm_head\.weight.*shape \(3,\)"):
        await engine.update_weights(engine_state | {"lm_head.weight": np.zeros(3, np.float32)})
    assert (await engine.generate(PROMPT, GREEDY, "b")).token_ids == expected
    del state["lm_head.weight"]
    with pytest.raises(UserError, match=r"without 'lm_head\.weight' \(1 missing"):
        await engine.update_weights(state)


async def test_read_only_arrays_from_the_object_store_are_taken_without_a_warning(engine, recwarn):
    state = {name: tensor.numpy() for name, tensor in random_model(seed=5).state_dict().items()}
    for array in state.values():
        array.flags.writeable = False
    await engine.update_weights(state)
    assert not [w for w in recwarn if "writ" in str(w.message)]


async def test_sleep_gives_the_memory_back_and_the_engine_wakes(engine):
    expected = await engine.generate(PROMPT, GREEDY, "a")
    await engine.sleep()
    stats = engine.stats()
    assert (stats["kv_bytes"], stats["parked_bytes"], stats["parked"]) == (0, 0, 0)
    await engine.resume()
    assert (await engine.generate(PROMPT, GREEDY, "a")).token_ids == expected.token_ids


async def test_a_failing_forward_fails_its_requests_and_not_the_engine():
    model = random_model()
    engine = CpuEngine(model, byte_tokenizer())
    broken, whole = [True], model.forward

    def forward(*args, **kwargs):
        if broken[0]:
            raise RuntimeError("no such luck")
        return whole(*args, **kwargs)

    model.forward = forward
    with pytest.raises(InfraError, match="no such luck"):
        await engine.generate(PROMPT, GREEDY, "a")
    broken[0] = False
    assert len((await engine.generate(PROMPT, GREEDY, "b")).token_ids) == 12
    await engine.close()


async def test_close_fails_what_is_running_and_what_comes_later():
    engine = CpuEngine(random_model(), byte_tokenizer())
    task = asyncio.create_task(engine.generate(PROMPT, LONG, "r"))
    await until(lambda: engine.stats()["steps"] > 2)
    await engine.close()
    with pytest.raises(InfraError, match="engine_closed"):
        await task
    with pytest.raises(InfraError, match="engine_closed"):
        await engine.generate(PROMPT, GREEDY, "r")


async def test_bad_prompts_and_models_are_refused_in_one_sentence(engine, tmp_path):
    with pytest.raises(UserError, match="empty"):
        await engine.generate([], GREEDY, "r")
    with pytest.raises(UserError, match="1024 tokens"):
        await engine.generate([1] * 1024, GREEDY, "r")
    with pytest.raises(UserError, match=r"config\.json"):
        CpuEngine.from_folder(tmp_path)
    with pytest.raises(UserError, match="full attention"):
        CpuEngine(random_model("mistral", sliding_window=64), byte_tokenizer())


@pytest.mark.parametrize("tied", [True, False])
async def test_a_folder_without_its_weights_becomes_the_model_by_an_update(tmp_path, tied):
    model = random_model("qwen2", tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    loaded = CpuEngine.from_folder(tmp_path)
    expected = await loaded.generate(PROMPT, GREEDY, "r")
    await loaded.close()
    blank = CpuEngine.from_folder(tmp_path, load_weights=False, max_batch=2)
    assert (await blank.generate(PROMPT, GREEDY, "r")).token_ids != expected.token_ids
    await blank.update_weights(copy.deepcopy(model).state_dict())
    assert (await blank.generate(PROMPT, GREEDY, "r")).token_ids == expected.token_ids
    await blank.close()
