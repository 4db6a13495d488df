"""The file that a writer has open, as a source for reading."""

from __future__ import annotations

import os
from typing import IO

from ...model import Limits

__all__ = ["PathSource"]


class PathSource:
    """An open file as a `Source`; closing it is left to whoever opened it unless `close` is called."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self.name, self.limits = file, name, Limits.current()

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def readinto(self, offset: int, buffer: memoryview) -> int:
        self._file.seek(offset)
        done = 0
        while done < len(buffer):
            got = self._file.readinto(buffer[done:])  # type: ignore[attr-defined]
            if not got:
                break
            done += got
        return done

    def close(self) -> None:
        self._file.close()
