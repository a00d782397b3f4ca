"""The simulated engine of `bench.rollout` keeps its stated times, and the bench runs to its end."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.rollout_clock import running_loop, simulate, timed
from bench.rollout_engine import BLOCK_TOKENS, DATAPRM, POLICY, Engine, Model, Replica

pytestmark = pytest.mark.unit

_REPO = Path(__file__).parents[1]


def seconds_of(replica: Replica | Engine, requests: list[tuple[list[int], int]], session: str | None = None) -> float:
    """Simulated seconds until all requests (prompt, new tokens) that come at the same time are served."""

    async def run() -> float:
        start = running_loop().time()
        await asyncio.gather(*(serve(prompt, new) for prompt, new in requests))
        return running_loop().time() - start

    async def serve(prompt: list[int], new: int) -> None:
        content = [*prompt, *range(10_000_000, 10_000_000 + new)]
        where = {} if isinstance(replica, Replica) else {"session": session}
        await replica.serve(content, 1, len(prompt), new, **where)

    return simulate(run())


def prompts(count: int, tokens: int) -> list[list[int]]:
    """That have no block in common."""
    return [list(range(number * tokens, (number + 1) * tokens)) for number in range(count)]


def near(seconds: float) -> object:
    return pytest.approx(seconds, rel=0.01, abs=0.05)  # the clock counts this process's CPU as well


def test_an_hour_of_waiting_takes_no_time():
    began = time.monotonic()

    async def wait() -> float:
        await asyncio.sleep(3600)
        return running_loop().time()

    assert simulate(wait()) == near(3600)
    assert time.monotonic() - began < 60


def test_clock_does_not_pass_real_work():
    """Real work of half a second that is given 0.1 simulated ones: others see its result no earlier and no later."""

    async def run() -> tuple[float, float]:
        loop = running_loop()
        await timed(asyncio.to_thread(time.sleep, 0.5), 0.1)
        short = loop.time()
        long = asyncio.ensure_future(timed(asyncio.to_thread(time.sleep, 0.01), 50))
        await asyncio.sleep(20)
        assert not long.done()
        await long
        return short, loop.time()

    short, long = simulate(run())
    assert short == near(0.1)
    assert long == near(50.1)


def test_request_alone_has_the_stated_latency():
    for model in (POLICY, DATAPRM):
        mean_context = 1000 + 2000 / 2
        expected = model.prefill_s(1000) + 2000 * model.decode_step_s(1, mean_context)
        assert seconds_of(Replica(model), [(prompts(1, 1000)[0], 2000)]) == near(expected)


def test_throughput_grows_with_the_batch_until_compute_binds():
    model = Model(POLICY.parameters, kv_bytes=0)
    rates = []
    for count in (1, 4, 16, 64, 128, 250):
        rates.append(count * 500 / seconds_of(Replica(model), [(prompt, 500) for prompt in prompts(count, 1)]))
    assert rates == sorted(rates)
    assert rates[1] == near(4 * rates[0])  # on the plateau
    assert rates[-1] / rates[-2] < 1.15  # on the slope: only the overhead of a step is still shared


def test_context_slows_decoding():
    long, short = ([(prompt, 500) for prompt in prompts(32, tokens)] for tokens in (8000, 100))
    gap = seconds_of(Replica(DATAPRM), long) - seconds_of(Replica(DATAPRM), short)
    prefill = 32 * DATAPRM.prefill_s(8000 - 100)
    assert gap - prefill > 500 * 32 * 7900 * DATAPRM.kv_bytes / 4.0e12


def test_prefix_is_prefilled_once_and_again_after_new_weights():
    replica = Replica(POLICY)
    prompt = prompts(1, 100 * BLOCK_TOKENS)[0]
    once = POLICY.prefill_s(len(prompt))
    token = POLICY.decode_step_s(1, len(prompt))
    assert seconds_of(replica, [(prompt, 1)]) == near(once + token)
    longer = [*prompt, *range(5_000_000, 5_000_000 + 10 * BLOCK_TOKENS)]
    assert seconds_of(replica, [(longer, 1)]) == near(once / 10 + token)
    replica.forget()
    assert seconds_of(replica, [(longer, 1)]) == near(1.1 * once + token)


def test_requests_beyond_the_seats_wait():
    model = Model(POLICY.parameters, kv_bytes=0)
    full = seconds_of(Replica(model), [(prompt, 100) for prompt in prompts(256, 1)])
    beyond = seconds_of(Replica(model), [(prompt, 100) for prompt in prompts(257, 1)])
    assert beyond > full + 99 * model.decode_step_s(1, 0)


def test_session_stays_and_others_spread():
    engine = Engine(POLICY, replicas=2)
    first = [(prompts(1, 1600)[0], 1)]
    seconds_of(engine, first, session="a")
    cached = seconds_of(engine, first, session="a")
    assert cached < POLICY.prefill_s(1600) / 2
    together = seconds_of(Engine(POLICY, replicas=2), [(prompt, 500) for prompt in prompts(2, 1600)])
    assert together == near(seconds_of(Replica(POLICY), [(prompts(1, 1600)[0], 500)]))


def test_quick_run_prints_every_row(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "bench.rollout", "--quick", "--json", tmp_path / "numbers.json"],
        cwd=_REPO,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert list(numbers) == ["stock, sync", "ours, sync", "stock, sync, in turn", "stock, async", "ours, async"]
    assert all(f"\n{name}  " in ran.stdout for name in numbers)
    for row in numbers.values():
        assert row["trajectories_per_s"] > 0
        assert 0 <= row["idle"] < 1
        assert row["own_cpu_s"] > 0
    assert numbers["ours, sync"]["lag_s"] < numbers["stock, sync"]["lag_s"]
    assert ran.stdout.count("wanted ") == 4
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("bench-")] == []
