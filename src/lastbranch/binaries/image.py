"""The headers of an ELF or PE file, in one form: identity, load segments, sections."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..model import Source, read_at

if TYPE_CHECKING:  # uuid costs 14 ms to import, and only a PE file with a CodeView record needs it
    from uuid import UUID

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Code", "DebugLink", "Image", "Section", "Segment", "SegmentFlags"]


BUILD_ID_SIZE = 20
"""Bytes of a build id in perf's records, whatever the linker wrote (``BUILD_ID_SIZE`` in Linux tools/perf)."""


class SegmentFlags(IntFlag):
    """Permissions of memory, with the values of ELF's ``p_flags`` (gABI, figure 7-2)."""

    EXECUTE = 1
    WRITE = 2
    READ = 4

    @classmethod
    def of(cls, word: int, bits: Mapping[int, SegmentFlags]) -> SegmentFlags:
        """The flags for the ``bits`` that are set in ``word``, a field of the file."""
        return cls(sum(flag.value for bit, flag in bits.items() if word & bit))


class DebugLink(NamedTuple):
    """The separate debug file of a stripped ELF file: contents of ``.gnu_debuglink`` (GDB manual, 18.3).

    ``name`` is a file name without directory, ``crc`` the CRC-32 of that whole file.
    """

    name: str
    crc: int


class Segment(NamedTuple):
    """A part of the file that is loaded: an ELF ``PT_LOAD`` program header, or a PE section.

    ``vaddr`` is a link address (the address before the loader moved the image), ``offset`` counts bytes of the file,
    both sizes are in bytes. Memory beyond ``file_size`` is zero. The range in memory is within the address space of the
    image's ``bits``; the range in the file may reach past its end (truncated or separate debug files).
    """

    vaddr: int
    memory_size: int
    offset: int
    file_size: int
    flags: SegmentFlags


class Section(NamedTuple):
    """One section header; its sizes may exceed the file.

    ``vaddr`` is a link address (0 for what is not loaded), ``size`` bytes in memory, ``file_size`` bytes at ``offset``
    of the file (0 for ELF ``SHT_NOBITS`` and PE sections without raw data). ``flags`` is 0 for an ELF section that is
    not loaded (no ``SHF_ALLOC``). ``compressed``: the bytes begin with a compression header (ELF ``SHF_COMPRESSED``).
    """

    name: str
    vaddr: int
    size: int
    offset: int
    file_size: int
    flags: SegmentFlags
    compressed: bool = False


_LINKAGE_STUBS = frozenset({".plt", ".plt.sec", ".plt.got", ".iplt"})


class Image(NamedTuple):
    """An executable, library, object or core file. All addresses are link addresses.

    ``machine`` is a name such as ``x86_64``, ``i386``, ``aarch64`` or ``arm``, or the header's number in hex.
    ``kind`` is ``executable``, ``shared object`` (which a position-independent ELF executable is, too),
    ``relocatable``, ``core``, or a number in hex. ``sections`` is in the file's order, so that its index is the
    section's number (less one in PE, which counts from 1). ``image_base`` is ELF's base address (gABI, Program
    Loading: the lowest ``p_vaddr`` truncated to its ``p_align``) or PE's ``ImageBase``; ``entry`` is 0 where there is
    no entry point.

    Only ELF has ``build_id`` (the ``NT_GNU_BUILD_ID`` note, 1 byte or more) and ``debug_link``; only PE has
    ``timestamp`` (COFF ``TimeDateStamp``: seconds since 1970, or a hash in reproducible builds), ``checksum``,
    ``image_size`` (bytes of memory) and the identity of the PDB from the CodeView record, whose older NB10 form has
    no GUID.
    """

    format: Literal["elf", "pe"]
    bits: Literal[32, 64]
    byte_order: Literal["little", "big"]
    machine: str
    kind: str
    segments: tuple[Segment, ...] = ()
    sections: tuple[Section, ...] = ()
    image_base: int = 0
    entry: int = 0
    build_id: bytes | None = None
    debug_link: DebugLink | None = None
    timestamp: int | None = None
    checksum: int | None = None
    image_size: int | None = None
    pdb_guid: UUID | None = None
    pdb_age: int | None = None
    pdb_name: str | None = None

    @property
    def linkage_stubs(self) -> tuple[Section, ...]:
        """The sections of ELF's procedure linkage table: stubs that the linker makes, without symbols of their own."""
        return tuple(s for s in self.sections if self.format == "elf" and s.name in _LINKAGE_STUBS)

    @property
    def executable_segments(self) -> tuple[Segment, ...]:
        """The segments that code is loaded from, in file order."""
        return tuple(segment for segment in self.segments if segment.flags & SegmentFlags.EXECUTE)


def same_build_id(a: bytes, b: bytes) -> bool:
    """Whether two build ids are the same; one of them may come from a perf capture.

    perf pads the 8 or 16 bytes of some linkers with zeros to 20, so both are compared at that length. No id, and
    perf's form of no id (all zeros), equals nothing.
    """
    return any(a) and any(b) and a.ljust(BUILD_ID_SIZE, b"\0") == b.ljust(BUILD_ID_SIZE, b"\0")


# -- The bytes of a binary at link addresses


_CHUNK = 1 << 16
_CHUNKS = 256
"""Chunks in memory: instructions are read one by one."""
_NEAR = 4096
"""Bytes between two ranges that are read rather than skipped."""


class Code:
    """The bytes that the loader maps from ``source``, the file of ``image``.

    ``arch`` is the machine as `isa.Decoder` names it (``x86_64``, ``i386``, ``aarch64``, else as `Image.machine`).
    The file stays open as long as this object lives.
    """

    def __init__(self, source: Source, image: Image) -> None:
        self._chunk = lru_cache(_CHUNKS)(lambda number: read_at(source, number * _CHUNK, _CHUNK))
        self._source = source
        # Code comes first, as the segments of a file may overlap.
        self._segments = (*image.executable_segments, *image.segments)
        self.arch, self.image = image.machine, image

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes at link ``address``; fewer where the segment or the file ends, none outside both."""
        for s in self._segments:
            inside = address - s.vaddr
            if 0 <= inside < s.file_size:
                return self._read(s.offset + inside, min(size, s.file_size - inside))
        return b""

    def read_many(
        self, address: NDArray[np.uint64], size: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The results of `read` for each address and size, concatenated: uint8 bytes, and int64 offsets of the ranges
        in these bytes (ranges + 1)."""
        import numpy as np  # not at the top: recordings start without it

        from ..arrays import in_groups, offsets_of

        offset, length = np.zeros(len(size), np.int64), np.zeros(len(size), np.int64)
        left = np.ones(len(size), bool)
        for s in self._segments:
            inside = address - np.uint64(s.vaddr)
            rows = np.flatnonzero(left & (inside < np.uint64(s.file_size)))
            left[rows] = False
            there = min(s.file_size, self._source.size - s.offset)  # files can end before their segments do
            if len(rows) and there > 0:
                begin = inside[rows].view(np.int64)
                offset[rows], length[rows] = begin + s.offset, np.clip(there - begin, 0, size[rows])

        def read(first: NDArray[np.int64], past: NDArray[np.int64]) -> NDArray[np.uint8]:
            parts = zip(first.tolist(), past.tolist(), strict=True)
            data = b"".join(self._read(lo, hi - lo).ljust(hi - lo, b"\0") for lo, hi in parts)
            return np.frombuffer(data, np.uint8)

        return in_groups(read, offset, length, _NEAR), offsets_of(length)

    def _read(self, offset: int, size: int) -> bytes:
        first, last = offset // _CHUNK, (offset + max(size, 1) - 1) // _CHUNK
        if first == last:
            return self._chunk(first)[offset % _CHUNK : offset % _CHUNK + size]
        data = b"".join(self._chunk(number) for number in range(first, last + 1))
        return data[offset % _CHUNK :][:size]
