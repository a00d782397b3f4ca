"""Hooks that run in every later fork of a process and cannot be listed: noted when somebody sets them.

An audit hook runs whenever code is executed, so it could patch pandas just after the check (`pristine`) and before the
verifier's code; one is refused and noted. A fork hook runs at the start of each branch; libraries need them, so only
those that are set by code from outside the interpreter's folders are noted.
"""

from __future__ import annotations

import os
import posix
import sys
from collections.abc import Callable
from typing import Any

taken: list[str] = []
"""Names of what was set, each once. Part of a state: forks have what was there before them."""

_realpath = os.path.realpath
_ours = tuple(_realpath(path) + os.sep for path in (sys.prefix, sys.base_prefix))
_real: Callable[..., None] = os.register_at_fork
_frame = sys._getframe


def watch() -> None:
    """Begin, once, in the zygote."""
    sys.addaudithook(_audit)
    os.register_at_fork = posix.register_at_fork = _register_at_fork  # type: ignore[assignment]


def _audit(event: str, _arguments: Any) -> None:
    if event == "sys.addaudithook":
        _note(event)
        raise RuntimeError("no audit hooks here")  # CPython drops this error, and the new hook with it


def _register_at_fork(**callables: Callable[[], object]) -> None:
    """Register callables as `os.register_at_fork` does."""
    if not _realpath(_frame(1).f_code.co_filename).startswith(_ours):
        _note("os.register_at_fork")
    _real(**callables)


def _note(name: str) -> None:
    if name not in taken:
        taken.append(name)
