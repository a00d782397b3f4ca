"""Models that score steps in one forward pass, read at the separator behind the last step.

    head   a classifier's probability of "right" at the separator: Qwen2.5-Math-PRM, token classifiers of two classes
    tag    softmax over the logits of a good and a bad token at the separator: Math-Shepherd

The models are causal: what follows a step does not change its score, so it is read where the step ends. A separator
in the text of others would forge a step: it is broken up there, and separators are counted before each pass.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from datapm_rl.chat import Message
from datapm_rl.errors import InfraError, UserError
from datapm_rl.verifier.baselines.qwen_prm import Qwen2ForProcessRewardModel

_SEPARATOR = {"head": "<extra_0>", "tag": "ки"}  # of Qwen2.5-Math-PRM and of Math-Shepherd
_BREAK = "\u200b"  # a space without width


class StepModel:
    """A model of one of the two kinds, and its tokenizer. Not for several threads at a time."""

    def __init__(self, folder: str, kind: str | None, separator: str | None, good: str, bad: str, device: str):
        """As `DiscriminativeVerifier`."""
        try:
            architectures = json.loads((Path(folder) / "config.json").read_text()).get("architectures") or []
            self._tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{folder} holds no config.json and tokenizer that can be read ({error}): mend it"
            ) from error
        self.kind = kind or _kind(folder, architectures)
        if self.kind not in _SEPARATOR:
            raise UserError(f"kind={self.kind} of a discriminative PRM is not known: give kind=head or kind=tag")
        self._separator = separator or _SEPARATOR[self.kind]
        self._separator_id = self._id("separator", self._separator)
        if self.kind == "tag":
            self._choice = [self._id("good", good), self._id("bad", bad)]
        elif self._tokenizer.chat_template is None:
            raise UserError(f"the tokenizer in {folder} has no chat template, which a PRM of kind head needs: add it")
        self._model = _load(folder, self.kind, architectures, device)
        self.context_tokens: int = self._model.config.max_position_embeddings

    def frame(self, number: int) -> tuple[str, str]:
        """What stands before and behind the step of a number, from 1."""
        if self.kind == "head":
            return "", self._separator
        return f"Step {number}: " if number == 1 else f"\nStep {number}: ", f" {self._separator}"

    def harmless(self, text: str) -> str:
        """A text of others without the separator."""
        return text.replace(self._separator, self._separator[0] + _BREAK + self._separator[1:])

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a user's and an assistant's message, the latter in frames, up to the last separator."""
        if self.kind == "tag":  # its weights know no chat
            return self._tokenizer.encode(f"{messages[0]['content']} {messages[1]['content']}")
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False)
        text = text[: text.rindex(self._separator) + len(self._separator)]
        return self._tokenizer.encode(text, add_special_tokens=False)  # the template has written them

    def score(self, ids: list[int], steps: int) -> float:
        """The probability that the last of so many steps is right.

        InfraError: separator_lost (not one separator per step, the last at the end), context_exceeded.
        """
        if ids[-1] != self._separator_id or ids.count(self._separator_id) != steps:
            raise InfraError("separator_lost", f"{ids.count(self._separator_id)} separators for {steps} steps")
        if len(ids) > self.context_tokens:
            raise InfraError("context_exceeded", f"{len(ids)} tokens, the model takes {self.context_tokens}")
        batch = torch.tensor([ids], device=self._model.device)
        with torch.inference_mode():
            if self.kind == "head":
                return float(self._model(input_ids=batch).logits[0, -1].float().softmax(-1)[1])
            logits = self._model(input_ids=batch, logits_to_keep=1).logits[0, -1]
            return float(logits[self._choice].float().softmax(-1)[0])

    def _id(self, setting: str, marker: str) -> int:
        ids = self._tokenizer.encode(marker, add_special_tokens=False)
        if len(ids) != 1 or ids[0] == self._tokenizer.unk_token_id:
            raise UserError(
                f"{setting}={marker!r} is not one token of {self._tokenizer.name_or_path}: give the {setting} that "
                "this PRM was trained with"
            )
        if setting == "separator" and len(marker) < 2:
            raise UserError(f"separator={marker!r} is one character, which steps hold themselves: it needs a token")
        return ids[0]


def _kind(folder: str, architectures: list[str]) -> str:
    for name in architectures:
        if name == Qwen2ForProcessRewardModel.__name__ or name.endswith("ForTokenClassification"):
            return "head"
        if name.endswith("ForCausalLM"):
            return "tag"
    raise UserError(f"{folder}/config.json names the architectures {architectures}: give kind=head or kind=tag")


def _load(folder: str, kind: str, architectures: list[str], device: str) -> Any:
    """The model, ready for inference. UserError: it cannot be loaded, or the weights lack a part, such as the head."""
    classes: dict[str, Any] = {"head": AutoModelForTokenClassification, "tag": AutoModelForCausalLM}
    loader = Qwen2ForProcessRewardModel if Qwen2ForProcessRewardModel.__name__ in architectures else classes[kind]
    try:
        model, report = loader.from_pretrained(folder, dtype="auto", device_map=device, output_loading_info=True)
    except (OSError, ValueError, RuntimeError, AssertionError) as error:  # the last: torch without CUDA, "cuda:0"
        raise UserError(
            f"{folder} cannot be loaded as a PRM with kind={kind} and device={device} ({error}): give others"
        ) from error
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"{folder} lacks weights of a PRM of kind {kind} ({missing[0]}): was it trained as one?")
    if kind == "head" and model.config.num_labels != 2:
        raise UserError(f"the head in {folder} has {model.config.num_labels} classes: it must have 2, wrong and right")
    return model.eval()
