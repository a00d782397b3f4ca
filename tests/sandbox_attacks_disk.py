"""Attacks on memory, on the disk and on the host's own folders and devices."""

from __future__ import annotations

from sandbox_cases import FULL, Case

DISK = [
    Case(
        "memory/list_that_grows",
        r"""
def f():
    a = []
    while True: a.append(bytearray(10**7))
f()
""",
        ("memory", "timeout"),
    ),
    Case(
        "memory/many_processes",
        r"""
import time
for _ in range(10):
    if os.fork() == 0: a = bytearray(200 << 20); time.sleep(600)
time.sleep(600)
""",
        ("memory", "limit", "timeout", "died"),
    ),
    Case(
        "memory/outside_the_data_segment",
        r"""
import mmap
from multiprocessing import shared_memory
t('shm_open', lambda: shared_memory.SharedMemory('sb_persist', create=True, size=1 << 20))
t('dev_shm', lambda: open('/dev/shm/sb_persist', 'w'))
t('memfd', lambda: os.memfd_create('x'))
t('memfd_secret', lambda: call(447, 0))
t('sysv_shm', lambda: call(29, 0, 1 << 20, 0o1666))
t('sysv_msg', lambda: call(68, 0, 0o1666))
t('sysv_sem', lambda: call(64, 0, 1, 0o1666))
t('mq', lambda: call(240, b'sb_persist', 0o102, 0o666, 0))
t('address_space', lambda: mmap.mmap(-1, 64 << 30))
""",
    ),
    Case(
        "disk/large_files",
        r"""
import time
b = bytes(1 << 20)
for i in range(600):
    with open(f'f{i % 8}_{i // 48}', 'ab') as f: f.write(b)
print('ESCAPED:disk')
""",
        FULL,
    ),
    Case(
        "disk/one_large_file",
        r"""
with open('f', 'wb') as f:
    while True: f.write(bytes(1 << 20))
""",
        ("limit", "error"),
    ),
    Case(
        "disk/sparse_files",
        r"""
for i in range(100):
    with open(f's{i}', 'w') as f: f.truncate(60 << 20)
""",
        ("ok", *FULL),
        branch="after",
    ),
    Case(
        "disk/files_without_a_name",
        r"""
import time
keep = []
b = bytes(1 << 20)
for i in range(10):
    f = open('u', 'w+b'); os.unlink('u'); keep.append(f)
    for _ in range(30): f.write(b)
    f.flush()
time.sleep(0.3)
print('ESCAPED:unlinked')
""",
        FULL,
    ),
    Case(
        "disk/hard_links",
        r"""
open('f', 'w').close()
for i in range(6000): os.link('f', f'h{i}')
""",
        FULL,
    ),
    Case(
        "disk/folders",
        r"""
for i in range(6000): os.mkdir(f'h{i}')
""",
        FULL,
    ),
    Case(
        "host/writable_places",
        r"""
import sys, sysconfig
for d in ('/', '/tmp', '/var/tmp', '/dev', '/dev/shm', '/run', '/run/lock', '/etc', '/usr/local/bin', '/sys/fs/cgroup',
          '/home', sys.prefix, sysconfig.get_paths()['purelib'], os.path.expanduser('~nobody'), '{{OUTSIDE_DIR}}'):
    t('write ' + d, lambda: open(d + '/sb_persist', 'w'))
    t('mkdir ' + d, lambda: os.mkdir(d + '/sb_persist'))
""",
    ),
    Case(
        "host/kernel_settings",
        r"""
for p in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/proc/self/oom_score_adj', '/proc/self/uid_map',
          '/proc/self/mem', '/proc/self/attr/current', '/proc/self/coredump_filter', '/proc/sysrq-trigger',
          '/sys/kernel/mm/transparent_hugepage/enabled', '/sys/kernel/debug', '/sys/power/state'):
    t(p, lambda: os.open(p, os.O_WRONLY))
""",
    ),
    Case(
        "host/devices",
        r"""
import stat
for p in ('/dev/mem', '/dev/kmsg', '/dev/vda', '/dev/sda', '/dev/nvme0n1', '/dev/fuse', '/dev/kvm', '/dev/tty',
          '/dev/net/tun', '/dev/ptmx', '/dev/userfaultfd', '/dev/mqueue', '/dev/shm', '/dev/loop-control'):
    t(p, lambda: os.open(p, os.O_RDONLY))
def f():
    os.mknod('blk', stat.S_IFBLK | 0o600, os.stat('/').st_dev)
    os.open('blk', os.O_RDONLY)
t('mknod', f)
t('pty', os.openpty)
""",
    ),
]
