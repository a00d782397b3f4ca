"""The attacks of the self-check, run as a step's code. `attempt` returns JSON: name -> "held" or "escaped: how"."""

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import resource
import socket
from collections.abc import Callable
from typing import Any

_PTRACE_SEIZE, _CLONE_NEWUSER, _CLONE_NEWNS = 0x4206, 0x10000000, 0x00020000  # to seize does not stop the other
_libc = ctypes.CDLL(None, use_errno=True)


def attempt(facts: dict[str, Any]) -> str:
    """`facts`: paths outside, folder, data, table, other; trainer (pid), tcp (port), unix, abstract (sockets)."""
    attacks: dict[str, Callable[[], Any]] = {
        "read_file": lambda: _read(facts["outside"]),
        "list_folder": lambda: os.listdir(facts["folder"]),
        "write_file": lambda: open(os.path.join(facts["folder"], "created"), "w").close(),
        "truncate_data": lambda: os.truncate(facts["table"], 0),
        "read_other_session": lambda: _read(os.path.join(facts["other"], "secret")),
        "proc": lambda: os.listdir(f"/proc/{facts['trainer']}"),
        "trainer_environment": lambda: _read(f"/proc/{facts['trainer']}/environ"),
        "tcp": lambda: socket.create_connection(("127.0.0.1", facts["tcp"]), timeout=2),
        "unix_socket": lambda: _connect(facts["unix"]),
        "abstract_socket": lambda: _connect("\0" + facts["abstract"]),
        "signal": lambda: os.kill(facts["trainer"], 0),
        "signal_parent": lambda: os.kill(os.getppid(), 0),
        "new_session": os.setsid,
        "raise_limit": _raise_limit,
        "ptrace": lambda: _must_fail(_libc.ptrace(_PTRACE_SEIZE, facts["trainer"], 0, 0)),
        "user_namespace": lambda: _must_fail(_libc.unshare(_CLONE_NEWUSER)),
        "mount_namespace": lambda: _must_fail(_libc.unshare(_CLONE_NEWNS)),
        "memfd": lambda: os.memfd_create("x"),
        "shared_memory": lambda: mmap.mmap(-1, 4096),
        "signal_by_file": lambda: fcntl.fcntl(0, fcntl.F_SETOWN, facts["trainer"]),
    }
    outcome = {}
    for name, attack in attacks.items():
        try:
            attack()
            outcome[name] = "escaped"
        except OSError:
            outcome[name] = "held"
    with contextlib.suppress(OSError):
        os.chmod(facts["data"], 0o777)
        os.utime(facts["data"], (1, 1))
    return json.dumps(outcome)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _connect(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        client.connect(address)


def _raise_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (2 * hard, 2 * hard))
    except ValueError as error:  # "not allowed to raise maximum limit"
        raise PermissionError from error


def _must_fail(result: int) -> None:
    if result < 0:
        raise PermissionError
