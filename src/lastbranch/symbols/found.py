"""What a search for symbols comes to: checked files, how addresses relate to theirs, and what to tell the user."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..binaries import Image, read_image
from ..binaries.files import File, below
from ..errors import LastbranchError
from ..model import Module, Profile
from .cache import Cache
from .model import DebugFiles
from .options import SymbolOptions

__all__ = ["Found", "Pieces", "Search", "image_of"]

_ADDRESSES = 1 << 64


@dataclass(frozen=True, slots=True)
class Pieces:
    """How addresses of a module become those of a file: by what is added in each range, modulo 2**64."""

    ranges: tuple[tuple[int, int, int], ...] = ((0, _ADDRESSES - 1, 0),)
    """(first, last, added), ascending and disjoint; nothing is known outside."""

    @property
    def same(self) -> bool:
        """Whether the file's addresses are the module's."""
        return self.ranges == ((0, _ADDRESSES - 1, 0),)

    def to_file(self, address: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """(file's addresses, where there are any)."""
        return _shifted(address, self.ranges)

    def to_module(self, address: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """The other way."""
        there = ((first + d) % _ADDRESSES for first, _, d in self.ranges)
        back = [(a, a + last - first, -d) for a, (first, last, d) in zip(there, self.ranges, strict=True)]
        return _shifted(address, back)


def _shifted(
    address: NDArray[np.uint64], ranges: Iterable[tuple[int, int, int]]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    out, known = address.copy(), np.zeros(len(address), bool)
    for first, last, added in ranges:
        inside = (address >= np.uint64(first)) & (address <= np.uint64(min(last, _ADDRESSES - 1))) & ~known
        out[inside] = address[inside] + np.uint64(added % _ADDRESSES)
        known |= inside
    return out, known


@dataclass(slots=True)
class Found:
    """Where the names of a module come from. ``files`` is ``None`` where there is nothing, and ``why`` says why."""

    files: DebugFiles | None = None
    identity: str = ""
    """What the files were known by."""
    pieces: Pieces = field(default_factory=Pieces)
    why: str = ""
    """What the user should know: why there is nothing, or what is missing in what there is."""


@dataclass(slots=True)
class Search:
    """What every search needs, and the files that it turned down."""

    profile: Profile
    options: SymbolOptions
    cache: Cache | None = None
    rejected: list[str] = field(default_factory=list)
    """Files of the right name that are not the module's, with the reason, for the module that is searched for."""
    progress: Callable[[str, int, int], None] | None = None
    """Called with (address, bytes done, bytes in all or 0) while a file is downloaded."""

    @property
    def debug_dirs(self) -> tuple[str, ...]:
        return (*self.options.debug_dirs, "/usr/lib/debug")

    def images(self, candidates: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Image]]:
        """(path, image) of the candidates (root, hint) that are regular files below their root and can be read."""
        for root, hint in candidates:
            path = below(root, hint)
            image = image_of(path, self.rejected) if path else None
            if path and image:
                yield path, image

    def nothing(self, module: Module, why: str) -> Found:
        """No files; files that were turned down are named."""
        reasons = [why, *self.rejected[:2]]
        return Found(why="; ".join(filter(None, reasons)))


def image_of(path: str, rejected: list[str] | None = None) -> Image | None:
    """The ELF or PE file at ``path``; ``None`` where it is none, and why is added to ``rejected``."""
    try:
        source = File(path)
    except (OSError, LastbranchError):
        return None
    try:
        return read_image(source)
    except LastbranchError as error:
        if rejected is not None:
            rejected.append(str(error))
        return None
    finally:
        source.close()


def file_state(path: str) -> list[int]:
    """What changes when a file does: size, time of modification, inode. Raises `OSError`."""
    said = os.stat(path)
    return [said.st_size, said.st_mtime_ns, said.st_ino]
