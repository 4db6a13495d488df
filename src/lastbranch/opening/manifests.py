"""How users say trace logs are to be read: the size of a pointer, and instrumentation manifests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import FormatError
from ..model import read_at
from .sources import FileSource

if TYPE_CHECKING:
    from ..formats.etl import Manifests, Reading

__all__ = ["read_manifests", "reading_of"]


def reading_of(pointer_size: int | None = None, manifests: Sequence[str | os.PathLike[str]] = ()) -> Reading:
    """How to read trace logs, from what users say: the bits of a pointer, and `read_manifests`. Raises `ValueError`."""
    from ..formats.etl import Reading

    if pointer_size not in (None, 32, 64):
        raise ValueError(f"a pointer has 32 or 64 bits, not {pointer_size}")
    return Reading(pointer_size and pointer_size // 8, read_manifests(manifests) if manifests else None)


def read_manifests(paths: Sequence[str | os.PathLike[str]]) -> Manifests:
    """The instrumentation manifests at ``paths``; of a folder those of its files that end in .man, .manifest or .xml.

    Where two describe an event, the first one holds, and ``notes`` say so if they differ. Raises `FormatError` for a
    file that is no manifest and a folder without any, `OSError` where one cannot be read. What is in a folder and no
    manifest becomes a note.
    """
    from ..formats.etl import Manifests
    from ..formats.etl.payload.manifest_xml import LARGEST

    found = Manifests()
    for path in [os.fspath(path) for path in paths]:
        if not os.path.isdir(path):
            found.add(_read_whole(path, LARGEST), path)
            continue
        inside = sorted(os.path.join(path, n) for n in os.listdir(path) if n.lower().endswith(_MANIFESTS))
        read = 0
        for name in inside:
            try:
                found.add(_read_whole(name, LARGEST), name)
                read += 1
            except FormatError as error:
                found.note(f"left out: {error}")
        if not read:
            raise FormatError("the folder has no instrumentation manifest", file=path, hint=f"files end in {_ENDINGS}")
    return found


_MANIFESTS = (".man", ".manifest", ".xml")
_ENDINGS = ", ".join(_MANIFESTS)


def _read_whole(path: str, most: int) -> bytes:
    """The content of a regular file, up to one byte more than ``most``."""
    source = FileSource(path)
    try:
        return read_at(source, 0, min(source.size, most + 1))
    finally:
        source.close()
