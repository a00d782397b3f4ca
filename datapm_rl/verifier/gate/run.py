"""A verifier over a labelled set: several trajectories at a time, each result on disk as soon as it is there.

`verdicts.jsonl` begins with a header: whose verdicts these are, on what set. A run that was killed goes on where it
was; results of another verifier, of other settings or of another set are refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datapm_rl.config import OwnConfig
from datapm_rl.errors import UserError
from datapm_rl.sandbox import Sandbox
from datapm_rl.tracking.jsonl import append_rows, read_rows
from datapm_rl.trajectory import Verdict, to_json, verdict_from_json
from datapm_rl.verifier.base import Verifier
from datapm_rl.verifier.gate.check import identity
from datapm_rl.verifier.gate.labelled import LabelledTrajectory, set_fingerprint
from datapm_rl.verifier.local import verify_replayed

RESULTS_FILE = "verdicts.jsonl"


def header_of(trajectories: Sequence[LabelledTrajectory], config: OwnConfig) -> dict[str, Any]:
    """Whose verdicts, on what: `settings` of the verifier, `set` as sha256, `max_turns`."""
    return {
        "set": set_fingerprint(trajectories),
        "settings": identity(config.prm),
        "max_turns": config.agent.max_turns,
    }


class Results:
    """The verdicts on disk. `done`: number of a trajectory in the set -> its verdicts."""

    def __init__(self, path: Path, header: dict[str, Any]):
        """What an earlier run left, or a new file. UserError: it was of another set, verifier or settings."""
        self._path = path
        rows = read_rows(path)
        if not rows:
            append_rows(path, [header])
            rows = [header]
        found, wanted = _flat(rows[0]), _flat(header)
        for key in sorted(found.keys() | wanted.keys()):
            if found.get(key) != wanted.get(key):
                raise UserError(
                    f"{path} holds verdicts with another {key} ({found.get(key)}, not {wanted.get(key)}): "
                    "give another --out"
                )
        self.done = {row["trajectory"]: [verdict_from_json(verdict) for verdict in row["verdicts"]] for row in rows[1:]}

    @property
    def missing(self) -> int:
        """Verdicts without a score, so far."""
        return sum(verdict.score is None for verdicts in self.done.values() for verdict in verdicts)

    def add(self, number: int, verdicts: list[Verdict]) -> None:
        """Keep the verdicts of a trajectory; they are on disk when the call returns."""
        append_rows(self._path, [{"trajectory": number, "verdicts": to_json(verdicts)}])
        self.done[number] = verdicts


async def verify_set(
    trajectories: Sequence[LabelledTrajectory],
    verifier: Verifier,
    config: OwnConfig,
    sandbox: Sandbox,
    results: Results,
    concurrency: int,
    said: Callable[[], None] = lambda: None,
) -> None:
    """Add the verdicts of every trajectory that `results` does not have, `concurrency` of them at a time.

    `said` is called after each trajectory. Only the `reference` verifier gets the task's reference program.
    """
    waiting = iter([number for number in range(len(trajectories)) if number not in results.done])

    async def work() -> None:
        for number in waiting:
            item = trajectories[number]
            task = item.task
            if config.prm.verifier != "reference":
                task = dataclasses.replace(task, reference="", meta={})
            verdicts = await verify_replayed(
                verifier,
                task,
                item.steps,
                sandbox,
                deadline_s=config.prm.deadline_s,
                max_turns=config.agent.max_turns,
                tamper_policy=config.prm.tamper_policy,
            )
            results.add(number, verdicts)
            said()

    workers = [asyncio.create_task(work()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def _flat(header: dict[str, Any]) -> dict[str, Any]:
    settings = {f"prm.{name}": value for name, value in header.get("settings", {}).items()}
    return {"set": header.get("set"), "agent.max_turns": header.get("max_turns"), **settings}
