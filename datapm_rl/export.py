"""A training checkpoint as a Hugging Face folder.

verl writes the whole model beside its shards (`save_contents: hf_model`), so an export is a copy that is complete or
not there at all.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from datapm_rl.errors import UserError


def export_checkpoint(checkpoint: Path, target: Path) -> Path:
    """Copy the model of `checkpoint` (a `global_step_N` folder) to `target`, which is replaced as a whole."""
    source = checkpoint / "actor" / "huggingface"
    if not any(source.glob("*.safetensors")):
        raise UserError(f"{checkpoint} holds no whole model: keep hf_model in actor.checkpoint.save_contents")
    work = target.with_name(f".{target.name}.new")
    old = target.with_name(f".{target.name}.old")
    for leftover in (work, old):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(source, work)
    if target.exists():
        os.replace(target, old)
    os.replace(work, target)
    shutil.rmtree(old, ignore_errors=True)
    return target
