"""Attacks on the supervisor through the socket on which a step reports, and forged verdicts."""

from __future__ import annotations

from sandbox_cases import STATUSES, Case

# `s`: the step's socket; `say(body)`: one frame on it
_SOCKET = """
import json, pickle, socket, stat, struct, threading, time
for fd in range(3, 256):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode): s = socket.socket(fileno=os.dup(fd)); break
    except OSError: pass
OK = {'status': 'ok', 'value': None, 'error': None, 'tampered': []}
def say(body): s.sendall(struct.pack('!I', len(body)) + body)
"""
_FORGED = {
    "pickle": "say(pickle.dumps(os.getcwd))",
    "huge_length": "s.sendall(b'\\xff' * 8)",
    "length_never_met": "s.sendall(struct.pack('!I', 1000) + b'{')\ntime.sleep(600)",
    "deep": "say(b'[' * 100000)",
    "deep_object": "say(b'{\"a\":' * 50000)",
    "not_utf8": "say(b'\\xff\\xfe{}')",
    "list": "say(b'[]')",
    "empty_object": "say(b'{}')",
    "huge_number": "say(b'{\"status\": ' + b'9' * 10**5 + b'}')",
    "not_a_number": 'say(b\'{"status": NaN, "value": Infinity}\')',
    "wrong_types": "say(json.dumps({'status': ['ok'], 'value': 5, 'error': {}, 'tampered': 'x'}).encode())",
    "infra_error": "say(json.dumps({**OK, 'status': 'infra_error'}).encode())",
    "cause": "say(json.dumps({**OK, 'cause': 'gone'}).encode())",
    "surrogates": 'say(b\'{"status": "ok", "value": "\\\\ud800", "error": null, "tampered": ["\\\\udfff"]}\')',
    "tampered_of_all_kinds": "say(json.dumps({**OK, 'tampered': [[], {}, None, 'x' * 999] * 99}).encode())",
    "many_frames": 'for _ in range(1000): say(b\'{"status": "ok", "value": "first", "error": null, "tampered": []}\')',
    "byte_by_byte": "s.sendall(struct.pack('!I', 999))\nfor _ in range(400): s.sendall(b' '); time.sleep(0.01)",
    "descriptors": "fds = [os.dup(1) for _ in range(100)]\nfor _ in range(50):\n    socket.send_fds(s, [b' '], fds)",
    "hello_and_failed": "s.sendall(struct.pack('!I', 2) + b'{}' + struct.pack('!I', 2) + b'[]')",
    "shut_down": "s.shutdown(socket.SHUT_RDWR)",
    "half_shut": "s.shutdown(socket.SHUT_RD)",
}

PROTOCOL = [
    *(Case(f"protocol/{name}", _SOCKET + attack, STATUSES, poisons=True) for name, attack in _FORGED.items()),
    Case(
        "protocol/thread_takes_later_requests",
        _SOCKET + "def go():\n    while True: socket.recv_fds(s, 4, 4)\nthreading.Thread(target=go).start()",
        STATUSES,
        poisons=True,
    ),
    Case(
        "protocol/thread_answers_for_later_steps",
        _SOCKET + "def go():\n    while True:\n        time.sleep(0.05)\n"
        '        say(b\'{"status": "ok", "value": "forged", "error": null, "tampered": []}\')\n'
        "threading.Thread(target=go).start()",
    ),
    Case(
        "protocol/child_answers_for_later_steps",
        _SOCKET + "if os.fork() == 0:\n    while True:\n        time.sleep(0.05)\n"
        '        say(b\'{"status": "ok", "value": "forged", "error": null, "tampered": []}\')',
    ),
    Case(
        "protocol/report_without_an_end_of_the_step",
        _SOCKET + 'say(b\'{"status": "ok", "value": "early", "error": null, "tampered": []}\')\ntime.sleep(600)',
        STATUSES,
        poisons=True,
    ),
    Case(
        "protocol/flood_of_reports",
        _SOCKET + "while True: s.sendall(b'{\"a\":' * 10000)",
        STATUSES,
        poisons=True,
    ),
    Case(
        "protocol/code_that_is_not_text",
        "x = '\udfff\x00'",
        ("error",),
    ),
]
