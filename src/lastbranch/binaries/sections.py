"""Sections of ELF and PE files as arrays, decompressed if necessary (System V gABI, "Section Compression")."""

from __future__ import annotations

import lzma
import zlib
from typing import Literal

import numpy as np

from ..binaries import read_image
from ..errors import FormatError
from ..model import BytesSource, Source
from .files import File, Space
from .image import Image
from .kernel_modules import as_loaded

__all__ = ["Binary", "open_binary", "unpack_xz"]


EXPANSION = 2000
"""Largest expansion of a compressed byte: zlib's own limit is 1,032."""
PACKED_LIMIT = 1 << 31


class Binary:
    """An ELF or PE file, its sections by name. The bytes come from ``source``."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.name = source.name
        self.image: Image = read_image(source)
        self.order: Literal["<", ">"] = "<" if self.image.byte_order == "little" else ">"
        self._spaces: dict[str, Space] = {}

    def has(self, name: str) -> bool:
        """Whether there is a section ``name`` with bytes in the file."""
        return self._number(name) is not None

    def section(self, name: str) -> Space:
        """The bytes of the first section ``name`` that has any; empty where there is none.

        Raises `FormatError` where the section is past the end of the file or its compression is damaged.
        """
        if name not in self._spaces:
            self._spaces[name] = self._read(name)
        return self._spaces[name]

    def _number(self, name: str) -> int | None:
        """The first section ``name`` with bytes; GNU tools once wrote compressed ``.debug_x`` as ``.zdebug_x``."""
        wanted = (name, name.replace(".debug_", ".zdebug_"))
        sections = enumerate(self.image.sections)
        return next((n for n, s in sections if s.name in wanted and s.file_size), None)

    def _read(self, name: str) -> Space:
        number = self._number(name)
        if number is None:
            return Space.of(b"", self.order, name, self.name)
        section = self.image.sections[number]
        size = section.file_size
        if self.image.format == "pe" and section.size:
            size = min(size, section.size)  # raw data are filled up to the file's alignment
        space = Space.part(self.source, section.offset, size, self.order, name)
        old = section.name.startswith(".zdebug_")
        if not old and not section.compressed:
            return space
        unpacked = self._unpacked_old(space, section.offset) if old else self._unpack(space, section.offset)
        return Space.of(unpacked, self.order, name, self.name)

    def _unpacked_old(self, space: Space, offset: int) -> bytes:
        """``ZLIB``, the size in 8 bytes of the order of networks, the data (GNU binutils, ``bfd/compress.c``)."""
        if space.raw[:4] != b"ZLIB":
            raise FormatError(f"{space.name}: not compressed", file=self.name, offset=offset, field="magic")
        return self._expand(space, offset, 12, _ZLIB, int.from_bytes(space.raw[4:12], "big"))

    def _unpack(self, space: Space, offset: int) -> bytes:
        words = np.dtype(self.order + ("u4" if self.image.bits == 32 else "u8"))
        header = 12 if self.image.bits == 32 else 24  # ch_type, (ch_reserved,) ch_size, ch_addralign
        if space.size < header:
            reason = f"{space.name}: shorter than a compression header"
            raise FormatError(reason, file=self.name, offset=offset, field="Chdr", value=space.size)
        kind, size = (int(space.read(np.array([at]), w)[0]) for at, w in ((0, 4), (words.itemsize, words.itemsize)))
        return self._expand(space, offset, header, kind, size)

    def _expand(self, space: Space, offset: int, header: int, kind: int, size: int) -> bytes:
        packed = space.raw[header : space.size]
        if size > min(PACKED_LIMIT, EXPANSION * len(packed)):
            reason = f"{space.name}: {len(packed)} compressed bytes cannot become that many"
            raise FormatError(reason, file=self.name, offset=offset, field="ch_size", value=size)
        try:
            return _UNPACK[kind](packed, size)
        except (KeyError, zlib.error, ValueError) as error:
            reason = f"{space.name}: cannot be uncompressed ({error!r})"
            raise FormatError(reason, file=self.name, offset=offset, field="ch_type", value=kind) from None


def open_binary(path: str) -> Binary:
    """The ELF or PE file at ``path``, a kernel module as the kernel loads it.

    Raises `FormatError`, or `OSError` where it is no regular file."""
    return Binary(as_loaded(File(path)))


def unpack_xz(space: Space, name: str) -> Binary | None:
    """The ELF file that ``.gnu_debugdata`` holds (GDB manual, "MiniDebugInfo"); ``None`` for an empty section."""
    if not space.size:
        return None
    limit = min(PACKED_LIMIT, EXPANSION * 10 * space.size)
    try:
        unpacker = lzma.LZMADecompressor(memlimit=256 << 20)
        data = unpacker.decompress(bytes(space.raw[: space.size]), limit)
    except (lzma.LZMAError, EOFError) as error:
        raise space.bad(f"cannot be decompressed ({error})", 0, ".gnu_debugdata", space.size) from None
    source = BytesSource(data, f"{name} (.gnu_debugdata)")
    return Binary(source)


def _inflate(packed: bytearray, size: int) -> bytes:
    data = zlib.decompressobj().decompress(packed, size + 1) if size else b""
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes instead of {size}")
    return data


def _unzstd(packed: bytearray, size: int) -> bytes:
    import zstandard

    try:
        data = zstandard.ZstdDecompressor().stream_reader(bytes(packed)).read(size + 1)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes instead of {size}")
    return data


_ZLIB, _ZSTD = 1, 2  # ch_type
_UNPACK = {_ZLIB: _inflate, _ZSTD: _unzstd}
