"""Which process is meant: a process id and its start time, as ids are used again."""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["ProcessKey", "process_key"]


class ProcessKey(NamedTuple):
    """A process of this boot: ``start`` is its start time in clock ticks since boot (field 22 of /proc/PID/stat)."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Whether that very process runs (a zombie does not)."""
        return self.start != 0 and process_key(self.pid) == self


def process_key(pid: int | None = None) -> ProcessKey:
    """The key of process ``pid``, of this one by default; its start is 0 where there is no such process."""
    number = os.getpid() if pid is None else pid
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return ProcessKey(number, 0 if fields[0] in (b"Z", b"X") else int(fields[19]))
    except (OSError, IndexError, ValueError):
        return ProcessKey(number, 0)
