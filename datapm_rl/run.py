"""One run from beginning to end: check, prepare, train while showing progress, export, summarise.

Everything a run leaves is below its directory (`tracking/run_dir.py`). The directory belongs to one process at a time,
and to one set of settings: the same command goes on where the run stopped.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from datapm_rl.benchmarks.task_file import fingerprint, load_tasks
from datapm_rl.errors import UserError
from datapm_rl.export import export_checkpoint
from datapm_rl.preflight import check_config, check_machine
from datapm_rl.prepare import (
    evaluation_sets,
    prepare_policy,
    prepare_tasks,
    prepare_verifier,
    total_steps,
    validation_splits,
)
from datapm_rl.resume import SETTINGS, check_same_data, check_same_settings, is_finished, unreached
from datapm_rl.tracking.checkpoints import folder_of, point_to_newest, whole_steps
from datapm_rl.tracking.curves import draw_curves
from datapm_rl.tracking.lock import only_process
from datapm_rl.tracking.progress import Progress
from datapm_rl.tracking.run_dir import RunDir, versions
from datapm_rl.tracking.summary import summarise

AGENT_LOOPS = Path(__file__).parent / "verl_plugin" / "agent_loops.yaml"


def run(config: DictConfig, command: str) -> int:
    """Carry out the run that `config` describes; returns the exit code of the command."""
    check_config(config)
    parent = Path(config.run.dir).resolve()
    check_machine(config, parent)
    config.run.dir = str(parent)
    for node, key in ((config.tasks, "path"), (config.policy, "path")):
        if node[key] is not None:  # another working directory means the same files
            node[key] = str(Path(node[key]).expanduser().resolve())
    config.tasks.evaluation = [str(Path(path).expanduser().resolve()) for path in config.tasks.evaluation]
    path = parent / config.run.name
    if config.run.fresh and path.exists():
        _move_aside(path)
    run_dir = RunDir(path)
    with only_process(run_dir.path, "run.name=NAME"):
        check_same_settings(run_dir, config)
        if is_finished(run_dir, config):
            print(f"run {config.run.name} is finished; for another one give run.name=NAME or run.fresh=true")
            print(summarise(run_dir))
            return 0
        return _run(config, run_dir, parent, command)


def _run(config: DictConfig, run_dir: RunDir, parent: Path, command: str) -> int:
    progress = Progress(run_dir)
    tasks_path, tasks = prepare_tasks(config, parent / "cache", progress.phase)
    policy = prepare_policy(config, tasks, parent / "cache", progress.phase)
    evaluation = evaluation_sets(config)
    resolved = resolve(config, tasks_path, validation_splits(config, tasks), evaluation, policy)
    resolved.prm.model = prepare_verifier(config, parent / "cache", progress.phase)
    resolved.trainer.total_training_steps = progress.total_steps = total_steps(config, tasks)
    fingerprints = {**fingerprint(tasks), "policy": policy.name}
    if evaluation:
        fingerprints["evaluation"] = {name: fingerprint(load_tasks(path)) for name, path in evaluation.items()}
    check_same_data(run_dir, fingerprints)
    run_dir.write_text(SETTINGS, OmegaConf.to_yaml(config))  # now the directory belongs to these settings
    run_dir.write_text("config.yaml", OmegaConf.to_yaml(resolved, resolve=True))
    run_dir.write_json("fingerprints.json", fingerprints)
    run_dir.write_json("versions.json", versions())
    run_dir.clear_stop()
    started = time.time()
    if code := _reach(resolved, run_dir, progress, command):
        return code
    target = resolved.trainer.total_training_steps
    progress.phase("exporting the final model")
    export_checkpoint(folder_of(run_dir.checkpoints, target), run_dir.path / "model")
    draw_curves(run_dir)
    facts = {"steps": target, "seconds": round(time.time() - started, 1)}
    run_dir.write_json("summary.json", facts)
    print(summarise(run_dir))
    return 0


def _reach(config: DictConfig, run_dir: RunDir, progress: Progress, command: str) -> int:
    """Train up to `trainer.total_training_steps`; 0 if the checkpoint of that step is there at the end."""
    target = config.trainer.total_training_steps
    at = point_to_newest(run_dir.checkpoints)
    if at is not None and at >= target:
        progress.phase(f"nothing left to train: step {at} has a checkpoint")
    else:
        progress.phase("starting Ray and the trainer (about a minute), then a first validation")
        with _ctrl_c(run_dir):
            code = _train(config, run_dir, progress, command)
        if code:
            return code
        at = point_to_newest(run_dir.checkpoints)
    if problem := unreached(at, target):
        print(f"error: {problem}", file=sys.stderr)
        return 4
    return 0


def _train(config: DictConfig, run_dir: RunDir, progress: Progress, command: str) -> int:
    from datapm_rl.verl_plugin.run_state import RunStopped, StepFailed
    from datapm_rl.verl_plugin.runner import train, write_traceback

    try:
        train(config, on_wait=progress.update, log_dir=run_dir.logs)
        return 0
    except (RunStopped, KeyboardInterrupt) as error:
        print(f"{str(error) or 'stopped at once'}; {_stands(run_dir)}; to go on: {command}", file=sys.stderr)
        return 130
    except StepFailed as error:
        print(f"error: {error}; {_stands(run_dir)}; mend the cause; to go on: {command}", file=sys.stderr)
        return 3
    except UserError:
        raise
    except Exception as error:  # the end of the line: keep the story, say one sentence
        log = run_dir.logs / "error.log"
        write_traceback(log, error)
        print(
            f"error: {_last_line(error)} (all of it in {log}); {_stands(run_dir)}; to go on: {command}", file=sys.stderr
        )
        return 1


def _stands(run_dir: RunDir) -> str:
    """What there is to go on from."""
    steps = whole_steps(run_dir.checkpoints)
    return f"the checkpoint of step {steps[-1]} stands" if steps else "there is no checkpoint yet"


def resolve(
    config: DictConfig, tasks_path: Path, splits: list[str], evaluation: dict[str, Path], policy: Path
) -> DictConfig:
    """The configuration with the run's data and model put in. `evaluation`: name -> task file of a whole set."""
    config = OmegaConf.create(OmegaConf.to_container(config))
    config.data.train_files = [f"{tasks_path}#train"]
    config.data.val_files = [f"{tasks_path}#{split}" for split in splits]
    if splits and not config.actor_rollout_ref.rollout.val_kwargs.do_sample:
        # greedy accuracy jumps when near-even branches flip: the main split is sampled as well
        config.data.val_files.append(f"{tasks_path}#{splits[0]}@sampled")
    config.data.val_files += [f"{path}#*:{name}" for name, path in evaluation.items()]
    config.actor_rollout_ref.model.path = str(policy)
    agent = config.actor_rollout_ref.rollout.agent
    agent.agent_loop_config_path = agent.agent_loop_config_path or str(AGENT_LOOPS)
    if not config.data.val_files:
        config.trainer.test_freq, config.trainer.val_before_train = -1, False
    return config


def _move_aside(path: Path) -> None:
    target = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}")
    path.rename(target)
    print(f"the earlier run is now {target}")


@contextmanager
def _ctrl_c(run_dir: RunDir) -> Iterator[None]:
    """First Ctrl-C: finish the step, save, stop. Second: stop now."""

    def handler(signum: int, frame: Any) -> None:
        if run_dir.stop_requested():
            raise KeyboardInterrupt
        run_dir.request_stop()
        print("\nstopping after this step with a checkpoint (Ctrl-C again: at once)", file=sys.stderr, flush=True)

    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


def _last_line(error: Exception) -> str:
    return str(error).strip().split("\n")[-1][:300] or type(error).__name__
