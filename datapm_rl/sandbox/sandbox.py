"""The sandbox as its owner sees it: sessions, forked from one zygote, at a proven isolation level."""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from datapm_rl.errors import InfraError, UserError
from datapm_rl.sandbox.calls import recorded
from datapm_rl.sandbox.chain import Chain
from datapm_rl.sandbox.clean_room import carry
from datapm_rl.sandbox.result import Limits
from datapm_rl.sandbox.retention import Keep, Retention
from datapm_rl.sandbox.root import Root, StateLost
from datapm_rl.sandbox.selfcheck import IsolationReport, choose
from datapm_rl.sandbox.session import LoggedRun, Origin, Session
from datapm_rl.sandbox.workspace import data_files
from datapm_rl.sandbox.zygote import Zygote

_TRIES = 3  # to have a session from a zygote that lives long enough
_log = logging.getLogger(__name__)


class Sandbox:
    """Runs untrusted Python. A context manager; `close` leaves no process and no file.

    `limits`: see `Limits`. `preload`: modules loaded once for all sessions (each makes every fork dearer); pandas
    and NumPy among them are bound as `pd` and `np`. `workspace_root`: the folder for workspaces, made if missing;
    default: one in the temporary directory. `keep`: which states keep a process to branch from (`Retention`);
    `max_snapshots`: how many in all with "lru". `min_level`, `max_level`: isolation (docs/sandbox.md); the best level
    that attempted attacks prove is taken. `read_only`: paths that sessions may read beside the interpreter and their
    data. `recycle_after`: sessions after which new ones get a new zygote.

    Thread-safe: different sessions run at the same time. Raises UserError for a module or folder that is not there
    and for a level that cannot be had, InfraError("sandbox_lost") when the zygote does not start.

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
        keep: Keep = "last",
        max_snapshots: int = 64,
        min_level: int = 2,
        max_level: int = 4,
        read_only: Sequence[str | os.PathLike[str]] = (),
        recycle_after: int = 1000,
    ):
        for name, value in (("preload", preload), ("read_only", read_only)):
            if isinstance(value, str | bytes | os.PathLike):
                raise UserError(f"sandbox {name} is a list, got {value!r}; write [{value!r}]")
        if recycle_after < 1 or max_snapshots < 0:
            raise UserError(f"sandbox recycle_after={recycle_after} or max_snapshots={max_snapshots} is too small")
        if keep not in ("last", "all", "lru"):
            raise UserError(f'sandbox keep is "last", "all" or "lru", got {keep!r}')
        for name in preload:
            if importlib.util.find_spec(name.partition(".")[0]) is None:
                raise UserError(f"sandbox preload names module {name!r}, which is not installed; install or remove it")
        self.limits = limits or Limits()
        self.preload = tuple(preload)
        self.retention = Retention(keep, max_snapshots)
        self._read_only = [Path(path).absolute() for path in read_only]
        self._workspace_root = Path(workspace_root).absolute() if workspace_root is not None else None
        self._recycle_after = recycle_after
        self._lock = threading.Lock()
        self._closed = False
        self._owner = os.getpid()
        self._sessions: set[Session] = set()
        self._retired: list[Zygote] = []
        self._rebuilt = self._diverged = 0
        self.isolation: IsolationReport
        self._isolation, self._zygote, self.isolation = choose(min_level, max_level, self._new_zygote, self._read_only)
        _log.info("sandbox isolation: %s", self.isolation.summary())

    @property
    def level(self) -> int:
        """The isolation level, 0 to 4."""
        return self._isolation.level

    def session(
        self,
        data_dir: str | os.PathLike[str],
        files: Sequence[str] | None = None,
        seed: int = 0,
        log: Sequence[LoggedRun] = (),
    ) -> Session:
        """A new session whose workspace has copies of the data files under their base names.

        `files`: names below `data_dir`; None: every regular file directly in it. `seed` seeds `random` and NumPy's
        global generator. `log`: runs of a session that was lost with its sandbox, to go on from. Raises UserError for
        data that is not there, InfraError when no process can be had. A zygote that was lost is replaced.
        """
        if not isinstance(seed, int):
            raise UserError(f"a session's seed is a whole number, got {seed!r}")
        sources = [path.absolute() for path in data_files(data_dir, files)]
        size, limits = sum(path.stat().st_size for path in sources), self.limits
        if size > limits.workspace_mb << 20 or len(sources) > limits.workspace_files:
            raise UserError(
                f"the data in {data_dir} ({size >> 20} MB, {len(sources)} files) do not fit a workspace; raise "
                f"workspace_mb={limits.workspace_mb} or workspace_files={limits.workspace_files}"
            )
        readable = list(sources)
        folder = Path(data_dir).resolve()
        if files is None and not self._zygote.workspaces.path.resolve().is_relative_to(folder):
            readable.append(folder)
        origin = Origin(tuple(sources), tuple(readable), seed)
        chain = self.replay(origin, log) if log else self._chain(origin, self.limits)
        return self.adopt(Session(self, origin, chain, list(log)))

    def replay(self, origin: Origin, log: Sequence[LoggedRun]) -> Chain:
        """A new chain in the state that the logged runs left. Raises InfraError, "replay_diverged" among its causes."""
        patient = replace(self.limits, wall_s=2 * self.limits.wall_s + 5)  # the machine may be busier than it was
        chain = self._chain(origin, patient)
        try:
            for number, run in enumerate(log, 1):
                if run.rolled_back:
                    chain.repeat()
                    continue
                answer = None if run.replies is None else recorded(run.replies)
                result = chain.run(run.code, answer=answer)
                if result.status is not run.status:
                    what = f"step {number} was {run.status}, its replay {result.status}"
                    raise InfraError("replay_diverged", what)
                self._diverged += LoggedRun.of(run.code, result).shown != run.shown
                self.retention.after_run(chain)
        except StateLost as error:
            chain.close()
            raise InfraError("replay_lost", str(error)) from None
        except BaseException:
            chain.close()
            raise
        chain.limits = self.limits
        self._rebuilt += 1
        return chain

    def clean_room(self, origin: Origin, source: Chain) -> tuple[Chain, tuple[str, ...]]:
        """A new chain with the data and files of another one's newest state; the names of what is no data.

        Closes the other one. Raises InfraError.
        """
        try:
            room = self._chain(origin, self.limits)
            try:
                return room, carry(source, room)
            except BaseException:
                room.close()
                raise
        except StateLost as error:
            raise InfraError("snapshot_lost" if error.ours else "export_failed", str(error)) from None
        finally:
            source.close()

    def adopt(self, session: Session) -> Session:
        """Count a session among those that `close` ends."""
        with self._lock:
            self._sessions.add(session)
        return session

    def forget(self, session: Session) -> None:
        """A session is being closed."""
        with self._lock:
            self._sessions.discard(session)

    def health(self) -> dict[str, object]:
        """Numbers and facts: alive, level, zygote_pid, processes, sessions, rebuilt, diverged (replays whose output
        differed from the original's)."""
        zygote = self._zygote
        return {
            "alive": zygote.alive,
            "level": self.level,
            "zygote_pid": zygote.pid,
            "processes": len(zygote.living()),
            "sessions": len(self._sessions),
            "rebuilt": self._rebuilt,
            "diverged": self._diverged,
        }

    def close(self) -> None:
        """End all sessions, processes and workspaces. Again is harmless, and so it is in a fork of the owner."""
        with self._lock:
            if self._closed or os.getpid() != self._owner:
                return
            self._closed = True
            sessions, self._sessions = self._sessions, set()
        for session in sessions:
            session.close()
        for zygote in [*self._retired, self._zygote]:
            zygote.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _chain(self, origin: Origin, limits: Limits) -> Chain:
        for _ in range(_TRIES):
            zygote = self._living_zygote()
            try:
                root = Root(
                    zygote, self._isolation, limits, self.preload, origin.seed, origin.readable, self._read_only
                )
                return Chain.start(root, limits, origin.sources)
            except StateLost as error:
                lost = InfraError("sandbox_lost", str(error))
            except InfraError as error:
                if error.cause != "sandbox_lost":
                    raise
                lost = error
        raise lost

    def _living_zygote(self) -> Zygote:
        with self._lock:
            if self._closed:
                raise InfraError("sandbox_closed", "the sandbox was closed")
            for zygote in [zygote for zygote in self._retired if not zygote.in_use()]:
                zygote.close()
                self._retired.remove(zygote)
            if not self._zygote.alive:
                self._zygote.close()
            elif self._zygote.sessions_begun >= self._recycle_after:
                self._retired.append(self._zygote)
            else:
                return self._zygote
            self._zygote = self._new_zygote(self._isolation.namespaces)
            return self._zygote

    def _new_zygote(self, namespaces: str) -> Zygote:
        return Zygote(self.preload, self._workspace_root, namespaces)
