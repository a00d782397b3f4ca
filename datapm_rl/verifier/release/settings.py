"""The rule that all verdicts in one output folder were made with the same settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datapm_rl.errors import UserError
from datapm_rl.tracking.jsonl import write_atomically

FILE = "scored_with.json"


def check_same_settings(output_dir: Path, settings: dict[str, Any]) -> None:
    """UserError: the folder's verdicts were made with other settings. The first time, these are written there."""
    path = output_dir / FILE
    if not path.exists():
        write_atomically(path, json.dumps(settings, indent=1) + "\n")
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): remove it if the settings are still the same") from None
    changed = [key for key in sorted(before.keys() | settings.keys()) if before.get(key) != settings.get(key)]
    if changed:
        shown = ", ".join(f"{key} {before.get(key)} -> {settings.get(key)}" for key in changed)
        raise UserError(f"{output_dir} has verdicts made with other settings ({shown}): give another --output-dir")
