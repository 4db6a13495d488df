"""Binaries of modules (ELF, PE) and their PDBs: identity, load segments, sections, and where to look for them.

Symbols are read by `lastbranch.symbols`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import FormatError
from ..model import Source, read_at
from .image import Image

__all__ = ["read_image"]


def _elf(source: Source) -> Image:
    from .elf import read_elf

    return read_elf(source)


def _pe(source: Source) -> Image:
    from .pe import read_pe

    return read_pe(source)


_READERS: dict[bytes, Callable[[Source], Image]] = {b"\x7fELF": _elf, b"MZ": _pe}
"""The first bytes of a file, and its reader."""


def read_image(source: Source) -> Image:
    """The ELF or PE file in ``source``. Raises `FormatError` where it is neither, or is damaged."""
    magic = read_at(source, 0, max(map(len, _READERS)))
    for begin, reader in _READERS.items():
        if magic.startswith(begin):
            return reader(source)
    raise FormatError("neither an ELF nor a PE file", file=source.name, offset=0, field="magic", value=magic)
