"""Which program a PDB belongs to: the GUID and age in it (LLVM, docs/PDB: PdbStream, DbiStream)."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from uuid import UUID

from ..model import Source
from .backends.msf import DBI_STREAM, PDB_STREAM, Streams

__all__ = ["PdbIdentity", "pdb_identity"]

_INFO = Struct("<8xI16s")  # Version and Signature; Age, Guid
_DBI = Struct("<8xI")  # VersionSignature and VersionHeader; Age


class PdbIdentity(NamedTuple):
    """``ages`` has the age of the PDB stream and that of the DBI stream: linkers write the second one into programs,
    tools that change a PDB afterwards raise the first one."""

    guid: UUID
    ages: tuple[int, ...]


def pdb_identity(source: Source) -> PdbIdentity:
    """The identity of the PDB in ``source``. Raises `FormatError` for anything else."""
    streams = Streams(source)
    info = streams.stream(PDB_STREAM, "PDB", _INFO.size)
    if info.size < _INFO.size:
        raise info.bad("shorter than its header", 0, "StreamSizes", info.size)
    age, guid = _INFO.unpack_from(info.raw)
    dbi = streams.stream(DBI_STREAM, "DBI", _DBI.size)
    return PdbIdentity(UUID(bytes_le=guid), (age, *(_DBI.unpack_from(dbi.raw) if dbi.size == _DBI.size else ())))
