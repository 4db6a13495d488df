"""Compressed trace buffers: one front for the three formats of a COMPRESSED_MODE file.

The format is in the low 16 bits of State (offset 0x2C) of the file's first buffer. The payload of a buffer with flag
0x40 is compressed, and its Offset field (0x30), less the header, is the size after decompression. Buffers are
independent, so that a damaged one costs nothing but itself, and so that other processes can take a share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lastbranch.errors import FormatError
from lastbranch.formats.etl import lznt1, xpress, xpress_huffman
from lastbranch.formats.etl.xpress_encoder import compress

__all__ = ["DECODERS", "LZNT1", "XPRESS", "XPRESS_HUFF", "compress", "decompress", "decompress_many"]

LZNT1, XPRESS, XPRESS_HUFF = 2, 3, 4  # COMPRESSION_FORMAT_*, ntifs.h

DECODERS: dict[int, Callable[[bytes | memoryview, int], bytes]] = {
    LZNT1: lznt1.decompress,
    XPRESS: xpress.decompress,
    XPRESS_HUFF: xpress_huffman.decompress,
}

# A worker needs 50 ms to start, the time in which a core decodes about this many compressed bytes.
WORTH_A_WORKER = 1 << 18


def decompress(block: bytes | memoryview, size: int, *, format: int = XPRESS) -> bytes:
    """The ``size`` bytes that ``block`` stands for.

    Raises FormatError for a damaged block, with the offset of the damage within the block, and for an unknown format.
    """
    return _decoder(format)(block, size)


def decompress_many(
    blocks: Sequence[bytes | memoryview], sizes: Sequence[int], *, format: int = XPRESS, workers: int = 1
) -> list[bytes | FormatError]:
    """Decompress independent blocks; a damaged one has its FormatError in its place, and only that one.

    ``workers`` is how many processes decode, this one included. The others are started when there is enough to do,
    stay for later calls and end with this process; what cannot be had of them is done here.
    """
    decoder = _decoder(format)
    if len(blocks) != len(sizes):
        raise ValueError(f"{len(blocks)} blocks but {len(sizes)} sizes")
    total = sum(len(block) for block in blocks)
    workers = min(workers, total // WORTH_A_WORKER, len(blocks))
    if workers > 1:
        from lastbranch.formats.etl import workers as pool

        return pool.decompress_shared(blocks, sizes, format, _shares(blocks, total, workers))
    return decode_all(decoder, blocks, sizes)


def decode_all(
    decoder: Callable[[bytes | memoryview, int], bytes], blocks: Sequence[bytes | memoryview], sizes: Sequence[int]
) -> list[bytes | FormatError]:
    results: list[bytes | FormatError] = []
    for block, size in zip(blocks, sizes, strict=True):
        try:
            results.append(decoder(block, size))
        except FormatError as error:
            results.append(error)
    return results


def _decoder(format: int) -> Callable[[bytes | memoryview, int], bytes]:
    try:
        return DECODERS[format]
    except KeyError:
        raise FormatError("unknown compression format", field="State", value=format) from None


def _shares(blocks: Sequence[bytes | memoryview], total: int, workers: int) -> list[slice]:
    """Runs of blocks with about the same number of compressed bytes, which decides the time, one for each worker."""
    cuts, done = [0], 0
    for index, block in enumerate(blocks):
        done += len(block)
        if done * workers >= total * len(cuts) and len(cuts) < workers:
            cuts.append(index + 1)
    return [slice(start, stop) for start, stop in zip(cuts, [*cuts[1:], len(blocks)], strict=True)]
