"""The trainer of `bench.rollout`: a simulated update, after each batch (sync) or beside the rollout (async)."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from bench.rollout_clock import running_loop, simulate
from bench.rollout_engine import DATAPRM, FLOPS, POLICY, Engine, Model
from bench.rollout_plan import PREFIX_TOKENS, Plan
from bench.rollout_play import Played, Player
from bench.rollout_session import Sessions
from bench.sandbox_processes import CpuClock

TRAINER_SHARE = 0.4
"""Of the peak that the trainer reaches (MFU)."""
SYNC_WEIGHTS_S = 5.0
"""Weights from trainer to rollout, engine woken up."""
MINI_BATCH = 2
"""Groups of an optimizer step (Table 6)."""
AHEAD = 1
"""Batches in flight beside the one that the trainer works on, which bounds staleness: verl's num_warmup_batches."""

Batch = list[list[Plan]]


@dataclass(frozen=True)
class Placement:
    """GPUs of the trainer, of the policy's engine (0: the trainer's, in turn) and of the verifier's."""

    trainer: int
    rollout: int
    prm: int


RECIPE = Placement(4, 0, 4)
"""Of recipes/dabench.yaml."""
IN_TURN = Placement(8, 0, 8)
"""Everything on all GPUs, one after the other."""
APART = Placement(2, 1, 5)
"""Of a node's 8 GPUs, as the work asks for: a batch costs about 510 GPU seconds of updates, 100 of policy and 1,400 of
verifier. The trainer's GPUs must divide a mini-batch of 8 rows; two hold 7.6 G x 16 bytes / 2 = 61 of 96 GB each."""


@dataclass
class Numbers:
    """One row. Seconds are simulated but for `.._cpu_s` and `real_s`."""

    trajectories_per_s: float
    idle: float  # share of the time that the trainer waits for trajectories
    rollout_s: float  # from the start to the last trajectory's end; of sync rows
    lag_s: float  # from a trajectory's end to its reward, mean
    prm_busy: float  # share of the time that the verifier's GPUs have something to do, mean
    verification_s: float  # mean
    slowest_verification_s: float
    own_cpu_s: float  # per trajectory, of this process without the engines' simulation
    sandbox_cpu_s: float  # per trajectory, of the sandbox's processes; NaN where the kernel does not count
    steps: float  # of a trajectory
    tokens: float  # of a trajectory
    verifier_tokens: float  # of a verification
    real_s: float  # that this row took


def update_s(played: Sequence[Played], gpus: int) -> float:
    """Per parameter and token 2 FLOP for old log-probs, 6 forward and backward, 2 for recomputed activations."""
    return 10 * POLICY.parameters * sum(each.tokens for each in played) / (gpus * FLOPS * TRAINER_SHARE)


class Run:
    """One order on a placement."""

    def __init__(
        self,
        sessions: Sessions,
        clock: CpuClock,
        placement: Placement,
        order: str,
        batches: Sequence[Batch],
        prm: Model = DATAPRM,
        final: bool | None = None,
    ):
        """`clock`: started before the sandbox. `final`: see `Player`."""
        self._clock, self._placement, self._batches = clock, placement, batches
        self._batch = sum(map(len, batches[0]))
        self._policy = Engine(POLICY, placement.rollout or placement.trainer)
        self._prm = Engine(prm, placement.prm, PREFIX_TOKENS)
        self._player = Player(sessions, self._policy, self._prm, order, self._batch, final)
        self._played: list[Played] = []
        self._ends: list[float] = []  # of steps
        self._trained: list[float] = []  # seconds of training until these ends

    def sync(self) -> Numbers:
        """Roll out, then update, in turn."""

        async def steps() -> None:
            self._step_ends(0.0)
            for groups in self._batches:
                rows = await asyncio.gather(*map(self._group, groups))
                await self._finish_step(await self._train(list(itertools.chain(*rows))))

        return self._measured(steps())

    def asynchronous(self) -> Numbers:
        """verl's separate_async: a step sends out a batch, and trains on the oldest groups that are ready.

        The first step, which fills the pipeline, is not counted. The last batch keeps it full, and is not trained on.
        """

        async def steps() -> None:
            ready: asyncio.PriorityQueue[tuple[int, int, list[Played]]] = asyncio.PriorityQueue()
            order = itertools.count()
            tasks: list[asyncio.Task[None]] = []

            async def send(number: int, group: list[Plan]) -> None:
                ready.put_nowait((number, next(order), await self._group(group)))

            for number, groups in enumerate(self._batches):
                tasks += [asyncio.create_task(send(number, group)) for group in groups]
                if number < AHEAD:
                    continue
                trained = 0.0
                for _ in range(len(groups) // MINI_BATCH):
                    rows = [(await ready.get())[2] for _ in range(MINI_BATCH)]
                    trained += await self._train(list(itertools.chain(*rows)))
                await self._finish_step(trained)
            await asyncio.gather(*tasks)

        return self._measured(steps())

    async def _group(self, group: list[Plan]) -> list[Played]:
        played = list(await asyncio.gather(*map(self._player.play, group)))
        self._played += played
        return played

    async def _train(self, played: Sequence[Played]) -> float:
        seconds = update_s(played, self._placement.trainer)
        await asyncio.sleep(seconds)
        return seconds

    async def _finish_step(self, trained_s: float) -> None:
        await asyncio.sleep(SYNC_WEIGHTS_S)
        self._player.version += 1
        self._policy.forget()
        self._step_ends(trained_s + SYNC_WEIGHTS_S)

    def _step_ends(self, trained_s: float) -> None:
        self._ends.append(running_loop().time())
        self._trained.append(trained_s)

    def _measured(self, steps: Coroutine[Any, Any, None]) -> Numbers:
        all_cpu, own, real = self._clock.seconds(), time.process_time(), time.monotonic()
        simulate(steps)
        all_cpu, own = self._clock.seconds() - all_cpu, time.process_time() - own
        real = time.monotonic() - real
        played, passed = self._played, self._ends[-1] - self._ends[0]
        verified_s = [seconds for each in played for seconds in each.verified_s]
        return Numbers(
            trajectories_per_s=self._batch * (len(self._ends) - 1) / passed,
            idle=1 - sum(self._trained[1:]) / passed,
            rollout_s=max(each.ended for each in played),
            lag_s=statistics.mean(each.rewarded - each.ended for each in played),
            prm_busy=self._prm.busy_s / self._placement.prm / max(each.rewarded for each in played),
            verification_s=statistics.mean(verified_s),
            slowest_verification_s=max(verified_s),
            own_cpu_s=(own - self._policy.cpu_s - self._prm.cpu_s) / len(played),
            sandbox_cpu_s=(all_cpu - own) / len(played),
            steps=statistics.mean(each.steps for each in played),
            tokens=statistics.mean(each.tokens for each in played),
            verifier_tokens=sum(each.verifier_tokens for each in played) / len(verified_s),
            real_s=real,
        )
