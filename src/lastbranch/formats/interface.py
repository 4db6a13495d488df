"""Arguments and results of the functions of every format, and the error for a file of another format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import Damage, FormatError

if TYPE_CHECKING:
    from fractions import Fraction

__all__ = ["Conversion", "Reading", "Rewriting", "not_of_format"]


class Reading(Protocol):
    """How a file is read that lacks facts about itself, or states them wrongly. False where it says all."""

    def __bool__(self) -> bool: ...


class Rewriting(NamedTuple):
    """How files are written anew in their own format: only ``start <= time < end`` (seconds since the first event),
    only these processes (none: all), compressed or not (``None``: as the first file)."""

    start: Fraction | None = None
    end: Fraction | None = None
    pids: frozenset[int] = frozenset()
    compress: bool | None = None
    reading: Reading | None = None


class Conversion(NamedTuple):
    """The result of writing captures as another file."""

    summary: str
    """How much was written: ``412 of 412 samples written``."""
    damage: Sequence[tuple[str, Damage]] = ()
    """Name of a capture, and what could not be read of it and is left out."""
    notes: Sequence[str] = ()
    """What the file has no place for, and what else is worth knowing."""
    warnings: Sequence[str] = ()


def not_of_format(name: str, start: bytes, reason: str, hint: str | None = None, **where: object) -> FormatError:
    """The error for file ``name`` that begins with ``start``: an empty file, a packed file, or else ``reason`` with
    ``hint``.

    ``where``: offset, field and value of ``reason``; by default the magic number.
    """
    for magic, (packer, unpack) in _PACKED.items():
        if start.startswith(magic):
            reason, hint, where = f"packed with {packer}", f"unpack it first, with `{unpack}`", {}
    place: dict[str, Any] = {"offset": 0, "field": "magic", "value": start[:8] or None, **where}
    return FormatError(reason if start else "file is empty", file=name, hint=hint, **place)


_PACKED = {
    b"\x1f\x8b": ("gzip", "gzip -d"),
    b"\xfd7zXZ\0": ("xz", "xz -d"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"BZh": ("bzip2", "bzip2 -d"),
    b"PK\3\4": ("zip", "unzip"),
    b"MSCF": ("cabinet", "cabextract"),
}
"""First bytes of what captures are sent around in -> its name, and what unpacks it."""
