"""The machine as hostile code sees it: data, secrets, sockets; and whether any of it was touched."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sysconfig
from pathlib import Path

WORDS = ("ESCAPED", "HOST_SECRET", "OTHER_SECRET", "OUTSIDE_SECRET")
_MARKERS = ("sb_persist", "sb_persist_test.pth")  # what attacks leave behind
_PLACES = (
    "/",
    "/tmp",
    "/var/tmp",
    "/dev",
    "/dev/shm",
    "/dev/mqueue",
    "/run",
    "/run/lock",
    "/etc",
    "/home",
    "/usr/local/bin",
)


class Host:
    """Made below an empty folder. All in it may be read and written by everyone: only the sandbox protects it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.data, self.outside = folder / "data", folder / "outside"
        for path, name, text in (
            (self.data, "data.csv", "a,b\n1,2\n3,4\n"),
            (self.outside, "secret.txt", "OUTSIDE_SECRET"),
            (self.outside, "answer.json", "OUTSIDE_SECRET"),
        ):
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
            (path / name).write_text(text)
            (path / name).chmod(0o666)
        abstract = f"sandbox-test-{os.getpid()}"
        self.listeners = {
            "tcp": _bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "unix": _bound(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "unix")),
            "abstract": _bound(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + abstract),
            "datagrams": _bound(socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagrams")),
        }
        port = self.listeners["tcp"].getsockname()[1]
        self.listeners["udp"] = _bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", port))
        self.names = {
            "DATA_DIR": self.data,
            "OUTSIDE_FILE": self.outside / "secret.txt",
            "OUTSIDE_DIR": self.outside,
            "HOST_MARKER": self.outside / "marker",
            "HOST_PID": os.getpid(),
            "HOST_PORT": port,
            "HOST_UNIX": folder / "unix",
            "HOST_DATAGRAMS": folder / "datagrams",
            "HOST_ABSTRACT": abstract,
        }
        self._signals: list[int] = []
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO, signal.SIGURG, signal.SIGALRM):
            signal.signal(number, lambda number, _frame: self._signals.append(number))
        self._before = self._fingerprint()

    def fill(self, code: str, **more: object) -> str:
        """The code with names instead of placeholders."""
        for name, value in {**self.names, **more}.items():
            code = code.replace("{{" + name + "}}", str(value))
        return code

    def problems(self) -> list[str]:
        """What an attack has changed here; said once."""
        found = [f"the host got signal {number}" for number in self._signals]
        self._signals.clear()
        for name, listener in self.listeners.items():
            try:
                data = listener.recv(1 << 16) if name in ("udp", "datagrams") else listener.accept()
            except BlockingIOError:
                continue
            found.append(f"the host's {name} socket got {data!r}")
        now = self._fingerprint()
        for path in sorted(now.keys() | self._before.keys()):
            if now.get(path) != self._before.get(path):
                found.append(f"{path} was {self._before.get(path)}, is {now.get(path)}")
        self._before = now
        for place in (*_PLACES, os.path.expanduser("~root"), sysconfig.get_paths()["purelib"], self.folder):
            for marker in _MARKERS:
                path = os.path.join(place, marker)
                if os.path.lexists(path):
                    found.append(f"{path} was created")
                    _remove(path)
        return found

    def _fingerprint(self) -> dict[str, tuple[object, ...]]:
        """Of all that is in the data and the outside folder: content and all metadata but the time of access."""
        found = {}
        for top in (self.data, self.outside):
            for path in (top, *top.rglob("*")):
                facts = os.lstat(path)
                content = path.read_bytes() if stat.S_ISREG(facts.st_mode) else None
                attributes = tuple(os.listxattr(path, follow_symlinks=False))
                found[str(path)] = (
                    oct(facts.st_mode),
                    facts.st_uid,
                    facts.st_nlink,
                    facts.st_mtime_ns,
                    attributes,
                    content,
                )
        return found


def _bound(family: int, kind: int, address: object) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.bind(address)
    listener.setblocking(False)
    if kind == socket.SOCK_STREAM:
        listener.listen()
    if family == socket.AF_UNIX and isinstance(address, str) and not address.startswith("\0"):
        os.chmod(address, 0o777)
    return listener


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)
    else:
        os.remove(path)
