"""All events of one recording, on every thread and processor, and the rings that they write into.

A ring belongs to a processor: the kernel lets events that are inherited by new tasks write only into one of their own
processor. The first event opened there owns it, all others share it.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...errors import UnavailableError
from ...formats.perfdata.layout import RECORD
from ..kernel import Kernel, RecordRing
from .before import tasks_of
from .programme import Programme

__all__ = ["PAGES", "EventRefused", "EventSet", "open_event"]

PAGES = 128
"""Of data in each ring: with its header page just what perf_event_mlock_kb allows an unprivileged user by default."""
_FEWEST_PAGES = 4

_Write = Callable[[bytes], object]


class _Opened(NamedTuple):
    fd: int
    programme: Programme
    identifier: int


class EventSet:
    """``programmes``: the last one is the tracking event, which owns the rings."""

    def __init__(self, kernel: Kernel, programmes: Sequence[Programme], pages: int | None = None) -> None:
        """``pages``: of data in each ring (`PAGES`), fewer where the kernel locks no more."""
        self._kernel = kernel
        self._programmes = programmes
        self._pages = pages or PAGES
        self._opened: list[_Opened] = []
        self._rings: dict[int, RecordRing] = {}
        self._alive: set[int] = set()
        """Descriptors of tracking events whose tasks are not known to have ended."""

    def __len__(self) -> int:
        return len(self._opened)

    def open_thread(self, tid: int) -> None:
        """Open every event on ``tid`` (-1: the whole system). Raises `EventRefused`."""
        for programme in reversed(self._programmes):
            for cpu in programme.cpus:
                self._open(programme, tid, cpu)

    def _open(self, programme: Programme, tid: int, cpu: int) -> None:
        try:
            fd = open_event(self._kernel, programme, tid, cpu)
        except OSError as error:
            raise EventRefused(error, programme) from error
        identifier = self._kernel.event_id(fd)
        self._opened.append(_Opened(fd, programme, identifier))
        programme.ids.append(identifier)
        if programme is self._programmes[-1]:
            self._alive.add(fd)
        if cpu in self._rings:
            self._rings[cpu].share(fd)
        else:
            self._rings[cpu] = self._map(fd)

    def _map(self, fd: int) -> RecordRing:
        """The largest ring that the kernel still locks memory for."""
        pages = self._pages
        while True:
            try:
                return self._kernel.ring(fd, pages)
            except UnavailableError:
                pages //= 2
                if pages < _FEWEST_PAGES:
                    raise

    def attach(self, pid: int, write: _Write) -> None:
        """Open every thread of ``pid``, again and again until none is new. Raises as `open_thread` does.

        A thread that one of ours has started meanwhile inherited its events: the fork record in a ring tells. Opened
        a second time it would be sampled twice. ``write`` gets the records that come meanwhile.
        """
        seen: set[int] = set()
        inherited: set[int] = set()

        def look(records: bytes) -> None:
            inherited.update(_forked(records))
            write(records)

        while new := set(tasks_of(self._kernel, pid)) - seen:
            for tid in sorted(new):
                self.drain(look)
                seen.add(tid)
                if tid not in inherited:
                    self._open_if_there(tid)
        if not self._opened:
            raise EventRefused(OSError(errno.ESRCH, "no thread left"), self._programmes[0])

    def _open_if_there(self, tid: int) -> None:
        try:
            self.open_thread(tid)
        except EventRefused as refused:
            if refused.error.errno != errno.ESRCH:
                raise

    def wait(self, seconds: float) -> bool:
        """Until records are due; whether any task is left that could make more."""
        self._alive -= self._kernel.wait(self._alive, seconds)
        return bool(self._alive)

    def drain(self, write: _Write) -> int:
        """Hand over what is in the rings; the number of bytes."""
        return sum(ring.drain(write) for ring in self._rings.values())

    def disable(self) -> None:
        for opened in self._opened:
            self._kernel.disable(opened.fd)

    def set_period(self, period: int) -> None:
        """Sample with another period from the next interrupt on."""
        for opened in self._opened:
            self._kernel.set_period(opened.fd, period)

    def losses(self) -> Iterator[tuple[int, int]]:
        """(id, records lost) of each event that counts them and lost any."""
        for opened in self._opened:
            if opened.programme.counts_losses and (lost := self._kernel.lost(opened.fd)):
                yield opened.identifier, lost

    def close(self) -> None:
        for ring in self._rings.values():
            ring.close()
        for opened in self._opened:
            self._kernel.close(opened.fd)
        self._rings.clear()
        self._opened.clear()


def open_event(kernel: Kernel, programme: Programme, tid: int, cpu: int) -> int:
    """A descriptor of ``programme`` on ``tid`` and ``cpu``; where there are too many already, as many as may be."""
    attr, group = programme.final, programme.joins.get(cpu, -1)
    try:
        return kernel.open_event(attr, tid, cpu, group)
    except OSError as error:
        if error.errno == errno.EMFILE and kernel.more_files():
            return kernel.open_event(attr, tid, cpu, group)
        raise


class EventRefused(Exception):
    """``programme`` could not be opened; ``error`` is the kernel's answer."""

    def __init__(self, error: OSError, programme: Programme) -> None:
        super().__init__(str(error))
        self.error, self.programme = error, programme


def _forked(records: bytes) -> Iterator[int]:
    """Thread ids in the FORK records among ``records``: u32 pid, ppid, tid."""
    at = 0
    while at + 8 <= len(records):
        kind, _, size = struct.unpack_from("=IHH", records, at)
        if kind == RECORD["FORK"]:
            yield struct.unpack_from("=i", records, at + 16)[0]
        at += max(size, 8)
