"""The sandbox as its owner sees it: sessions, forked from one zygote."""

from __future__ import annotations

import importlib.util
import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from datapm_rl.errors import InfraError, UserError
from datapm_rl.sandbox.process import Lost
from datapm_rl.sandbox.result import Limits
from datapm_rl.sandbox.session import Session
from datapm_rl.sandbox.workspace import data_files, remove_workspace
from datapm_rl.sandbox.zygote import Zygote

_BOUND = {"pandas": "pd", "numpy": "np"}
_OPEN_FILES = 256


class Sandbox:
    """Runs untrusted Python. A context manager; `close` leaves no process and no file.

    `limits`: see `Limits`. `preload`: modules loaded once for all sessions (each makes every fork dearer); pandas
    and NumPy among them are bound as `pd` and `np`. `workspace_root`: the folder for workspaces, made if missing;
    default: one in the temporary directory. `keep`: "last" keeps the start and the newest state of a session to
    branch from, "all" keeps every one (about 7 MB each).

    Thread-safe: different sessions run at the same time. Raises UserError for a module or folder that is not there,
    InfraError("sandbox_lost") when the zygote does not start.

    >>> with Sandbox() as sandbox:                                              # doctest: +SKIP
    ...     session = sandbox.session(data_dir="tables", seed=0)
    ...     session.run("df = pd.read_csv('sales.csv'); df.shape").value
    '(120, 5)'
    """

    def __init__(
        self,
        limits: Limits | None = None,
        preload: Sequence[str] = ("numpy", "pandas"),
        workspace_root: str | os.PathLike[str] | None = None,
        keep: Literal["last", "all"] = "last",
    ):
        if keep not in ("last", "all"):
            raise UserError(f'sandbox keep is "last" or "all", got {keep!r}')
        for name in preload:
            if importlib.util.find_spec(name.partition(".")[0]) is None:
                raise UserError(f"sandbox preload names module {name!r}, which is not installed; install or remove it")
        self.limits = limits or Limits()
        self.keep = keep
        self.preload = tuple(preload)
        self._workspace_root = Path(workspace_root).absolute() if workspace_root is not None else None
        self._lock = threading.Lock()
        self._closed = False
        self._zygote = Zygote(self.preload, self._workspace_root)

    def session(
        self,
        data_dir: str | os.PathLike[str],
        files: Sequence[str] | None = None,
        seed: int = 0,
    ) -> Session:
        """A new session whose workspace has copies of the data files under their base names.

        `files`: names below `data_dir`; None: every regular file directly in it. `seed` seeds `random` and NumPy's
        global generator. Raises UserError for data that is not there, InfraError when no process can be had.
        A zygote that was lost is replaced.
        """
        sources = data_files(data_dir, files)
        zygote = self._living_zygote()
        workspace = zygote.workspaces.create(sources)
        try:
            root = zygote.fork_root(
                {
                    "cwd": str(workspace),
                    "seed": seed,
                    "limits": _resource_limits(self.limits),
                    "names": {_BOUND[name]: name for name in self.preload if name in _BOUND},
                }
            )
        except Lost as error:
            remove_workspace(workspace)
            raise InfraError("fork_failed" if error.fork_failed else "sandbox_lost", str(error)) from None
        return Session(zygote, root, workspace, self.limits, self.keep)

    def health(self) -> dict[str, object]:
        """{"alive", "zygote_pid", "processes"}."""
        zygote = self._zygote
        return {"alive": zygote.alive, "zygote_pid": zygote.pid, "processes": len(zygote.pids())}

    def close(self) -> None:
        """End all sessions, processes and workspaces. Again is harmless."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._zygote.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _living_zygote(self) -> Zygote:
        with self._lock:
            if self._closed:
                raise InfraError("sandbox_closed", "the sandbox was closed")
            if not self._zygote.alive:
                self._zygote.close()
                self._zygote = Zygote(self.preload, self._workspace_root)
            return self._zygote


def _resource_limits(limits: Limits) -> dict[str, int]:
    """Of each process of a session, by the names of setrlimit.

    CPU is a backstop behind the wall clock, for a step whose trainer is gone: wide enough for a few threads.
    """
    return {
        "DATA": limits.memory_mb << 20,
        "CPU": math.ceil(limits.wall_s * 4) + 5,
        "FSIZE": limits.file_mb << 20,
        "NOFILE": _OPEN_FILES,
        "CORE": 0,
    }
