"""The processes that a recording watches: those that are named, and the descendants of others, whenever they begin."""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterator

from ..options import Targets
from ..procfs import read, stat_of

__all__ = ["Watched"]


_APART = 0.1
"""Seconds between two searches for new descendants. What begins and ends between two of them is missed."""


class Watched:
    """Finds the processes of ``targets`` as they begin.

    Our own process and those that it descends from are never among them: tracing them would stop the recording.
    """

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._known = set(_line_of(os.getpid()))
        """Processes that were returned, and our own line."""
        self._next = 0.0

    def new(self, traced: Container[int]) -> Iterator[int]:
        """Processes to trace that were not returned before. ``traced``: those whose children are followed anyway."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _APART
        for pid in self._targets.processes:
            yield from self._first_time(pid, traced)
        for ancestor in self._targets.ancestors:
            for pid in _descendants(ancestor):
                yield from self._first_time(pid, traced)

    def _first_time(self, pid: int, traced: Container[int]) -> Iterator[int]:
        if pid in traced or pid in self._known:
            return
        self._known.add(pid)
        yield pid

    def forget(self, pid: int) -> None:
        """A process ended; another may get its number."""
        if pid not in self._targets.processes:
            self._known.discard(pid)


def _line_of(pid: int) -> Iterator[int]:
    """``pid``, its parent, and so on."""
    while pid > 0:
        yield pid
        stat = stat_of(pid)
        pid = stat.parent if stat else 0


def _descendants(pid: int) -> Iterator[int]:
    """The processes that descend from ``pid``, without itself. A child whose parent has ended is no longer seen."""
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{one}/task")
        except OSError:
            continue
        for tid in threads:
            children = [int(word) for word in (read(f"/proc/{one}/task/{tid}/children") or "").split()]
            waiting += children
            yield from children
