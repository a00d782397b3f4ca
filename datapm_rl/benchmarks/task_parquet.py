"""Tasks in verl's parquet layout: the columns that verl's own datasets have, with all that a Task needs in them.

    data_source    name of the source, e.g. "dabench"
    prompt         [{role, content}, ...]: system prompt and question, for other readers of the layout. Training words
                   its prompts anew, in the dialect of `agent.dialect`
    ability        "data_analysis"
    reward_model   {style: "rule", ground_truth: gold as JSON}: gold is here and nowhere else
    extra_info     {index, split, id, question, format, files, grader, reference, meta (JSON)}

`files` are paths below the parquet file's folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datapm_rl.dialects import Dialect
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task, to_json

TASKS = "tasks.parquet"
"""Name of the task file in a prepared folder."""

_TEXTS = ("split", "id", "question", "format", "grader", "reference", "meta")


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, row in the vocabulary of task files). UserError: no such file, or another layout."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(f"task file {path} does not exist: check the path")
    try:
        table = pq.read_table(path, columns=["extra_info", "reward_model"])
        infos, rewards = (table.column(name).to_pylist() for name in ("extra_info", "reward_model"))
    except (KeyError, OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"task file {path} is not parquet in verl's layout ({reason}): {_ADVICE}") from None
    for number, (info, reward) in enumerate(zip(infos, rewards, strict=True), start=1):
        try:
            row = {key: info[key] for key in _TEXTS} | {"files": info["files"]}
            yield number, row | {"gold": json.loads(reward["ground_truth"]), "meta": json.loads(info["meta"])}
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}:{number} is no task of this project ({error!r}): {_ADVICE}") from None


_ADVICE = "make it with `python -m datapm_rl.data` (README, own data)"


def write_parquet(path: Path, tasks: Sequence[Task], source: str, dialect: Dialect) -> None:
    """Write tasks whose files are below the folder of `path`. `prompt` is worded by `dialect`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, texts = pa.string(), pa.list_(pa.string())
    message = pa.struct([("role", text), ("content", text)])
    info = pa.struct([("index", pa.int64()), *((key, text) for key in _TEXTS), ("files", texts)])
    schema = pa.schema(
        [
            ("data_source", text),
            ("prompt", pa.list_(message)),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", text)])),
            ("extra_info", info),
        ]
    )
    rows = [_row(index, task, source, dialect) for index, task in enumerate(tasks)]
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


def _row(index: int, task: Task, source: str, dialect: Dialect) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": [
            {"role": "system", "content": dialect.system_prompt},
            {"role": "user", "content": dialect.user_message(task)},
        ],
        "ability": "data_analysis",
        "reward_model": {"style": "rule", "ground_truth": json.dumps(to_json(task.gold))},
        "extra_info": {
            "index": index,
            "split": task.split,
            "id": task.id,
            "question": task.question,
            "format": task.answer_format,
            "grader": task.grader,
            "reference": task.reference,
            "meta": json.dumps(to_json(task.meta)),
            "files": list(task.files),
        },
    }
