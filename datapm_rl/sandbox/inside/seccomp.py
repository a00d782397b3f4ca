"""The system call filter: what code in a session may never ask of the kernel, whatever its user.

A deny-list: data libraries use hundreds of calls, and Landlock, the uid and the namespaces bound what the allowed
ones reach. It is inherited by every process of the session and cannot be removed.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from .kernel import libc
from .syscalls import AUDIT_ARCH, machine, numbers

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_SET_DUMPABLE, _MODE_FILTER = 38, 22, 4, 2

# each of these was a hole in some sandbox, or is a way around one of our limits
_REFUSED = (
    # the network, and UNIX sockets by path, which Landlock before ABI 9 does not stop (Ray's raylet listens on one)
    *("socket", "connect", "bind"),
    # signals to others: parked snapshots of the session are of the same user
    *("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"),
    *("pidfd_open", "pidfd_getfd", "pidfd_send_signal"),
    # leaving the process group by which a whole session is frozen
    *("setsid", "setpgid"),
    # other processes' memory and state
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp"),
    *("migrate_pages", "move_pages", "setpriority", "ioprio_set"),
    *("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"),
    # namespaces and mounts
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "statmount", "listmount", "quotactl", "quotactl_fd"),
    # files without a path
    *("open_by_handle_at", "name_to_handle_at", "memfd_create", "memfd_secret"),
    # memory that outlives the process, or that no limit counts
    *("shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
    # large or privileged parts of the kernel that data analysis does not need
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("inotify_init", "inotify_init1", "inotify_add_watch"),  # Landlock does not stop watching others' files
    *("keyctl", "add_key", "request_key", "fanotify_init", "lookup_dcookie", "syslog", "acct", "nfsservctl"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"),
    *("swapon", "swapoff", "vhangup", "modify_ldt", "iopl", "ioperm", "sethostname", "setdomainname"),
    *("settimeofday", "clock_settime", "clock_adjtime", "adjtimex"),
    # a timer that fires while its process is parked
    "timer_create",
    # a filter, or limits, that break the parked process
    *("seccomp", "setrlimit"),
)

# Owner, mode and times of files that the user owns are not Landlock's business; `shutil.copy` calls these on its own
# copies and must not fail: they succeed and do nothing.
_WITHOUT_EFFECT = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *("utime", "utimes", "utimensat", "futimesat"),
    "file_setattr",
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
    *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
)

# CLONE_NEWTIME | NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET; PARENT: a sibling is below no step
_CLONE_FLAGS = 0x7E020080 | 0x8000
_SHARED_ANONYMOUS = 0x21  # MAP_SHARED | MAP_ANONYMOUS: memory that states, branches and rollbacks would share
_REFUSED_FCNTLS = (8, 10, 15, 1024, 1026)  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY: signals by files
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF
_PR_SET_CHILD_SUBREAPER = 36
# typing into a terminal; flags of a file that its owner may set (append only, immutable); who gets signals by a file
_REFUSED_IOCTLS = (0x5412, 0x541C, 0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x8901, 0x8902)

_LOAD, _AND, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_AT_NUMBER, _AT_ARCH, _AT_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; of an argument, the low word


def install() -> None:
    """Put the filter on this process and its children. Raises OSError or KeyError (an architecture without a table)."""
    program = _program()
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    code = ctypes.create_string_buffer(program, len(program))
    filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(filter_), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


def _program() -> bytes:
    """struct sock_filter[]; each rule is skipped by a jump over it, so no jump is long."""
    deny = _ERRNO | errno.EPERM
    code = [_op(_LOAD, _AT_ARCH), _op(_JUMP_EQUAL, AUDIT_ARCH[machine()], 1, 0), _op(_RETURN, _KILL)]
    code += [_op(_LOAD, _AT_NUMBER)]
    if machine() == "x86_64":  # the x32 calls have numbers of their own
        code += [_op(_JUMP_AT_LEAST, 0x40000000, 0, 1), _op(_RETURN, _KILL)]
    for number in numbers(*_REFUSED):
        code += [_op(_JUMP_EQUAL, number, 0, 1), _op(_RETURN, deny)]
    for number in numbers(*_WITHOUT_EFFECT):
        code += [_op(_JUMP_EQUAL, number, 0, 1), _op(_RETURN, _ERRNO | 0)]
    # its flags are in memory, where a filter cannot look; the C library falls back to clone
    for number in numbers("clone3"):
        code += [_op(_JUMP_EQUAL, number, 0, 1), _op(_RETURN, _ERRNO | errno.ENOSYS)]
    code += _if_argument("clone", 0, _JUMP_ANY_BIT, _CLONE_FLAGS, deny)
    code += _if_argument("socketpair", 0, _JUMP_EQUAL, _AF_UNIX, deny, negate=True)
    code += _if_argument("prlimit64", 0, _JUMP_EQUAL, 0, deny, negate=True)  # of another process
    for half in (0, 4):  # a pointer to new limits
        code += _if_argument("prlimit64", 2, _JUMP_EQUAL, 0, deny, negate=True, half=half)
    code += _if_argument("prctl", 0, _JUMP_EQUAL, _PR_SET_SECCOMP, deny)
    code += _if_argument("prctl", 0, _JUMP_EQUAL, _PR_SET_DUMPABLE, deny)  # hides what the watchdog reads
    # to stop adopting orphans, so that a daemon is not found below the step (arguments 36, 0)
    [number] = numbers("prctl")
    code += [_op(_JUMP_EQUAL, number, 0, 6), _op(_LOAD, _AT_ARGUMENT), _op(_JUMP_EQUAL, _PR_SET_CHILD_SUBREAPER, 0, 3)]
    code += [_op(_LOAD, _AT_ARGUMENT + 8), _op(_JUMP_EQUAL, 0, 0, 1), _op(_RETURN, deny), _op(_LOAD, _AT_NUMBER)]
    # a pair of datagram sockets can still be made to send elsewhere; streams cannot
    [number] = numbers("socketpair")
    code += [_op(_JUMP_EQUAL, number, 0, 5), _op(_LOAD, _AT_ARGUMENT + 8), _op(_AND, _SOCK_TYPE)]
    code += [_op(_JUMP_EQUAL, _SOCK_STREAM, 1, 0), _op(_RETURN, deny), _op(_LOAD, _AT_NUMBER)]
    [number] = numbers("mmap")
    code += [_op(_JUMP_EQUAL, number, 0, 5), _op(_LOAD, _AT_ARGUMENT + 24), _op(_AND, _SHARED_ANONYMOUS)]
    code += [_op(_JUMP_EQUAL, _SHARED_ANONYMOUS, 0, 1), _op(_RETURN, deny), _op(_LOAD, _AT_NUMBER)]
    for command in _REFUSED_FCNTLS:
        code += _if_argument("fcntl", 1, _JUMP_EQUAL, command, deny)
    for request in _REFUSED_IOCTLS:
        code += _if_argument("ioctl", 1, _JUMP_EQUAL, request, deny)
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def _if_argument(
    name: str, argument: int, test: int, value: int, verdict: int, negate: bool = False, half: int = 0
) -> list[bytes]:
    """`verdict` when the test of an argument's low word (`half` 4: high word) holds (or not, with `negate`)."""
    [number] = numbers(name)
    test_op = _op(test, value, 1, 0) if negate else _op(test, value, 0, 1)
    load = _op(_LOAD, _AT_ARGUMENT + 8 * argument + half)
    return [_op(_JUMP_EQUAL, number, 0, 4), load, test_op, _op(_RETURN, verdict), _op(_LOAD, _AT_NUMBER)]


def _op(code: int, value: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, jump_true, jump_false, value)
