"""A flat transcript in the dialect of DeepAnalyze -> steps: the only place that parses one, for others wrote it flat.

A transcript is turns and observations in one string; what the agent's code printed stands in it unescaped, so no
reading is certain. These rules give the right steps for what agents and programs do without intent:

* a turn ends after its `</Code>` or `</Answer>`; text without a tag of its own behind that belongs to it. Text without
  code or answer is a turn as well. Who speaks follows from the tags, never from a piece's position;
* `<Execute>` opens an observation at the start of a line or right after a closing tag, but not inside `<Code>`;
* an observation ends at the `</Execute>` behind which a turn, another observation or the end follows; another
  `</Execute>` is part of what was printed;
* observations one after the other are one; one before the first turn belongs to no step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from datapm_rl.dialects.deepanalyze import DEEPANALYZE
from datapm_rl.trajectory import Step, StepStatus

_OPEN, _CLOSE = "<Execute>", "</Execute>"
_BEFORE_OPEN = ("\n", "</Code>", "</Answer>")
_TURN_TAG = re.compile(r"<(?:Analyze|Understand|Code|Answer)>")
_TURN_END = re.compile(r"</(?:Code|Answer)>")
_FOLLOWS = re.compile(r"\s*(?:\Z|<(?:Execute|Analyze|Understand|Code|Answer)>)")
_ERROR = "[Error]:"
_TIMEOUT = re.compile(r"execution timed out|ran out of time", re.IGNORECASE)  # of the release, of our sandbox
_SEPARATOR_TOKEN = "<extra_0>"  # of discriminative PRMs, left in some files between steps; the release drops it too


def read_transcript(trace: str) -> list[Step]:
    """The steps of a flat transcript; none if it is blank."""
    turns: list[tuple[str, str | None]] = []
    for text, observation in _pieces(trace.replace(_SEPARATOR_TOKEN, "")):
        parts = _turns(text)
        if parts:
            turns += [(part, None) for part in parts[:-1]] + [(parts[-1], observation)]
        elif turns and observation is not None:
            turns[-1] = (turns[-1][0], "\n".join(filter(None, (turns[-1][1], observation))))
    return [_step(index, text, observation) for index, (text, observation) in enumerate(turns, start=1)]


def _pieces(trace: str) -> Iterator[tuple[str, str | None]]:
    """(text of the agent, the observation after it), in order; both may be empty."""
    at = 0
    while at < len(trace):
        start = _observation_start(trace, at)
        if start is None:
            yield trace[at:], None
            return
        inside = start + len(_OPEN)
        end = _observation_end(trace, inside)
        yield trace[at:start], _unwrapped(trace[inside:end])
        at = end + len(_CLOSE)


def _observation_start(trace: str, at: int) -> int | None:
    """Where the next observation opens, from `at` on, which is the start or the end of another observation."""
    begin = at
    while (start := trace.find(_OPEN, at)) >= 0:
        code_end = _open_code_end(trace, begin, start)
        if code_end is not None:
            at = code_end
        elif (before := trace[begin:start].rstrip(" \t")).endswith(_BEFORE_OPEN) or not before:
            return start
        else:
            at = start + len(_OPEN)
    return None


def _open_code_end(trace: str, begin: int, at: int) -> int | None:
    """Where the code block around `at` ends; None if `at` is in none, or in one that is never closed."""
    opened = trace.rfind("<Code>", begin, at)
    if opened < 0 or trace.find("</Code>", opened, at) >= 0:
        return None
    end = trace.find("</Code>", at)
    return end if end >= 0 and trace.find("<Code>", at, end) < 0 else None


def _observation_end(trace: str, inside: int) -> int:
    """Where the observation that starts at `inside` ends: the index of its `</Execute>`, or the end of the text."""
    end = trace.find(_CLOSE, inside)
    while end >= 0:
        after = end + len(_CLOSE)
        another = trace.find(_CLOSE, after)
        if another < 0 or _FOLLOWS.match(trace, after) or _TURN_TAG.search(trace, after, another):
            return end
        end = another
    return len(trace)


def _turns(text: str) -> list[str]:
    """The turns of what an agent wrote without an observation in between."""
    turns: list[str] = []
    at = 0
    for end in _TURN_END.finditer(text):
        turns.append(text[at : end.end()].strip())
        at = end.end()
    rest = text[at:].strip()
    if rest and turns and not _TURN_TAG.match(rest):
        turns[-1] += text[at:].rstrip()
    elif rest:
        turns.append(rest)
    return turns


def _unwrapped(observation: str) -> str:
    """Without the line breaks that belong to the tags."""
    return observation.removeprefix("\n").removesuffix("\n")


def _step(index: int, text: str, observation: str | None) -> Step:
    turn = DEEPANALYZE.parse(text)
    step = Step(index, text, turn.thought, turn.code, turn.answer, observation)
    if turn.answer is not None:
        step.status = StepStatus.ANSWER
    elif turn.code is None:
        step.status, step.cause = StepStatus.MALFORMED, turn.problem
    elif observation is not None and observation.lstrip().startswith(_ERROR):
        step.status = StepStatus.TIMEOUT if _TIMEOUT.search(observation) else StepStatus.ERROR
    return step
