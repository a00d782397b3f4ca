"""Drawing tokens, stop strings, and reading sampling parameters."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.engine import CpuEngine, Sampling
from datapm_rl.engine.draw import DrawPlan
from datapm_rl.engine.kv_store import KVStore
from datapm_rl.engine.stops import StopMatcher
from datapm_rl.engine.tiny import byte_tokenizer, random_model
from datapm_rl.errors import UserError

pytestmark = pytest.mark.unit
torch.set_num_threads(1)


def draws(sampling: Sampling, logits: torch.Tensor, count: int = 20000) -> torch.Tensor:
    """Frequencies of tokens over evenly spread uniforms."""
    rows = logits.expand(count, -1)
    tokens, _ = DrawPlan([sampling] * count).draw(rows, (np.arange(count) + 0.5) / count)
    return torch.bincount(tokens, minlength=logits.shape[0]) / count


def test_frequencies_follow_the_tempered_distribution():
    logits = torch.tensor([1.0, 0.0, -1.0, 3.0, -float("inf")])
    got = draws(Sampling(temperature=0.7), logits)
    assert torch.allclose(got, torch.softmax(logits / 0.7, -1), atol=2e-4)


def test_top_k_and_top_p_cut_the_distribution_and_keep_its_proportions():
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log()
    assert torch.allclose(draws(Sampling(top_k=2), logits), torch.tensor([0, 4 / 7, 3 / 7, 0]), atol=2e-4)
    assert torch.allclose(draws(Sampling(top_p=0.65), logits), torch.tensor([0, 4 / 7, 3 / 7, 0]), atol=2e-4)
    assert torch.allclose(draws(Sampling(top_p=0.75), logits), torch.tensor([0, 4 / 9, 3 / 9, 2 / 9]), atol=2e-4)
    assert draws(Sampling(top_p=1e-9), logits).tolist() == [0, 1, 0, 0]
    # top-p counts within what top-k left: of {4/7, 3/7}, 0.5 is reached by the first alone
    assert draws(Sampling(top_k=2, top_p=0.5), logits).tolist() == [0, 1, 0, 0]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_mixed_batch_draws_for_each_row_what_it_would_draw_alone(data):
    kinds = [
        Sampling(temperature=0.0),
        Sampling(),
        Sampling(temperature=0.5, top_k=3),
        Sampling(temperature=2.0, top_p=0.6),
    ]
    rows = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    logits = torch.randn(len(rows), 11, generator=generator) * 3
    uniforms = np.array([data.draw(st.floats(0, 1, exclude_max=True)) for _ in rows])
    tokens, logprobs = DrawPlan(rows).draw(logits, uniforms)
    for i, sampling in enumerate(rows):
        token, logprob = DrawPlan([sampling]).draw(logits[i : i + 1], uniforms[i : i + 1])
        assert tokens[i] == token[0]
        expected = torch.log_softmax(logits[i] / (sampling.temperature or 1.0), -1)[tokens[i]]
        assert logprobs[i] == pytest.approx(float(logprob[0]), abs=1e-6)
        assert logprobs[i] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_a_token_of_probability_zero_is_never_drawn_even_at_the_ends(uniform):
    logits = torch.tensor([[-float("inf"), 1.0, 2.0, -float("inf"), -float("inf")]])
    token, logprob = DrawPlan([Sampling()]).draw(logits, np.array([uniform]))
    assert token[0] in (1, 2)
    assert torch.isfinite(logprob[0])


def test_a_stop_string_is_found_as_one_token_and_spelt_out():
    tokenizer = byte_tokenizer()
    matcher = StopMatcher(tokenizer, ("</Code>", "né"))
    tag = tokenizer.convert_tokens_to_ids("</Code>")
    spelt = [tokenizer.convert_tokens_to_ids(char) for char in "</Code>"]
    assert matcher.match([5, tag]) == "</Code>"
    assert matcher.match([*spelt]) == "</Code>"
    assert all(matcher.match(spelt[:end]) is None for end in range(1, 7))
    assert matcher.match([*spelt[:3], 5, *spelt[3:]]) is None
    two_bytes = tokenizer("né", add_special_tokens=False)["input_ids"]
    assert len(two_bytes) == 3
    assert matcher.match(two_bytes[:2]) is None
    assert matcher.match(two_bytes) == "né"


async def test_the_stop_string_and_the_eos_token_are_kept_and_named():
    tokenizer = byte_tokenizer()
    engine = CpuEngine(random_model(), tokenizer)
    free = await engine.generate([1, 2, 3], Sampling(max_tokens=900, ignore_eos=True, seed=4), "a")
    assert 256 in free.token_ids, "the model must draw EOS for this test"
    eos = await engine.generate([1, 2, 3], Sampling(max_tokens=900, seed=4), "b")
    end = free.token_ids.index(256) + 1
    assert (eos.token_ids, eos.stop_reason, eos.matched) == (free.token_ids[:end], "stop", 256)

    texts = [tokenizer.decode([token]) for token in free.token_ids]
    at = next(i for i in range(20, 890) if all(text.isascii() and len(text) == 1 for text in texts[i : i + 2]))
    stop = "".join(texts[at : at + 2])
    end = next(i for i in range(1, 900) if "".join(texts[i - 1 : i + 1]) == stop) + 1
    cut = await engine.generate([1, 2, 3], Sampling(max_tokens=900, ignore_eos=True, seed=4, stop=(stop,)), "c")
    assert (cut.token_ids, cut.stop_reason, cut.matched) == (free.token_ids[:end], "stop", stop)
    by_id = await engine.generate(
        [1, 2, 3], Sampling(max_tokens=900, ignore_eos=True, seed=4, stop_token_ids=(free.token_ids[9],)), "d"
    )
    assert by_id.matched == free.token_ids[9]
    assert by_id.token_ids == free.token_ids[: free.token_ids.index(free.token_ids[9]) + 1]
    await engine.close()


def test_verl_and_vllm_parameters_are_read():
    verl = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    assert Sampling.from_dict(verl) == Sampling(temperature=0.7)
    vllm = {"max_tokens": 5, "stop": ["a", "b"], "include_stop_str_in_output": True, "seed": 3, "stop_token_ids": None}
    assert Sampling.from_dict(vllm) == Sampling(max_tokens=5, stop=("a", "b"), seed=3)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"temperature": -1}, "temperature must be"),
        ({"temperature": "hot"}, "cannot be read"),
        ({"top_p": 0}, "top_p must be"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"repetition_penalty": 1.1}, "does not implement repetition_penalty"),
        ({"temprature": 1}, "unknown sampling parameter 'temprature'"),
        ({"stop": [""]}, "must not be empty"),
        ({"seed": "x"}, "cannot be read"),
    ],
)
def test_a_wrong_parameter_is_named(params, sentence):
    with pytest.raises(UserError, match=sentence):
        Sampling.from_dict(params)


def test_a_growing_store_keeps_what_it_holds():
    store = KVStore(layers=2, kv_heads=2, head_dim=3, dtype=torch.float32, max_rows=5, max_length=300)
    kv = torch.randn(2, 2, 2, 7, 3)
    store.reserve(7, [])
    store.write(0, kv)
    store.reserve(200, [7])
    store.move(0, 3, 7)
    store.reserve(300, [0, 0, 0, 7])
    assert store.data.shape[4] == 300
    assert torch.equal(store.read(3, 7), kv)
    assert not store.data[:, :, :3].any()
    slots = store.slots(torch.tensor([3]), torch.tensor([6]))
    assert torch.equal(store.flat[1][0][slots], kv[1, 0, :, 6])


def test_reserved_rows_cost_no_memory_before_they_are_used():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    store = KVStore(layers=4, kv_heads=4, head_dim=64, dtype=torch.float32, max_rows=64, max_length=1024)
    before = resident()
    store.reserve(1024, [])
    assert store.nbytes == 2**29
    assert resident() - before < 2**26
