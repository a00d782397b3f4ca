"""Attacks on other processes and on the kernel."""

from __future__ import annotations

from sandbox_cases import Case

PRIVILEGES = [
    Case(
        "others/signals",
        r"""
import signal
pids = ({{HOST_PID}}, os.getppid(), 1)
for pid in (*pids, -1, 0, -os.getpgrp()):
    t(f'kill {pid}', lambda: os.kill(pid, 0))
for pid in pids:
    t('tgkill', lambda: call(234, pid, pid, 0))
    t('tkill', lambda: call(200, pid, 0))
    t('sigqueue', lambda: call(129, pid, signal.SIGUSR2, bytes(128)))
    t('pidfd', lambda: os.pidfd_open(pid))
t('killpg', lambda: os.killpg(0, 0))
""",
    ),
    Case(
        "others/signal_by_a_pipe_that_becomes_ready",
        r"""
import fcntl, signal, time
def f(pid):
    r, w = os.pipe()
    fcntl.fcntl(r, fcntl.F_SETOWN, pid)
    fcntl.fcntl(r, 10, signal.SIGUSR2)
    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
    os.write(w, b'x')
try: f({{HOST_PID}})
except OSError as e: print(e)
time.sleep(0.05)
""",
        ("ok", "error", "died"),
    ),
    Case(
        "others/parked_predecessor_killed_by_a_pipe",
        r"""
import fcntl, signal, time
r, w = os.pipe()
fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())
fcntl.fcntl(r, 10, signal.SIGKILL)
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
os.write(w, b'x')
time.sleep(0.1)
os._exit(1)
""",
        ("died", "error"),
    ),
    Case(
        "others/memory",
        r"""
pids = ({{HOST_PID}}, os.getppid(), 1)
class V(ctypes.Structure): _fields_ = [('p', ctypes.c_void_p), ('n', ctypes.c_size_t)]
b = ctypes.create_string_buffer(64)
l, r = V(ctypes.addressof(b), 64), V(id(object), 64)
for pid in pids:
    t('readv', lambda: call(310, pid, ctypes.byref(l), 1, ctypes.byref(r), 1, 0))
    t('writev', lambda: call(311, pid, ctypes.byref(l), 0, ctypes.byref(r), 0, 0))
    t('attach', lambda: call(101, 16, pid, 0, 0))
    t('seize', lambda: call(101, 0x4206, pid, 0, 0))
    t('kcmp', lambda: call(312, pid, pid, 0, 0, 0))
    t('move_pages', lambda: call(279, pid, 0, 0, 0, 0, 0))
t('traceme', lambda: call(101, 0, 0, 0, 0))
t('getfd', lambda: call(438, 0, 0, 0))
""",
    ),
    Case(
        "others/priorities_and_limits",
        r"""
import resource
pids = ({{HOST_PID}}, os.getppid(), 1)
for pid in pids:
    t('setpriority', lambda: os.setpriority(0, pid, os.getpriority(0, pid)))
    t('affinity', lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)))
    t('prlimit', lambda: resource.prlimit(pid, 7))
    t('prlimit', lambda: resource.prlimit(pid, 7, resource.prlimit(pid, 7)))
    t('scheduler', lambda: os.sched_setscheduler(pid, 0, os.sched_param(0)))
    t('ioprio', lambda: call(251, 1, pid, 0))
t('nice', lambda: os.nice(-1))
t('realtime', lambda: os.sched_setscheduler(0, 1, os.sched_param(1)))
""",
    ),
    Case(
        "privileges/become_someone",
        r"""
t('setuid', lambda: os.setuid(0))
t('setresuid', lambda: os.setresuid(0, 0, 0))
t('setgid', lambda: os.setgid(0))
t('setgroups', lambda: os.setgroups([0]))
header, data = bytes([0x22, 5, 8, 0x20, 0, 0, 0, 0]), (ctypes.c_uint32 * 6)()
call(125, header, data)
print('ESCAPED:capabilities' if data[0] & ~4 or data[3] else 'few', hex(data[0]))
t('capset', lambda: call(126, header, (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)))
print('few' if _libc.prctl(39, 0, 0, 0, 0) == 1 else 'ESCAPED:new_privileges')
import subprocess
for c in ('mount -t tmpfs x .', 'unshare -r id -u', 'chroot .'):
    try: r = subprocess.run(c.split(), stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as e: print(e); continue
    print(c, 'ESCAPED:ran' if r.returncode == 0 else r.stderr[:80])
""",
    ),
    Case(
        "privileges/namespaces",
        r"""
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    t(f'unshare {flag:x}', lambda: call(272, flag))
    def f():
        pid = call(56, flag | 17, 0, 0, 0, 0)
        if pid == 0: os._exit(0)
    t(f'clone {flag:x}', f)
    def g():
        pid = call(435, flag.to_bytes(8, 'little') + bytes(80), 88)
        if pid == 0: os._exit(0)
    t(f'clone3 {flag:x}', g)
t('setns', lambda: call(308, 0, 0))
""",
    ),
    Case(
        "privileges/mounts_and_handles",
        r"""
t('mount', lambda: call(165, b'x', b'.', b'tmpfs', 0, 0))
t('bind', lambda: call(165, b'.', b'.', None, 4096, 0))
t('chroot', lambda: os.chroot('.'))
t('pivot', lambda: call(155, b'.', b'.'))
t('umount', lambda: call(166, b'nowhere', 0))
t('fsopen', lambda: call(430, b'tmpfs', 0))
t('open_tree', lambda: call(428, -100, b'/', 1))
t('mount_setattr', lambda: call(442, -100, b'/', 0, bytes(32), 32))
t('fspick', lambda: call(433, -100, b'/', 0))
h = ctypes.create_string_buffer((128).to_bytes(4, 'little') + bytes(132))
t('handle', lambda: call(303, -100, b'{{OUTSIDE_FILE}}', h, ctypes.byref(ctypes.c_int()), 0))
t('open_handle', lambda: call(304, -100, h, 0))
t('quotactl', lambda: call(179, 0x80000700, b'/dev/vda', 0, 0))
""",
    ),
    Case(
        "privileges/kernel_interfaces",
        r"""
z = ctypes.create_string_buffer(256)
t('bpf', lambda: call(321, 0, z, 72))
t('perf', lambda: call(298, bytes([1, 0, 0, 0, 112]) + bytes(107), 0, -1, -1, 0))
t('userfaultfd', lambda: call(323, 1))
t('io_uring', lambda: call(425, 1, z))
t('keyctl', lambda: call(250, 0, -3, 1))
t('add_key', lambda: call(248, b'user', b'x', b'y', 1, -3))
t('syslog', lambda: call(103, 3, z, 99))
t('module', lambda: call(175, z, 1, b''))
t('iopl', lambda: call(172, 3))
t('swapon', lambda: call(167, b'x', 0))
t('hostname', lambda: call(170, os.uname().nodename.encode(), len(os.uname().nodename)))
t('acct', lambda: call(163, b'x'))
t('seccomp', lambda: call(317, 1, 0, z))
t('dumpable', lambda: call(157, 4, 0, 0, 0, 0))
t('modify_ldt', lambda: call(154, 0, z, 16))
""",
    ),
    Case(
        "privileges/calls_of_32_bit_programs",
        r"""
import mmap
if os.uname().machine != 'x86_64': print('SKIPPED: machine code of x86_64')
else:
    m = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
    m.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))
    f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
    print('ESCAPED:int80', f())
""",
        ("died", "ok"),
    ),
    Case(
        "privileges/calls_of_the_x32_interface",
        r"""
if os.uname().machine != 'x86_64': print('SKIPPED: x86_64 only')
else: t('x32', lambda: call(0x40000000 + 39))
""",
        ("died", "ok"),
    ),
    Case(
        "privileges/terminal_input",
        r"""
import fcntl
for fd in range(3): t(f'tiocsti {fd}', lambda: fcntl.ioctl(fd, 0x5412, b'x'))
for fd in range(3): t(f'tioclinux {fd}', lambda: fcntl.ioctl(fd, 0x541C, b'\x03'))
""",
    ),
]
