"""What a run needs before it starts: the task file and the policy folder, built once and cached by content."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig

from datapm_rl.benchmarks.overlap import check_apart
from datapm_rl.benchmarks.task_file import load_tasks, task_file
from datapm_rl.config import STAND_IN
from datapm_rl.errors import UserError
from datapm_rl.preflight import check_model_folder
from datapm_rl.preflight_algorithm import check_context
from datapm_rl.trajectory import Task

Say = Callable[[str], None]


def prepare_tasks(config: DictConfig, cache: Path, say: Say) -> tuple[Path, list[Task]]:
    """The task file of the run and its tasks. Builds the builtin benchmark unless `tasks.path` is set.

    UserError: too few tasks, or training shares data files or questions with what it is evaluated on.
    """
    settings = config.tasks
    if settings.path is not None:
        path = task_file(settings.path)
    else:
        from datapm_rl.benchmarks.builtin import build

        say("building the builtin benchmark")
        tables = None if settings.tables is None else list(settings.tables)
        name = f"builtin_seed{config.run.seed}_{settings.train}_{settings.heldout}_{settings.unseen_tables}"
        path = build(
            cache / (name if tables is None else f"{name}_{'_'.join(tables)}"),
            seed=config.run.seed,
            train_tasks=settings.train,
            heldout_tasks=settings.heldout,
            unseen_tasks=settings.unseen_tables,
            tables=tables,
        )
    tasks = load_tasks(path)
    _check_splits(path, tasks, list(settings.validation_splits), config)
    evaluation = {path: load_tasks(path) for path in evaluation_sets(config).values()}
    check_apart(path, tasks, settings.validation_splits, evaluation)
    return path, tasks


def evaluation_sets(config: DictConfig) -> dict[str, Path]:
    """`tasks.evaluation`: the name under which a set is reported -> its task file. UserError: a name for two sets."""
    sets: dict[str, Path] = {}
    for given in config.tasks.evaluation:
        path = task_file(given)
        name = re.sub(r"[^\w.-]", "_", path.parent.name if path.stem == "tasks" else path.stem)
        if name in sets or name in ("train", "heldout", *config.tasks.validation_splits):
            raise UserError(
                f"tasks.evaluation: {path} would be reported as {name!r}, which is taken: rename its folder or file"
            )
        sets[name] = path
    return sets


def validation_splits(config: DictConfig, tasks: list[Task]) -> list[str]:
    """Configured validation splits that the task file has."""
    present = {task.split for task in tasks}
    return [split for split in config.tasks.validation_splits if split in present]


def prepare_policy(config: DictConfig, tasks: list[Task], cache: Path, say: Say) -> Path:
    """The policy's folder: `policy.path`, or the small policy, built from training tasks alone."""
    if config.policy.path is not None:
        folder = Path(config.policy.path)
        check_model_folder(folder)
        check_context(config, folder)
        return folder.resolve()
    if config.tasks.path is not None:
        raise UserError(
            "tasks.path needs policy.path: the small policy knows the words of the builtin benchmark only, so give "
            "a Hugging Face folder for tasks of your own"
        )
    from datapm_rl.policy import SftConfig, build_policy

    sft = SftConfig(
        updates=config.policy.sft_updates,
        batch=config.policy.sft_batch,
        demonstrations=config.policy.sft_demonstrations,
    )
    training = [task for task in tasks if task.split == "train"]
    return build_policy(cache / "policies", tasks=training, seed=config.run.seed, sft=sft, report=say).resolve()


def prepare_verifier(config: DictConfig, cache: Path, say: Say) -> str | None:
    """`prm.model`, where `stand_in` is the folder of the model that stands in for the verifier's."""
    if config.prm.model != STAND_IN or config.prm.endpoint != "pool":
        return config.prm.model
    from datapm_rl.policy.stand_in_prm import build_stand_in_prm

    say("the verifier is a stand-in: it runs fixed code and gives a fixed verdict, which means nothing")
    return str(build_stand_in_prm(cache).resolve())


def _check_splits(path: Path, tasks: list[Task], wanted: list[str], config: DictConfig) -> None:
    counts = Counter(task.split for task in tasks)
    listed = ", ".join(f"{split} ({count})" for split, count in counts.items())
    batch = config.data.train_batch_size
    if counts["train"] < batch:
        raise UserError(
            f"{path} has {counts['train']} tasks of split train, fewer than data.train_batch_size={batch}: "
            f"it has {listed}; add tasks (python -m datapm_rl.data prepares and splits them) or lower the batch"
        )
    if wanted and not config.tasks.evaluation and not any(split in counts for split in wanted):
        raise UserError(
            f"{path} has none of tasks.validation_splits={wanted}: it has {listed}; name one of these, split by data "
            "file (python -m datapm_rl.data ... --heldout SHARE), or give an evaluation set (tasks.evaluation)"
        )


def total_steps(config: DictConfig, tasks: list[Task]) -> int:
    """Training steps of the run. UserError if `trainer.total_epochs` ends before `trainer.total_training_steps`."""
    per_epoch = sum(task.split == "train" for task in tasks) // config.data.train_batch_size
    available = per_epoch * config.trainer.total_epochs
    wanted = config.trainer.total_training_steps
    if wanted is not None and wanted > available:
        raise UserError(
            f"trainer.total_training_steps={wanted} is more than trainer.total_epochs={config.trainer.total_epochs} "
            f"of {per_epoch} steps: raise trainer.total_epochs"
        )
    return wanted or available
