"""What a sandbox is tested with: code to run, and what must hold. The shared attacks and harmless snippets as such."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SHARED = Path(__file__).parents[2] / "shared"
STATUSES = ("ok", "error", "timeout", "memory", "output", "limit", "died")
NOT_OK = tuple(status for status in STATUSES if status != "ok")
FULL = ("limit", "timeout", "died", "error", "memory")  # of a disk attack

# What code of our own attacks may use. `call`: a system call by its x86_64 number (from 424 on all machines agree).
PRELUDE = """
import ctypes, os
_libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if number < 424 and os.uname().machine != "x86_64":
        print("SKIPPED: these are system call numbers of x86_64")
        raise OSError("not tried")
    result = _libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *arguments)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def t(what, attack):
    try:
        print("ESCAPED:" + what, attack())
    except (OSError, ValueError, ImportError, AttributeError) as error:
        print("BLOCKED", what, error)
"""


@dataclass(frozen=True)
class Case:
    """One attack or harmless snippet; `{{...}}` in its code stand for `sandbox_host.Host.names`."""

    name: str
    code: str
    statuses: tuple[str, ...] = ("ok",)
    before: str = ""  # an earlier step
    after: str = ""  # a later step, which must be ok; its output is looked at like the step's own
    pause_s: float = 0.0  # between the step and the next
    prints: str = ""  # must be in the output or the error
    branch: Literal["", "during", "after"] = ""  # when a branch is made; it must be whole and run
    in_branch: str = ""  # a step of the branch, looked at like the step itself
    poisons: bool = False  # the session's later steps may fail: but as the agent's failure, and soon
    patient: bool = False  # it imports large libraries: a minute's time limit
    alone: bool = False  # it takes the whole machine for a while: no case of another level runs meanwhile


def given_attacks() -> list[Case]:
    """../shared/hostile; none where it is not."""
    folder = SHARED / "hostile"
    if not folder.is_dir():
        return []
    return [
        Case(
            f"given/{Path(entry['file']).stem}",
            (folder / entry["file"]).read_text(),
            tuple(entry["status_any_of"]),
            prints=entry.get("stdout_must_contain", ""),
            branch="after" if "branch" in entry.get("then", "") else "",
            patient=entry["file"] == "13_plt_show.py",  # the first import of pyplot scans the fonts
            alone="bomb" in entry["file"],
        )
        for entry in json.loads((folder / "expected.json").read_text())["cases"]
    ]


_BEFORE = {
    "05_excel": "import pandas as pd; df = pd.DataFrame({'a': [1]})",
    "09_statsmodels": "import numpy as np; X = np.random.rand(80, 3); y = (X[:, 0] > .5).astype(int)",
    "11_sqlite_file": "import sqlite3",
    "17_shutil_copy": "import os",
}
_OWN = [
    ("threads", "from concurrent.futures import ThreadPoolExecutor as T\nprint(sum(T(4).map(abs, range(9))))", "36"),
    ("subprocess", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(5)'], check=True)", "5"),
    ("asyncio", "import asyncio\nasync def f(): await asyncio.sleep(0.01); return 8\nprint(asyncio.run(f()))", "8"),
    ("shell", "import os\nprint(os.popen('wc -l < data.csv').read())", "3"),
    ("pickle", "class A: x = 3\nimport pickle\nprint(pickle.loads(pickle.dumps(A())).x)", "3"),
    ("mode_and_times", "import os\nopen('o', 'w').close(); os.chmod('o', 0o700); os.utime('o'); print('fine')", "fine"),
    ("unawaited_child", "import subprocess\nsubprocess.Popen(['true'])\nprint('fine')", "fine"),
]
_NEEDED = {"03_plot": "seaborn", "05_excel": "openpyxl", "07_sklearn_njobs": "sklearn", "09_statsmodels": "statsmodels"}


def harmless() -> list[Case]:
    """../shared/benign, and what needs explicit protection from an over-strict sandbox."""
    given = [
        Case(
            f"harmless/{path.stem}",
            path.read_text(),
            ("error",) if path.stem == "19_traceback_line" else ("ok",),
            before=_BEFORE.get(path.stem, ""),
            prints="return 1/0" if path.stem == "19_traceback_line" else "",
            patient=True,
        )
        for path in sorted((SHARED / "benign").glob("*.py"))
    ]
    return given + [Case(f"harmless/own_{name}", code, prints=prints) for name, code, prints in _OWN]


def lacking(case: Case) -> str | None:
    """The library that a harmless case needs and this environment does not have."""
    name = _NEEDED.get(case.name.removeprefix("harmless/"))
    return name if name and importlib.util.find_spec(name) is None else None
