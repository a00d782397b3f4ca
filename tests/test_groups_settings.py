"""Settings for groups: the defaults that the rule needs, and wrong ones in one sentence."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from datapm_rl.compose import compose_config
from datapm_rl.errors import UserError
from datapm_rl.preflight import check_config

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def smoke():
    return compose_config(["+recipe=smoke"])


def test_failed_groups_are_replaced_and_dynamic_sampling_is_bounded_by_default(smoke):
    check_config(smoke)
    assert smoke.trainer.v1.sampler.sync_refill_failed_groups
    assert smoke.algorithm.filter_groups.max_num_gen_batches == 10
    assert not smoke.algorithm.filter_groups.enable


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("agent.group_deadline_s", 0.0, "must be positive"),
        ("agent.refills", -1, "0 (never sample a member again) or more"),
        ("agent.quarantine_after", 0, "at least 1"),
        ("algorithm.filter_groups.max_num_gen_batches", 0, "at least 1"),
        ("algorithm.filter_groups.max_inflight_gen_batches", "two", "whole number"),
        ("trainer.v1.sampler.sync_refill_failed_groups", False, "replaced in all modes"),
        ("trainer.v1.sampler.custom_sampler.path", "mine.py", "leave it out"),
        ("data.gen_batch_size", 8, "fetched one by one"),
    ],
)
def test_wrong_setting_is_one_sentence(smoke, key, value, said):
    config = smoke.copy()
    OmegaConf.update(config, key, value, force_add=True)
    with pytest.raises(UserError) as caught:
        check_config(config)
    assert key.rpartition(".")[0] in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dynamic_sampling_compares_the_reward_that_is_trained_on(smoke):
    config = smoke.copy()
    config.algorithm.filter_groups.metric = "acc"
    check_config(config)  # not in use
    config.algorithm.filter_groups.enable = True
    with pytest.raises(UserError, match=r"algorithm.filter_groups.metric=acc: .* set it to reward"):
        check_config(config)
