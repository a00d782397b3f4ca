"""What all dialects share: a turn is `<thought>..</thought>` and then one block, `<code>` or `<answer>`, in own tags.

Reading: a turn ends at the first closing code or answer tag, whatever follows (an engine with the dialect's stop
strings stops there; a reader of stored text must see the same turn). Writing: an observation is cut in the middle
before it is wrapped, so its closing tag is never lost, and tags inside it are escaped, so nothing that a program
prints can end the observation or forge a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from datapm_rl.dialects.escape import escape_tags, printable
from datapm_rl.dialects.fence import unfenced
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import Task

_CUT = "\n...\n"


@dataclass(frozen=True)
class Turn:
    """A parsed turn: exactly one of `code`, `answer` and `problem` (a short reason: malformed) is not None."""

    thought: str = ""
    code: str | None = None
    answer: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Dialect:
    """One way to write steps. The four tag names are given without brackets.

    `describe` words a result (unescaped, uncut). `extra_tags` are further names that outputs may not contain as tags.

    >>> from datapm_rl.dialects import get_dialect
    >>> get_dialect("deepanalyze").parse("<Analyze>Look.</Analyze><Code>print(1)</Code>").code
    'print(1)'
    """

    name: str
    thought_tag: str
    code_tag: str
    observation_tag: str
    answer_tag: str
    system_prompt: str
    describe: Callable[[ExecutionResult], str]
    extra_tags: tuple[str, ...] = ()

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings for sampling a turn; they belong to the turn."""
        return (f"</{self.code_tag}>", f"</{self.answer_tag}>")

    def parse(self, text: str) -> Turn:
        """Read a turn. Code wins over an answer that was opened before it. Never raises."""
        close = min((at for at in map(text.find, self.stop) if at >= 0), default=-1)
        if close < 0:
            return Turn(self._lone_thought(text), problem=self._unclosed(text))
        ends_code = text.startswith(self.stop[0], close)
        thought, block = self._split_thought(text[:close])
        tag = self.code_tag if ends_code else self.answer_tag
        before, opening, content = block.partition(f"<{tag}>")
        thought = thought if thought is not None else before.strip()
        if not opening:
            return Turn(thought, problem=f"</{tag}> without <{tag}>")
        if not ends_code and f"<{self.code_tag}>" in before:
            return Turn(thought, problem=f"<{self.code_tag}> is not closed")
        content = unfenced(content) if ends_code else content.strip()
        if not content.strip():
            return Turn(thought, problem=f"<{tag}> is empty")
        return Turn(thought, code=content) if ends_code else Turn(thought, answer=content)

    def user_message(self, task: Task) -> str:
        """The question, its format and its files' base names, after the separator that DataPRM's prompt looks for."""
        form = f" Format: {task.answer_format}" if task.answer_format else ""
        names = "\n".join(PurePosixPath(file).name for file in task.files)
        return f"{task.question}{form}\nFiles:\n{names}"

    def observation(self, result: ExecutionResult, max_chars: int = 2048) -> str:
        """The whole text of the message that answers a turn with code: `observation_body` in the dialect's tags."""
        return self.wrap_observation(self.observation_body(result, max_chars))

    def observation_body(self, result: ExecutionResult, max_chars: int = 2048) -> str:
        """What a result shows, without tags: escaped, and beyond `max_chars` only its head and its tail."""
        body = escape_tags(printable(self.describe(result)), self._own_tags())
        if len(body) <= max_chars:
            return body
        tail = max_chars // 2
        return body[: max_chars - tail] + _CUT + body[len(body) - tail :]

    def wrap_observation(self, body: str) -> str:
        """A body in the dialect's observation tags."""
        return f"<{self.observation_tag}>\n{body}\n</{self.observation_tag}>"

    def _own_tags(self) -> tuple[str, ...]:
        return (self.thought_tag, self.code_tag, self.observation_tag, self.answer_tag, *self.extra_tags)

    def _split_thought(self, text: str) -> tuple[str | None, str]:
        """(thought, rest) when the turn opens with a closed thought, else (None, text)."""
        head, closing, rest = text.partition(f"</{self.thought_tag}>")
        opening = f"<{self.thought_tag}>"
        if not closing or not head.lstrip().startswith(opening):
            return None, text
        return head.lstrip()[len(opening) :].strip(), rest

    def _lone_thought(self, text: str) -> str:
        thought, _ = self._split_thought(text)
        return text.strip() if thought is None else thought

    def _unclosed(self, text: str) -> str:
        for tag in (self.code_tag, self.answer_tag):
            if f"<{tag}>" in text:
                return f"<{tag}> is not closed"
        return "neither code nor answer"
