"""What a verifier's reply says: code to run, a verdict, or neither.

Only the last message of the verifier itself is read, never what its code printed. Its top-level blocks, in order:

    <reasoning>..</reasoning>, <summary>..</summary>    talk: tags inside are quotations, neither code nor score
    <code>..</code>        the first one is run, and the reply ends there. What follows it, or a score before it, was
                           written before the code's result was known: made up, and not what the verifier found
    <interpreter>          the reply ends before it: only we write outputs
    <score>v</score>       a verdict, if nothing but its summary follows

What leaves room for doubt is a problem, and the verifier is asked again: two different scores, a tag without its
counterpart (as when hostile output is quoted that closes the quoting block), talk after a score, a reply cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from datapm_rl.dialects.escape import escape_tags, printable
from datapm_rl.dialects.fence import unfenced

RATIONALE_CHARS = 2000
"""Characters that are kept of a rationale, and of a reply that ran on until it was cut off."""
NOTHING = "it has neither code to run nor a score"
"""The problem of a reply that only thinks."""
NO_SCORE = "it has no score"
"""The same where code cannot be run."""

_TAG = re.compile(r"<(/?)(reasoning|summary|code|interpreter|score)>")
_SCORES = {  # ASCII, no signs: float() would read digits of other scripts as well
    "ternary": re.compile(r"0(?:\.0+)?|0?\.50*|1(?:\.0+)?"),
    "binary": re.compile(r"0(?:\.0+)?|1(?:\.0+)?"),
}
_AFTER_VERDICT = re.compile(r"[\s*]*(?:```\s*)?")  # Markdown around the tags says nothing


@dataclass(frozen=True)
class Reply:
    """Exactly one of `code`, `score` and `problem` (a clause: what is wrong) is not None.

    `used_text`: what the verifier is taken to have said, for the conversation. `rationale`: of a verdict.
    """

    used_text: str
    code: str | None = None
    score: float | None = None
    rationale: str = ""
    problem: str | None = None


@dataclass(frozen=True)
class _Block:
    """text[start:end] is a block `name`, or a tag without its counterpart (`lone`)."""

    name: str
    content: str
    start: int
    end: int
    lone: bool = False


def read_reply(text: str, finish: str, scores: str = "ternary", *, runs_code: bool = True) -> Reply:
    """Read a reply as it was sampled, with the stop string `</code>` if the endpoint tells that it stopped there; where
    it does not, the tag is put back behind code that is open. Never raises.

    `finish`: "stop" or "length". `scores`: "ternary" or "binary". `runs_code` False: code is talk, too.

    >>> read_reply("<reasoning>ok</reasoning><score>0.50</score><summary>It lacks a check.</summary>", "stop").score
    0.5
    >>> read_reply("<reasoning>look</reasoning><code>print(1)", "stop").used_text
    '<reasoning>look</reasoning><code>print(1)</code>'
    """
    blocks: list[_Block] = []
    for block in _blocks(text):
        if block.name == "interpreter":
            text = text[: block.start]
            if any(earlier.name == "score" for earlier in blocks):  # a quotation may have closed its block before
                return Reply(_sayable(text), problem="it goes on after its score")
            break
        if block.name == "code" and runs_code and not (block.lone and finish == "length"):
            return _code(text, block)
        blocks.append(block)
    problem = "it was cut off at its length limit" if finish == "length" else _problem(text, blocks, scores, runs_code)
    if problem is not None:
        return Reply(_sayable(text[:RATIONALE_CHARS] if finish == "length" else text), problem=problem)
    [score] = {float(block.content) for block in blocks if block.name == "score"}
    return Reply(_sayable(text), score=score, rationale=_rationale(blocks))


def _blocks(text: str) -> Iterator[_Block]:
    """Top-level blocks. A block that is opened again before it is closed, or never closed, counts as a lone tag."""
    at = 0
    while tag := _TAG.search(text, at):
        closes, name = tag.groups()
        close = -1 if closes or name == "interpreter" else text.find(f"</{name}>", tag.end())
        if name != "code" and text.find(f"<{name}>", tag.end(), max(close, 0)) >= 0:
            close = -1
        if close >= 0:
            at = close + len(f"</{name}>")
            yield _Block(name, text[tag.end() : close].strip(), tag.start(), at)
        else:
            at = tag.end()
            yield _Block("/" * bool(closes) + name, text[at:], tag.start(), at, lone=True)


def _code(text: str, block: _Block) -> Reply:
    used, content = text[: block.end], block.content
    if block.lone:  # cut at the stop string; an endpoint that ignores it may go on with an output of its own
        content = content.partition("\n<interpreter>")[0]
        used = f"{used}{content}</code>"
    code = unfenced(content)
    if not code.strip():
        return Reply(_sayable(used), problem="its <code> is empty")
    return Reply(_sayable(used), code=printable(code))


def _problem(text: str, blocks: list[_Block], scores: str, runs_code: bool) -> str | None:
    """Why the blocks of a reply without code are no verdict, or None."""
    for block in blocks:
        if block.lone:
            return f"its <{block.name}> has no counterpart"
    given = [block for block in blocks if block.name == "score"]
    if not given:
        return NOTHING if runs_code else NO_SCORE
    if not all(_SCORES[scores].fullmatch(block.content) for block in given):
        return "its score is none of the allowed ones"
    if len({float(block.content) for block in given}) > 1:
        return "it has different scores"
    after = blocks[blocks.index(given[0]) :]
    if any(block.name not in ("score", "summary") for block in after):
        return "it goes on after its score"
    if sum(block.name == "summary" for block in blocks) > 1:
        return "it has more than one summary"
    if not _AFTER_VERDICT.fullmatch(text, after[-1].end):
        return "it goes on after its verdict"
    return None


def _rationale(blocks: list[_Block]) -> str:
    """The summary, or else the end of the last reasoning."""
    for block in blocks:
        if block.name == "summary" and block.content:
            return block.content[:RATIONALE_CHARS]
    reasoning = [block.content for block in blocks if block.name == "reasoning"]
    return reasoning[-1][-RATIONALE_CHARS:] if reasoning else ""


def _sayable(text: str) -> str:
    """Without tokens of chat templates, which a verifier may have quoted: they would end its message."""
    return escape_tags(printable(text), ())
