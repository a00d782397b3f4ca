"""The engine decodes what transformers decodes, whatever else runs beside it."""

import asyncio
import copy
import uuid

import pytest
import torch

from datapm_rl.engine import CpuEngine, Generation, Sampling
from datapm_rl.engine.tiny import byte_tokenizer, random_model

pytestmark = pytest.mark.unit
torch.set_num_threads(1)

KINDS = {
    "llama": ("llama", {}),
    "llama-gqa": ("llama", {"num_key_value_heads": 2}),
    "qwen2-gqa-tied": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen3-gqa": ("qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
}


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 60, (count,), generator=generator).tolist()
    return [torch.randint(0, 256, (n,), generator=generator).tolist() for n in lengths]


def reference_greedy(model, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens, eos_token_id=256
    )
    return out[0, len(prompt) :].tolist()


def full_logprobs(model, prompt: list[int], out: Generation, temperature: float) -> torch.Tensor:
    """What a trainer recomputes: one full forward."""
    tokens = torch.tensor([prompt + out.token_ids])
    with torch.inference_mode():
        logits = model(tokens).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, tokens[0, len(prompt) :, None])[:, 0]


@pytest.mark.parametrize("kind", KINDS)
async def test_greedy_equals_transformers_with_different_lengths_and_admissions_in_mid_decode(kind):
    model = random_model(KINDS[kind][0], **KINDS[kind][1])
    twin = copy.deepcopy(model)
    engine = CpuEngine(model, byte_tokenizer(), max_batch=5)  # more requests than rows: rows are reused

    async def late(i: int, prompt: list[int]) -> Generation:
        await asyncio.sleep(0.01 * i)
        return await engine.generate(prompt, Sampling(temperature=0.0, max_tokens=5 + 7 * (i % 5)), f"r{i}")

    asked = prompts(12)
    outs = await asyncio.gather(*(late(i, prompt) for i, prompt in enumerate(asked)))
    for i, (prompt, out) in enumerate(zip(asked, outs, strict=True)):
        assert out.token_ids == reference_greedy(twin, prompt, 5 + 7 * (i % 5))
        assert torch.allclose(torch.tensor(out.logprobs), full_logprobs(twin, prompt, out, 1.0), atol=1e-4)
    await engine.close()


async def test_logprobs_are_those_of_the_whole_vocabulary_at_the_temperature_even_under_top_p_and_top_k():
    model = random_model()
    engine = CpuEngine(copy.deepcopy(model), byte_tokenizer())
    sampling = Sampling(temperature=0.7, top_p=0.8, top_k=20, max_tokens=40, ignore_eos=True)
    asked = prompts(4)
    outs = await asyncio.gather(*(engine.generate(p, sampling, str(i)) for i, p in enumerate(asked)))
    for prompt, out in zip(asked, outs, strict=True):
        assert len(out.token_ids) == 40
        assert torch.allclose(torch.tensor(out.logprobs), full_logprobs(model, prompt, out, 0.7), atol=1e-4)
    await engine.close()


async def test_a_sampled_result_does_not_depend_on_the_batch_or_on_arrival():
    asked = prompts(10)
    sampling = Sampling(temperature=1.0, max_tokens=30)
    crowd = CpuEngine(random_model(), byte_tokenizer())
    together = await asyncio.gather(*(crowd.generate(p, sampling, f"r{i}") for i, p in enumerate(asked)))
    await crowd.close()
    single = CpuEngine(random_model(), byte_tokenizer(), max_batch=1)
    alone = [await single.generate(p, sampling, f"r{i}") for i, p in reversed(list(enumerate(asked)))]
    await single.close()
    other = CpuEngine(random_model(), byte_tokenizer(), seed=1)
    different = await other.generate(asked[0], sampling, "r0")
    await other.close()
    assert [out.token_ids for out in together] == [out.token_ids for out in reversed(alone)]
    assert different.token_ids != together[0].token_ids


async def test_next_turn_computes_only_its_new_tokens_and_gives_the_same():
    model = random_model(num_key_value_heads=2)
    twin = copy.deepcopy(model)
    engine = CpuEngine(model, byte_tokenizer())

    async def session(i: int, prompt: list[int]) -> None:
        parked = 0
        for _ in range(3):
            out = await engine.generate(prompt, Sampling(temperature=0.0, max_tokens=6 + i), uuid.uuid4().hex)
            assert out.token_ids == reference_greedy(twin, prompt, 6 + i)
            assert torch.allclose(torch.tensor(out.logprobs), full_logprobs(twin, prompt, out, 1.0), atol=1e-4)
            assert out.cached_tokens == parked
            parked = len(prompt) + len(out.token_ids) - 1
            prompt = prompt + out.token_ids + [40 + i, 41, 42][: 1 + i % 3]

    asked = [[*range(100, 120), *prompt] for prompt in prompts(7, seed=3)]  # all begin alike
    await asyncio.gather(*(session(i, prompt) for i, prompt in enumerate(asked)))
    assert engine.stats()["parked"] == len(asked), "a turn replaces the one it went on from"
    assert engine.stats()["reused_tokens"] > 0
    await engine.close()


async def test_a_prompt_that_leaves_the_parked_one_reuses_only_the_common_beginning():
    model = random_model()
    twin = copy.deepcopy(model)
    engine = CpuEngine(model, byte_tokenizer())
    sampling = Sampling(temperature=0.0, max_tokens=8)
    first = list(range(30))
    await engine.generate(first, sampling, "s")
    second = [*first[:20], 99, 98, 97]
    out = await engine.generate(second, sampling, "s")
    assert out.cached_tokens == 20
    assert out.token_ids == reference_greedy(twin, second, 8)
    again = await engine.generate(second, sampling, "s")  # the same prompt: its last token must be fed again
    assert again.cached_tokens == len(second) - 1
    assert again.token_ids == out.token_ids
    await engine.close()


async def test_parked_prefixes_stay_within_their_memory():
    engine = CpuEngine(random_model(), byte_tokenizer(), prefix_cache_mb=1)
    sampling = Sampling(max_tokens=4, ignore_eos=True)
    per_token = 2 * 2 * 96 * 4
    for i in range(6):
        await engine.generate([i, *range(249)], sampling, f"r{i}")
    stats = engine.stats()
    assert stats["parked"] == 2**20 // (253 * per_token) == 2
    assert stats["parked_bytes"] <= 2**20
    await engine.close()


async def test_length_and_room_end_a_request():
    engine = CpuEngine(random_model(), byte_tokenizer(), max_len=40)
    out = await engine.generate([1] * 30, Sampling(max_tokens=50, ignore_eos=True), "a")
    assert (len(out.token_ids), out.stop_reason) == (10, "length")
    out = await engine.generate([1] * 30, Sampling(max_tokens=1, ignore_eos=True), "b")
    assert (len(out.token_ids), out.stop_reason) == (1, "length")
    await engine.close()
