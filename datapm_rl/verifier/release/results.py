"""Result files of the release: JSON lines, one per task, with a verdict for each step of a candidate.

    {"task_id", "answer", "samples": [{"step_index", "prediction": "Score: 1.0\\nSummary: ...", "prediction_score",
     "prediction_summary", "messages", "reasoning", "token_usage": {"prompt_tokens", "completion_tokens",
     "total_tokens"}, "elapsed_seconds"}, ...]}

The release's -1 for a step without a verdict is written, since its readers expect a number, and read as missing.
Only where it applies, a verdict of ours has further keys: `sample` (its pass, from 1, when there are several),
`missing_cause`, `replay_differs` (the code printed something else when it was run again), `tampered` and `cut` (as in
`trajectory.Verdict`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datapm_rl.chat import Message
from datapm_rl.errors import UserError
from datapm_rl.tracking.jsonl import Row, read_rows, write_atomically
from datapm_rl.trajectory import Step, Verdict

MISSING = -1.0
_SETTLED = ("no_verdict", "context_exceeded")  # causes that another try is not expected to remove


def verdict_row(
    step: Step, verdict: Verdict, prompt: Sequence[Message], replay_differs: bool, sample: int | None
) -> Row:
    """One entry of `samples`. `prompt`: the messages before the first reply. `sample`: None for one pass alone."""
    score = MISSING if verdict.score is None else float(verdict.score)
    summary = verdict.rationale or ("No score found." if verdict.score is None else "No summary found.")
    messages = _messages(verdict.trace)
    tokens = [int(sum(turn.get(key) or 0 for turn in verdict.trace)) for key in ("prompt_tokens", "completion_tokens")]
    row: Row = {
        "step_index": step.index,
        "prediction": f"Score: {score}\nSummary: {summary}",
        "prediction_score": score,
        "prediction_summary": summary,
        "messages": [*prompt, *messages],
        "reasoning": "\n".join(message["content"] for message in messages),
        "token_usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
        "elapsed_seconds": verdict.cost.get("seconds", 0.0),
    }
    extra = {
        "sample": sample,
        "missing_cause": verdict.cause,
        "replay_differs": replay_differs,
        "tampered": verdict.tampered,
        "cut": verdict.cut,
    }
    return row | {key: value for key, value in extra.items() if value}


def step_scores(row: Row) -> list[list[float | None]]:
    """Of each pass over a candidate, the scores of its steps in their order; None where one is missing.

    The release does not label its passes: a new one begins where the step index does not grow.
    """
    passes: list[list[float | None]] = []
    before: tuple[Any, int] | None = None
    for verdict in row["samples"]:
        here = (verdict.get("sample"), verdict["step_index"])
        if before is None or here[0] != before[0] or here[1] <= before[1]:
            passes.append([])
        score = verdict["prediction_score"]
        passes[-1].append(None if score == MISSING else float(score))
        before = here
    return passes


def read_results(path: Path) -> list[Row]:
    """The rows of a result file, ours or the release's, as they are. A torn last line is left out; no file, no rows.

    UserError: a line that is no such row, a task that is there twice.
    """
    rows = [*read_rows(path), *_unended(path)]
    lines: dict[str, int] = {}
    for number, row in enumerate(rows, start=1):
        problem = _problem(row)
        if problem:
            raise UserError(f"{path}, line {number}: {problem}; remove the line or correct it")
        first = lines.setdefault(str(row["task_id"]), number)
        if first != number:
            raise UserError(f"{path}, line {number}: task_id {row['task_id']!r} is already in line {first}; remove one")
    return rows


def resume(path: Path) -> set[str]:
    """Ids of the tasks that are done; the file is left with these alone.

    A task is not done if a verdict is missing for a reason that may have gone away, such as an outage.
    """
    rows = read_results(path)
    done = [row for row in rows if all(v.get("missing_cause") in (None, *_SETTLED) for v in row["samples"])]
    if len(done) < len(rows) or (path.exists() and not path.read_bytes().endswith(b"\n")):
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in done))
    return {str(row["task_id"]) for row in done}


def _messages(trace: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """What the verifier said and what its code printed, in the release's tags."""
    return list(itertools.chain.from_iterable(map(_exchange, trace)))


def _exchange(turn: dict[str, Any]) -> list[dict[str, str]]:
    reply, output = str(turn.get("reply") or ""), turn.get("output")
    if turn.get("code") is not None and reply.count("<code>") > reply.count("</code>"):
        reply += "</code>"  # the stop string, which a reply ends before
    said = [{"role": "assistant", "content": reply}]
    if output is not None:
        said.append({"role": "user", "content": f"<interpreter>\n{output}\n</interpreter>"})
    return said


def _unended(path: Path) -> list[Row]:
    """The last line of a file that does not end with a line break, if that line is whole."""
    if not path.exists():
        return []
    line = path.read_bytes().rpartition(b"\n")[2]
    try:
        return [json.loads(line)] if line.strip() else []
    except ValueError:
        return []


def _problem(row: Any) -> str | None:
    if not isinstance(row, dict) or not {"task_id", "answer", "samples"} <= row.keys():
        return "not an object with task_id, answer and samples"
    if not isinstance(row["samples"], list):
        return "samples is not a list"
    for at, verdict in enumerate(row["samples"], start=1):
        if not isinstance(verdict, dict) or not isinstance(verdict.get("step_index"), int):
            return f"samples, entry {at} has no step_index"
        score = verdict.get("prediction_score")
        if not isinstance(score, int | float) or isinstance(score, bool) or not (score == MISSING or 0 <= score <= 1):
            return f"samples, entry {at}: prediction_score {score!r} is neither a score in [0, 1] nor -1"
    return None
