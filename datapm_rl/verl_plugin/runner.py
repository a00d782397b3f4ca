"""Start a run: Ray, one sandbox actor per node, verl's task runner with the project's trainer, and a watching driver.

The driver starts the runner actor and then only watches: it calls `on_wait` a few times a second (the progress line
reads the run's `metrics.jsonl`), and turns what ends a run into one of three results.
"""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from omegaconf import DictConfig
from verl.trainer.main_ppo import TaskRunnerV1
from verl.utils.device import get_device_name

from datapm_rl.errors import InfraError, UserError
from datapm_rl.tracking.run_dir import RunDir
from datapm_rl.verl_plugin import ray_start
from datapm_rl.verl_plugin.run_state import RunStopped, StepFailed
from datapm_rl.verl_plugin.sandbox_actor import isolation_reports, start_sandboxes
from datapm_rl.verl_plugin.watchdog import Watchdog

POLL_S = 0.3
"""Seconds between two looks of the driver at the run."""

_VerlTaskRunner = TaskRunnerV1.__ray_metadata__.modified_class


@ray.remote(num_cpus=1)
class Runner(_VerlTaskRunner):
    """verl's task runner in whose process the project's trainer and estimators are registered."""

    def run(self, config: DictConfig) -> None:
        import datapm_rl.verl_plugin.advantage
        import datapm_rl.verl_plugin.async_trainer  # noqa: F401

        self.sandboxes = start_sandboxes(config)  # kept: an actor lives as long as its creating handle
        RunDir(Path(config.run.dir) / config.run.name).write_json("isolation.json", isolation_reports(self.sandboxes))
        with _own_errors():  # here too: Ray's error for a dead actor cannot be pickled, so the driver would not get it
            super().run(config)


def train(config: DictConfig, on_wait: Callable[[], None], log_dir: Path) -> None:
    """Run to the end. Raises `RunStopped`, `StepFailed`, `UserError`, or Ray's error for anything unforeseen.

    `log_dir` gets a link to Ray's session, where all processes write their logs.
    """
    if config.trainer.device == "cpu" and get_device_name() != "cpu":
        raise UserError("verl did not load the CPU platform: pip install -e . the project in this environment")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ray_start.start(config)
    for number, handler in handlers.items():  # Ray puts its own in their place
        signal.signal(number, handler)
    try:
        _link(log_dir / "ray", Path(ray._private.worker._global_node.get_session_dir_path()))
        runner = Runner.remote()
        done = runner.run.remote(config)
        watchdog = Watchdog()
        while not ray.wait([done], timeout=POLL_S)[0]:
            on_wait()
            watchdog.look()
        on_wait()
        with _own_errors():
            ray.get(done)
    finally:
        ray.shutdown()


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raises what is behind Ray's error, if that is one of ours or a lost worker."""
    try:
        yield
    except ray.exceptions.RayError as error:
        found = _unwrap(error)
        if found is error:
            raise
        raise found from error


def _unwrap(error: ray.exceptions.RayError) -> Exception:
    """The project's own exception behind Ray's wrappers; a lost worker in one sentence."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ray.exceptions.RayTaskError):
            cause = cause.cause
            continue
        if isinstance(cause, RunStopped | StepFailed | UserError | InfraError):
            return cause
        if isinstance(cause, ray.exceptions.RayActorError | ray.exceptions.OutOfMemoryError) or _tells_of_death(cause):
            return InfraError("worker_lost", f"{_who(cause)} died (killed, or out of memory)")
        cause = cause.__cause__
    return error


def _tells_of_death(error: BaseException) -> bool:
    """A task's error that Ray could not pickle is replaced by one with its text."""
    return isinstance(error, ray.exceptions.RayError) and "ActorDiedError isn't serializable" in str(error)


def _who(error: BaseException) -> str:
    """The lost process as Ray's message names it: its actor's name, or its class."""
    found = dict(re.findall(r"^\s*(class_name|name): (\S+)", str(error), re.MULTILINE))
    return " ".join(found.values()) or "a process of the run"


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def write_traceback(path: Path, error: BaseException) -> None:
    """Keep the full story of an unforeseen end."""
    path.write_text("".join(traceback.format_exception(error)))
