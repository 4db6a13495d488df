"""Giving back the space of what is no longer in a file's directory."""

from __future__ import annotations

import os

from ..formats.tb5.locking import lock
from ..formats.tb5.reading import Tb5File
from ..formats.tb5.writing import Tb5Writer
from ..opening import FileSource

__all__ = ["compact"]


def compact(path: str | os.PathLike[str]) -> int:
    """Write the file anew with what its last commit refers to; returns the bytes that this freed.

    The old file stays until the new one is complete. Raises `FormatError` at a damaged block: nothing is given up.
    """
    name = os.fspath(path)
    with open(name, "r+b", buffering=0) as held, Tb5File(FileSource(name)) as old, Tb5Writer.create(name) as new:
        lock(held, name)
        before = old.source.size
        for key, entry in old.tables.items():
            table = new.table(key, entry.record_size, in_order=False)
            for rows in old.blocks(key):
                table.write(rows)
            table.done()
    return before - os.path.getsize(name)
