"""Three steps of the `dabench` graph on this machine's GPUs, judged by the metrics they leave.

The verifier is the stand-in (`policy/stand_in_prm.py`), so that what the verdicts should be is known; it is served by
vLLM as DataPRM is: in verl's reward-model pool on GPUs of its own, or with one GPU, beside the trainer on it. Sizes are
those of a 0.5B policy on GPUs of 24 GB and more. Not run where it was written, for want of a GPU: there the plan is
composed and validated, and `--twin` runs it in the CPU scale.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from datapm_rl.config import STAND_IN
from datapm_rl.doctor.gpu_verdict import judge
from datapm_rl.errors import UserError
from datapm_rl.tracking.jsonl import read_rows

STEPS = 3
PORT = 19002
SERVE = Path(__file__).parents[2] / "launch" / "serve_prm.sh"
SIZES = (
    "agent.max_turns=5",
    "agent.turn_tokens=384",
    "data.max_prompt_length=2048",
    "data.max_response_length=2048",
    "data.train_batch_size=8",
    "actor_rollout_ref.rollout.max_model_len=4096",
    "actor_rollout_ref.rollout.agent.num_workers=2",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=8192",
    "actor_rollout_ref.actor.optim.lr=1e-5",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
    "prm.context_tokens=16384",  # the stand-in's
    "prm.max_tokens=64",
    "reward.num_workers=2",
    "sandbox.cores=4",
)


def overrides(run_dir: Path, gpus: int, policy: Path | None, tasks: Path | None) -> list[str]:
    """What `datapm_rl.train` is called with. `gpus` 0: the CPU twin, with tasks and policy of its own."""
    given = ["+recipe=dabench", f"run.dir={run_dir}", "run.name=gpu_check", "run.fresh=true"]
    given += [f"trainer.total_training_steps={STEPS}", f"trainer.save_freq={STEPS}"]
    given += ["trainer.test_freq=-1", "trainer.val_before_train=false", "trainer.logger=[]"]
    if gpus == 0:
        return [*given, "+scale=cpu", "tasks.tables=[penguins]", "tasks.train=40", "tasks.heldout=4"]
    given += [f"tasks.path={tasks}", f"policy.path={policy}", *SIZES]
    if gpus == 1:  # the trainer sleeps while vLLM generates; the verifier's server stays
        given += ["prm_pool=none", f"prm.endpoint=http://127.0.0.1:{PORT}/v1", "trainer.n_gpus_per_node=1"]
        return [*given, "actor_rollout_ref.rollout.gpu_memory_utilization=0.35"]
    half = 4 if gpus >= 8 else 2 if gpus >= 4 else 1  # a mini-batch has 8 rows
    given += [f"trainer.n_gpus_per_node={half}", f"reward.reward_model.n_gpus_per_node={half}"]
    given += [f"prm.model={STAND_IN}", "prm.tokenizer=null", "reward.reward_model.rollout.prompt_length=8192"]
    return [*given, "actor_rollout_ref.rollout.gpu_memory_utilization=0.4"]


def check(run_dir: Path, policy: Path | None, gpus: int) -> tuple[bool, str]:
    """Train, then judge: whether all is well, and the report. UserError: what is missing on this machine.

    `gpus` is how many of the machine's to use, 0 for the CPU twin. Everything is left below `run_dir`.
    """
    tasks = None
    if gpus:
        if policy is None:
            raise UserError("no policy given: --policy FOLDER, a Hugging Face folder of about 0.5B parameters")
        from datapm_rl.benchmarks.builtin import build

        tasks = build(run_dir / "tasks", seed=1, train_tasks=200, heldout_tasks=8, unseen_tasks=0)
    command = [sys.executable, "-m", "datapm_rl.train", *overrides(run_dir, gpus, policy, tasks)]
    print("running:", *command, flush=True)
    began = time.monotonic()
    with _served(run_dir) if gpus == 1 else nullcontext():
        code = subprocess.run(command, check=False).returncode
    run = run_dir / "gpu_check"
    rows = [row for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"]
    findings = judge(rows, read_rows(run / "trajectories.jsonl"), STEPS)
    findings.insert(0, (code == 0, "training", f"ended with exit code {code} after {time.monotonic() - began:.0f} s"))
    lines = [f"{'ok' if well else 'BAD':4}{name:34}{found}" for well, name, found in findings]
    bad = [name for well, name, _ in findings if not well]
    where = "the CPU twin" if gpus == 0 else f"{gpus} GPU{'s' if gpus > 1 else ''}"
    last = f"VERDICT: {where} cannot be trusted with a run yet: {', '.join(bad)}; logs: {run / 'logs'}"
    return not bad, "\n".join([*lines, last if bad else f"VERDICT: {where} trains the dabench graph as it should"])


def visible_gpus() -> int:
    """GPUs that CUDA shows here. UserError: none."""
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            "no GPU is visible here (torch.cuda.is_available() is false): run this on a GPU node; the same graph on a "
            "CPU is --twin"
        )
    return torch.cuda.device_count()


@contextmanager
def _served(run_dir: Path) -> Iterator[None]:
    """The stand-in behind vLLM's own server, on the same GPU."""
    from datapm_rl.policy.stand_in_prm import build_stand_in_prm

    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            raise UserError(f"port {PORT} is in use: the verifier's server needs it; stop the program that has it")
    if shutil.which("vllm") is None:
        raise UserError("vllm is not installed here: pip install -e .[gpu] (launch/gpu_check.sh does it)")
    model, log = build_stand_in_prm(run_dir), run_dir / "serve_prm.log"
    sizes = {"PORT": str(PORT), "MAX_MODEL_LEN": "16384", "GPU_MEMORY": "0.15", "DATA_PARALLEL": "1"}
    with log.open("w") as out:
        server = subprocess.Popen(
            ["bash", str(SERVE), str(model)],
            env={**os.environ, **sizes},
            stdout=out,
            stderr=out,
            start_new_session=True,  # one group, ended as a whole
        )
    try:
        _wait_until_it_answers(server, log)
        yield
    finally:
        try:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(server.pid, signal.SIGKILL) if server.poll() is None else None


def _wait_until_it_answers(server: subprocess.Popen[bytes], log: Path, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(1)
    state = f"ended with exit code {server.poll()}" if server.poll() is not None else f"was not up in {seconds:.0f} s"
    raise UserError(f"the verifier's vLLM server {state}: see {log}")
