"""Which program a PDB belongs to: the GUID and age in it (LLVM, docs/PDB: MsfFile, PdbStream, DbiStream)."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from ..errors import FormatError
from ..model import Source, read_at

__all__ = ["PdbIdentity", "pdb_identity"]

_MAGIC = b"Microsoft C/C++ MSF 7.00\r\n\x1aDS\0\0\0"
_BLOCK_SIZES = (512, 1024, 2048, 4096, 8192, 16384, 32768)
_DIRECTORY_LIMIT = 64 << 20
_PDB_STREAM, _DBI_STREAM = 1, 3
_NO_STREAM = 0xFFFFFFFF


class PdbIdentity(NamedTuple):
    """``ages`` has the age of the PDB stream and that of the DBI stream: linkers write the second one into programs,
    tools that change a PDB afterwards raise the first one."""

    guid: UUID
    ages: tuple[int, ...]


def pdb_identity(source: Source) -> PdbIdentity:
    """The identity of the PDB in ``source``. Raises `FormatError` for anything else."""
    head = read_at(source, 0, 56)
    if not head.startswith(_MAGIC) or len(head) < 56:
        raise FormatError("not a PDB of MSF 7.00", file=source.name, offset=0, field="magic", value=head[:8] or None)
    block, _, blocks, size, _, map_block = (int.from_bytes(head[i : i + 4], "little") for i in range(32, 56, 4))
    if block not in _BLOCK_SIZES:
        raise FormatError(
            "a block size that MSF does not have", file=source.name, offset=32, field="BlockSize", value=block
        )
    if size > min(_DIRECTORY_LIMIT, source.size) or blocks * block > source.size + block:
        raise FormatError(
            "more than the file holds", file=source.name, offset=44, field="NumDirectoryBytes", value=size
        )
    numbers = _words(read_at(source, map_block * block, -(-size // block) * 4))
    directory = b"".join(read_at(source, n * block, block) for n in numbers)[:size]
    streams = _streams(_words(directory), block)
    info = _first_bytes(source, block, streams.get(_PDB_STREAM, []), 28)
    if len(info) < 28:
        raise FormatError("without its PDB stream", file=source.name, offset=map_block * block, field="StreamSizes")
    dbi = _first_bytes(source, block, streams.get(_DBI_STREAM, []), 12)
    ages = [int.from_bytes(info[8:12], "little")]
    ages += [int.from_bytes(dbi[8:12], "little")] if len(dbi) == 12 else []
    return PdbIdentity(UUID(bytes_le=info[12:28]), tuple(ages))


def _streams(words: list[int], block: int) -> dict[int, list[int]]:
    """Blocks of the streams that matter: the directory has the number of streams, their sizes, then their blocks."""
    count = min(words[0] if words else 0, len(words) - 1)
    at, out = 1 + count, {}
    for number in range(min(count, _DBI_STREAM + 1)):
        size = words[1 + number]
        blocks = 0 if size == _NO_STREAM else -(-size // block)
        out[number] = words[at : at + blocks]
        at += blocks
    return out


def _first_bytes(source: Source, block: int, blocks: list[int], count: int) -> bytes:
    return read_at(source, blocks[0] * block, count) if blocks else b""


def _words(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data) - 3, 4)]
