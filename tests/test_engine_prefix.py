"""Parked prefixes: the longest one is found, the budget holds, nothing wrong is ever returned."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.engine.prefix_cache import PrefixCache

pytestmark = pytest.mark.unit


def kv(tokens: list[int]) -> torch.Tensor:
    """A kv whose entries are the tokens themselves, so that a test sees whose they are."""
    return torch.tensor(tokens, dtype=torch.float32).view(1, 1, 1, -1, 1).expand(1, 2, 1, -1, 1).clone()


sequences = st.lists(st.integers(0, 1), min_size=0, max_size=60)


@settings(max_examples=200, deadline=None)
@given(st.lists(sequences, max_size=6), sequences.filter(len), st.integers(0, 3000))
def test_what_is_found_is_a_true_beginning_of_the_prompt_and_the_budget_holds(parked, prompt, budget):
    cache = PrefixCache(budget)
    for tokens in parked:
        if cache.fits(kv(tokens).nbytes):
            cache.park(tokens, kv(tokens), None)
    assert cache.nbytes <= budget
    found = cache.find(prompt)
    if found is not None:
        entry, common = found
        assert 0 < common < len(prompt)
        assert entry.kv[0, 0, 0, :common, 0].tolist() == prompt[:common]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=20, max_size=60), min_size=1, max_size=6), st.data())
def test_the_longest_shared_beginning_of_a_block_or_more_is_found(parked, data):
    cache = PrefixCache(10**6)
    for tokens in parked:
        cache.park(tokens, kv(tokens), None)
    source = data.draw(st.sampled_from(parked))
    cut = data.draw(st.integers(17, len(source)))
    found = cache.find([*source[:cut], 9, 9])
    assert found is not None
    assert found[1] == cut


def test_a_turn_replaces_the_one_it_went_on_from_and_the_oldest_unused_leave_first():
    first, second, third = list(range(20)), list(range(100, 120)), list(range(200, 220))
    cache = PrefixCache(3 * kv(first).nbytes + 100)
    for tokens in (first, second, third):
        cache.park(tokens, kv(tokens), None)
    entry, common = cache.find([*second, 7])
    assert common == 20
    cache.park([*second, 7], kv([*second, 7]), entry)
    assert len(cache) == 3
    assert cache.find([*first, 7]) is not None  # used: `third` is now the oldest
    cache.park([5] * 20, kv([5] * 20), None)
    assert cache.find([*third, 7]) is None
    assert cache.find([*first, 7]) is not None
    cache.clear()
    assert (cache.find([*first, 7]), cache.nbytes, len(cache)) == (None, 0, 0)
