"""Discriminative PRMs: the probability that a step is right, read by one forward pass in this process.

Qwen2.5-Math-PRM (Zhang et al., 2025), Math-Shepherd (Wang et al., 2024) and models of their kinds: `step_models`.
One pass at a time, in a thread of its own, so that the event loop goes on. Nothing is kept between steps.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from datapm_rl.errors import UserError
from datapm_rl.trajectory import Step, Task, Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.baselines.solution import current_step, past_step, problem_text
from datapm_rl.verifier.budget import Budget, Part
from datapm_rl.verifier.dialogue import check_step

_SPARE_TOKENS = 32  # parts that are counted one by one may take a few tokens more when they stand together


def check_folder(folder: str | Path | None) -> None:
    """UserError: no folder of a model, as far as can be seen without loading it."""
    if folder is None or not (Path(folder) / "config.json").is_file():
        raise UserError(f"prm.model={folder} is no folder with a config.json: give that of a discriminative PRM")


class DiscriminativeVerifier:
    """See the module docstring. Scores are probabilities. Safe for many verifications at a time in one event loop."""

    name = "discriminative"
    aggregation = "product"

    def __init__(
        self,
        folder: str | Path | None,
        kind: str | None = None,
        *,
        separator: str | None = None,
        good: str = "+",
        bad: str = "-",
        context_tokens: int | None = None,
        device: str = "auto",
    ):
        """Loads the model.

        `folder`: Hugging Face format. `kind`: "head" or "tag"; None takes what config.json tells. `separator`: the
        token behind each step; None is `<extra_0>` for a head, `ки` for a tag. `good`, `bad`: the two tokens of a tag.
        `context_tokens`: None takes the model's. `device`: "cpu", "cuda:0", or "auto": GPUs if there are any.

        UserError: no folder, no such model in it, or a marker that is not one of its tokens.
        """
        check_folder(folder)
        from datapm_rl.verifier.baselines.step_models import StepModel  # torch, only where it is used

        self._model = StepModel(str(folder), kind, separator, good, bad, device)
        self._budget = Budget((context_tokens or self._model.context_tokens) - _SPARE_TOKENS, self._model.count)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="discriminative")

    async def verify(self, request: VerificationRequest) -> Verdict:
        """InfraError: context_exceeded (even after cuts), separator_lost, or the cause of a lost step."""
        check_step(request)
        steps = [*request.history, request.step]
        loop = asyncio.get_running_loop()
        score, turn, cut = await loop.run_in_executor(self._thread, self._score, request.task, steps)
        record = request.record
        record.turns.append(turn)
        record.cut = cut
        return Verdict(score, verifier=self.name, trace=record.turns, cost=record.cost(), cut=cut)

    def _score(self, task: Task, steps: Sequence[Step]) -> tuple[float, dict[str, Any], list[str]]:
        """The last step's score, what it took, and what was cut."""
        start = time.monotonic()
        problem, solution = self._model.harmless(problem_text(task)), list[Part]()
        for number, step in enumerate(steps, start=1):
            before, behind = self._model.frame(number)
            parts = current_step(step) if number == len(steps) else past_step(step)
            solution.append(Part(before))
            solution += [dataclasses.replace(part, text=self._model.harmless(part.text)) for part in parts]
            solution.append(Part(behind))
        messages, cut = self._budget.fit(
            [{"role": "user", "content": problem}, {"role": "assistant", "content": solution}]
        )
        ids = self._model.ids(messages)
        score = self._model.score(ids, len(steps))
        turn = {"reply": "", "prompt_tokens": len(ids), "completion_tokens": 0, "seconds": time.monotonic() - start}
        return score, turn, cut
