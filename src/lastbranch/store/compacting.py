"""Files written anew, table by table: what the last commit refers to, and nothing else."""

from __future__ import annotations

import os
import shutil

from ..formats.tb5.locking import lock
from ..formats.tb5.reading import Tb5File
from ..formats.tb5.writing import Tb5Writer
from ..model import Source
from ..opening import FileSource

__all__ = ["compact", "copy"]


def compact(path: str | os.PathLike[str]) -> int:
    """Give back the space of what is no longer in the file's directory; returns the bytes that this freed.

    The old file stays until the new one is complete, which takes its permissions; a link goes on to lead there. Raises
    `FormatError` at a damaged block: nothing is given up.
    """
    name = os.path.realpath(path)
    with open(name, "r+b", buffering=0) as held, Tb5File(FileSource(name)) as old, Tb5Writer.create(name) as new:
        lock(held, name)
        shutil.copymode(name, new.path)
        before = old.source.size
        _copy(old, new)
    return before - os.path.getsize(name)


def copy(source: Source, path: str | os.PathLike[str]) -> int:
    """Write all tables of the TB5 file ``source`` as a file that appears at ``path`` when it is complete; returns how
    many. Raises `FormatError` at a damaged block."""
    with Tb5File(source) as old, Tb5Writer.create(path) as new:
        _copy(old, new)
        return len(old.tables)


def _copy(old: Tb5File, new: Tb5Writer) -> None:
    for key, entry in old.tables.items():
        table = new.table(key, entry.record_size, in_order=False)
        for rows in old.blocks(key):
            table.write(rows)
        table.done()
