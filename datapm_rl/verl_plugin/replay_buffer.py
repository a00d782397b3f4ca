"""verl's replay buffers with the project's rule for groups (`groups.py`).

A settled group that failed is evicted and another prompt dispatched in its place; with dynamic sampling
(`algorithm.filter_groups.enable`) so is one without signal. verl does the evicting, refilling, draining and, in async
modes, dropping of stale groups; here is decided which groups. Both evictions are bounded per step, so that an outage
or a task set without signal hands over what is there instead of sampling for ever: the trainer then stops the run for
its missing share, or trains on what it has.

verl looks for settled groups every 2 s, most of a step of a small model: here ten times a second. While it waits,
`on_wait` is called now and then with the prompts that are still open, to look after their workers (`tending.py`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from datapm_rl.verl_plugin.groups import Group, StepGroups
from datapm_rl.verl_plugin.run_state import TooManyMissing

logger = logging.getLogger(__name__)

POLL_S = 0.1
ASK_S = 2.0
"""Seconds between two calls of `on_wait`."""

Reasons = tuple[set[str], set[str], set[str], Counter]
"""verl's reasons to evict: groups that are stale, without signal, failed; and a count that is not used here."""


class _GroupRules:
    """Mixin over a replay buffer of verl.

    `group_size`: members of a group. `max_failed`, `max_silent`: evictions of each kind in one step.
    """

    def __init__(self, *args: Any, group_size: int, max_failed: int, max_silent: int, **kwargs: Any):
        self.group_size, self.max_failed, self.max_silent = group_size, max_failed, max_silent
        self.step = 0
        self.groups = StepGroups()
        self.on_wait: Callable[[set[str]], None] = lambda open_uids: None
        self._task_of: dict[str, str] = {}  # of prompts that were dispatched
        self._settled: dict[str, Group] = {}  # what is known of settled groups in the queue
        self._asked = time.monotonic()
        self._dispatch = kwargs["refill_fn"]
        super().__init__(*args, **{**kwargs, "poll_interval": POLL_S, "refill_fn": self._refill})

    def start_step(self, step: int) -> None:
        """Count anew."""
        self.step, self.groups = step, StepGroups()

    def dispatched(self, task_of: dict[str, str]) -> None:
        """Remember the task of each prompt: a group none of whose sessions left a row does not tell it."""
        self._task_of.update(task_of)

    def _refill(self, count: int) -> int:
        self.groups.refilled += count
        return self._dispatch(count)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        if time.monotonic() - self._asked > ASK_S:
            self.on_wait(set().union(*self.pending_keys.values(), *self.running_keys.values()))
            self._asked = time.monotonic()
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> Reasons:
        """verl's hook. It may ask without evicting, so this decides and records nothing."""
        if partition_id == "val":
            return set(), set(), set(), Counter()
        self._look_at_settled(partition_id)
        stale = self._stale(global_steps, partition_id)
        ages = self.prompt_global_steps[partition_id]
        fresh = sorted(self._terminal(partition_id) - stale, key=lambda uid: (ages.get(uid, 0), uid))
        failed = [uid for uid in fresh if self._settled[uid].failed]
        silent = [uid for uid in fresh if self._settled[uid].silent] if self.filter_groups_metric else []
        return (
            stale,
            set(silent[: max(0, self.max_silent - len(self.groups.silent))]),
            set(failed[: max(0, self.max_failed - len(self.groups.failed))]),
            Counter(),
        )

    def _evict_terminal_groups(
        self, global_steps: int, partition_id: str, eviction_reasons: Reasons
    ) -> tuple[set[str], int, int, dict]:
        stale, silent, failed, _ = eviction_reasons
        self.groups.failed += [self._forget(uid) for uid in failed]
        self.groups.silent += [self._forget(uid) for uid in silent]
        for uid in stale:
            self._forget(uid)
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> tuple[list[str], dict[str, dict], dict[str, int]]:
        selected, rows, ages = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        if partition_id != "val":
            self._hand_over(selected, rows)
        return selected, rows, ages

    def _hand_over(self, selected: list[str], rows: dict[str, dict]) -> None:
        used = [self._forget(uid) for uid in selected]
        self.groups.used += used
        if not {key.split("_")[0] for key in rows} & set(selected):  # no row to compute anything with
            raise TooManyMissing.of(self.step, self.groups)
        silent = sum(group.silent for group in used)
        if self.filter_groups_metric and silent:
            self.groups.kept_silent += silent
            logger.warning(
                "step %d: %d groups without signal are trained on, after %d were replaced "
                "(algorithm.filter_groups.max_num_gen_batches)",
                self.step,
                silent,
                len(self.groups.silent),
            )

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        super()._clear_groups(partition_id, uids)
        for uid in uids:
            self._settled.pop(uid, None)
            self._task_of.pop(uid, None)

    def _forget(self, uid: str) -> Group:
        self._task_of.pop(uid, None)
        return self._settled.pop(uid)

    def _terminal(self, partition_id: str) -> set[str]:
        return self.finished_keys[partition_id] | self.failure_keys[partition_id]

    def _stale(self, global_steps: int, partition_id: str) -> set[str]:
        """Async modes: settled groups that are too old. verl's own leaves out groups with a failed session."""
        if self.trainer_mode == "sync" or self.max_off_policy_threshold is None:
            return set()
        if self.max_off_policy_strategy != "drop":
            return set()
        ages = self.prompt_global_steps[partition_id]
        return {
            uid
            for uid in self._terminal(partition_id)
            if global_steps - ages.get(uid, global_steps) + 1 > self.max_off_policy_threshold
        }

    def _look_at_settled(self, partition_id: str) -> None:
        """Read the records of groups that have settled since the last look, once each."""
        new = self._terminal(partition_id) - self._settled.keys()
        if not new:
            return
        keys = [key for key in self.partitions[partition_id] if key.split("_")[0] in new]
        extras: dict[str, list[Any]] = {uid: [] for uid in new}
        if keys:
            data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["extra_fields"])
            for key, extra in zip(keys, data["extra_fields"], strict=True):
                extras[key.split("_")[0]].append(getattr(extra, "data", extra))
        for uid, members in extras.items():
            self._settled[uid] = Group.of(members, size=self.group_size, task_id=self._task_of.get(uid))


class SyncReplayBuffer(_GroupRules, ReplayBuffer):
    """For verl's mode `sync`."""


class AsyncReplayBuffer(_GroupRules, ReplayBufferAsync):
    """For verl's modes `colocate_async` and `separate_async`."""
