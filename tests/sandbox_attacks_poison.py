"""Attacks on the session's own future: its later steps may fail, but as the agent's failure, and soon."""

from __future__ import annotations

from sandbox_cases import STATUSES, Case

POISON = [
    # what happens in the parked process when the next step is asked for
    Case(
        "fork/exit_before",
        "os.register_at_fork(before=lambda: os._exit(0))",
        poisons=True,
    ),
    Case(
        "fork/exit_in_child",
        "os.register_at_fork(after_in_child=lambda: os._exit(0))",
        poisons=True,
    ),
    Case(
        "fork/hang_before",
        "os.register_at_fork(before=lambda: any(iter(int, 1)))",
        poisons=True,
    ),
    Case(
        "fork/hang_in_child",
        "os.register_at_fork(after_in_child=lambda: any(iter(int, 1)))",
        poisons=True,
    ),
    Case(
        "fork/hang_in_parent",
        "os.register_at_fork(after_in_parent=lambda: any(iter(int, 1)))",
        poisons=True,
    ),
    Case(
        "fork/fork_replaced_by_0",
        "os.fork = lambda: 0",
        poisons=True,
    ),
    Case(
        "fork/fork_replaced_by_a_number",
        "os.fork = lambda: 12345",
        poisons=True,
    ),
    Case(
        "fork/fork_bomb_before",
        r"""
os.register_at_fork(before=lambda: [os.posix_spawn('/bin/sleep', ['sleep', '60'], {}) for _ in range(9)])
""",
        poisons=True,
    ),
    Case(
        "fork/stdout_that_hangs_there",
        r"""
import sys
class E:
    closed = False
    def write(self, s): pass
    def flush(self):
        while os.getpid() == me: pass
me = os.getpid()
sys.__stdout__ = E()
""",
        ("ok", "timeout"),
        poisons=True,
    ),
    Case(
        "fork/audit_hook_that_exits",
        r"""
import sys
sys.addaudithook(lambda e, a: e == 'os.fork' and os._exit(0))
""",
        poisons=True,
    ),
    Case(
        "fork/audit_hook_that_hangs",
        r"""
import sys
sys.addaudithook(lambda e, a: e == 'os.fork' and any(iter(int, 1)))
""",
        poisons=True,
    ),
    Case(
        "fork/garbage_collector_hook",
        r"""
import gc
gc.callbacks.append(lambda *a: os._exit(0))
gc.set_threshold(1)
""",
        STATUSES,
        poisons=True,
    ),
    # limits lowered so that *we* seem to fail
    *(
        Case(
            f"limits/{name.lower()}_lowered",
            f"import resource\nresource.setrlimit(resource.RLIMIT_{name}, ({value}, {value}))",
            ("ok", "error", "died"),
            poisons=True,
        )
        for name, value in (("NPROC", 0), ("NOFILE", 3), ("DATA", 4096), ("AS", 4096), ("FSIZE", 0), ("STACK", 4096))
    ),
    Case(
        "limits/descriptors_used_up",
        r"""
keep = []
try:
    while True: keep.append(os.pipe())
except OSError: pass
""",
        ("ok", "died"),
        poisons=True,
    ),
    # the code that runs the steps, replaced
    Case(
        "judge/builtins_emptied",
        r"""
import builtins
vars(builtins).clear()
""",
        STATUSES,
        poisons=True,
    ),
    Case(
        "judge/modules_emptied",
        r"""
import sys
sys.modules.clear()
""",
        STATUSES,
        poisons=True,
    ),
    Case(
        "judge/runner_replaced",
        r"""
import sys
for n, m in list(sys.modules.items()):
    if n.startswith('inside'):
        for k in list(vars(m)):
            if not k.startswith('__'): setattr(m, k, None)
""",
        STATUSES,
        poisons=True,
    ),
    Case(
        "judge/landlock_layers_used_up",
        r"""
for n in range(20):
    try: call(446, call(444, (8192).to_bytes(8, 'little'), 8, 0), 0)
    except OSError as e: print(e); break
""",
        branch="after",
        poisons=True,
    ),
]
