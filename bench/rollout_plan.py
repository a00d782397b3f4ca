"""What policy and verifier say in `bench.rollout`: seeded, and the same for every order.

Stated by the paper: 32 prompts, G = 4, at most 10 turns; a verification of 2.57 replies, 0.87 executions, 21,456 tokens
and 24.66 s on average (Table 7; how many replies: `bench.verification_plan`). Assumed:

* turns of a trajectory: log-normal, median 4.5, sigma 0.45, between 2 and 10 (mean 4.8; one in 20 has 10)
* tokens of a turn: log-normal, mean 350, sigma 0.6, at most 1500 (thought and code of a 7B coder; ten such turns with
  their observations fit the paper's 8192)
* tokens of a verifier's reply: log-normal, mean 1400, sigma 0.35. Table 7 has tokens and seconds of a verification, not
  how the tokens divide. With this mean a verification takes 20 s on an idle simulated GPU (24.66 s with the paper's
  interpreters, which start and replay), and 2.2 s of a busy one (3.30 s in parallel, on hardware it does not name)
* the verifier's prompts: the bench's own, plus a prefix that all share (and that the prefix cache holds), so that a
  verification has the tokens of Table 7
* an execution takes 0.5 s, a new session 0.1 s, a branch 0.01 s (real tables are larger than the bench's)
"""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from bench.sandbox_trajectory import STEPS
from bench.verification_plan import SECONDS, TURNS
from bench.verification_plan import plan as verification
from datapm_rl.dialects.datamind import SYSTEM_PROMPT
from datapm_rl.trajectory import Task
from datapm_rl.verifier.prompt_text import PromptForm, system_prompt

MAX_TURNS = 10
REPLY_TOKENS = 1400
PREFIX_TOKENS = 3552
EXECUTION_S = 0.5
SESSION_S = 0.1
FORK_S = 0.01
CHARS_PER_TOKEN = 4
"""Of the verifier's prompts and replies, whose tokens are not counted by a tokenizer."""

_TURN_TOKENS, _SIGMA, _MOST_TOKENS = 350, 0.6, 1500
_MEDIAN_TURNS, _TURNS_SIGMA = 4.5, 0.45
_TEXT = system_prompt((), PromptForm(), MAX_TURNS)
_WORDS = sorted(set(re.findall(r"[A-Za-z]+", _TEXT)))
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Plan:
    """One trajectory: its task, and the token ids of its turns."""

    task: Task
    turns: list[list[int]]


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with Qwen's template, trained here on the bench's own texts."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=special, initial_alphabet=alphabet)
    core.train_from_iterator([_TEXT, SYSTEM_PROMPT, *STEPS], trainer)
    found = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|im_end|>")
    found.chat_template = _CHAT_TEMPLATE
    return found


def batch(data: str, number: int, prompts: int, group: int) -> list[list[Plan]]:
    """The `number`-th batch: groups of trajectories. Ids name batch, prompt and session."""
    return [
        [_trajectory(data, f"{number}-{prompt}-{session}") for session in range(group)] for prompt in range(prompts)
    ]


def _trajectory(data: str, name: str) -> Plan:
    draw = random.Random(name)
    turns = min(max(round(draw.lognormvariate(math.log(_MEDIAN_TURNS), _TURNS_SIGMA)), 2), MAX_TURNS)
    task = Task(name, f"trajectory {name}: which product sells best?", "a name", data, ("sales.csv",), ())
    blocks = [f"<code>\n```python\n{code}\n```\n</code>" for code in STEPS[: turns - 1]] + ["<answer>p07</answer>"]
    for step in range(1, turns + 1):
        replies(name, step)  # now, and not while CPU seconds are counted
    return Plan(task, [_turn(block, draw) for block in blocks])


def _turn(block: str, draw: random.Random) -> list[int]:
    """A thought of the drawn length, and then code or answer."""
    mean = math.log(_TURN_TOKENS) - _SIGMA**2 / 2
    tokens = min(round(draw.lognormvariate(mean, _SIGMA)), _MOST_TOKENS)
    ids = list(tokenizer().encode(f"</think>\n{block}", add_special_tokens=False))
    thought = list(tokenizer().encode(f"<think>\n{_words(draw, tokens)}", add_special_tokens=False))
    return thought[: max(tokens - len(ids), 4)] + ids


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(_WORDS, k=count))


@functools.cache
def replies(trajectory: str, step: int) -> list[str]:
    """The verifier's replies for one step, with reasoning of the drawn length."""
    chosen = verification(trajectory, step)
    draw = random.Random(f"{trajectory}/{step}")
    return [
        _reply(text, round(seconds * TURNS / SECONDS * REPLY_TOKENS), draw)
        for text, seconds in zip(chosen.replies, chosen.latencies, strict=True)
    ]


def _reply(text: str, tokens: int, draw: random.Random) -> str:
    reasoning = _words(draw, tokens)[: max(tokens * CHARS_PER_TOKEN - len(text), 0)]
    head, opening, tail = text.partition("<reasoning>")
    return f"{head}{opening}{reasoning} {tail}"


_NAMED = re.compile(r"trajectory ([\d-]+):.*?# Current Paragraph\n\[Paragraph_(\d+)\]", re.DOTALL)


def reply_to(messages: Sequence[dict[str, Any]]) -> str:
    """What the verifier says next in a conversation: which one it is, and how far, stands in it."""
    named = _NAMED.search(messages[1]["content"])
    assert named
    said = sum(message["role"] == "assistant" for message in messages)
    return replies(named[1], int(named[2]))[said]
