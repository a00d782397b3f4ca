"""TRL's side of `bench.grpo_step`: GRPOTrainer's own loop, given the completions by its `rollout_func`.

An update is one generation batch: TRL's scoring of it (old log-probs, rewards, advantages) and the optimizer steps on
its mini-batches, from `on_step_begin` of the first to `on_step_end` of the last. No text is generated in it.

TRL comes from a folder of its own: installed beside verl 0.9.1, this release makes verl fail to load a model.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from bench.grpo_step_batch import (
    CLIP_HIGH,
    CLIP_LOW,
    DUAL_CLIP,
    GRAD_CLIP,
    LR,
    MINI_BATCHES,
    SHAPES,
    WEIGHT_DECAY,
    Shape,
    make_batch,
)
from bench.grpo_step_child import say


class OnRequest(TrainerCallback):
    """Holds the trainer between updates until the parent asks for the next one, and takes its time."""

    def __init__(self) -> None:
        self.began = 0.0
        self.grad_norms: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step % MINI_BATCHES:
            return
        while True:
            verb, _, file = sys.stdin.readline().strip().partition(" ")
            if verb != "save":
                break
            torch.save(model.state_dict(), file)
            say("saved")
        if not verb:
            sys.exit(0)
        self.began, self.grad_norms = time.perf_counter(), []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % MINI_BATCHES == 0:
            say({"seconds": time.perf_counter() - self.began, "grad_norms": self.grad_norms})


def main() -> None:
    name, folder, trl_folder = sys.argv[1:]
    torch.set_num_threads(1)
    sys.path.insert(0, trl_folder)
    with tempfile.TemporaryDirectory() as out:
        request = OnRequest()
        trainer = make_trainer(SHAPES[name], Path(folder), out, request)
        clip = trainer.accelerator.clip_grad_norm_

        def clip_and_note(*arguments: Any, **named: Any) -> Any:
            norm = clip(*arguments, **named)
            request.grad_norms.append(float(norm))
            return norm

        trainer.accelerator.clip_grad_norm_ = clip_and_note
        say("ready")
        trainer.train()


def make_trainer(shape: Shape, folder: Path, out: str, request: OnRequest) -> Any:
    """A GRPOTrainer whose every generation batch is `make_batch(shape)`, in its order."""
    import trl.trainer.grpo_trainer as grpo
    from datasets import Dataset

    grpo.shuffle_sequence_dict = lambda batch: batch  # mini-batches of the same rows as ours
    batch = make_batch(shape)

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        assert len(prompts) == shape.rows, "a generation batch is the whole batch"
        fields = {"prompt_ids": batch.prompts, "completion_ids": batch.responses, "env_mask": batch.masks}
        return {**fields, "logprobs": None, "given": batch.rewards}

    settings = grpo.GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=shape.rows // MINI_BATCHES,
        gradient_accumulation_steps=1,
        num_generations=shape.group,
        steps_per_generation=MINI_BATCHES,
        num_iterations=1,
        max_completion_length=shape.response[1],
        max_steps=10_000,
        learning_rate=LR,
        lr_scheduler_type="constant",
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=GRAD_CLIP,
        epsilon=CLIP_LOW,
        epsilon_high=CLIP_HIGH,
        delta=DUAL_CLIP,
        loss_type="bnpo",  # the mean over the mini-batch's tokens
        beta=0.0,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )
    return grpo.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa"),
        reward_funcs=_given,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": [f"t{number + 2}" for number in range(shape.prompts)]}),
        processing_class=AutoTokenizer.from_pretrained(folder),
        rollout_func=rollout,
        callbacks=[request],
    )


def _given(completions: list[Any], given: list[float], **_: Any) -> list[float]:
    return given


if __name__ == "__main__":
    main()
