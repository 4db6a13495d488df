"""Events as columns, gathered from their headers when they are asked for.

A column that nobody looks at costs nothing: a block holds where each event is, its first word and its size. Other
modules select the events they want (`EventBlock.take`) and gather of those only.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .extents import Ints, behind_items, message_field
from .first_words import FirstWords, Rules, ones
from .forms import EVENT, FULL, GROUP_GUIDS, IMAGE_GUID, IMAGE_LOAD, MESSAGE, OTHER, PERFINFO
from .layout import EVENT_FLAG, MESSAGE_FLAG, PEBS_INDEX, PMC_COUNTERS
from .markers import HEADER_BYTES, MESSAGE_BYTES
from .walk import walk
from .windows import Window

__all__ = ["EventBlock", "Rules"]

_U64 = np.uint64
_PAIR = np.complex128  # a number type of 16 bytes, to gather two words at once


class EventBlock(FirstWords):
    """Events of one window in file order, as columns of equal length.

    Always there: ``at`` int64 (8-byte words from the begin of ``words`` to the event), ``head`` uint64 (the event's
    first word), ``size`` int64 (bytes, header included), ``buffer`` int32 (row of ``window.buffers``).

    Gathered on demand and kept: ``header`` uint8 (header type: a key of `layout.HEADERS`, or `layout.MESSAGE`),
    ``hook`` int32 (-1: none), ``time`` int64 (ticks of the log's clock), ``pid``, ``tid`` int32 (-1: none), ``cpu``
    int32, ``version``, ``opcode``, ``level``, ``channel`` uint8, ``id``, ``task``, ``options`` uint16, ``keyword``
    uint64, ``provider`` (n, 2) uint64 (the GUID's 16 bytes as they stand in the file), ``pointer_size`` uint8,
    ``payload`` int64 (byte position in ``raw``) and ``payload_size`` int64.

    Everything is valid until the next block of the same pass is asked for: the window's memory is used again.
    """

    @classmethod
    def of(cls, window: Window, rules: Rules) -> EventBlock:
        """All events of ``window``."""
        return cls(window, walk(window, rules.damage), rules)

    def take(self, which: Any) -> EventBlock:
        """The given events: an index array, a mask or a slice."""
        taken = EventBlock(self.window, self.found.take(which), self.rules)
        if (self.form >= MESSAGE).any():  # an event without a time stamp has that of the one before it
            taken.__dict__["time"] = self.time[which]
        return taken

    # -- from the words behind it; PAD keeps all of this inside the array

    def word(self, n: int) -> NDArray[np.uint64]:
        """The ``n``-th 64-bit word of each event, whether the event has it or not."""
        return self.words[n:].take(self.at)

    @cached_property
    def _stamped(self) -> NDArray[np.uint64]:
        """(n, 2): the word of the time stamp, where the header has it at a fixed place, and the one before it."""
        pairs = np.ndarray((len(self.words) - 2,), _PAIR, self.words, 8, (8,))  # each begins within the one before
        of_header: NDArray[np.bool_] = self.form == PERFINFO
        return pairs[self.at - of_header].view(np.uint64).reshape(-1, 2)

    @cached_property
    def _untimed(self) -> NDArray[np.bool_]:
        bare = (self.options & MESSAGE_FLAG.TIMESTAMP) == 0
        result: NDArray[np.bool_] = (self.form == OTHER) | ((self.form == MESSAGE) & bare)
        return result

    @cached_property
    def time(self) -> Ints:
        """Ticks. An event that has no time stamp gets that of the event before it in its buffer, the first one that of
        the log's begin."""
        time = np.ascontiguousarray(self._stamped[:, 1]).view(np.int64)
        if (self.form < MESSAGE).all():
            return time if self.rules.to_log is None else self.rules.to_log(time)
        message = np.flatnonzero(self.form == MESSAGE)
        if len(message):
            time[message] = self._message(message, MESSAGE_FLAG.TIMESTAMP, 8).view(np.int64)[:, 0]
        untimed = np.flatnonzero(self._untimed)
        if len(untimed):
            # The index of the last event with a time, at or before each event and in its buffer.
            last = np.arange(len(self))
            last[untimed] = -1
            last = np.maximum.accumulate(last)[untimed]
            known = (last >= 0) & (self.buffer[last] == self.buffer[untimed])
            time[untimed] = np.where(known, time[last], self.window.segment.header.timestamp)
        return time if self.rules.to_log is None else self.rules.to_log(time)

    @cached_property
    def tid(self) -> NDArray[np.int32]:
        return self._ids[0]

    @cached_property
    def pid(self) -> NDArray[np.int32]:
        return self._ids[1]

    @cached_property
    def _ids(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        halves = self._stamped[:, 0] | ones((self.form == PERFINFO) | (self.form >= MESSAGE), np.uint64)
        message = np.flatnonzero((self.form == MESSAGE) & ((self.options & MESSAGE_FLAG.SYSTEMINFO) != 0))
        if len(message):
            halves[message] = self._message(message, MESSAGE_FLAG.SYSTEMINFO, 8).view(np.uint64)[:, 0]
        pairs = halves.view(np.int32)
        return pairs[0::2], pairs[1::2]

    @cached_property
    def cpu(self) -> NDArray[np.int32]:
        return self.window.buffers.cpu.take(self.buffer)

    @cached_property
    def _descriptor(self) -> NDArray[np.uint64]:
        """Of EVENT_HEADER: Id, Version, Channel, Level, Opcode, Task in one word; 0 for others."""
        return np.where(self.form == EVENT, self.word(5), _U64(0))

    @cached_property
    def id(self) -> NDArray[np.uint16]:
        """Id of manifest events, MessageNumber of WPP ones, 0 for the others."""
        own = self._descriptor.astype(np.uint16)
        return np.where(self.form == MESSAGE, self._quarter(2), own)

    @cached_property
    def level(self) -> NDArray[np.uint8]:
        full = np.where(self.form == FULL, self._quarter(2) >> 8, (self._descriptor >> _U64(32)) & _U64(0xFF))
        return full.astype(np.uint8)

    @cached_property
    def channel(self) -> NDArray[np.uint8]:
        return (self._descriptor >> _U64(24)).astype(np.uint8)

    @cached_property
    def task(self) -> NDArray[np.uint16]:
        return (self._descriptor >> _U64(48)).astype(np.uint16)

    @cached_property
    def keyword(self) -> NDArray[np.uint64]:
        return np.where(self.form == EVENT, self.word(6), _U64(0))

    @cached_property
    def version(self) -> NDArray[np.uint8]:
        full = np.where(self.form == FULL, self._quarter(3), self._descriptor >> _U64(16))
        return np.where(self.is_kernel, self._quarter(0), full).astype(np.uint8)

    @cached_property
    def opcode(self) -> NDArray[np.uint8]:
        """Type of kernel and classic events, Opcode of manifest ones."""
        full = np.where(self.form == FULL, self._quarter(2), self._descriptor >> _U64(40))
        return np.where(self.is_kernel, self._quarter(3), full).astype(np.uint8)

    @cached_property
    def provider(self) -> NDArray[np.uint64]:
        guid = GROUP_GUIDS.take(self._quarter(3) >> 8, axis=0)
        guid[self.hook == IMAGE_LOAD] = IMAGE_GUID
        guid[~self.is_kernel] = 0
        rows = np.flatnonzero((self.form == FULL) | (self.form == EVENT))
        at = self.at[rows]
        guid[rows, 0] = self.words.take(at + 3)
        guid[rows, 1] = self.words.take(at + 4)
        named = (self.options & (MESSAGE_FLAG.GUID | MESSAGE_FLAG.COMPONENTID)) == MESSAGE_FLAG.GUID
        rows = np.flatnonzero((self.form == MESSAGE) & named)
        if len(rows):
            guid[rows] = self._message(rows, MESSAGE_FLAG.GUID, 16).view(np.uint64)
        return guid

    def _message(self, rows: Ints, flag: int, count: int) -> NDArray[np.uint8]:
        return message_field(self.raw, self.at[rows], self.options[rows], flag, count)

    # -- payloads

    @cached_property
    def header_size(self) -> Ints:
        """Bytes before the payload: header, counter values, extended items."""
        size = HEADER_BYTES.take(self.header)
        message = np.flatnonzero(self.form == MESSAGE)
        size[message] = MESSAGE_BYTES.take(self.options[message].astype(np.int64) & 0xFF)
        counted = np.flatnonzero(self.packet_version & (PMC_COUNTERS | PEBS_INDEX))
        if len(counted):
            version = self.packet_version[counted].astype(np.int64)
            size[counted] += ((version & PMC_COUNTERS) >> 8) * 8 + ((version & PEBS_INDEX) >> 12)
        extended = np.flatnonzero((self.form == EVENT) & ((self.options & EVENT_FLAG.EXTENDED_INFO) != 0))
        if len(extended):
            size[extended] = behind_items(self.words, self.at[extended], self.size[extended])
        wrong = np.flatnonzero(size > self.size)
        for i in wrong.tolist():
            reason = "counters or extended items longer than their event"
            row, at, size_of = int(self.buffer[i]), int(self.at[i]) * 8, int(self.size[i])
            self.window.note(self.rules.damage, reason, row, at, "Size", size_of, 0)
        size[wrong] = self.size[wrong]
        return size

    @cached_property
    def payload(self) -> Ints:
        return self.at * 8 + self.header_size

    @cached_property
    def payload_size(self) -> Ints:
        return self.size - self.header_size
