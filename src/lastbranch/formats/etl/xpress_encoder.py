"""Compression to plain LZXPRESS, for the writer. Format and source: see `lastbranch.formats.etl.xpress`.

Greedy: at each place the two newest earlier places with the same three bytes are tried and the longer match is taken.
What it writes needs no reader newer than the first: matches are cut before they need the u32 length.
"""

from __future__ import annotations

__all__ = ["compress"]

WINDOW = 1 << 13  # [MS-XCA] 2.3.4: a distance has 13 bits
MIN_MATCH = 3
MAX_MATCH = 0xFFFF + MIN_MATCH
GOOD_MATCH = 32  # long enough not to look for a better one
SPARSE_FROM = 64  # of longer matches only some places are remembered: rows of equal bytes would cost a dict entry each


def compress(data: bytes | bytearray | memoryview) -> bytes:
    """``data`` as one plain LZXPRESS stream; its length is not in the stream and must be kept elsewhere."""
    data = bytes(data)
    out = _Tokens()
    newest: dict[bytes, int] = {}
    older: dict[int, int] = {}  # the place of the same three bytes before this one
    at, end = 0, len(data)
    while at < end:
        key = data[at : at + MIN_MATCH]
        best, source = 0, 0
        candidate = newest.get(key, -1) if len(key) == MIN_MATCH else -1
        for _ in range(2):
            if candidate < 0 or at - candidate > WINDOW or best >= GOOD_MATCH:
                break
            length = _common(data, candidate, at)
            if length > best:
                best, source = length, candidate
            candidate = older.get(candidate, -1)
        if best:
            out.match(at - source, best)
        else:
            out.literal(data[at])
        step = 1 if best < SPARSE_FROM else 16
        for place in range(at, at + max(best, 1), step):
            key = data[place : place + MIN_MATCH]
            before = newest.get(key)
            if before is not None:
                older[place] = before
            newest[key] = place
        at += max(best, 1)
    return out.finish()


def _common(data: bytes, left: int, right: int) -> int:
    """How many bytes from ``left`` and from ``right`` on are equal, at most MAX_MATCH."""
    most = min(len(data) - right, MAX_MATCH)
    known, step = MIN_MATCH, 16
    while known < most:
        count = min(step, most - known)
        if data[left + known : left + known + count] == data[right + known : right + known + count]:
            known, step = known + count, step * 2
        elif count == 1:
            break
        else:
            step = count // 2
    return known


class _Tokens:
    """The stream under construction: tokens are appended, flag words filled in behind."""

    def __init__(self) -> None:
        self.out = bytearray(4)
        self.word_at = 0
        self.flags = 0
        self.count = 0
        self.half_at: int | None = None  # a length byte whose high half is still free

    def literal(self, byte: int) -> None:
        self.out.append(byte)
        self._flag(0)

    def match(self, distance: int, length: int) -> None:
        rest = length - MIN_MATCH
        self.out += ((distance - 1) << 3 | min(rest, 7)).to_bytes(2, "little")
        if rest >= 7:
            self._half(min(rest - 7, 15))
            if rest >= 22:
                self.out.append(min(rest - 22, 255))
                if rest >= 22 + 255:
                    self.out += rest.to_bytes(2, "little")
        self._flag(1)

    def finish(self) -> bytes:
        left = 32 - self.count
        self._store(self.flags << left | (1 << left) - 1)
        return bytes(self.out)

    def _half(self, value: int) -> None:
        if self.half_at is None:
            self.half_at = len(self.out)
            self.out.append(value)
        else:
            self.out[self.half_at] |= value << 4
            self.half_at = None

    def _flag(self, bit: int) -> None:
        self.flags = self.flags << 1 | bit
        self.count += 1
        if self.count == 32:
            self._store(self.flags)
            self.word_at, self.flags, self.count = len(self.out), 0, 0
            self.out += bytes(4)

    def _store(self, flags: int) -> None:
        self.out[self.word_at : self.word_at + 4] = flags.to_bytes(4, "little")
