"""The record walk: a data section as blocks of whole records, decompressed where it is compressed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import Damage
from ...model import Source
from ..readahead import ReadAhead
from .chain import COMPRESSED, COMPRESSED2, Block, chase, cut
from .inflate import Inflater

__all__ = ["BLOCK_BYTES", "walk_blocks"]

BLOCK_BYTES = 4 << 20
"""How much is read at once."""
_LONGEST = 1 << 16  # bytes of the longest record


def walk_blocks(
    source: Source, start: int, end: int, big_endian: bool, damage: list[Damage] | None = None
) -> Iterator[Block]:
    """Blocks of the records in bytes ``start:end`` of ``source``, in file order.

    Where the chain of records breaks, what precedes the place has been delivered, the place goes to ``damage`` and the
    walk ends: nothing tells where the next record begins. Raises `UnavailableError` where records are compressed and
    zstandard is not installed.
    """
    inflater = Inflater(big_endian, damage)
    ahead = ReadAhead(source, end, BLOCK_BYTES, _LONGEST)
    try:
        offset, length = start, None
        while offset < end:
            words, got = ahead.read(offset, length)
            block = chase(words, offset, big_endian)
            following = cut(block)
            if len(block.at) == 0:
                _note_break(damage, block, got, end)
                return
            packed = np.flatnonzero((block.types == COMPRESSED) | (block.types == COMPRESSED2))
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
