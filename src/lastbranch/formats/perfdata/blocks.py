"""The record walk: a data section as blocks of whole records, decompressed where it is compressed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage
from ...model import Source
from ..readahead import ReadAhead
from .chain import COMPRESSED, COMPRESSED2, LONGEST, Block, OddRecords, chase
from .inflate import Inflater

__all__ = ["BLOCK_BYTES", "walk_blocks"]

BLOCK_BYTES = 4 << 20
"""How much is read at once."""


def walk_blocks(
    source: Source, start: int, end: int, big_endian: bool, damage: list[Damage] | None = None
) -> Iterator[Block]:
    """Blocks of the records in bytes ``start:end`` of ``source``, in file order.

    Where the chain of records breaks, what precedes the place has been delivered, the place goes to ``damage`` and the
    walk ends: nothing tells where the next record begins. Raises `UnavailableError` where records are compressed and
    zstandard is not installed.
    """
    inflater = Inflater(big_endian, damage, source.limits)
    ahead = _Words(source, end)
    try:
        offset, length, odd = start, None, OddRecords()
        while offset < end:
            words, got = ahead.read(offset, length)
            block, following = chase(words, got, offset, big_endian)
            if len(block.at) == 0:
                _note_break(damage, block, got, end, source.size)
                return
            last = block.types[-1]
            packed = np.flatnonzero((block.types == COMPRESSED) | (block.types == COMPRESSED2))
            if len(packed) or inflater.grown:
                yield from inflater.expand(block, packed)
            else:
                yield block
            # Compressed records are not whole words long, and each starts a block of its own: do not read far ahead.
            length = None if (following - offset) & 7 == 0 else 2 * LONGEST
            offset = following
            if length is not None and odd.too_many(int(last), offset - start):
                _note(damage, "too many records of odd size", offset, end)
                return
        inflater.finish(offset)
        if offset > end:
            _note(damage, "data section ends inside the data of a record", end, end)
    finally:
        ahead.close()


class _Words(ReadAhead):
    """Blocks of 64-bit words from growing offsets of ``source``, up to ``end``.

    Records straddle blocks: the next one is expected to start in the last `LONGEST` bytes of this one.
    """

    def __init__(self, source: Source, end: int) -> None:
        super().__init__(source, BLOCK_BYTES + LONGEST, pad=16)
        self._end = min(end, source.size)

    def read(self, offset: int, length: int | None = None) -> tuple[NDArray[np.uint64], int]:
        """(words from ``offset``, bytes of the file in them): ``length`` bytes or a block, less at the end."""
        wanted = BLOCK_BYTES if length is None else length
        start, got = self.fill(offset, max(0, min(wanted, self._end - offset)), within=8)
        if length is None and offset + BLOCK_BYTES < self._end:
            self.expect(offset + ((start + got - offset - LONGEST) & ~7), self._end)
        if got & 7:  # the end of the file: what is left of the last word is zero
            self.data[got : got + 7] = bytes(7)
        words = np.frombuffer(self.data, np.uint64, (got + 7) >> 3)
        return words[(offset - start) >> 3 :], start + got - offset


def _note_break(damage: list[Damage] | None, block: Block, got: int, end: int, size: int) -> None:
    """Say why no record starts at ``block``, of which ``got`` bytes could be read in a file of ``size`` bytes."""
    if got < 8:
        reason = "data section ends inside a record" if got else "file ends before the end of its data section"
        _note(damage, reason, min(block.base, size), end)  # the padding behind a record may be what is missing
    elif block.first_size < 8:
        if damage is not None:
            lost = max(0, end - block.base)
            damage.append(Damage("record of impossible size", block.base + 6, "size", block.first_size, lost))
    else:
        _note(damage, "file ends inside a record", block.base, end, block.first_size)


def _note(damage: list[Damage] | None, reason: str, offset: int, end: int, size: int | None = None) -> None:
    if damage is not None:
        damage.append(Damage(reason, offset, None if size is None else "size", size, max(0, end - offset)))
