"""JSON-lines files that survive a kill at any moment.

A row is written with its newline in one call, so a process that dies leaves at most one torn line, at the end. A
reader drops that line, a writer cuts it off before it appends. Rewriting goes through a temporary file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from datapm_rl.errors import UserError

Row = dict[str, Any]

LONE_SURROGATES = "backslashreplace"
"""An agent's code can print text that UTF-8 cannot hold; what this writes for it is JSON's own escape."""


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Append rows; they are on disk when the call returns."""
    text = "".join(json.dumps(_finite(row), ensure_ascii=False) + "\n" for row in rows)
    with open(path, "ab+") as handle:
        _cut_torn_tail(handle)
        handle.write(text.encode(errors=LONE_SURROGATES))
        handle.flush()
        os.fsync(handle.fileno())


def read_rows(path: Path) -> list[Row]:
    """All whole rows; none if there is no file. A broken line that is not the last is a `UserError`."""
    if not path.exists():
        return []
    return parse_rows(path.read_bytes(), path)


def parse_rows(data: bytes, path: Path) -> list[Row]:
    """Rows of `data`, which is a piece of `path`; bytes after the last newline are ignored."""
    rows = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number} is not JSON ({error}): remove the line") from error
    return rows


def keep_rows(path: Path, keep: Callable[[Row], bool]) -> int:
    """Drop the rows for which `keep` is false, atomically; returns how many. An unchanged file is left alone."""
    rows = read_rows(path)
    kept = [row for row in rows if keep(row)]
    if len(kept) < len(rows):
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))
    return len(rows) - len(kept)


def write_atomically(path: Path, text: str) -> None:
    """Readers see the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8", errors=LONE_SURROGATES) as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)


def _cut_torn_tail(handle: Any) -> None:
    size = handle.seek(0, os.SEEK_END)
    if size == 0:
        return
    handle.seek(size - 1)
    if handle.read(1) != b"\n":
        handle.seek(0)
        handle.truncate(handle.read().rfind(b"\n") + 1)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null. NumPy scalars become Python's."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
