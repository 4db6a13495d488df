"""PDBs: container and identity. `lastbranch.symbols` reads the functions in them.

The container is a multi-stream file (MSF 7.00; LLVM documentation, "The MSF File Format").
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from ..model import Source
from .files import PAD, Space
from .layout import Layout, guid_of

if TYPE_CHECKING:
    from uuid import UUID

__all__ = ["DBI_STREAM", "PdbStreams", "pdb_identity"]


MAGIC = b"Microsoft C/C++ MSF 7.00\r\n\x1aDS\0\0\0"
SUPERBLOCK = Layout(
    "SuperBlock",
    ("FileMagic", "32s"), ("BlockSize", "I"), ("FreeBlockMapBlock", "I"), ("NumBlocks", "I"),  # 0x00
    ("NumDirectoryBytes", "I"), ("Unknown", "I"), ("BlockMapAddr", "I"),  # 0x2c
)  # fmt: skip
BLOCK_SIZES = frozenset(1 << bits for bits in range(9, 17))
"""512 to 4096 in the documentation; linkers write up to 64 KiB for large programs."""
PDB_STREAM, DBI_STREAM = 1, 3
NO_STREAM = 0xFFFFFFFF


class PdbStreams:
    """The streams of ``source``. Raises `FormatError` where the file is no MSF 7.00, or a size contradicts it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        block = SUPERBLOCK.read(source, 0, "little")
        if block.raw("FileMagic") != MAGIC:
            raise block.bad("FileMagic", "not a PDB of version 7.00")
        self.block_size = block["BlockSize"]
        if self.block_size not in BLOCK_SIZES:
            raise block.bad("BlockSize", "not a power of two from 512 to 65536")
        size = block["NumDirectoryBytes"]
        if size > source.size or size % 4:
            raise block.bad(
                "NumDirectoryBytes", f"more than the {source.size} bytes of the file, or not a multiple of 4"
            )
        listed = Space.part(source, block["BlockMapAddr"] * self.block_size, 4 * self._blocks(size), "<", "BlockMap")
        directory = self._read(_words(listed), size, "StreamDirectory")
        words = _words(directory)
        count = int(words[0]) if len(words) else 0
        if count > len(words) - 1:
            raise directory.bad("more streams than words", 0, "NumStreams", count)
        self.sizes = np.where(words[1 : count + 1] == NO_STREAM, 0, words[1 : count + 1]).astype(np.int64)
        self._numbers = words[count + 1 :]
        self._ends = np.cumsum(-(-self.sizes // self.block_size))

    def stream(self, number: int, name: str, first: int | None = None) -> Space:
        """Stream ``number``, or its ``first`` bytes; empty where the file has none.

        Raises `FormatError` where its blocks are not in the file.
        """
        if not 0 <= number < len(self.sizes) or self.sizes[number] == 0:
            return Space.of(b"", name=name, file=self.source.name)
        whole, end = int(self.sizes[number]), int(self._ends[number])
        size = whole if first is None else min(first, whole)
        begin = end - self._blocks(whole)
        return self._read(self._numbers[begin : begin + self._blocks(size)], size, name)

    def _blocks(self, size: int) -> int:
        return -(-size // self.block_size)

    def _read(self, numbers: NDArray[np.uint32], size: int, name: str) -> Space:
        source, block = self.source, self.block_size
        if len(numbers) != self._blocks(size) or size > source.size:
            reason = f"{name}: the stream has fewer blocks than its size says"
            raise FormatError(reason, file=source.name, offset=0, field="StreamSizes", value=size)
        beyond = (numbers.astype(np.int64) + 1) * block > source.size + block - 1
        if beyond.any():
            number = int(numbers[int(np.argmax(beyond))])
            reason = f"{name}: a block past the end of the file"
            raise FormatError(reason, file=source.name, offset=number * block, field="StreamBlocks", value=number)
        raw = bytearray(len(numbers) * block + PAD)
        view = memoryview(raw)
        cuts = np.flatnonzero(np.diff(numbers.astype(np.int64), prepend=-2) != 1)
        for first, last in zip(cuts, np.append(cuts[1:], len(numbers)), strict=False):  # neighbours are read at once
            source.readinto(int(numbers[first]) * block, view[first * block : last * block])
        view.release()
        raw[size:] = bytes(PAD)
        return Space(raw, "<", name, source.name)


def _words(space: Space) -> NDArray[np.uint32]:
    return space.data[: space.size // 4 * 4].view("<u4")


# -- The GUID and age of a PDB, which identify its program (LLVM, docs/PDB: PdbStream, DbiStream)


_INFO = Struct("<8xI16s")  # Version and Signature; Age, Guid
_DBI = Struct("<8xI")  # VersionSignature and VersionHeader; Age


class PdbIdentity(NamedTuple):
    """``ages`` has the ages of the PDB stream and of the DBI stream: linkers write the second age into programs, and
    tools that change a PDB afterwards raise the first age."""

    guid: UUID
    ages: tuple[int, ...]


def pdb_identity(source: Source) -> PdbIdentity:
    """The identity of the PDB in ``source``. Raises `FormatError` for anything else."""
    streams = PdbStreams(source)
    info = streams.stream(PDB_STREAM, "PDB", _INFO.size)
    if info.size < _INFO.size:
        raise info.bad("shorter than its header", 0, "StreamSizes", info.size)
    age, guid = _INFO.unpack_from(info.raw)
    dbi = streams.stream(DBI_STREAM, "DBI", _DBI.size)
    return PdbIdentity(guid_of(guid), (age, *(_DBI.unpack_from(dbi.raw) if dbi.size == _DBI.size else ())))
