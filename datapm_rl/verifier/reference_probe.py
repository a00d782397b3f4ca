"""The code that the reference verifier runs in sandbox sessions, and how its results are read.

Columns leave the sandbox as digests, not as data: results are bounded in size, and a digest is all it takes to tell
whether two columns are equal. A column's digest is taken in the order of its index over its values, numbers to nine
significant digits, so that neither a sort nor float noise changes it; missing values of every kind are one.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from typing import Any

from datapm_rl.errors import InfraError
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import StepStatus, Task

_DIGEST = """
def _datapm_digest(series):
    import hashlib
    import numbers
    import numpy
    import pandas
    try:
        series = series.sort_index(kind="stable")
    except TypeError:
        pass
    missing = series.isna().to_numpy(dtype=bool)
    values = series.tolist()
    known = [value for value, gone in zip(values, missing) if not gone]
    if pandas.api.types.is_numeric_dtype(series.dtype) or all(isinstance(v, numbers.Real) for v in known):
        number = numpy.array([numpy.nan if gone else float(v) for v, gone in zip(values, missing)]) + 0.0
        text = "n" + "\\x1f".join(numpy.char.mod("%.9g", number).tolist())
    else:
        text = "t" + "\\x1f".join("\\x00" if gone else str(v) for v, gone in zip(values, missing))
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()

def _datapm_plain(header):
    return "".join(c if c.isalnum() else "_" for c in str(header).strip().lower())
"""

_FACTS = """
def _datapm_facts(files):
    import json
    import pandas
    columns = {}
    frames = [pandas.read_csv(file) for file in files]
    for header, series in clean.items():
        raw = next((frame[header] for frame in frames if header in frame.columns), None)
        columns[str(header)] = {
            "clean": _datapm_digest(series),
            "raw": None if raw is None else _datapm_digest(raw),
            "rows": len(series) if raw is None else len(raw),
        }
    return json.dumps({"answer": str(answer), "columns": columns})

_datapm_facts(%s)
"""

_STATE = """
def _datapm_state(names, needed):
    import json
    import pandas
    found = []
    frames = [name for name, value in names.items() if isinstance(value, pandas.DataFrame) and name[:1] != "_"]
    for name in sorted(frames, key=lambda name: (name != "df", name))[:16]:
        frame = names[name]
        columns = []
        for position, header in enumerate(frame.columns):
            for need in needed:
                if _datapm_plain(header).startswith(_datapm_plain(need)):
                    same = _datapm_plain(header) == _datapm_plain(need)
                    columns.append([need, same, len(frame), _datapm_digest(frame.iloc[:, position])])
        found.append([name, columns[:64]])
    return json.dumps(found)

_datapm_state(dict(globals()), %s)
"""


@dataclass(frozen=True)
class Column:
    """What the reference program says of a needed column: digests before and after cleaning, number of rows."""

    clean: str
    raw: str | None  # None: not a column of a CSV of the task
    rows: int


@dataclass(frozen=True)
class Facts:
    """The result of a task's reference program."""

    answer: str
    columns: dict[str, Column]  # by header


@dataclass(frozen=True)
class Held:
    """A needed column as a data frame of the agent holds it. `same`: under its own header (in any spelling)."""

    need: str
    same: bool
    rows: int
    digest: str


State = dict[str, list[Held]]
"""Data frames of the agent by name, and the needed columns that they hold."""


def facts_code(task: Task) -> str:
    """A program for a fresh session: the reference program, then an export of what it left."""
    names = [file.rsplit("/", 1)[-1] for file in task.files if file.lower().endswith(".csv")]
    return f"{task.reference}\n{_DIGEST}{_FACTS % repr(names)}"


def read_facts(result: ExecutionResult) -> Facts:
    """Read the result of `facts_code`. InfraError "reference_failed" if the program is at fault."""
    payload = _payload(result)
    if payload is None:
        raise InfraError("reference_failed", f"the task's reference program failed: {(result.error or '')[-300:]}")
    columns = {header: Column(**column) for header, column in payload["columns"].items()}
    return Facts(payload["answer"], columns)


def state_code(facts: Facts) -> str:
    """A program for a branch: an export of the needed columns in the agent's data frames."""
    return f"{_DIGEST}{_STATE % repr(list(facts.columns))}"


def read_state(result: ExecutionResult) -> State | None:
    """Read the result of `state_code`; None if the agent's state does not let itself be looked at."""
    payload = _payload(result)
    return None if payload is None else state_from_json(payload)


def state_to_json(state: State) -> list[Any]:
    """A JSON-ready copy."""
    return [[name, [[c.need, c.same, c.rows, c.digest] for c in columns]] for name, columns in state.items()]


def state_from_json(rows: list[Any]) -> State:
    """Inverse of `state_to_json`."""
    return {name: [Held(*column) for column in columns] for name, columns in rows}


def _payload(result: ExecutionResult) -> Any:
    """The JSON value of the last expression; None if the code did not come that far."""
    if result.status is StepStatus.INFRA_ERROR:
        raise InfraError(result.cause or "sandbox_lost", result.error or "")
    if result.status is not StepStatus.OK or result.value is None:
        return None
    try:
        return json.loads(ast.literal_eval(result.value))
    except (ValueError, SyntaxError):
        return None
