"""The builtin benchmark as files: `tasks.jsonl` and `files/<table>_<variant>/<table>.csv`.

Splits: `train`; `heldout` (combos and file variants that are in no training task, tables known); `unseen_tables`
(tables that are in no other split). A combo's side is a hash of the combo and the seed: one in six is held out.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import uuid
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datapm_rl.benchmarks.builtin.questions import (
    FAMILIES,
    Combo,
    answer_format,
    answer_key,
    combos,
    gold,
    question,
    reference_program,
)
from datapm_rl.benchmarks.builtin.tables import KNOWN, UNSEEN, load_table
from datapm_rl.benchmarks.builtin.variants import Variant, make_variant
from datapm_rl.errors import UserError

TRAIN_VARIANTS = 8  # files per table
HELDOUT_VARIANTS = 3
HELDOUT_SHARE = 6  # one combo in this many
PACKAGES = ("numpy", "pandas", "palmerpenguins", "scikit-learn", "statsmodels", "vega-datasets")


def build(
    out_dir: str | Path,
    *,
    seed: int,
    train_tasks: int,
    heldout_tasks: int,
    unseen_tasks: int,
    tables: Sequence[str] | None = None,
) -> Path:
    """Write the benchmark below `out_dir` and return the path of its `tasks.jsonl`.

    `tables` limits the known tables (all twelve by default). A second call with the same parameters, packages and
    code returns at once; other parameters replace the folder. UserError: an unknown table, a package that is not
    there, more tasks than there are questions, or an `out_dir` that holds something else.
    """
    names = list(KNOWN if tables is None else tables)
    if unknown := sorted(set(names) - set(KNOWN)):
        raise UserError(f"Unknown builtin table {unknown[0]!r}; the tables are {', '.join(KNOWN)}.")
    target = Path(out_dir)
    counts = {"train": train_tasks, "heldout": heldout_tasks, "unseen_tables": unseen_tasks}
    manifest = {"fingerprint": _fingerprint(seed, names, counts), "seed": seed, "tables": names, "tasks": counts}
    if _is_built(target, manifest):
        return target / "tasks.jsonl"
    if target.exists() and any(target.iterdir()) and not (target / "manifest.json").is_file():
        raise UserError(f"{target} is not empty and not a builtin benchmark; give another folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        _write(work, seed, names, counts)
        (work / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        _publish(work, target, manifest)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target / "tasks.jsonl"


def _fingerprint(seed: int, names: list[str], counts: dict[str, int]) -> str:
    """Hash of everything that the files depend on: parameters, package versions, this package's code."""
    code = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
    facts = [seed, names, counts, {package: version(package) for package in PACKAGES}, code]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _is_built(target: Path, manifest: dict[str, Any]) -> bool:
    try:
        return json.loads((target / "manifest.json").read_text()) == manifest
    except (OSError, ValueError):
        return False


def _publish(work: Path, target: Path, manifest: dict[str, Any]) -> None:
    """Put the finished folder in place. Another process may have put the same one there first."""
    if target.exists():
        shutil.rmtree(target)
    try:
        os.rename(work, target)
    except OSError:
        if not _is_built(target, manifest):
            raise


def _write(folder: Path, seed: int, names: list[str], counts: dict[str, int]) -> None:
    known = [load_table(name) for name in names]
    train = [make_variant(table, k, seed) for table in known for k in range(TRAIN_VARIANTS)]
    last = TRAIN_VARIANTS + HELDOUT_VARIANTS
    heldout = [make_variant(table, k, seed) for table in known for k in range(TRAIN_VARIANTS, last)]
    unseen_names = UNSEEN if counts["unseen_tables"] else ()
    unseen = [make_variant(load_table(name), k, seed) for name in unseen_names for k in range(HELDOUT_VARIANTS)]
    for variant in (*train, *heldout, *unseen):
        path = folder / "files" / variant.name / f"{variant.table.name}.csv"
        path.parent.mkdir(parents=True)
        variant.dirty.to_csv(path, index=False)
    rows = draw_tasks(train, "train", counts["train"], seed)
    rows += draw_tasks(heldout, "heldout", counts["heldout"], seed)
    rows += draw_tasks(unseen, "unseen_tables", counts["unseen_tables"], seed)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def is_heldout(combo: Combo, seed: int) -> bool:
    """The side of a combo, by hash, so that it does not depend on what else is asked."""
    digest = hashlib.sha256(f"{seed}/{combo}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELDOUT_SHARE == 0


def draw_tasks(variants: list[Variant], split: str, count: int, seed: int) -> list[dict[str, Any]]:
    """`count` different tasks: a family by its weight, then a table, then one of their questions not yet drawn."""
    rng = random.Random(f"{seed}/{split}")
    pools: dict[str, dict[str, list[tuple[Combo, Variant]]]] = {family: {} for family in FAMILIES}
    for variant in variants:
        for combo in combos(variant.table):
            if split == "unseen_tables" or is_heldout(combo, seed) == (split == "heldout"):
                pools[combo.family].setdefault(combo.table, []).append((combo, variant))
    for of_table in pools.values():
        for pool in of_table.values():
            rng.shuffle(pool)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        families = [family for family in FAMILIES if pools[family]]
        if not families:
            raise UserError(f"The builtin benchmark has {len(rows)} tasks for {split}, not {count}; ask for fewer.")
        family = rng.choices(families, [FAMILIES[family] for family in families])[0]
        table = rng.choice(sorted(pools[family]))
        combo, variant = pools[family][table].pop()
        if not pools[family][table]:
            del pools[family][table]
        value = gold(combo, variant.clean)
        if value is not None:
            rows.append(_row(f"builtin/{split}/{len(rows):05d}", split, combo, variant, value))
    return rows


def _row(task_id: str, split: str, combo: Combo, variant: Variant, value: str) -> dict[str, Any]:
    return {
        "id": task_id,
        "question": question(combo),
        "format": answer_format(combo),
        "files": [f"files/{variant.name}/{combo.table}.csv"],
        "gold": [[answer_key(combo), value]],
        "grader": "dabench",
        "split": split,
        "reference": reference_program(combo, variant),
        "meta": {
            "table": combo.table,
            "variant": variant.name,
            "family": combo.family,
            "columns": [variant.headers[column] for column in combo.columns],
            "dirt": [variant.dirt[column] for column in combo.columns],
            "number": combo.number,
            "category": combo.category,
            "value": combo.value,
            "operation": combo.operation,
        },
    }
