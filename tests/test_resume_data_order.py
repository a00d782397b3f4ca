"""The data loader goes on where its state was saved, in every epoch, also between two (verl#3457, #4156, #7401)."""

from __future__ import annotations

import pytest

pytest.importorskip("verl")

from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_sampler
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore:'set_vital'")]

TASKS = [{"raw_prompt": index} for index in range(10)]


class Feed(PPOTrainerSync):
    """verl's trainer as far as it fetches prompts."""

    def __init__(self, state=None):
        sampler = create_rl_sampler(OmegaConf.create({"shuffle": True, "seed": 3}), TASKS)
        self.train_dataloader = StatefulDataLoader(
            TASKS, batch_size=1, sampler=sampler, drop_last=True, collate_fn=_collate
        )
        self.train_dataloader_it = None
        if state is not None:
            self.train_dataloader.load_state_dict(state)

    def fetch(self, count):
        return [int(self._fetch_one_gen_batch()["index"][0]) for _ in range(count)]


def _collate(rows):
    import numpy as np

    values = np.array([row["raw_prompt"] for row in rows], dtype=object)
    return {"raw_prompt": values, "index": values}


@pytest.fixture(scope="module")
def uninterrupted():
    return Feed().fetch(35)


def test_epochs_are_permutations_that_differ(uninterrupted):
    epochs = [uninterrupted[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("cuts", [(0,), (3,), (10,), (20,), (3, 10, 27), (9, 10, 11)])
def test_run_resumed_at_any_place_asks_the_same_prompts(uninterrupted, cuts):
    feed, asked = Feed(), []
    for cut in cuts:
        asked += feed.fetch(cut - len(asked))
        feed = Feed(feed.train_dataloader.state_dict())
    assert asked + feed.fetch(35 - len(asked)) == uninterrupted
