"""The chain of records: each one's size tells where the next begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LONGEST", "COMPRESSED", "COMPRESSED2", "TRACING_DATA", "Block", "OddRecords", "chase", "halves"]

TRACING_DATA, _AUXTRACE, COMPRESSED, COMPRESSED2 = 66, 71, 81, 83
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
    decompressed bytes. The arrays are valid until the next block is asked for.
    """

    words: NDArray[np.uint64]
    raw: NDArray[np.uint8]
    base: int
    at: NDArray[np.int64]
    types: NDArray[np.int64]
    big_endian: bool
    behind: tuple[int, int] = (0, 0)
    """(offset in the file, bytes) of the data that follow the last record and are none."""
    packed_at: int | None = None
    """Where in the file the compressed record stands that the end of this is from; ``None`` where none is."""

    @property
    def place(self) -> int:
        """Where it stands in the file."""
        return self.base if self.packed_at is None else self.packed_at

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


def chase(words: NDArray[np.uint64], length: int, base: int, big_endian: bool) -> tuple[Block, int]:
    """(the records in the first ``length`` bytes of ``words`` that are whole, the offset in the file behind them).

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
    block = Block(words, raw, base, starts, types, big_endian)
    return block, _cut(block, length)


def _cut(block: Block, length: int) -> int:
    """End ``block`` after a record that leaves the 8-byte grid or has data of its own behind it; next file offset."""
    sizes = block.sizes(block.at)
    special = (sizes & 7 != 0) | (block.types == TRACING_DATA) | (block.types == _AUXTRACE)
    i = int(special.argmax()) if special.any() else len(sizes) - 1
    if i >= 0 and block.at[i] * 8 + sizes[i] > length:
        i -= 1  # cut off by the end of what was read
    block.at, block.types = block.at[: i + 1], block.types[: i + 1]
    if i < 0:
        return block.base
    at, size, kind = int(block.at[i]), int(sizes[i]), int(block.types[i])
    behind, start = 0, block.base + at * 8 + size
    if kind == _AUXTRACE and size >= 16:
        behind = int(block.words[at + 1])
    elif kind == TRACING_DATA and size >= 12:  # u32 size, padded to words; the record itself is padded by some
        behind = int(block.halves(block.words[at + 1 : at + 2])[0][0]) & 0xFFFFFFFF
        behind = (behind + 7) & ~7
    block.behind = (start, behind)
    return start + behind
