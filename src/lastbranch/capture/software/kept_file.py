"""Files of /proc that each burst reads: they stay open, since opening one takes longer than reading it."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from ..perf_events.syscall import sparing
from ..procfs import PAGE, read_once

__all__ = ["KeptFile", "MemoryFiles"]


class KeptFile:
    """A short file, such as one of /proc, that stays open because it is read again and again."""

    def __init__(self, path: str) -> None:
        self._path, self._fd = path, -1

    def read(self) -> bytes:
        """Its text now. Raises `OSError`."""
        if self._fd < 0:
            try:
                self._fd = sparing(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                return read_once(self._path)
        return os.pread(self._fd, PAGE, 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class MemoryFiles(NamedTuple):
    """Descriptors of what /proc has of a process's memory: the memory itself, what may be done with each page of it,
    and which pages userfaultfd watches. ``pagemap`` -1: this kernel does not tell (CONFIG_PROC_PAGE_MONITOR)."""

    mem: int
    maps: int
    pagemap: int

    @classmethod
    def of(cls, pid: int, mem: int) -> MemoryFiles:
        """Open the files of ``pid``, whose memory is open. Raises `OSError`."""
        maps = sparing(os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC), useful=True)
        try:
            pagemap = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            return cls(mem, maps, sparing(pagemap, useful=True))
        except FileNotFoundError:
            return cls(mem, maps, -1)
        except OSError:
            os.close(maps)
            raise

    def close(self) -> None:
        """Close what `of` has opened."""
        for descriptor in (self.maps, self.pagemap):
            if descriptor >= 0:
                os.close(descriptor)
