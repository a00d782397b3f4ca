"""Attacks on secrets and the network."""

from __future__ import annotations

from sandbox_cases import Case

REACH = [
    Case(
        "secrets/proc_of_others",
        r"""
for pid in ({{HOST_PID}}, 1, os.getppid(), 'self'):
    for name in ('environ', 'mem', 'maps', 'auxv', 'stack', 'pagemap', 'root{{OUTSIDE_FILE}}', 'cwd/../x'):
        t(f'{pid}/{name}', lambda: open(f'/proc/{pid}/{name}', 'rb').read(99))
    for name in ('fd', 'ns', 'root', 'map_files'):
        t(f'{pid}/{name}/', lambda: os.listdir(f'/proc/{pid}/{name}'))
for pid in ({{HOST_PID}}, 1):
    for name in ('cmdline', 'fd/0', 'cwd/x'):
        t(f'{pid}/{name}', lambda: open(f'/proc/{pid}/{name}', 'rb').read(99))
    t(f'{pid}/cwd/', lambda: os.listdir(f'/proc/{pid}/cwd'))
t('list', lambda: os.listdir('/proc'))
""",
    ),
    Case(
        "secrets/detours_to_a_file",
        r"""
f = '{{OUTSIDE_FILE}}'
os.symlink(f, 'l')
for p in (f, 'l', '/proc/self/root' + f, '/proc/self/cwd/l', '/dev/fd/../root' + f, '../' * 30 + f, '/./' + f,
          '/usr/../' + f, '{{DATA_DIR}}/../outside/secret.txt'):
    t(p[:20], lambda: open(p).read())
t('o_path', lambda: os.read(os.open(f, os.O_PATH), 9))
t('dir_fd', lambda: os.open(f, os.O_RDONLY, dir_fd=os.open('/', os.O_PATH)))
t('openat2', lambda: call(437, -100, f.encode(), bytes(24), 24))
t('exec', lambda: os.execv(f, [f]))
t('truncate', lambda: os.truncate(f, 0))
t('chdir', lambda: (os.chdir('{{OUTSIDE_DIR}}'), open('secret.txt').read()))
t('copy_by_link', lambda: os.link(f, '{{DATA_DIR}}/sb_persist'))
import subprocess
for c in ('cat', 'find', 'stat -c x'):
    print(subprocess.run([*c.split(), f], capture_output=True).stdout)
""",
    ),
    Case(
        "secrets/memory_and_arguments",
        r"""
import gc, sys
w = ''.join(('HOST', '_', 'SECRET'))
env = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, 'environ')
n = 0
while env[n]:
    if w.encode() in env[n]: print('ESCAPED:environ')
    n += 1
seen = [str(x) for x in (sys.argv, sys.orig_argv, dict(os.environ))]
for o in gc.get_objects():
    if isinstance(o, dict): seen += [v for v in list(o.values()) if type(v) is str and v is not w]
print('ESCAPED:heap' if any(w in s for s in seen) else 'clean')
keys = ('KEY', 'TOKEN', 'SECRET', 'WANDB', 'RAY_', 'SLURM', 'HF_')
print('ESCAPED:variable' if any(k in n for n in os.environ for k in keys) else 'clean')
""",
    ),
    Case(
        "secrets/watching_others",
        r"""
fd = call(253)
for p in ('{{OTHER_WS}}', '{{OUTSIDE_DIR}}', '{{OUTSIDE_FILE}}'):
    t('inotify', lambda: call(254, fd, p.encode(), 0xFFF))
t('fanotify', lambda: call(300, 0, 0))
""",
        ("ok", "error"),
    ),
    Case(
        "secrets/other_workspace",
        r"""
w = '{{OTHER_WS}}'
t('list', lambda: os.listdir(w))
t('read', lambda: open(w + '/secret.txt').read())
t('write', lambda: open(w + '/secret.txt', 'a'))
t('create', lambda: open(w + '/sb_persist', 'w'))
t('link', lambda: os.link(w + '/secret.txt', 'mine'))
t('rename', lambda: os.rename(w + '/secret.txt', 'mine'))
t('parent', lambda: os.listdir(os.path.dirname(w)))
t('root', lambda: os.listdir(os.path.dirname(os.path.dirname(w))))
""",
    ),
    Case(
        "network/every_family",
        r"""
import socket
for family in range(46):
    for kind in (1, 2, 3, 5):
        try: socket.socket(family, kind, 0)
        except OSError: continue
        print('ESCAPED:socket', family, kind)
t('netlink', lambda: call(41, 16, 3, 0))
t('dns', lambda: socket.gethostbyname('datapm.invalid'))
""",
    ),
    Case(
        "network/udp_and_tcp_to_the_host",
        r"""
import socket
t('tcp', lambda: socket.create_connection(('127.0.0.1', {{HOST_PORT}}), 1))
t('udp', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {{HOST_PORT}})))
t('unix', lambda: socket.socket(socket.AF_UNIX).connect('{{HOST_UNIX}}'))
t('bind', lambda: socket.socket(socket.AF_UNIX).bind('mine'))
""",
    ),
    Case(
        "network/a_socket_pair_connected_elsewhere",
        r"""
import socket
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for name in ('{{HOST_UNIX}}', '\0{{HOST_ABSTRACT}}', '{{HOST_DATAGRAMS}}'):
        def f(send):
            a, b = socket.socketpair(socket.AF_UNIX, kind)
            a.settimeout(1)
            a.sendto(b'x', name) if send else a.connect(name)
        if kind == socket.SOCK_DGRAM: t('sendto', lambda: f(True))
        t('connect', lambda: f(False))
try: socket.socketpair()[0].bind('mine')  # a socket among the files is allowed, if a branch can be made of them
except OSError as e: print(e)
""",
        branch="after",
    ),
    Case(
        "network/inet_socket_pair",
        "for f in (2, 10, 16, 30, 40): t(f'pair {f}', lambda: call(53, f, 1, 0, bytes(8)))",
    ),
]
