"""Frames, kept output and data files: the parts that meet hostile bytes."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapm_rl.sandbox.inside.notebook import shorten
from datapm_rl.sandbox.inside.wire import FrameReader, ProtocolError
from datapm_rl.sandbox.output import OutputBuffer

pytestmark = pytest.mark.unit


def frame(message) -> bytes:
    body = json.dumps(message).encode("ascii")
    return struct.pack("!I", len(body)) + body


@given(st.lists(st.dictionaries(st.text(), st.text(), max_size=3), max_size=4), st.integers(1, 7))
def test_frames_survive_being_cut_anywhere(messages, size):
    data = b"".join(map(frame, messages))
    reader = FrameReader(max_bytes=1 << 20)
    received = []
    for start in range(0, len(data), size):
        received += reader.feed(data[start : start + size])
    assert received == messages


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error_or_nothing_never_another_exception(data):
    try:
        frames = FrameReader(max_bytes=1000).feed(data)
    except ProtocolError:
        return
    assert all(isinstance(message, dict) for message in frames)


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff\xfe", b"[]", b"null", b"{", b'{"a": 1}x'])
def test_bodies_that_are_no_json_object_are_protocol_errors(body):
    with pytest.raises(ProtocolError):
        FrameReader(max_bytes=1 << 20).feed(struct.pack("!I", len(body)) + body)


def test_a_frame_that_claims_to_be_huge_is_refused_before_it_is_stored():
    with pytest.raises(ProtocolError):
        FrameReader(max_bytes=1000).feed(struct.pack("!I", 1001))


@given(st.lists(st.binary(max_size=50)), st.integers(2, 40).map(lambda half: 2 * half))
def test_output_keeps_its_beginning_and_end(chunks, keep):
    data = b"".join(chunks).hex().encode()
    buffer = OutputBuffer(keep)
    for start in range(0, len(data), 7):
        buffer.feed(data[start : start + 7])
    text = buffer.text()
    assert buffer.total == len(data)
    if len(data) <= keep:
        assert text == data.decode()
    else:
        assert text.startswith(data[: keep // 2].decode())
        assert text.endswith(data[-keep // 2 :].decode())
        assert f"[{len(data) - keep} bytes dropped]" in text


def test_output_is_kept_in_constant_memory():
    buffer = OutputBuffer(keep=100)
    for _ in range(1000):
        buffer.feed(b"x" * 10_000)
    assert len(buffer._tail) < 200_000


@given(st.text(max_size=100), st.integers(2, 50))
def test_a_shortened_text_says_how_much_is_gone(text, keep):
    short = shorten(text, keep)
    if len(text) <= keep:
        assert short == text
    else:
        assert f"[{len(text) - 2 * (keep // 2)} characters dropped]" in short
