"""The reference verifier's rules: from facts, states and a step to a score with its reason. Pure functions.

| step | score |
|---|---|
| turn in no known form | 0 |
| answer | 1 if it is the reference answer, else 0 |
| code failed | 0.5 if the step before did not fail and the code is new (the agent can mend it), else 0 |
| a needed column became neither raw nor clean | 0, whatever else the step did: a silent error |
| showed what the same code, or a look at the same columns, showed before | 0 |
| printed the reference answer | 1 |
| looked at data | 1; 0.5 if at no needed column |
| printed another value | 0: a silent error |
| cleaned a needed column | 1 |
| none of these | 0 |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from datapm_rl.benchmarks.graders.dabench import same_value, values
from datapm_rl.trajectory import Step, StepStatus
from datapm_rl.verifier.reference_looks import printed_by
from datapm_rl.verifier.reference_probe import Facts, State


@dataclass(frozen=True)
class Judgement:
    """A score in {0, 0.5, 1} and one sentence."""

    score: float
    reason: str


def judge_answer(facts: Facts, answer: str) -> Judgement:
    """Judge the final answer by the reference answer."""
    wanted, given = values(facts.answer), values(answer)
    if wanted:
        right = all(name in given and same_value(given[name], value) for name, value in wanted.items())
    else:
        [value] = given.values() if len(given) == 1 else [answer]
        right = same_value(value.strip(), facts.answer)
    if right:
        return Judgement(1.0, "The answer is the value that the reference program gets.")
    return Judgement(0.0, "The answer differs from the value that the reference program gets.")


def judge_failure(history: Sequence[Step], step: Step, facts: Facts, before: State, after: State | None) -> Judgement:
    """Judge code that raised or was stopped. What ran before the exception may have changed columns."""
    if corrupted := changed_columns(facts, before, after or {})[1]:
        return Judgement(0.0, f"The code failed, and it left column {corrupted[0]!r} with wrong values.")
    if any(_code(old) == _code(step) for old in history):
        return Judgement(0.0, "The code failed, and it is the same code as in an earlier step.")
    if history and history[-1].status not in (StepStatus.OK, StepStatus.MALFORMED):
        return Judgement(0.0, "The code failed again, as in the step before.")
    return Judgement(0.5, "The code failed with an error that the agent can see and mend.")


def judge_run(
    history: Sequence[Step], step: Step, facts: Facts, before: State, after: State, counts_missing: bool
) -> Judgement:
    """Judge code that ran."""
    cleaned, corrupted = changed_columns(facts, before, after)
    if corrupted:
        return Judgement(0.0, f"The code left column {corrupted[0]!r} with wrong values, without any error.")
    printed = printed_by(step.code or "", frozenset(after), counts_missing)
    same = [old for old in history if printed.anything and old.code and old.observation == step.observation]
    if any(
        _code(old) == _code(step)
        or (printed.looking and printed_by(old.code or "", frozenset(after), counts_missing) == printed)
        for old in same
    ):
        return Judgement(0.0, "The code shows what an earlier step has shown already.")
    if printed.anything and shows_answer(step.observation or "", facts.answer):
        return Judgement(1.0, "The code computed the value that the reference program gets.")
    if printed.looking:
        needed = {_plain(header) for header in facts.columns}
        if printed.whole or cleaned or needed & {_plain(column) for column in printed.columns}:
            return Judgement(1.0, "The code looks at data that the question needs.")
        return Judgement(0.5, "The code looks at columns that the question does not need.")
    if printed.anything:
        return Judgement(0.0, "The code computed a value other than that of the reference program, without any error.")
    if cleaned:
        return Judgement(1.0, f"The code cleaned column {cleaned[0]!r} rightly.")
    return Judgement(0.0, "The code neither showed anything nor cleaned a column that the question needs.")


def changed_columns(facts: Facts, before: State, after: State) -> tuple[list[str], list[str]]:
    """Needed columns that a step (cleaned, corrupted).

    Corrupted: a frame holds the column, in full length, with values that are neither raw nor clean and that no frame
    held before. A frame with other rows (filtered, grouped, joined) is neither: there the printed value decides.
    """
    cleaned, corrupted = [], []
    for name, columns in after.items():
        for held in columns:
            column = facts.columns[held.need]
            was = {old.digest for old in before.get(name, []) if old.need == held.need}
            anywhere = {old.digest for olds in before.values() for old in olds if old.need == held.need}
            if held.digest == column.clean:
                if column.clean != column.raw and held.digest not in was:
                    cleaned.append(held.need)
            elif held.same and held.rows == column.rows and held.digest not in {column.raw, *anywhere}:
                corrupted.append(held.need)
    return cleaned, corrupted


def shows_answer(observation: str, answer: str) -> bool:
    """Whether the last line of an observation shows the answer, alone or after a label, rounded or not."""
    lines = [line.strip() for line in observation.splitlines() if line.strip()]
    wanted = values(answer)
    if wanted:
        text = " ".join(lines)
        return all(any(_same(word, value) for word in re.split(r"[\s,:=()\[\]]+", text)) for value in wanted.values())
    return bool(lines) and any(_same(shown, answer) for shown in _candidates(lines[-1]))


def _candidates(line: str) -> Iterator[str]:
    yield line
    yield re.split(r"[:=]", line)[-1].strip()
    yield line.split()[-1]


def _same(shown: str, answer: str) -> bool:
    """Equal, or equal once the shown number has the answer's decimals (an integer must be shown as it is)."""
    if same_value(shown, answer):
        return True
    decimals = len(answer.partition(".")[2])
    if not decimals or not re.fullmatch(r"[+-]?\d+\.\d+", answer):
        return False
    try:
        return same_value(f"{float(shown):.{decimals}f}", answer)
    except ValueError:
        return False


def _code(step: Step) -> str | None:
    return None if step.code is None else step.code.strip()


def _plain(header: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in header.strip().lower())
