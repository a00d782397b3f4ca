"""What the tests of data preparation share: small folders, and the command."""

from __future__ import annotations

import json
from pathlib import Path

from datapm_rl.data.__main__ import main

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def write_lines(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def own_folder(path: Path, *rows: dict, tables: int = 3) -> Path:
    """A user's folder with t0.csv, t1.csv, ... and questions.jsonl."""
    write_lines(path / "questions.jsonl", *rows)
    for index in range(tables):
        (path / f"t{index}.csv").write_text(f"x,y\n{index},2\n3,4\n")
    return path


def question(index: int, table: int, **more: object) -> dict:
    return {"question": f"What is number {index}?", "answer": str(index), "file": f"t{table}.csv"} | more


def prepare(kind: str, source: Path, out: Path, *options: str) -> int:
    return main([kind, "--source", str(source), "--out", str(out), *options])
