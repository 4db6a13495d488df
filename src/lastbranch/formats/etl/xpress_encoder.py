"""Compression to plain LZXPRESS, for the writer. Format and source: see `lastbranch.formats.etl.xpress`.

All in bulk: for every place of a piece of the data the newest earlier place with the same hash of its next bytes is
found by sorting, once for few and once for more bytes, and how far both agree is measured eight bytes at a time. Only
the greedy parse over these lengths goes from token to token. What it writes needs no reader newer than the first:
matches are cut before they need the u32 length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["compress"]

WINDOW = 1 << 13  # [MS-XCA] 2.3.4: a distance has 13 bits
MIN_MATCH = 3
MAX_MATCH = 0xFFFF + MIN_MATCH
_PIECE = 1 << 17  # what is searched at once: a sort that stays in the caches; pieces overlap by a window
_WIDTHS = (6, 3)  # bytes that are hashed
_GOOD = 16  # long enough not to look for a better one
_MEASURED = 32  # of longer matches the rest is compared when they are taken
_GROUP = 32  # tokens to a flag word
_HASH = np.uint64(0x9E3779B97F4A7C15)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BYTE_OF = np.zeros(64, np.int64)  # which byte a lone bit is in, by its product with the de Bruijn number
for _bit in range(64):
    _BYTE_OF[(int(_DE_BRUIJN) << _bit & (1 << 64) - 1) >> 58] = _bit >> 3
_PAD = 8

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]


def compress(data: bytes | bytearray | memoryview) -> bytes:
    """``data`` as one plain LZXPRESS stream; its length is not in the stream and must be kept elsewhere."""
    data = bytes(data)
    if not data:
        return b"\xff\xff\xff\xff"
    places, distances, lengths = _parse(data, *_matches(data))
    return _stream(np.frombuffer(data, np.uint8), places, distances, lengths)


def _matches(data: bytes) -> tuple[Ints, Ints]:
    """(distance, length) of the longer match at each place, up to `_MEASURED` bytes or a few more; length 0: none."""
    number = len(data)
    raw = np.frombuffer(data + bytes(_PAD), np.uint8)
    words = np.zeros(number, np.uint64)
    for i in range(8):
        words |= raw[i : number + i].astype(np.uint64) << np.uint64(8 * i)
    distance, length = np.zeros(number, np.int64), np.zeros(number, np.int64)
    for begin in range(0, number, _PIECE):
        first, end = max(0, begin - WINDOW), min(begin + _PIECE, number)
        for width in _WIDTHS:
            at = np.arange(begin, end)
            source = _newest(words[first:end], width)[begin - first :] + first
            near = (source >= first) & (at - source <= WINDOW)
            if width != _WIDTHS[0]:
                near &= (length[begin:end] < _GOOD) & (at - source != distance[begin:end])
            at, source = at[near], source[near]
            same = _common(words, at, source)
            better = same > length[at]
            length[at[better]], distance[at[better]] = same[better], (at - source)[better]
    np.minimum(length, np.arange(number, 0, -1), out=length)
    length[length < MIN_MATCH] = 0
    return distance, length


def _newest(words: Words, width: int) -> Ints:
    """For each place the newest one before it whose next ``width`` bytes have the same hash; far below 0: none."""
    hashed = ((words << np.uint64(64 - 8 * width)) * _HASH >> np.uint64(48)).astype(np.uint16)
    order = np.argsort(hashed, kind="stable")  # 16 bits are sorted by counting
    found = np.full(len(words), -(1 << 40), np.int64)
    ordered = hashed[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    found[order[same + 1]] = order[same]
    return found


def _common(words: Words, at: Ints, source: Ints) -> Ints:
    """How many bytes agree from ``at`` and from ``source`` on; past the end of the data there are zeros."""
    length = np.zeros(len(at), np.int64)
    going = np.arange(len(at))
    last = len(words) - 1
    for done in range(0, _MEASURED, 8):
        differ = words[np.minimum(at[going] + done, last)] ^ words[np.minimum(source[going] + done, last)]
        low = differ & (~differ + np.uint64(1))
        length[going] += np.where(differ == 0, 8, _BYTE_OF[low * _DE_BRUIJN >> np.uint64(58)])
        going = going[(differ == 0) & (at[going] + done + 8 <= last)]
        if not len(going):
            break
    return length


def _parse(data: bytes, distance: Ints, length: Ints) -> tuple[Ints, Ints, Ints]:
    """Place, distance and length of each token, in order; literals have the length 0."""
    steps, far = length.tolist(), distance
    places: list[int] = []
    longer: dict[int, int] = {}
    at, end = 0, len(data)
    while at < end:
        places.append(at)
        step = steps[at]
        if step >= _MEASURED:
            step = longer[at] = _extended(data, at - int(far[at]), at, step)
        at += step or 1
    where = np.array(places, np.int64)
    lengths = length[where]
    if longer:
        lengths[np.searchsorted(where, list(longer))] = list(longer.values())
    return where, distance[where], lengths


def _extended(data: bytes, left: int, right: int, known: int) -> int:
    """How many bytes from ``left`` and from ``right`` on are equal, ``known`` for sure, at most MAX_MATCH."""
    most, step = min(len(data) - right, MAX_MATCH), 64
    while known < most:
        count = min(step, most - known)
        if data[left + known : left + known + count] == data[right + known : right + known + count]:
            known, step = known + count, step * 2
        elif count == 1:
            break
        else:
            step = count // 2
    return known


def _stream(raw: Bytes, places: Ints, distances: Ints, lengths: Ints) -> bytes:
    """The tokens as bytes: flag words, literals, matches with what their lengths need behind them."""
    number = len(places)
    match = lengths > 0
    rest = np.where(match, lengths - MIN_MATCH, 0)
    long = match & (rest >= 7)
    rank = np.cumsum(long) - 1
    opens = long & (rank % 2 == 0)  # two long matches share a byte, the second one has its high half
    more, most = match & (rest >= 22), match & (rest >= 22 + 255)
    size = np.where(match, 2, 1) + opens + more + 2 * most
    ends = np.cumsum(size) + 4 * (np.arange(number) // _GROUP + 1)
    begin = ends - size
    groups = number // _GROUP + 1  # a full last group is followed by an empty one
    out = np.zeros(int(ends[-1]) + (4 if number % _GROUP == 0 else 0), np.uint8)
    out[begin[~match]] = raw[places[~match]]
    head = (distances - 1 << 3) | np.minimum(rest, 7)
    _put16(out, begin[match], head[match])
    half = begin[opens] + 2
    nibble = np.minimum(rest[long] - 7, 15).astype(np.uint8)
    out[half] = nibble[0::2]
    out[half[: len(nibble) // 2]] |= nibble[1::2] << 4
    behind = begin + 2 + opens
    out[behind[more]] = np.minimum(rest[more] - 22, 255)
    _put16(out, behind[most] + 1, rest[most])
    flags = np.ones(groups * _GROUP, np.uint8)
    flags[:number] = match
    words = np.packbits(flags).reshape(groups, 4)[:, ::-1]  # the first token is the highest bit
    firsts = np.append(begin[::_GROUP] - 4, len(out) - 4)[:groups]
    out[firsts[:, None] + np.arange(4)] = words
    return out.tobytes()


def _put16(out: Bytes, at: Ints, values: Ints) -> None:
    out[at], out[at + 1] = values & 0xFF, values >> 8
