"""Tasks as verl's dataset: one row per task of a task file, JSON lines or parquet.

A row carries the public task (what policy and verifier may see) in `extra_info` and the gold in `reward_model`, which
only the reward manager reads.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from omegaconf import DictConfig
from torch.utils.data import Dataset

from datapm_rl.agent.tokens import ChatTokens
from datapm_rl.benchmarks.task_file import load_tasks
from datapm_rl.dialects import get_dialect
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task, to_json

_WHOLE = "*:"


class TaskDataset(Dataset):
    """Rows for `data.train_files` / `data.val_files` entries of the form `path/to/tasks.jsonl#split`.

    `#split@sampled` is the same split, to be decoded at the training temperature whatever validation does otherwise;
    `#*:name` is the whole file, reported as `name`. Prompts are worded here: a parquet file's column is not read.
    """

    def __init__(
        self, data_files: Any, tokenizer: Any, config: DictConfig, processor: Any = None, max_samples: int = -1
    ):
        self.rows: list[dict[str, Any]] = []
        dialect = get_dialect(config.dialect)
        tokens = ChatTokens(tokenizer)
        for entry in [data_files] if isinstance(data_files, str) else list(data_files):
            path, _, source = str(entry).rpartition("#")
            split, _, sampled = source.partition("@")
            tasks = load_tasks(path)
            if split.startswith(_WHOLE):
                source = split.removeprefix(_WHOLE)
            else:
                tasks = [task for task in tasks if task.split == split]
            for task in tasks[: max_samples if max_samples > 0 else None]:
                length = len(tokens.prompt(dialect.system_prompt, dialect.user_message(task)))
                if length > config.max_prompt_length:
                    raise UserError(
                        f"{path}: task {task.id} has a prompt of {length} tokens, more than data.max_prompt_length="
                        f"{config.max_prompt_length}: raise the limit or shorten the question"
                    )
                messages = [
                    {"role": "system", "content": dialect.system_prompt},
                    {"role": "user", "content": dialect.user_message(task)},
                ]
                row = _row(task, messages, source, index=len(self.rows))
                if sampled:
                    row["extra_info"]["temperature"] = float(config.sampled_temperature)
                self.rows.append(row)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, item: int) -> dict[str, Any]:
        # verl needs one tensor per row; collate_fn would otherwise make an empty batch
        return {**self.rows[item], "dummy_tensor": torch.tensor([0], dtype=torch.uint8)}


def _row(task: Task, messages: list[dict[str, str]], source: str, index: int) -> dict[str, Any]:
    return {
        "raw_prompt": messages,
        "data_source": source,
        "reward_model": {"ground_truth": json.dumps(to_json(task.gold))},
        "extra_info": {"index": index, "task": json.dumps(to_json(task.public()))},
        "index": index,
    }
