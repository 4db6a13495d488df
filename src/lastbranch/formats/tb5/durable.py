"""Bytes onto the disk."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ...model.output import NamedFile

__all__ = ["put_in_force", "sync_folder", "write_at"]


def write_at(file: IO[bytes], offset: int, data: bytes | NDArray[np.uint8]) -> None:
    """Write all of ``data`` to an unbuffered file."""
    file.seek(offset)
    view = memoryview(data)  # type: ignore[arg-type]
    while len(view):
        view = view[file.write(view) :]


def put_in_force(file: NamedFile, offset: int, slot: bytes) -> None:
    """Write a commit slot, durably; where that fails the slot counts for nothing."""
    try:
        write_at(file, offset, slot)
        file.sync()
    except BaseException:
        with suppress(OSError):  # it may have been written and not be durable
            write_at(file, offset, bytes(len(slot)))
        raise


def sync_folder(path: str) -> None:
    """Make a rename to ``path`` durable, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
