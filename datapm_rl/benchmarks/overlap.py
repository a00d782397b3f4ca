"""What training shares with an evaluation: data files, by content, and questions, by text.

Files are the same when their bytes are, or when they differ in a byte-order mark, in line ends or in line ends at the
end alone. Questions are the same when they differ in case, white space, the form of characters (Unicode NFKC) or the
last full stop or question mark alone.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task

_BOM = b"\xef\xbb\xbf"


def content_key(content: bytes) -> str:
    """sha256 of a file without byte-order mark and with uniform line ends.

    >>> content_key(b"\\xef\\xbb\\xbfa,b\\r\\n1,2\\r\\n") == content_key(b"a,b\\n1,2")
    True
    """
    content = content.removeprefix(_BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return hashlib.sha256(content.rstrip(b"\n")).hexdigest()


def question_key(question: str) -> str:
    """A question's text without what does not change it.

    >>> question_key("What is  the MEAN fare?\\n") == question_key("what is the mean fare")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split()).rstrip(".?! ")


@dataclass
class Seen:
    """Files and questions of an evaluation, each with words for who has it. `add` reads each file once."""

    files: dict[str, str] = field(default_factory=dict)  # content key -> who
    questions: dict[str, str] = field(default_factory=dict)  # question key -> who
    _keys: dict[Path, str] = field(default_factory=dict)

    def add(self, tasks: Iterable[Task], where: str, questions: bool = True) -> None:
        """Remember the tasks of an evaluation that is called `where`; their files alone without `questions`."""
        for task in tasks:
            who = f"task {task.id!r} of {where}"
            for file in task.files:
                self.files.setdefault(self.file_key(Path(task.data_dir) / file), who)
            if questions:
                self.questions.setdefault(question_key(task.question), who)

    def file_key(self, path: Path) -> str:
        """`content_key` of a file."""
        if path not in self._keys:
            self._keys[path] = content_key(path.read_bytes())
        return self._keys[path]

    def shared(self, question: str, files: dict[str, str]) -> str | None:
        """What a task shares with the evaluation, in words, or None. `files`: name -> content key."""
        for name, key in files.items():
            if key in self.files:
                return f"its data file {name} is also that of {self.files[key]}"
        if who := self.questions.get(question_key(question)):
            return f"its question is also that of {who}"
        return None


def check_apart(
    path: Path, tasks: Iterable[Task], validation: Iterable[str], evaluation: dict[Path, list[Task]]
) -> None:
    """UserError if a task of split train shares a data file with a validation split of the same task file, or a data
    file or a question with an evaluation set.

    Between the splits of one file the same question on another data file is another task: templates ask it of each.
    """
    tasks, validation, seen = list(tasks), set(validation), Seen()
    seen.add((task for task in tasks if task.split in validation), f"validation in {path.name}", questions=False)
    for other, others in evaluation.items():
        seen.add(others, str(other))
    found = []
    for task in tasks:
        if task.split != "train":
            continue
        keys = {file: seen.file_key(Path(task.data_dir) / file) for file in task.files}
        if shared := seen.shared(task.question, keys):
            found.append(f"training task {task.id!r}: {shared}")
    if found:
        raise UserError(
            f"{path}: training and evaluation overlap in {len(found)} tasks ({'; '.join(found[:3])}): make the splits "
            "with `python -m datapm_rl.data folder ... --heldout SHARE`, which parts them by data file, or leave these "
            "tasks out with --against EVALUATION --skip-bad"
        )
