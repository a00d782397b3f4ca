"""One process per folder of results."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datapm_rl.errors import UserError


@contextmanager
def only_process(folder: Path, otherwise: str) -> Iterator[None]:
    """Hold a folder that exists. The lock goes with the process, however it ends.

    UserError: another process holds it; `otherwise` says what to give instead of waiting.
    """
    with open(folder / ".lock", "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"another process is running {folder}: wait for it, or give {otherwise}") from error
        yield
