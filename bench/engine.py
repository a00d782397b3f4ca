"""The rollout engine beside transformers' own generate, on a multi-turn workload: python -m bench.engine

Sessions of three turns: a prompt, a response, an observation, the next response. Prompt, response and observation
lengths differ between sessions and are the same for every contender; random weights, sampled at temperature 1, EOS
ignored. Tokens/s counts wanted response tokens over the best wall time; on a busy machine trust CPU seconds more.

* generate     one batched `model.generate` per turn: left-padded histories, all sessions in lockstep, so each turn
               lasts as long as its longest response
* re-prefill   the engine without parked prefixes: every turn computes its history anew
* engine       the engine as it is: each session goes on by itself, a turn computes only its new tokens
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

import torch

from datapm_rl.engine import CpuEngine, Sampling
from datapm_rl.engine.tiny import byte_tokenizer, random_model

TURNS = 3


@dataclass
class Session:
    """What one session says (token ids) and how many tokens it wants in each turn."""

    prompt: list[int]
    wanted: list[int]
    observations: list[list[int]]


def workload(sessions: int, prompt: int, response: int, seed: int = 0) -> list[Session]:
    """Lengths are uniform in half to one and a half of the mean; observations a third of the response."""
    rng = random.Random(seed)

    def ids(mean: int) -> list[int]:
        return [rng.randrange(256) for _ in range(rng.randint(mean // 2, mean * 3 // 2))]

    return [
        Session(
            ids(prompt),
            [rng.randint(response // 2, response * 3 // 2) for _ in range(TURNS)],
            [ids(response // 3) for _ in range(TURNS)],
        )
        for _ in range(sessions)
    ]


@torch.inference_mode()
def run_generate(model: Any, sessions: list[Session]) -> None:
    histories = [list(session.prompt) for session in sessions]
    for turn in range(TURNS):
        width, new = max(map(len, histories)), max(session.wanted[turn] for session in sessions)
        ids = torch.tensor([[0] * (width - len(history)) + history for history in histories])
        mask = torch.tensor([[0] * (width - len(history)) + [1] * len(history) for history in histories])
        out = model.generate(ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=new, eos_token_id=None)
        for session, history, row in zip(sessions, histories, out[:, width:].tolist(), strict=True):
            history += row[: session.wanted[turn]] + session.observations[turn]


async def run_engine(engine: CpuEngine, sessions: list[Session], repeat: int) -> None:
    async def run(name: str, session: Session) -> None:
        history = list(session.prompt)
        for wanted, observation in zip(session.wanted, session.observations, strict=True):
            out = await engine.generate(history, Sampling(max_tokens=wanted, ignore_eos=True), name)
            history += out.token_ids + observation

    await asyncio.gather(*(run(f"{repeat}-{i}", session) for i, session in enumerate(sessions)))


async def measure(sizes: dict[str, Any], sessions: list[Session], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Wall and CPU seconds of each contender, alternating, so that a busy machine slows all of them alike."""
    contenders = {
        "generate": None,
        "re-prefill": CpuEngine(random_model(**sizes), byte_tokenizer(), prefix_cache_mb=0),
        "engine": CpuEngine(random_model(**sizes), byte_tokenizer()),
    }
    model = random_model(**sizes)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, engine in contenders.items():
            start = time.perf_counter(), time.process_time()
            if engine is None:
                run_generate(model, sessions)
            else:
                await run_engine(engine, sessions, repeat)
            if repeat:  # the first is the warm-up
                seconds[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    for engine in filter(None, contenders.values()):
        await engine.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=120, help="mean tokens of a prompt")
    parser.add_argument("--response", type=int, default=60, help="mean tokens of a response")
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes: dict[str, Any] = {
        "vocab_size": 500,
        "hidden_size": args.hidden,
        "intermediate_size": 2 * args.hidden,
        "num_hidden_layers": args.layers,
        "max_position_embeddings": 4096,
    }
    sessions = workload(args.sessions, args.prompt, args.response)
    tokens = sum(sum(session.wanted) for session in sessions)
    parameters = sum(p.numel() for p in random_model(**sizes).parameters())
    print(f"{args.sessions} sessions x {TURNS} turns, {tokens} tokens, {parameters / 1e6:.2f}M parameters, 1 thread")
    seconds = asyncio.run(measure(sizes, sessions, args.repeats))
    best = {name: [min(column) for column in zip(*values, strict=True)] for name, values in seconds.items()}
    for name, (wall, cpu) in best.items():
        ratios = f"{best['generate'][0] / wall:5.2f}x wall, {best['generate'][1] / cpu:5.2f}x CPU beside generate"
        print(f"{name:12} {tokens / wall:7.0f} tokens/s  {tokens / cpu:7.0f} tokens per CPU second  {ratios}")


if __name__ == "__main__":
    main()
