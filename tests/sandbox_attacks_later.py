"""Attacks that are to work after their step, while it is parked."""

from __future__ import annotations

from sandbox_cases import Case

LATER = [
    Case(
        "time/timers_that_fire_when_parked",
        r"""
import signal
for s in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF): signal.signal(s, lambda *a: os._exit(3))
for i in (0, 1, 2): signal.setitimer(i, 0.2, 0.05)
signal.alarm(1)
t('timer_create', lambda: call(222, 0, None, ctypes.create_string_buffer(8)))
""",
        pause_s=0.4,
    ),
    Case(
        "time/faulthandler_that_exits_later",
        r"""
import faulthandler
faulthandler.dump_traceback_later(0.2, exit=True)
""",
        pause_s=0.4,
    ),
    Case(
        "time/trace_left_on",
        r"""
import sys
sys.settrace(lambda *a: os._exit(3))
sys.setprofile(lambda *a: os._exit(3))
""",
        ("ok", "died"),
    ),
    Case(
        "processes/thread_that_goes_on",
        r"""
import threading, time
def go():
    while True:
        with open('beat', 'a') as f: f.write('x')
        time.sleep(0.02)
threading.Thread(target=go).start()
time.sleep(0.1)
""",
        after=r"""
import time
a = open('beat').read(); time.sleep(0.2)
print('ESCAPED:thread' if open('beat').read() != a else 'gone')
""",
    ),
    Case(
        "processes/thread_that_exits_later",
        r"""
import threading, time
threading.Thread(target=lambda: (time.sleep(0.15), os._exit(3))).start()
""",
        pause_s=0.4,
    ),
    Case(
        "processes/child_signal_handler_that_exits",
        r"""
import signal
signal.signal(signal.SIGCHLD, lambda *a: os._exit(3))
""",
    ),
    Case(
        "exit/finalizers_and_atexit",
        r"""
import atexit, sys
class D:
    def __del__(self):
        while True: pass
d = D()
atexit.register(d.__del__)
sys.excepthook = sys.displayhook = sys.unraisablehook = None
""",
    ),
    Case(
        "exit/segfault_when_parked",
        r"""
import threading, time
threading.Thread(target=lambda: (time.sleep(0.15), ctypes.memset(8, 1, 8))).start()
""",
        pause_s=0.4,
    ),
    Case(
        "exit/freed_memory_written",
        r"""
a = [bytearray(4096) for _ in range(200)]
p = [(ctypes.c_char * 4096).from_buffer(x) for x in a]
q = [ctypes.addressof(x) for x in p]
del p, a
for x in q:
    ctypes.memset(x, 0x41, 4000)
""",
        ("ok", "died"),
        poisons=True,
    ),
]
