"""What a step printed: the beginning and the end of it, whatever its length."""

from __future__ import annotations


class OutputBuffer:
    """Keeps the first and the last `keep // 2` bytes fed to it, in constant memory.

    >>> buffer = OutputBuffer(keep=4)
    >>> buffer.feed(b"abcdefgh")
    >>> buffer.text()
    'ab\\n... [4 bytes dropped] ...\\ngh'
    """

    def __init__(self, keep: int):
        self._half = max(1, keep // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 4 * self._half + (1 << 16):  # cut seldom: each cut moves the tail
            del self._tail[: -self._half]

    def text(self) -> str:
        """Decoded; bytes that are not UTF-8 become the replacement character."""
        tail = self._tail[-self._half :]
        dropped = self.total - len(self._head) - len(tail)
        middle = f"\n... [{dropped} bytes dropped] ...\n" if dropped else ""
        if not middle:
            return (self._head + tail).decode("utf-8", "replace")
        return self._head.decode("utf-8", "replace") + middle + tail.decode("utf-8", "replace")
