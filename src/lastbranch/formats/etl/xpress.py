"""Plain LZXPRESS ("plain LZ77"): the compression of ETW trace buffers.

Sources: [MS-XCA] 2.3 (compression) and 2.4 (decompression). A stream is a row of groups: a 32-bit little-endian flag
word, then 32 tokens, the first described by the word's highest bit. 0: one literal byte. 1: a match, u16
``(distance - 1) << 3 | length - 3``. A length field of 7 goes on in a half byte (the low half of a new byte, or the
high half of the byte that the long match before it opened), 15 there goes on in a byte, 255 there in a u16 that
replaces the sum so far, 0 there in a u32. The stream ends with the input; unused bits of the last flag word are 1.

Decoding goes in two gears. `_run` takes whole groups at full speed and checks only what cannot be seen afterwards; if
anything about a group is not plain (the input ends in it, too much output, a wrong or four-byte length), it goes back
to the group's start. From there `_walk` takes one token at a time, checks everything and says what is wrong where.

What was measured: keeping slice objects by match word and literal runs by flag byte saves 15 %. Tables of the input's
16-bit words made with NumPy save nothing. A NumPy lockstep over buffers was not built: its array calls alone came to
as much as this loop for 360 buffers, and more for fewer. No NumPy here, also for the start-up time of a worker.
"""

from __future__ import annotations

from lastbranch.errors import FormatError

__all__ = ["decompress"]

WINDOW = 1 << 13  # distances are 13 bits
MIN_MATCH = 3

# Slices of the output by match word, for matches of fewer than 10 bytes that do not overlap themselves; filled on
# first use, because filling all of it costs as much as decoding a megabyte.
_slices: list[slice | None] = [None] * 0x10000


class _Slices(dict[int, "slice | None"]):
    """The same for one block, as long as its window is not full."""

    def __missing__(self, word: int) -> None:
        return None


_Known = list["slice | None"] | _Slices


def _literal_runs(byte: int) -> tuple[tuple[int, ...], int]:
    """The number of literals before each match of eight flags, and the number after the last one."""
    *before, tail = (len(zeros) for zeros in f"{byte:08b}".split("1"))
    return tuple(before), tail


_RUNS = [_literal_runs(byte) for byte in range(256)]


class _Irregular(Exception):
    """Something in a group that only `_walk` can judge."""


def decompress(block: bytes | memoryview, size: int) -> bytes:
    """The ``size`` bytes that ``block`` stands for; FormatError (offset: within the block) if it is not that."""
    block = bytes(block)
    out = bytearray()
    pos, half = _run(block, size, out, 0, 0, _Slices(), WINDOW)
    if len(out) >= WINDOW:
        pos, half = _run(block, size, out, pos, half, _slices, size + 1)
    _walk(block, size, out, pos, half)
    if len(out) != size:
        raise FormatError(f"XPRESS data ends after {len(out)} of {size} bytes", offset=len(block))
    return bytes(out)


def _walk(block: bytes, size: int, out: bytearray, pos: int, half: int) -> None:
    """Decode from ``pos`` to the end of the input.

    ``half`` is 10 plus the half byte that waits for the next long match, or 0 if none does.
    """
    end = len(block)
    while pos < end:
        flags = int.from_bytes(_take(block, pos, 4), "little")
        pos += 4
        for bit in range(31, -1, -1):
            if pos == end:
                break
            start = pos
            if not flags >> bit & 1:
                if len(out) == size:
                    raise FormatError(f"XPRESS data decodes to more than {size} bytes", offset=start)
                out.append(block[pos])
                pos += 1
                continue
            word = int.from_bytes(_take(block, pos, 2), "little")
            pos += 2
            length, distance = (word & 7) + MIN_MATCH, (word >> 3) + 1
            if length == 10:
                if half:
                    length, half = half, 0
                else:
                    byte = _take(block, pos, 1)[0]
                    length, half = 10 + (byte & 15), 10 + (byte >> 4)
                    pos += 1
                if length == 25:
                    length, pos = _long_length(block, pos)
            if distance > len(out):
                raise FormatError(
                    "XPRESS match before the start of the data", offset=start, field="distance", value=distance
                )
            if len(out) + length > size:
                raise FormatError(f"XPRESS data decodes to more than {size} bytes", offset=start)
            _copy(out, distance, length)


def _long_length(block: bytes, pos: int) -> tuple[int, int]:
    """The length of a match whose half byte is 15, from ``pos`` on, and the position after it."""
    value, start = _take(block, pos, 1)[0], pos
    pos += 1
    if value != 255:
        return 25 + value, pos
    for width in (2, 4):
        value = int.from_bytes(_take(block, pos, width), "little")
        pos += width
        if value:
            break
    if value < 22:
        raise FormatError("XPRESS match length in the wrong form", offset=start, field="length", value=value)
    return value + MIN_MATCH, pos


def _take(block: bytes, pos: int, count: int) -> bytes:
    if pos + count > len(block):
        raise FormatError("XPRESS data is cut off", offset=pos)
    return block[pos : pos + count]


def _copy(out: bytearray, distance: int, length: int) -> None:
    """Append ``length`` bytes from ``distance`` back; a match may go on in the bytes that it makes itself."""
    if length < distance:
        out += out[-distance : length - distance]
    else:
        out += (out[-distance:] * (length // distance + 1))[:length]


def _run(block: bytes, size: int, out: bytearray, pos: int, half: int, known: _Known, stop: int) -> tuple[int, int]:
    """Decode whole groups until ``out`` holds ``stop`` bytes or a group is not plain; returns the state before it.

    A slice is stored in ``known`` only after its distance was checked, and ``out`` only grows: it stays good for the
    rest of the block, and for every block once the window is full.
    """
    runs_of, last = _RUNS, len(block) - 4
    group, produced, half_before = pos, len(out), half
    try:
        while pos <= last and produced < stop:
            pos += 4
            for flags in block[group:pos][::-1]:
                before, tail = runs_of[flags]
                for run in before:
                    if run:
                        end = pos + run
                        out += block[pos:end]
                        pos = end
                    word = block[pos] | block[pos + 1] << 8
                    pos += 2
                    piece = known[word]
                    if piece is not None:
                        out += out[piece]
                        continue
                    length = word & 7
                    distance = (word >> 3) + 1
                    if distance > len(out):
                        raise _Irregular
                    if length != 7:
                        length += 3
                        if length < distance:
                            known[word] = slice(-distance, length - distance)
                    else:
                        if half:
                            length = half
                            half = 0
                        else:
                            byte = block[pos]
                            length = 10 + (byte & 15)
                            half = 10 + (byte >> 4)
                            pos += 1
                        if length == 25:
                            length = 25 + block[pos]
                            pos += 1
                            if length == 280:
                                length = (block[pos] | block[pos + 1] << 8) + 3
                                pos += 2
                                if length < 25 or len(out) + length > size:
                                    raise _Irregular
                    if length < distance:
                        out += out[-distance : length - distance]
                    else:
                        out += (out[-distance:] * (length // distance + 1))[:length]
                if tail:
                    end = pos + tail
                    out += block[pos:end]
                    pos = end
            if pos > last + 4 or len(out) > size:
                raise _Irregular
            group, produced, half_before = pos, len(out), half
    except (_Irregular, IndexError):
        del out[produced:]
    return group, half_before
