"""Attacks on time and the number of processes: a step ends at its limit, whatever it does."""

from __future__ import annotations

from sandbox_cases import NOT_OK, STATUSES, Case

LIMITS = [
    Case(
        "time/all_signals_blocked",
        r"""
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: time.sleep(60)
""",
        ("timeout",),
    ),
    Case(
        "time/endless_loop_in_c",
        r"""
import collections, itertools
collections.deque(itertools.repeat(0), maxlen=0)
""",
        ("timeout",),
    ),
    Case(
        "time/pipe_nobody_writes_to",
        r"""
os.mkfifo('p')
open('p').read()
""",
        ("timeout", "error"),
    ),
    Case(
        "time/repr_without_end",
        r"""
import time
class A:
    def __repr__(self):
        while True: time.sleep(9)
A()
""",
        ("timeout",),
    ),
    Case(
        "time/exception_text_without_end",
        r"""
import time
class E(Exception):
    def __str__(self):
        while True: time.sleep(9)
raise E
""",
        ("timeout",),
    ),
    Case(
        "time/input",
        "input()",
        ("error",),
        prints="EOFError",
    ),
    Case(
        "processes/fork_bomb",
        r"""
while True:
    try: os.fork()
    except OSError: pass
""",
        NOT_OK,
        alone=True,
    ),
    Case(
        "processes/thread_bomb",
        r"""
import threading, time
while True:
    try: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except RuntimeError: pass
""",
        ("timeout", "limit", "died", "memory"),
        alone=True,
    ),
    Case(
        "processes/zombie_factory",
        r"""
while True:
    try:
        if os.fork() == 0: os._exit(0)
    except OSError: pass
""",
        ("timeout", "limit", "died"),
        alone=True,
    ),
    Case(
        "processes/chain_of_forks_that_die",
        r"""
import time
while True:
    try:
        if os.fork() != 0: os._exit(0)
    except OSError: time.sleep(0.01)
""",
        ("died", "timeout"),
        pause_s=0.3,
    ),
    Case(
        "processes/daemon",
        r"""
import time
if os.fork() == 0:
    for f in (os.setsid, os.setpgrp):
        try: f()
        except OSError: pass
    _libc.prctl(36, 0, 0, 0, 0)
    if os.fork(): os._exit(0)
    os.closerange(0, 256)
    while True:
        with open('beat', 'a') as f: f.write('x')
        time.sleep(0.02)
_libc.prctl(36, 0, 0, 0, 0)
while not os.path.exists('beat'): time.sleep(0.02)
time.sleep(0.05)
print(open('beat').read() != '')
""",
        after=r"""
import time
def beat(): return open('beat').read()
a = beat(); time.sleep(0.2)
print('ESCAPED:daemon' if beat() != a else 'gone')
""",
        prints="True",
    ),
    Case(
        "processes/child_keeps_socket_and_pipe",
        r"""
import time
if os.fork(): os._exit(0)
while True: time.sleep(60)
""",
        ("died",),
    ),
    Case(
        "processes/both_return_from_fork",
        r"""
pid = os.fork()
print('here')
""",
        STATUSES,
    ),
    Case(
        "processes/child_answers_for_its_parent",
        r"""
import time
if os.fork(): time.sleep(600)
""",
        STATUSES,
        poisons=True,
    ),
    Case(
        "processes/name_that_confuses_parsers",
        r"""
import time
_libc.prctl(15, b') Z 1 1 (', 0, 0, 0)
if os.fork() == 0: time.sleep(600)
""",
    ),
    Case(
        "processes/exec_another_program",
        "os.execv('/bin/sleep', ['sleep', '600'])",
        ("died", "timeout"),
    ),
]
