"""How a new session's root process is confined, and in which namespaces its zygote lives. In this order:

    zygote   user (without root), pid, net and ipc namespaces; its death ends all that is inside
    root     pid namespace of its own -> user namespace or user of its own (so processes are counted exactly)
             -> resource limits -> Landlock -> no capabilities -> seccomp

Which of these apply is the level's business (`datapm_rl.sandbox.isolation`). All that a root process has applies to
every process of its session, for ever.
"""

from __future__ import annotations

import os
from typing import Any

from . import kernel, landlock, seccomp

_SHARED = kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_PID  # the network namespace is empty: not even loopback is up


class Namespaces:
    """The zygote's own namespaces, and a pid namespace for each root that it forks."""

    def __init__(self, kind: str):
        """`kind`: "root", "user" (with a user namespace, for which nobody needs to be root), "none".

        With namespaces, this forks: it returns in the child, which is the first process of the new pid namespace;
        the parent waits for it and exits. Raises OSError when the kernel refuses.
        """
        self._own = -1
        if kind == "none":
            return
        if kind == "user":
            kernel.new_user_namespace(_SHARED)
        else:
            kernel.unshare(_SHARED)
        pid = os.fork()
        if pid != 0:
            os.closerange(3, 1 << 16)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
        kernel.die_with_parent(True)
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def exist(self) -> bool:
        return self._own >= 0

    def fork(self) -> int:
        """`os.fork`; the child is the first process of a pid namespace, if there are namespaces. Raises OSError."""
        if not self.exist:
            return os.fork()
        kernel.unshare(kernel.NEW_PID)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                kernel.set_namespace(self._own, kernel.NEW_PID)
        return pid


def confine(isolation: dict[str, Any], limits: dict[str, int]) -> None:
    """Confine this process: keys user_namespace, uid (or null), landlock (paths to rights, or null), seccomp, nice.

    Raises OSError when the kernel refuses something: the caller must end then.
    """
    kernel.set_nice(isolation["nice"])
    if isolation["user_namespace"]:
        kernel.new_user_namespace()
    kernel.apply_limits(limits)
    if isolation["uid"] is not None:
        kernel.become(isolation["uid"])
    if isolation["landlock"] is not None:
        landlock.confine(isolation["landlock"])
    if isolation["uid"] is None and isolation["seccomp"]:
        kernel.drop_capabilities()
    if isolation["user_namespace"]:
        kernel.set_dumpable(True)  # for the user's own profilers
    kernel.die_with_parent(True)
    if isolation["seccomp"]:
        seccomp.install()
