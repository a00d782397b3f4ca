"""Demonstrations show what the sandbox would show: SFT runs programs in its own process, RL in the sandbox."""

import random

import pytest

from datapm_rl.benchmarks.builtin import build
from datapm_rl.benchmarks.task_file import load_tasks
from datapm_rl.dialects import get_dialect
from datapm_rl.policy.demonstrations import OBSERVATION_CHARS, Noise, demonstrate
from datapm_rl.sandbox import Sandbox

pytestmark = pytest.mark.unit
DIALECT = get_dialect("deepanalyze")


def test_sft_sees_other_observations_than_the_sandbox_gives(tmp_path):
    path = build(tmp_path / "b", seed=0, train_tasks=300, heldout_tasks=0, unseen_tasks=0)
    demonstrations = demonstrate(load_tasks(path), 60, Noise(), DIALECT, random.Random(0))
    kinds = set()
    with Sandbox(workspace_root=tmp_path / "work") as sandbox:
        for attempt in demonstrations:
            task = attempt.task
            with sandbox.session(task.data_dir, list(task.files)) as session:
                texts = [message["content"] for message in attempt.messages[2:]]
                for turn, shown in zip(texts[0::2], texts[1::2], strict=False):
                    result = session.run(DIALECT.parse(turn).code)
                    assert DIALECT.observation(result, OBSERVATION_CHARS) == shown
                    kinds.add(result.status)
    assert len(kinds) == 2  # ok and error were both met
