"""Perf events that are opened while a recording runs, on processes that join a group.

The beginning of the file does not name the ids of these events, so their records get the ids of earlier events.
Layouts: include/uapi/linux/perf_event.h of Linux; all records end with their identifier, samples begin with it.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...errors import UnavailableError
from ...formats.perfdata.layout import RECORD
from ..process_groups import ProcessGroup
from ..procfs import program_of
from .event_set import EventRefused, EventSet, EventSpec
from .ring_records import HEAD, records_in

__all__ = ["GroupEvents", "relabel"]


_ID = struct.Struct("=Q")
_ID_AT = {RECORD["LOST"]: 8, RECORD["THROTTLE"]: 16, RECORD["UNTHROTTLE"]: 16}
"""Records that name an event in their body, and where: u64 id, lost; u64 time, id, stream_id."""
_MOST_NAMED = 20


def relabel(records: bytes, labels: Mapping[int, int]) -> bytes:
    """``records`` with identifiers exchanged as ``labels`` says; others stay."""
    out = bytearray(records)
    for at, kind, size in records_in(records):
        places = [8] if kind == RECORD["SAMPLE"] else [size - 8, *filter(None, [_ID_AT.get(kind)])]
        for place in places if size >= 2 * _ID.size else ():
            (identifier,) = _ID.unpack_from(records, at + place)
            if identifier in labels:
                _ID.pack_into(out, at + place, labels[identifier])
    return bytes(out)


class GroupEvents:
    """The events of ``events`` (opened as ``specs`` say) on the processes of a group, as they join it."""

    def __init__(self, events: EventSet, specs: Sequence[EventSpec], group: ProcessGroup) -> None:
        self._events, self._specs, self._group = events, specs, group
        self._known = {os.getpid()}
        """Processes that have events, have inherited them, or are not to have any."""
        self._before = group.members()
        self.labels: dict[int, int] = {}
        """The ids of late events -> those of early ones."""
        self.refused: list[str] = []
        """Which processes are not recorded, and why."""
        self.ended = False
        """No process is left, and none is waited for."""

    def attach(self, write: Callable[[bytes], object]) -> list[int]:
        """Open the events on processes that have joined since the last time; their ids. ``write`` gets the records that
        arrive meanwhile. Raises `EventRefused` where the first ones all refuse."""
        members = self._group.members()
        self._known &= members | {os.getpid()}
        # The fork record of a new process may not be in a ring yet.
        waiting = sorted((members & self._before) - self._known)
        self._before, self.ended = members, self._group.ends and not members
        joined, last = [], None
        for pid in waiting:
            self._known.add(pid)
            try:
                self._events.attach(pid, write)
                joined.append(pid)
            except (EventRefused, UnavailableError) as refused:
                error = refused.error if isinstance(refused, EventRefused) else OSError(errno.ENOMEM, str(refused))
                if error.errno != errno.ESRCH:
                    last = refused
                    self._refuse(pid, error)
        if last is not None and not len(self._events):
            raise last
        return joined

    def _refuse(self, pid: int, error: OSError) -> None:
        if len(self.refused) < _MOST_NAMED:
            name = os.path.basename(program_of(pid))
            self.refused.append(f"process {pid} ({name}) is not recorded: {os.strerror(error.errno or 0)}")

    def label(self, first: Sequence[int]) -> None:
        """Have `labels` map the ids of late events to those that the file names: ``first`` says how many ids of each
        spec these are. A spec keeps only them."""
        for count, spec in zip(first, self._specs, strict=True):
            self.labels.update(dict.fromkeys(spec.ids[count:], spec.ids[0]))
            del spec.ids[count:]

    def arrived(self, records: bytes) -> bytes:
        """``records`` with early ids. Processes that are forked have inherited their events."""
        self._known.update(_new_threads(records))
        return relabel(records, self.labels) if self.labels else records


def _new_threads(records: bytes) -> Iterator[int]:
    """Processes in FORK records: u32 pid, ..."""
    for at, kind, size in records_in(records):
        if kind == RECORD["FORK"] and size >= HEAD.size + 4:
            yield struct.unpack_from("=i", records, at + HEAD.size)[0]
