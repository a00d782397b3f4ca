"""`build_policy`: tokenizer, demonstrations, cold start, written as a Hugging Face folder that is built once.

The folder's name holds a hash of everything it depends on: the tasks and their files, all settings, the seed, this
package's code, the dialect and the package versions. A folder is complete or absent, so whatever exists can be used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from datapm_rl.dialects import Dialect, get_dialect
from datapm_rl.errors import UserError
from datapm_rl.policy.demonstrations import demonstrate
from datapm_rl.policy.model import new_model
from datapm_rl.policy.sft import SftConfig, make_examples, train_sft
from datapm_rl.policy.tokenizer import build_tokenizer
from datapm_rl.trajectory import Task, to_json

DIALECT = "deepanalyze"


def build_policy(
    out_dir: str | Path,
    *,
    tasks: Sequence[Task],
    seed: int,
    sft: SftConfig | None = None,
    report: Callable[[str], None] = print,
) -> Path:
    """The folder of the cold-started policy below `out_dir`, built if it is not there yet.

    It holds config.json, model.safetensors, the tokenizer with its chat template, generation_config.json and
    policy.json (parameters, vocabulary, share of right demonstrations, SFT loss, seconds, seed, settings).
    `tasks` are training tasks of the builtin benchmark. Equal arguments give equal weights. `report` gets a line
    every few seconds. UserError: no tasks, or one of another split.
    """
    if not tasks:
        raise UserError("The small policy needs training tasks of the builtin benchmark, got none.")
    if foreign := [task for task in tasks if task.split != "train"]:
        raise UserError(f"The small policy is built from training tasks only; {foreign[0].id} is {foreign[0].split}.")
    sft = sft or SftConfig()
    dialect = get_dialect(DIALECT)
    target = Path(out_dir) / f"policy-{_fingerprint(tasks, seed, sft, dialect)}"
    if target.is_dir():
        report(f"cold start: {target} is there already")
        return target
    work = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    work.mkdir(parents=True)
    try:
        _write(work, tasks, seed, sft, dialect, report)
        os.rename(work, target)
    except OSError:
        if not target.is_dir():  # else another process was faster, with the same content
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _write(
    folder: Path, tasks: Sequence[Task], seed: int, sft: SftConfig, dialect: Dialect, report: Callable[[str], None]
) -> None:
    start = time.process_time()
    rng = random.Random(f"policy/{seed}")
    tokenizer = build_tokenizer(tasks)
    report(f"cold start: {sft.demonstrations} demonstrations")
    demonstrations = demonstrate(tasks, sft.demonstrations, sft.noise, dialect, rng)
    examples = make_examples(demonstrations, sft.drill_share, tokenizer, dialect, rng)
    model = new_model(sft.model, tokenizer, seed)
    loss = train_sft(model, examples, sft, rng, report)
    disable_progress_bar()  # of "Writing model shards": one shard
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    facts = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocabulary": len(tokenizer),
        "demonstrations_right": sum(d.right for d in demonstrations) / len(demonstrations),
        "examples": len(examples),
        "mean_tokens": sum(len(example.ids) for example in examples) / len(examples),
        "sft_loss": loss,
        "cpu_seconds": round(time.process_time() - start, 1),
        "seed": seed,
        "sft": dataclasses.asdict(sft),
    }
    (folder / "policy.json").write_text(json.dumps(facts, indent=1) + "\n")


def _fingerprint(tasks: Sequence[Task], seed: int, sft: SftConfig, dialect: Dialect) -> str:
    digest = hashlib.sha256()
    facts = [seed, dataclasses.asdict(sft), dialect.system_prompt, dialect.user_message(tasks[0])]
    facts += [{name: version(name) for name in ("torch", "transformers", "tokenizers", "pandas", "numpy")}]
    digest.update(json.dumps(facts).encode())
    for task in tasks:
        row = to_json(task) | {"data_dir": ""}  # where the files lie does not matter, what is in them does
        digest.update(json.dumps(row, sort_keys=True).encode())
    for path in sorted({Path(task.data_dir) / file for task in tasks for file in task.files}):
        digest.update(path.read_bytes())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
