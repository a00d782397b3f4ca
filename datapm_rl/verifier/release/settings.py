"""Settings of a scoring from the command line, and the rule that one output folder has verdicts of one kind."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from datapm_rl.config import PrmConfig, SandboxConfig
from datapm_rl.errors import UserError
from datapm_rl.tracking.jsonl import write_atomically

FILE = "scored_with.json"
_FREE = (
    *("endpoint", "concurrency", "deadline_s", "trajectory_deadline_s", "max_missing_share"),
    *("beta", "gate_report", "min_kappa", "min_silent_recall"),
)
"""Keys of `prm` that change no verdict."""


def read_settings(overrides: Sequence[str]) -> tuple[PrmConfig, SandboxConfig]:
    """`prm.key=value` and `sandbox.key=value`; the verifier is `generative` unless told. UserError names the key."""
    groups: dict[str, Any] = {"prm": PrmConfig(verifier="generative"), "sandbox": SandboxConfig()}
    known = [f"{group}.{key.name}" for group, config in groups.items() for key in dataclasses.fields(config)]
    for text in overrides:
        key, equals, _ = text.partition("=")
        if not equals or key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise UserError(f"unknown setting {text}: write key=value, the nearest key is {near}")
    base = OmegaConf.create({group: OmegaConf.structured(config) for group, config in groups.items()})
    try:
        merged = OmegaConf.merge(base, OmegaConf.from_dotlist(list(overrides)))
        prm, sandbox = OmegaConf.to_object(merged.prm), OmegaConf.to_object(merged.sandbox)
    except OmegaConfBaseException as error:
        raise UserError(f"cannot use {' '.join(overrides)}: {str(error).splitlines()[0]}") from None
    if prm.verifier in ("none", "reference"):
        raise UserError(f"prm.verifier={prm.verifier} cannot score these files: give generative, or another that can")
    return prm, sandbox


def check_same_settings(output_dir: Path, prm: PrmConfig, **others: Any) -> None:
    """UserError: the folder's verdicts were made with other settings. The first time, they are written there."""
    settings = {key: value for key, value in dataclasses.asdict(prm).items() if key not in _FREE} | others
    path = output_dir / FILE
    if not path.exists():
        write_atomically(path, json.dumps(settings, indent=1) + "\n")
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = [f"{key} {before.get(key)} -> {value}" for key, value in settings.items() if before.get(key) != value]
    if changed:
        raise UserError(
            f"{output_dir} has verdicts made with other settings ({', '.join(changed)}): give another --output-dir"
        )
