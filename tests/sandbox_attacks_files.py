"""Attacks on the data set and on workspaces, and on the copying of a workspace."""

from __future__ import annotations

from sandbox_cases import FULL, Case

FILES = [
    Case(
        "data/changed_through_every_call",
        r"""
d = '{{DATA_DIR}}/data.csv'
t('append', lambda: open(d, 'a'))
t('truncate', lambda: os.truncate(d, 0))
t('unlink', lambda: os.unlink(d))
t('rename', lambda: os.rename(d, 'mine'))
t('replace', lambda: os.replace('data.csv', d))
t('create', lambda: open('{{DATA_DIR}}/sb_persist', 'w'))
t('mkdir', lambda: os.mkdir('{{DATA_DIR}}/sb_persist'))
t('symlink', lambda: os.symlink('x', '{{DATA_DIR}}/sb_persist'))
t('tmpfile', lambda: os.open('{{DATA_DIR}}', os.O_TMPFILE | os.O_RDWR))
""",
    ),
    Case(
        "data/metadata",
        r"""
d = '{{DATA_DIR}}/data.csv'
fd = os.open(d, os.O_RDONLY)
for f in (lambda: os.chmod(d, 0), lambda: os.fchmod(fd, 0), lambda: os.chown(d, 1, 1), lambda: os.utime(d, (1, 1)),
          lambda: os.utime(fd, (1, 1)), lambda: os.setxattr(d, 'user.x', b'1'),
          lambda: call(452, -100, d.encode(), 0, 0),
          lambda: os.chmod('{{DATA_DIR}}', 0), lambda: os.utime('{{DATA_DIR}}', (1, 1))):
    try: f()
    except OSError as e: print(e)
""",
    ),
    Case(
        "data/inode_flags",
        r"""
import fcntl, struct
fd = os.open('{{DATA_DIR}}/data.csv', os.O_RDONLY)
t('setflags', lambda: fcntl.ioctl(fd, 0x40086602, struct.pack('q', 0x80)))
t('fssetxattr', lambda: fcntl.ioctl(fd, 0x401C5820, struct.pack('IIIII8x', 0x40, 0, 0, 0, 0)))
""",
    ),
    Case(
        "data/hard_link",
        r"""
def f():
    os.link('{{DATA_DIR}}/data.csv', 'h')
    open('h', 'a').write('x')
t('hard_link', f)
t('hard_link_of_secret', lambda: os.link('{{OUTSIDE_FILE}}', 'h2'))
""",
        branch="after",
    ),
    Case(
        "data/links_followed_by_metadata_calls",
        r"""
os.symlink('{{DATA_DIR}}/data.csv', 'l'); os.symlink('{{OUTSIDE_FILE}}', 'm')
for p in 'lm':
    os.chmod(p, 0); os.utime(p, (1, 1))
t('read', lambda: open('m').read())
t('write', lambda: open('m', 'w'))
""",
        branch="after",
    ),
    Case(
        "workspace/replaced_by_a_link",
        r"""
w = os.getcwd()
for f in (lambda: os.rename(w, w + 'x'), lambda: os.rename(w, '{{OUTSIDE_DIR}}/marker'),
          lambda: os.rmdir(w), lambda: os.symlink('{{OUTSIDE_DIR}}', w)):
    try: f(); print('done')
    except OSError as e: print(e)
""",
        branch="after",
        poisons=True,
    ),
    Case(
        "workspace/parents_and_siblings",
        r"""
w = os.getcwd()
for d in ('..', '../..', '../../..', '../../../..'):
    t('list', lambda: os.listdir(d))
    t('create', lambda: open(d + '/sb_persist', 'w'))
    t('rename', lambda: os.rename('before.txt', d + '/sb_persist'))
""",
    ),
    Case(
        "workspace/original_from_a_branch",
        "home = os.getcwd()",
        branch="after",
        in_branch=r"""
t('append', lambda: open(home + '/data.csv', 'a').write('TAMPERED'))
t('truncate', lambda: os.truncate(home + '/before.txt', 0))
t('create', lambda: open(home + '/sb_persist', 'w'))
t('remove', lambda: os.remove(home + '/before.txt'))
t('rename', lambda: os.rename(home + '/before.txt', 'mine'))
t('siblings', lambda: os.listdir('..'))
""",
    ),
    Case(
        "workspace/strange_names",
        r"""
for n in ('a\nb', '<tag>', ' ', '-rf', '\x1b[2J', 'n' * 255, b'\xff\xfe', '...', 'data.csv\n', '%s{0}'):
    open(n, 'w').close()
os.mkdir(b'\xfd')
open(b'\xfd/\xfc', 'w').close()
""",
        branch="after",
    ),
    Case(
        "workspace/pipes_links_and_loops",
        r"""
os.mkfifo('p'); os.symlink('l', 'l'); os.symlink('.', 'here'); os.symlink('/', 'root'); os.mkdir('d')
os.symlink('..', 'd/up'); os.symlink('{{OUTSIDE_FILE}}', 'd/s')
os.remove('data.csv'); os.mkfifo('data.csv')
""",
        branch="after",
    ),
    Case(
        "workspace/swapped_while_a_branch_is_made",
        r"""
import time
os.mkdir('d'); open('d/s', 'w').close(); open('f', 'w').close()
end = time.monotonic() + 0.8
while time.monotonic() < end:
    for n, target in (('f', '{{OUTSIDE_FILE}}'), ('d', '{{OUTSIDE_DIR}}')):
        os.symlink(target, 'tmp'); os.rename(n, 'old_' + n); os.rename('tmp', n)
        os.unlink(n); os.rename('old_' + n, n)
""",
        ("ok", "timeout"),
        branch="during",
    ),
    *(
        Case(
            f"workspace/folders_{depth}_deep",
            f"for _ in range({depth}): os.mkdir('d' * 20); os.chdir('d' * 20)\nopen('leaf', 'w').close()",
            ("ok", *FULL),
            branch="after",
        )
        for depth in (900, 2500)  # deeper than Python recurses, than a path may be long
    ),
    Case(
        "workspace/all_removed_then_killed",
        r"""
import shutil
for n in os.listdir('.'): os.remove(n)
open('new', 'w').close()
os._exit(1)
""",
        ("died",),
        after=r"""
print(open('data.csv').read() == 'a,b\n1,2\n3,4\n' and 'whole', __import__('os').path.exists('new') and 'ESCAPED:new')
""",
    ),
    Case(
        "workspace/file_changed_in_place_then_killed",
        r"""
import mmap
with open('before.txt', 'r+b') as f: m = mmap.mmap(f.fileno(), 0)
s = os.stat('before.txt')
m[:] = b'evil'
m.flush()
os.utime('before.txt', ns=(s.st_atime_ns, s.st_mtime_ns))
import time
time.sleep(600)
""",
        ("timeout",),
    ),
    Case(
        "workspace/changed_by_a_mapping_of_an_earlier_step",
        r"""
m[:] = b'evil'
os._exit(1)
""",
        ("died",),
        before=r"""
import mmap
with open('before.txt', 'r+b') as f: m = mmap.mmap(f.fileno(), 0)
""",
    ),
    Case(
        "workspace/unreadable_to_us",
        r"""
os.mkdir('d', 0)
os.close(os.open('f', os.O_CREAT, 0))
""",
        branch="after",
    ),
]
