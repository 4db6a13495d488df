"""The chain of records: the size of each says where the next begins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import native
from ...arrays import distinct
from ...errors import Damage, UnavailableError
from ...model import Limits, Source
from ..readahead import ReadAhead

if TYPE_CHECKING:
    from ctypes import CDLL

__all__ = ["AUXTRACE", "Block", "Inflater", "TRACING_DATA", "find_records", "first_of_each", "halves", "walk_blocks"]


TRACING_DATA, AUXTRACE, COMPRESSED, COMPRESSED2 = 66, 71, 81, 83
LONGEST = 1 << 16
"""Bytes of the longest record."""
_TRY_RUN = 16


_MOST_ODD, _MOST_PACKED, _PACKED_DISTANCE = 1_000, 20_000, 256


class OddRecords:
    """Counts records that are not whole words long, each of which costs a block of its own.

    Recorders write compressed ones, of a few hundred bytes at least, and hardly any other.
    """

    def __init__(self) -> None:
        self._packed = self._other = 0

    def too_many(self, kind: int, walked: int) -> bool:
        """Count one of type ``kind``: whether these are more than ``walked`` bytes can have."""
        if kind in (COMPRESSED, COMPRESSED2):
            self._packed += 1
        else:
            self._other += 1
        return self._other > _MOST_ODD or self._packed > _MOST_PACKED + walked // _PACKED_DISTANCE


@dataclass(slots=True)
class Block:
    """Whole records: ``words`` (uint64, host order) over the bytes ``raw``, which start at ``base`` of the file.

    ``at`` int64: word index of each record's header, ``types`` int64 its type. In a compressed file ``base`` counts
    decompressed bytes. The arrays are valid until the next block is requested.
    """

    words: NDArray[np.uint64]
    raw: NDArray[np.uint8]
    base: int
    at: NDArray[np.int64]
    types: NDArray[np.int64]
    big_endian: bool
    trailing_data: tuple[int, int] = (0, 0)
    """(offset in the file, bytes) of the data that follow the last record and belong to it: TRACING_DATA, AUXTRACE."""
    packed_at: int | None = None
    """Offset in the file of the compressed record that this comes from; ``None`` without compression."""

    @property
    def place(self) -> int:
        """Its offset in the file."""
        return self.base if self.packed_at is None else self.packed_at

    # perf_event_header {u32 type; u16 misc; u16 size} as one word: the first field is lowest in a little-endian one.
    def misc(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """``misc`` of the records at word positions ``at``."""
        return self.misc_of(self.words.take(at))

    def misc_of(self, heads: NDArray[np.uint64]) -> NDArray[np.int64]:
        """``misc`` of records with these headers."""
        return (heads >> np.uint64(16 if self.big_endian else 32)).astype(np.int64) & 0xFFFF

    def sizes(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of the records at word positions ``at``, headers included."""
        heads = self.words.take(at)
        return (heads & np.uint64(0xFFFF) if self.big_endian else heads >> np.uint64(48)).astype(np.int64)

    @property
    def first_size(self) -> int:
        """The size field at the start, of a record or not."""
        return int(self.sizes(np.zeros(1, np.int64))[0])

    def halves(self, words: NDArray[np.uint64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The two 32-bit fields of each word, in the order of the file."""
        return halves(words, self.big_endian)

    def body(self, at: int, size: int) -> bytes:
        """The record at word ``at`` without its header; ``size`` includes the header."""
        return self.raw[at * 8 + 8 : at * 8 + size].tobytes()


def halves(words: NDArray[np.uint64], big_endian: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The two 32-bit fields of each 64-bit word (in host order), in the order of the file."""
    low = words.astype(np.uint32).view(np.int32)
    high = (words >> np.uint64(32)).astype(np.uint32).view(np.int32)
    return (high, low) if big_endian else (low, high)


def find_records(words: NDArray[np.uint64], length: int, base: int, big_endian: bool) -> tuple[Block, int]:
    """(the whole records in the first ``length`` bytes of ``words``, the offset in the file after them).

    The records end with a record that leaves the 8-byte grid or that is followed by data.
    """
    raw = words.view(np.uint8)
    if big_endian:
        words = words.byteswap()
    library = native.library()
    if library is None:
        at, types = _find_in_numpy(words, length, big_endian)
    else:
        at, types = _find_compiled(library, words, length, big_endian)
    block = Block(words, raw, base, at, types, big_endian)
    return block, _skip_trailing_data(block)


_ROOM = 1 << 16
"""Records that the library finds in one call: hardly any block has more."""


def _find_compiled(
    library: CDLL, words: NDArray[np.uint64], length: int, big_endian: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The result of `_find_in_numpy`."""
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    words, rest = np.ascontiguousarray(words), np.zeros(1, np.int64)
    while not parts or rest[0] > 0:
        room = min(_ROOM, length >> 3)
        at, types = np.empty(room, np.int64), np.empty(room, np.int64)
        out = native.address(at), native.address(types), room, native.address(rest)
        n = library.lb_records_chase(native.address(words), length, big_endian, int(rest[0]), *out)
        parts.append((at[:n], types[:n]))
    if len(parts) == 1:
        return parts[0]
    ats, kinds = zip(*parts, strict=True)
    return np.concatenate(ats), np.concatenate(kinds)


def _find_in_numpy(
    words: NDArray[np.uint64], length: int, big_endian: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(word index, type) of the records of `find_records`, from words in the order of this machine.

    Records are linked by their sizes, so this is a loop; where sizes repeat, a strided look ahead checks many at once.
    """
    sizes = words.view(np.uint16)
    field = 0 if big_endian else 3  # which quarter of the first word is the record's size
    memory = memoryview(sizes)  # type: ignore[arg-type]
    parts: list[Any] = []
    at: list[int] = []
    append = at.append
    p, end, last, repeats = field, len(sizes), 0, 0
    while p < end:
        size = memory[p]
        if size < 8:
            break
        append(p)
        if size & 7:
            break
        p += size >> 1
        if size != last:
            last, repeats = size, 0
            continue
        repeats += 1
        if repeats == _TRY_RUN:
            run = sizes[p :: size >> 1] == size
            equal = len(run) if run.all() else int(run.argmin())
            if equal > _TRY_RUN:
                parts += [at, np.arange(p, p + equal * (size >> 1), size >> 1)]
                at = []
                append = at.append
                p += equal * (size >> 1)
            # else: do not look again before the size has changed
    starts = np.concatenate([np.asarray(part, np.int64) for part in (*parts, at)]) >> 2
    heads = words.take(starts)
    types = (heads >> np.uint64(32) if big_endian else heads & np.uint64(0xFFFFFFFF)).astype(np.int64)
    long = (heads & np.uint64(0xFFFF) if big_endian else heads >> np.uint64(48)).astype(np.int64)
    special = (long & 7 != 0) | (types == TRACING_DATA) | (types == AUXTRACE)
    i = int(special.argmax()) if special.any() else len(long) - 1
    if i >= 0 and starts[i] * 8 + long[i] > length:
        i -= 1  # cut off by the end of what was read
    return starts[: i + 1], types[: i + 1]


def _skip_trailing_data(block: Block) -> int:
    """Set ``trailing_data`` of ``block``, and return the offset in the file after them."""
    if len(block.at) == 0:
        return block.base
    at, size, kind = int(block.at[-1]), int(block.sizes(block.at[-1:])[0]), int(block.types[-1])
    more, start = 0, block.base + at * 8 + size
    if kind == AUXTRACE and size >= 16:
        more = int(block.words[at + 1])
    elif kind == TRACING_DATA and size >= 12:  # u32 size, padded to words; the record itself is padded by some
        more = int(block.halves(block.words[at + 1 : at + 2])[0][0]) & 0xFFFFFFFF
        more = (more + 7) & ~7
    block.trailing_data = (start, more)
    return start + more


# -- Compressed records: one zstd stream over all of them, whose output is records again


_ENOUGH = 4 << 20  # decompressed bytes that make a block
_SLICE = 2048  # compressed bytes at a time: a zstd block of 4 bytes can mean 128 KiB of zeros


class Inflater:
    """The state of the stream. ``grown`` counts decompressed bytes that have been delivered; ``walked`` is the offset
    in the file after what is being delivered."""

    def __init__(self, big_endian: bool, damage: list[Damage] | None, limits: Limits) -> None:
        self.big_endian, self.damage, self.limits = big_endian, damage, limits
        self._packed = self._expanded = 0
        self.pending = bytearray()
        self.grown = self.walked = 0
        self._stream: Any = None
        self._dead = False
        self._odd = OddRecords()

    def expand(self, block: Block, packed: NDArray[np.int64]) -> Iterator[Block]:
        """``block`` in pieces, each compressed record followed by the records that it holds."""
        types, sizes, done = block.types, block.sizes(block.at), 0
        for i in packed.tolist():
            at, size = int(block.at[i]), int(sizes[i])
            yield self._part(block, done, i + 1)
            done = i + 1
            body = block.body(at, size)
            if types[i] == COMPRESSED2:
                length = int(block.words[at + 1]) if size >= 16 else 0
                body = body[8 : 8 + length]
            offset = block.base + at * 8
            for piece in range(0, len(body), _SLICE):
                self._inflate(body[piece : piece + _SLICE], offset)
                over = self._expanded > self.limits.expanded(self._packed)
                if over or len(self.pending) >= _ENOUGH:
                    yield from self._drain(offset)
                if over and not self._dead:
                    self._fail(
                        f"{self._packed} compressed bytes expand beyond the budget of "
                        f"{self.limits.expanded(self._packed)}; the rest was not read",
                        offset,
                    )
            if i + 1 == len(types) or types[i + 1] != types[i]:
                yield from self._drain(offset)
        if done < len(block.at):
            rest = self._part(block, done, len(block.at))
            rest.trailing_data = block.trailing_data
            yield rest

    def finish(self, offset: int) -> None:
        if self.pending and not self._dead and self.damage is not None:
            self.damage.append(Damage("compressed data end inside a record", offset, lost=len(self.pending)))

    def _part(self, block: Block, lo: int, hi: int) -> Block:
        at, types = block.at[lo:hi], block.types[lo:hi]
        return Block(block.words, block.raw, block.base + self.grown, at, types, block.big_endian)

    def _inflate(self, data: bytes, offset: int) -> None:
        if self._dead:
            return
        try:
            import zstandard
        except ImportError as error:
            raise UnavailableError(
                "the records are compressed and the zstandard package is not installed",
                hint="pip install zstandard",
            ) from error
        self._packed += len(data)
        try:
            while data:
                if self._stream is None or self._stream.eof:
                    self._stream = zstandard.ZstdDecompressor().decompressobj()
                found = self._stream.decompress(data)
                self._expanded += len(found)
                self.pending += found
                data = self._stream.unused_data if self._stream.eof else b""
        except zstandard.ZstdError as error:
            self._fail(f"compressed data are damaged: {error}", offset)

    def _drain(self, offset: int) -> Iterator[Block]:
        """The whole records in ``pending`` as blocks; what is left waits for more."""
        room = _ENOUGH
        while len(self.pending) >= 8 and not self._dead:
            piece = bytes(self.pending[:room])
            words = np.frombuffer(piece + bytes(-len(piece) % 8), np.uint64)
            block, following = find_records(words, len(piece), offset + self.grown, self.big_endian)
            following -= block.base
            block.packed_at = offset
            if len(block.at) == 0:
                if block.first_size < 8:
                    self._fail("compressed record of impossible size", offset, "size", block.first_size)
                return
            self.grown += following
            odd = following & 7 != 0 and self._odd.too_many(int(block.types[-1]), self.grown)
            yield block
            if odd or following > len(self.pending):
                self._fail("compressed record of impossible size", offset, "size", int(block.sizes(block.at[-1:])[0]))
                return
            del self.pending[:following]
            room = 2 * LONGEST if following & 7 else _ENOUGH

    def _fail(self, reason: str, offset: int, field: str | None = None, value: object = None) -> None:
        self._dead = True
        if self.damage is not None:
            self.damage.append(Damage(reason, offset, field, value, len(self.pending)))
        self.pending.clear()


# -- Equal records in a block, each of which is handled once


_LONGEST = 64
"""Words of the longest record that is compared: a block holds few of longer ones."""
_FACTORS = np.frombuffer(os.urandom(8 * _LONGEST), np.uint64) | np.uint64(1)
"""Random factors: no file can be made in which different records have the same sum."""


def first_of_each(block: Block, at: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """For the records at word positions ``at`` of ``sizes`` bytes: index of the first one that has the same bytes."""
    first = np.arange(len(at))
    for size in distinct(sizes[(sizes & 7 == 0) & (sizes <= 8 * _LONGEST)]).tolist():
        mine = np.flatnonzero(sizes == size)
        if len(mine) == 1:
            continue
        columns = [block.words.take(at[mine] + word) for word in range(size >> 3)]
        mixed = sum((c * f for c, f in zip(columns, _FACTORS, strict=False)), np.zeros(len(mine), np.uint64))
        _, one, back = np.unique(mixed, return_index=True, return_inverse=True)
        same = one[back]
        for column in columns:  # what only has the same sum is not the same
            same = np.where(column == column[same], same, np.arange(len(mine)))
        first[mine] = mine[same]
    return first


# -- The record walk: a data section as blocks of whole records, decompressed where it is compressed


BLOCK_BYTES = 4 << 20
"""How much is read at once."""


def walk_blocks(
    source: Source,
    start: int,
    end: int,
    big_endian: bool,
    damage: list[Damage] | None = None,
    inflater: Inflater | None = None,
) -> Iterator[Block]:
    """Blocks of the records in bytes ``start:end`` of ``source``, in file order. An ``inflater`` goes on with the
    stream of the walk before, which ended where this one starts.

    If the chain of records breaks, all records before the place have been delivered, the place goes to ``damage`` and
    the walk ends: the start of the next record cannot be found. Raises `UnavailableError` where records are compressed
    and zstandard is not installed.
    """
    stream = inflater or Inflater(big_endian, damage, source.limits)
    ahead = ReadAhead(source, BLOCK_BYTES, pad=16)
    offset, length, odd, readable = start, BLOCK_BYTES, OddRecords(), min(end, source.size)
    while offset < end:
        got = ahead.fill(offset, max(0, min(length, readable - offset)), readable)
        if got & 7:  # the end of the file: what is left of the last word is zero
            ahead.data[got : got + 7] = bytes(7)
        words = np.frombuffer(ahead.data, np.uint64, (got + 7) >> 3)
        block, following = find_records(words, got, offset, big_endian)
        if len(block.at) == 0:
            _note_break(damage, block, got, end, source.size)
            return
        last, whole = block.types[-1], (following - offset) & 7 == 0
        packed = np.flatnonzero((block.types == COMPRESSED) | (block.types == COMPRESSED2))
        stream.walked = following
        if len(packed) or stream.grown:
            yield from stream.expand(block, packed)
        else:
            yield block
        # Compressed records are not whole words long, and each starts a block of its own: do not read much.
        length = BLOCK_BYTES if whole else 2 * LONGEST
        offset = following
        if not whole and odd.too_many(int(last), offset - start):
            _note(damage, "too many records of odd size", offset, end)
            return
    if inflater is None:
        stream.finish(offset)
    if offset > end:
        _note(damage, "data section ends inside the data of a record", end, end)


def _note_break(damage: list[Damage] | None, block: Block, got: int, end: int, size: int) -> None:
    """Say why no record starts at ``block``, of which ``got`` bytes could be read in a file of ``size`` bytes."""
    if got < 8:
        reason = "data section ends inside a record" if got else "file ends before the end of its data section"
        _note(damage, reason, min(block.base, size), end)  # the padding after a record may be what is missing
    elif block.first_size < 8:
        if damage is not None:
            lost = max(0, end - block.base)
            damage.append(Damage("record of impossible size", block.base + 6, "size", block.first_size, lost))
    else:
        _note(damage, "file ends inside a record", block.base, end, block.first_size)


def _note(damage: list[Damage] | None, reason: str, offset: int, end: int, size: int | None = None) -> None:
    if damage is not None:
        damage.append(Damage(reason, offset, None if size is None else "size", size, max(0, end - offset)))
