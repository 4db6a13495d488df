"""The processes that a recording watches: those that are named, the descendants of others, and those of a group (a
container, a service, all of a user), whenever they begin."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Container, Iterator

from ..options import Targets
from ..process_groups import ProcessGroup
from ..procfs import read, stat_of

__all__ = ["Watched"]


_APART = 0.1
"""Seconds between two searches for new descendants. What begins and ends between two of them is missed."""
_LARGEST_SHARE = 0.02
"""Of our time that searches may take."""


class Watched:
    """Finds the processes of ``targets`` as they begin.

    Our own process and those that it descends from are never among them: tracing them would stop the recording.
    """

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._line = frozenset(_line_of(os.getpid()))
        self._known = set(self._line)
        """Processes that were returned, and our own line."""
        self._waiting: deque[int] = deque()
        self._next = 0.0
        self.empty = False
        """Whether the group had no process left when that was last looked at."""
        self.left_out: set[int] = set()
        """Of our own line, those that are in the group."""

    @property
    def group(self) -> ProcessGroup | None:
        return self._targets.group

    @property
    def searches(self) -> bool:
        """Whether it looks for processes that descend from others, which it does not trace."""
        return bool(self._targets.ancestors)

    def new(self, traced: Container[int]) -> Iterator[int]:
        """Processes to trace that were not returned before. ``traced``: those whose children are followed anyway. Who
        stops asking gets the others next time."""
        now = time.monotonic()
        if now >= self._next and not self._waiting:
            self._waiting.extend(self._search())
            self._next = now + max(_APART, (time.monotonic() - now) / _LARGEST_SHARE)
        while self._waiting:
            pid = self._waiting.popleft()
            if pid not in traced and pid not in self._known:
                self._known.add(pid)
                yield pid

    def _search(self) -> Iterator[int]:
        yield from self._targets.processes
        for ancestor in self._targets.ancestors:
            yield from _descendants(ancestor)
        if self.group is not None:
            members = self.group.members()
            self.empty = not members - self._line
            self.left_out |= members & self._line
            self._known &= members | self._line  # other processes may get the numbers of those that ended
            yield from sorted(members)

    def forget(self, pid: int) -> None:
        """A process ended; another may get its number."""
        if pid not in self._targets.processes:
            self._known.discard(pid)

    def leave(self, pid: int) -> None:
        """A process is not to be traced any more."""
        self._known.add(pid)


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
