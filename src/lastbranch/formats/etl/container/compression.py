"""Compression to plain LZXPRESS, for the writer. `decompression` describes the format and names its source.

zlib finds the repetitions: its window is as small as that of LZXPRESS. NumPy then rewrites zlib's tokens as LZXPRESS.
zlib uses the fixed codes of DEFLATE (RFC 1951, 3.2.6), in which the bits at any position give the size of a token that
begins there. NumPy computes these sizes for all positions at once; only the step from token to token is a loop.

Any reader can read the output: no match needs the u32 length.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .... import native

__all__ = ["compress"]


WINDOW = 1 << 13  # [MS-XCA] 2.3.4: a distance has 13 bits
MIN_MATCH = 3
_PIECE = 1 << 16  # bytes per call of zlib: no match becomes longer than a u16 allows
_LEVEL = 3  # of zlib: higher ones take longer than they save
_MEMORY = 9  # memLevel: blocks of 32,768 tokens
_GROUP = 32  # tokens to a flag word
_PAD = 8
_SPARE = 32  # for the last flag words and a whole token

# -- The fixed codes of DEFLATE
_END = 256
_LENGTH_BITS = (*[0] * 8, *(bits for bits in range(1, 6) for _ in range(4)))  # of 257 to 284; 285 is 258 bytes
_DISTANCE_BITS = (0, 0, *(bits for bits in range(12) for _ in range(2)))  # of 0 to 25: up to 8,192
_LONGEST = 258
_STORED, _FIXED = 0, 1  # types of blocks
_WIDEST = 9  # bits of a code
_LITERAL = 0x20  # in `_Codes.first`: no distance follows
_BITS = np.arange(8, dtype=np.uint32)

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Tokens = tuple[Ints, Ints]
"""Length and distance of each token, in order; literals have the length 0."""


class _Codes(NamedTuple):
    """Tables by the next 9 bits of a stream, and by the next 5, which are those of a distance."""

    first: Bytes
    """Bits of the literal or length, including those after its code, and `_LITERAL`."""
    code_bits: Words
    length: Ints
    length_mask: Words
    second: Bytes
    """Bits of the distance, by its code; 0 with `_LITERAL`."""
    distance: Ints
    distance_mask: Words


def compress(data: bytes | bytearray | memoryview) -> bytes:
    """``data`` as one plain LZXPRESS stream, which does not contain the length of ``data``."""
    data = bytes(data)
    if not data:
        return b"\xff\xff\xff\xff"
    packed = [_deflate(data, begin) for begin in range(0, len(data), _PIECE)]
    return _compress_natively(data, packed) or _in_numpy(data, packed)


def _compress_natively(data: bytes, packed: list[bytes]) -> bytes | None:
    """The stream, ``None`` without the library and where it does not know what zlib wrote."""
    library = native.library()
    if library is None:
        return None
    ends = np.cumsum([len(part) for part in packed], dtype=np.int64)
    out = np.empty(len(data) + len(data) // _GROUP * 4 + _SPARE, np.uint8)  # a match is not longer than its data
    into = native.address(ends), native.address(out), len(out)
    length = library.lb_compress_xpress(data, len(data), _PIECE, b"".join(packed), *into)
    return None if length < 0 else out[:length].tobytes()


def _in_numpy(data: bytes, packed: list[bytes]) -> bytes:
    pieces = [_tokens(data, index * _PIECE, part) for index, part in enumerate(packed)]
    lengths, distances = (np.concatenate(part) for part in zip(*pieces, strict=True))
    return _stream(np.frombuffer(data, np.uint8), lengths, distances)


# -- What zlib finds


def _deflate(data: bytes, begin: int) -> bytes:
    """The DEFLATE stream of the piece of ``data`` at ``begin``, with what comes before it as the dictionary."""
    before = data[max(0, begin - WINDOW) : begin] or b"\0"  # zlib finds no match that begins at its first byte
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -13, _MEMORY, zlib.Z_FIXED, before)
    return deflate.compress(data[begin : begin + _PIECE]) + deflate.flush()


def _tokens(data: bytes, begin: int, packed: bytes) -> Tokens:
    """The tokens of the piece at ``begin``, by its DEFLATE stream."""
    length = min(_PIECE, len(data) - begin)
    if len(packed) >= length:
        return _literals(length)
    lengths, distances = _read_deflate(packed)
    ends, reach = np.cumsum(np.maximum(lengths, 1)), np.where(lengths > 0, distances, 0)
    if not len(ends) or ends[-1] != length or (reach > begin + ends - lengths).any():  # another zlib than expected
        return _literals(length)
    return _join_matches(data, begin + ends, lengths, distances)


def _literals(number: int) -> Tokens:
    return np.zeros(number, np.int64), np.ones(number, np.int64)


def _read_deflate(packed: bytes) -> Tokens:
    """The tokens of a DEFLATE stream, up to the first block with codes of its own."""
    padded = packed + bytes(_PAD)
    sizes = _sizes(padded)
    token = bytearray(len(sizes))  # whether one begins at a bit
    parts: list[Tokens] = []
    at, last = 0, 0
    while not last:
        head = (padded[at >> 3] | padded[(at >> 3) + 1] << 8) >> (at & 7)
        last, kind = head & 1, head >> 1 & 3
        at += 3
        if kind == _FIXED:
            begin = at
            while size := sizes[at]:
                token[at] = 1
                at += size
            places = begin + np.flatnonzero(np.frombuffer(token, np.uint8, at - begin, begin))
            parts.append(_values(padded, places))
            at += 7  # the code of `_END`
        elif kind == _STORED:
            begin = (at + 7) >> 3
            number = int.from_bytes(padded[begin : begin + 2], "little")
            parts.append(_literals(number))
            at = (begin + 4 + number) << 3
        else:
            break
    lengths, distances = zip(*parts, strict=True) if parts else ((), ())
    none = np.empty(0, np.int64)
    return np.concatenate([none, *lengths]), np.concatenate([none, *distances])


def _sizes(padded: bytes) -> bytes:
    """The bits of the token that would begin at each bit of the stream, 0 for `_END`."""
    codes = _codes()
    words: NDArray[np.uint32] = np.ndarray((len(padded) - 4,), "<u4", padded, 0, (1,))
    bits = (words[:, None] >> _BITS).ravel()
    first = codes.first.take(bits & ((1 << _WIDEST) - 1))
    literal = first & _LITERAL
    first -= literal
    bits >>= first
    bits &= 31
    bits |= literal
    first += codes.second.take(bits)
    return first.tobytes()


def _values(padded: bytes, places: Ints) -> Tokens:
    """The tokens that begin at bits ``places``."""
    codes = _codes()
    words: Words = np.ndarray((len(padded) - 7,), "<u8", padded, 0, (1,))
    bits = words.take(places >> 3) >> (places & 7).astype(np.uint64)
    code = (bits & np.uint64((1 << _WIDEST) - 1)).view(np.int64)
    after = bits >> codes.code_bits.take(code)
    length = codes.length.take(code) + (after & codes.length_mask.take(code)).view(np.int64)
    after = bits >> (codes.first.take(code) & 31).astype(np.uint64)
    code = (after & np.uint64(31)).view(np.int64)
    return length, codes.distance.take(code) + (after >> np.uint64(5) & codes.distance_mask.take(code)).view(np.int64)


def _join_matches(data: bytes, ends: Ints, lengths: Ints, distances: Ints) -> Tokens:
    """Joins matches of the longest length of DEFLATE with their continuations. ``ends`` are places in ``data``."""
    full = lengths == _LONGEST
    following = np.flatnonzero(full[:-1] & (lengths[1:] > 0)) + 1
    if not len(following):
        return lengths, distances
    begins = np.ones(len(lengths), bool)
    for i in following.tolist():  # zlib may have gone on with another distance
        end, length, distance = int(ends[i]), int(lengths[i]), int(distances[i - 1])
        if data[end - length : end] == data[end - length - distance : end - distance]:
            distances[i], begins[i] = distance, False
    first = np.flatnonzero(begins)
    return np.add.reduceat(lengths, first), distances[first]


@cache
def _codes() -> _Codes:
    first, second = np.full(1 << _WIDEST, _LITERAL, np.uint8), np.zeros(2 * _LITERAL, np.uint8)
    code_bits, length_mask = np.zeros((2, 1 << _WIDEST), np.uint64)
    length, distance, distance_mask = np.zeros(1 << _WIDEST, np.int64), np.ones(32, np.int64), np.zeros(32, np.uint64)
    lengths = [*zip(_steps(_LENGTH_BITS, MIN_MATCH), _LENGTH_BITS, strict=True), (_LONGEST, 0)]
    for symbol in range(_END + 1 + len(lengths)):
        code, bits = _fixed_code(symbol)
        places = slice(_reverse_bits(code, bits), None, 1 << bits)
        code_bits[places] = bits
        if symbol < _END:
            first[places] = bits | _LITERAL
        elif symbol > _END:
            base, more = lengths[symbol - _END - 1]
            first[places], length[places], length_mask[places] = bits + more, base, (1 << more) - 1
    for code, (base, more) in enumerate(zip(_steps(_DISTANCE_BITS, 1), _DISTANCE_BITS, strict=True)):
        place = _reverse_bits(code, 5)
        second[place], distance[place], distance_mask[place] = 5 + more, base, (1 << more) - 1
    return _Codes(first, code_bits, length, length_mask, second, distance, distance_mask)


def _steps(bits: tuple[int, ...], base: int) -> list[int]:
    """The value that each code begins at."""
    return [base + sum(1 << more for more in bits[:i]) for i in range(len(bits))]


def _fixed_code(symbol: int) -> tuple[int, int]:
    """Code and number of bits of a literal or length."""
    for past, base, bits in ((144, 0x30, 8), (256, 0x190 - 144, 9), (280, -256, 7)):
        if symbol < past:
            return symbol + base, bits
    return symbol - 280 + 0xC0, 8


def _reverse_bits(code: int, bits: int) -> int:
    """As in a stream: codes begin with their highest bit, everything else with its lowest."""
    return int(f"{code:0{bits}b}"[::-1], 2)


# -- What LZXPRESS writes


def _stream(raw: Bytes, lengths: Ints, distances: Ints) -> bytes:
    """The tokens as bytes: flag words, literals, matches followed by the rest of their lengths."""
    number = len(lengths)
    match = lengths > 0
    advance = np.maximum(lengths, 1)
    places = np.cumsum(advance) - advance
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
    after = begin + 2 + opens
    out[after[more]] = np.minimum(rest[more] - 22, 255)
    _put16(out, after[most] + 1, rest[most])
    flags = np.ones(groups * _GROUP, np.uint8)
    flags[:number] = match
    words = np.packbits(flags).reshape(groups, 4)[:, ::-1]  # the first token is the highest bit
    firsts = np.append(begin[::_GROUP] - 4, len(out) - 4)[:groups]
    out[firsts[:, None] + np.arange(4)] = words
    return out.tobytes()


def _put16(out: Bytes, at: Ints, values: Ints) -> None:
    out[at], out[at + 1] = values & 0xFF, values >> 8
