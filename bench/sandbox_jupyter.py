"""A Jupyter kernel per trajectory, as a contender of `bench.sandbox`. Importing it needs the extra `bench`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import ipykernel  # noqa: F401 - what the manager starts; absent, the import of this module must fail
from jupyter_client.manager import KernelManager

from bench.sandbox_contenders import ONE_THREAD, Notebook, copied
from bench.sandbox_processes import pss_mb, tree

_START_S, _STEP_S = 120, 60


class Jupyter:
    """A branch is a new kernel that runs all code again."""

    name = "Jupyter"
    per_round = 1

    def __init__(self, data: Path):
        self._data = data
        os.environ.setdefault("IPYTHONDIR", str(data.parent / "ipython"))  # else one is made in the user's home

    def start(self) -> Notebook:
        return JupyterNotebook(self._data)

    def pss_mb(self, notebooks: list[Any]) -> tuple[float, float]:
        return pss_mb(set.union(*(notebook.pids() for notebook in notebooks))) / len(notebooks), 0.0


class JupyterNotebook:
    """A running kernel and its client."""

    def __init__(self, data: Path):
        self._data = data
        self._code: list[str] = []
        self._folder = copied(data)
        self._manager = KernelManager(connection_file=str(self._folder / "kernel.json"))
        # a history of its own: all kernels of a user share one database otherwise, and wait for each other
        environment = os.environ | ONE_THREAD | {"IPYTHONDIR": str(self._folder / "ipython")}
        quiet = ["--IPKernelApp.log_level=ERROR"]  # else it warns of TCP without encryption
        self._manager.start_kernel(cwd=str(self._folder), env=environment, extra_arguments=quiet)
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_START_S)

    def run(self, code: str) -> str:
        printed: list[str] = []

        def on_output(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])

        reply = self._client.execute_interactive(code, output_hook=on_output, timeout=_STEP_S)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(f"{reply['content'].get('ename')}: {reply['content'].get('evalue')}")
        self._code.append(code)
        return "".join(printed)

    def branch(self) -> Notebook:
        twin = JupyterNotebook(self._data)
        for code in self._code:
            twin.run(code)
        return twin

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def pids(self) -> set[int]:
        """Of the kernel and what it started."""
        kernel: Any = self._manager.provisioner
        return {kernel.pid} | tree(kernel.pid)
