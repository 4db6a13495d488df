"""The record walk: a data section as blocks of whole records, decompressed where it is compressed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage, UnavailableError
from ...model import Source
from ..readahead import ReadAhead

__all__ = ["BLOCK_BYTES", "Block", "halves", "walk_blocks"]

BLOCK_BYTES = 4 << 20
"""How much is read at once. A record is at most 64 KiB."""

_TRACING_DATA, _AUXTRACE, _COMPRESSED, _COMPRESSED2 = 66, 71, 81, 83
_LONGEST = 1 << 16  # bytes of the longest record
_SLICE = 2048  # compressed bytes at a time: a zstd block of 4 bytes can stand for 128 KiB of zeros


@dataclass(slots=True)
class Block:
    """Whole records: ``words`` (uint64, host order) over the bytes ``raw``, which start at ``base`` of the file.

    ``at`` int64: word index of each record's header, ``types`` int64 its type. In a compressed file ``base`` counts
    decompressed bytes. The arrays are valid until the next block is asked for.
    """

    words: NDArray[np.uint64]
    raw: NDArray[np.uint8]
    base: int
    at: NDArray[np.int64]
    types: NDArray[np.int64]
    big_endian: bool

    # perf_event_header {u32 type; u16 misc; u16 size} as one word: the first field is lowest in a little-endian one.
    def misc(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """``misc`` of the records at word positions ``at``."""
        return (self.words.take(at) >> np.uint64(16 if self.big_endian else 32)).astype(np.int64) & 0xFFFF

    def sizes(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of the records at word positions ``at``, headers included."""
        heads = self.words.take(at)
        return (heads & np.uint64(0xFFFF) if self.big_endian else heads >> np.uint64(48)).astype(np.int64)

    @property
    def first_size(self) -> int:
        """The size field of what stands at the start, record or not."""
        return int(self.sizes(np.zeros(1, np.int64))[0])

    def halves(self, words: NDArray[np.uint64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The two 32-bit fields of each word, in the order they stand in the file."""
        return halves(words, self.big_endian)

    def body(self, at: int, size: int) -> bytes:
        """The bytes of the record at word ``at`` after its header."""
        return self.raw[at * 8 + 8 : at * 8 + size].tobytes()


def halves(words: NDArray[np.uint64], big_endian: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The two 32-bit fields of each 64-bit word (in host order), in the order they stood in the file."""
    low = words.astype(np.uint32).view(np.int32)
    high = (words >> np.uint64(32)).astype(np.uint32).view(np.int32)
    return (high, low) if big_endian else (low, high)


def walk_blocks(
    source: Source, start: int, end: int, big_endian: bool, damage: list[Damage] | None = None
) -> Iterator[Block]:
    """Blocks of the records in bytes ``start:end`` of ``source``, in file order.

    Where the chain of records breaks, what precedes the place has been delivered, the place goes to ``damage`` and the
    walk ends: nothing tells where the next record begins. Raises `UnavailableError` where records are compressed and
    zstandard is not installed.
    """
    inflater = _Inflater(big_endian, damage)
    ahead = ReadAhead(source, end, BLOCK_BYTES, _LONGEST)
    try:
        offset, length = start, None
        while offset < end:
            words, got = ahead.read(offset, length)
            block = _chase(words, offset, big_endian)
            following = _cut(block)
            if len(block.at) == 0:
                _note_break(damage, block, got, end)
                return
            packed = np.flatnonzero((block.types == _COMPRESSED) | (block.types == _COMPRESSED2))
            if len(packed) or inflater.grown:
                yield from inflater.expand(block, packed)
            else:
                yield block
            # Compressed records are not whole words long, and each starts a block of its own: do not read far ahead.
            length = None if (following - offset) & 7 == 0 else 2 * _LONGEST
            offset = following
        inflater.finish(offset)
    finally:
        ahead.close()


def _chase(words: NDArray[np.uint64], base: int, big_endian: bool) -> Block:
    """Follow the chain of record sizes through ``words`` up to the last record that is whole.

    Records are linked by their sizes, so this is a loop; where sizes repeat, a strided look ahead checks many at once.
    """
    raw = words.view(np.uint8)
    if big_endian:
        words = words.byteswap()
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
        p += size >> 1
        if size != last:
            last, repeats = size, 0
            continue
        repeats += 1
        if repeats == _TRY_RUN and size & 7 == 0:
            run = sizes[p :: size >> 1] == size
            length = len(run) if run.all() else int(run.argmin())
            if length > _TRY_RUN:
                parts += [at, np.arange(p, p + length * (size >> 1), size >> 1)]
                at = []
                append = at.append
                p += length * (size >> 1)
            # else: do not look again before the size has changed
    starts = np.concatenate([np.asarray(part, np.int64) for part in (*parts, at)]) >> 2
    if p - field > end and len(starts):
        starts = starts[:-1]
    heads = words.take(starts)
    types = (heads >> np.uint64(32) if big_endian else heads & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return Block(words, raw, base, starts, types, big_endian)


_TRY_RUN = 16


def _cut(block: Block) -> int:
    """End ``block`` after a record that leaves the 8-byte grid or has data of its own behind it; next file offset."""
    if len(block.at) == 0:
        return block.base
    sizes = block.sizes(block.at)
    special = (sizes & 7 != 0) | (block.types == _TRACING_DATA) | (block.types == _AUXTRACE)
    if not special.any():
        return block.base + int(block.at[-1] * 8 + sizes[-1])
    i = int(special.argmax())
    at, size, kind = int(block.at[i]), int(sizes[i]), int(block.types[i])
    behind = 0
    if kind in (_TRACING_DATA, _AUXTRACE) and size >= 16:
        behind = int(block.words[at + 1])
        if kind == _TRACING_DATA:  # u32 size, padded to words
            behind = int(block.halves(block.words[at + 1 : at + 2])[0][0]) & 0xFFFFFFFF
            behind = (behind + 7) & ~7
    block.at, block.types = block.at[: i + 1], block.types[: i + 1]
    return block.base + at * 8 + size + behind


def _note_break(damage: list[Damage] | None, block: Block, got: int, end: int) -> None:
    if damage is None:
        return
    lost = max(0, end - block.base)
    if got < 8:
        damage.append(
            Damage(
                "data section ends inside a record" if got else "file ends before its data section",
                block.base,
                lost=lost,
            )
        )
        return
    size = block.first_size
    if size < 8:
        damage.append(Damage("record of impossible size", block.base + 6, "size", size, lost))
    else:
        damage.append(Damage("file ends inside a record", block.base, "size", size, lost))


class _Inflater:
    """Compressed records: one zstd stream over all of them, whose output is records again."""

    def __init__(self, big_endian: bool, damage: list[Damage] | None) -> None:
        self.big_endian, self.damage = big_endian, damage
        self.pending = bytearray()
        self.grown = 0
        self._stream: Any = None
        self._dead = False

    def expand(self, block: Block, packed: NDArray[np.int64]) -> Iterator[Block]:
        """``block`` in pieces, each compressed record followed by the records that it holds."""
        types, sizes, done = block.types, block.sizes(block.at), 0
        for i in packed.tolist():
            at, size = int(block.at[i]), int(sizes[i])
            yield self._part(block, done, i + 1)
            done = i + 1
            body = block.body(at, size)
            if types[i] == _COMPRESSED2:
                length = int(block.words[at + 1]) if size >= 16 else 0
                body = body[8 : 8 + length]
            offset = block.base + at * 8
            for piece in range(0, len(body), _SLICE):
                self._inflate(body[piece : piece + _SLICE], offset)
                if len(self.pending) >= BLOCK_BYTES:
                    yield from self._drain(offset)
            if i + 1 == len(types) or types[i + 1] != types[i]:
                yield from self._drain(offset)
        if done < len(block.at):
            yield self._part(block, done, len(block.at))

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
        try:
            while data:
                if self._stream is None or self._stream.eof:
                    self._stream = zstandard.ZstdDecompressor().decompressobj()
                self.pending += self._stream.decompress(data)
                data = self._stream.unused_data if self._stream.eof else b""
        except zstandard.ZstdError as error:
            self._fail(f"compressed data are damaged: {error}", offset)

    def _drain(self, offset: int) -> Iterator[Block]:
        """The whole records in ``pending`` as blocks; what is left waits for more."""
        while len(self.pending) >= 8 and not self._dead:
            whole = len(self.pending) & ~7
            words = np.frombuffer(bytes(self.pending[:whole]), np.uint64)
            block = _chase(words, offset + self.grown, self.big_endian)
            following = _cut(block) - block.base
            if len(block.at) == 0:
                if block.first_size < 8:
                    self._fail("compressed record of impossible size", offset, "size", block.first_size)
                return
            if following > len(self.pending):
                self._fail("compressed record with data behind it", offset)
                following = len(self.pending)
            del self.pending[:following]
            self.grown += following
            yield block

    def _fail(self, reason: str, offset: int, field: str | None = None, value: object = None) -> None:
        self._dead = True
        if self.damage is not None:
            self.damage.append(Damage(reason, offset, field, value, len(self.pending)))
        self.pending.clear()
