"""Events as columns, gathered from their headers on demand.

A column that nobody asks for costs nothing: a block holds the place, first word and size of each event. Other modules
select the events they want (`EventBlock.take`) and gather columns of those only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....arrays import view_unaligned
from ..container.buffers import DamageLog
from ..container.header import LogHeader
from ..container.read_windows import Window
from ..kernel.hooks import hook_provider
from ..layout import (
    EVENT_FLAG,
    EVENT_HEADERS,
    EXTENDED_ITEM,
    EXTENDED_TYPE,
    HEADERS,
    LARGEST_EVENT,
    MESSAGE,
    MESSAGE_FLAG,
    PEBS_INDEX,
    PMC_COUNTERS,
    message_header,
    packed,
    unpack_fields,
)
from ..single_event import Event
from .walk import EARLY, HEADER_BYTES, MESSAGE_BYTES, NO_IDS, Walk, walk

__all__ = [
    "CARRIED",
    "CHUNK",
    "EVENT",
    "EventBlock",
    "FULL",
    "IMAGE_LOAD",
    "Ints",
    "MESSAGE_FORM",
    "Rules",
    "counters_of",
    "events_of",
    "header_fields",
]


# -- Tables by header type

Ints = NDArray[np.int64]
_U64 = np.uint64
_NS = 1_000_000_000

SYSTEM, PERFINFO, FULL, EVENT, MESSAGE_FORM, OTHER = range(6)
"""Forms of headers: what is where."""
_FORM_OF_NAME = {"SYSTEM": SYSTEM, "COMPACT": SYSTEM, "FULL_HEADER": FULL, "INSTANCE": FULL, "EVENT_HEADER": EVENT,
                 "PERFINFO": PERFINFO, "ERROR": OTHER}  # fmt: skip
FORM = np.full(256, OTHER, np.uint8)
POINTER = np.zeros(256, np.uint8)  # 0: that of the log
for _type, _kind in HEADERS.items():
    FORM[_type] = _FORM_OF_NAME[_kind.name.rstrip("0123456789")]
    POINTER[_type] = _kind.pointer_size
FORM[MESSAGE] = MESSAGE_FORM
_NO_HOOK = np.where(FORM <= PERFINFO, 0, -1).astype(np.int32)
"""All bits set where the header has no hook."""

_LOG_HEADER = 0x0000
IMAGE_LOAD = 0x030A
"""The one hook that is not reported under the GUID of its group."""
IMAGE_GUID = np.frombuffer(hook_provider(IMAGE_LOAD), _U64)
GROUP_GUIDS = np.frombuffer(b"".join(hook_provider(group << 8) for group in range(256)), _U64).reshape(-1, 2)
_KNOWN = np.flatnonzero(GROUP_GUIDS.any(axis=1))
_KNOWN = _KNOWN[np.argsort(GROUP_GUIDS[_KNOWN, 0])]  # the first halves differ


def _classic_hooks(guids: NDArray[np.uint64], types: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Hooks of classic events by their GUIDs (n, 2) and types, -1 under other GUIDs than those of kernel groups."""
    first = GROUP_GUIDS[_KNOWN, 0]
    group = _KNOWN[np.minimum(np.searchsorted(first, guids[:, 0]), len(_KNOWN) - 1)]
    same = (GROUP_GUIDS[group] == guids).all(axis=1)
    return np.where(same, group << 8 | types, -1).astype(np.int32)


def _end_of_items(words: NDArray[np.uint64], at: Ints, sizes: Ints) -> Ints:
    """Bytes from the start of the EVENT_HEADER events at words ``at`` to the end of their last extended items.

    More than an event's size where the items do not fit in it.
    """
    end = np.full(len(at), _EVENT_HEADER, np.int64)
    live = np.arange(len(at))
    while len(live):
        item = words.take(at[live] + (end[live] >> 3))
        length = (item & _U64(0xFFFF)).astype(np.int64)
        fits = (length >= 8) & (length & 7 == 0) & (end[live] + length <= sizes[live])
        end[live] = np.where(fits, end[live] + length, LARGEST_EVENT + 1)
        live = live[fits & (item >> _U64(32) & _U64(1) != 0)]
    return end


# -- Events as columns


@dataclass(frozen=True, slots=True)
class Rules:
    """The properties that all events of a session in a log share.

    ``pointer_size`` is the size for events whose header has none; ``override`` is a size for all events, or 0.
    ``to_log`` converts the session's ticks to those of the log's clock, ``None`` if they are the same.
    """

    damage: DamageLog
    pointer_size: int
    override: int = 0
    to_log: Callable[[Ints], Ints] | None = None

    @classmethod
    def of(cls, damage: DamageLog, own: LogHeader, log: LogHeader, override: int = 0) -> Rules:
        """The parameters of the session with header ``own`` on the time line of ``log``."""
        return cls(damage, own.payload_pointer_size, override, _to_log(log, own))


def _to_log(log: LogHeader, own: LogHeader) -> Callable[[Ints], Ints] | None:
    """Converts ticks of an appended session to those of the log, by the wall times of both headers.

    System time needs no conversion. Nor does a performance counter during an uptime of the machine: its ticks are more
    exact than the wall times.
    """
    same_clock = (own.clock_type, own.frequency) == (log.clock_type, log.frequency)
    if own is log or not (own.frequency and log.frequency):
        return None
    if same_clock and (log.clock_type == 2 or own.boot_time == log.boot_time):
        return None
    clock, between = own.clock, (own.start_time - log.start_time) * 100

    def convert(ticks: Ints) -> Ints:
        whole, part = np.divmod(clock.to_ns_array(ticks - own.timestamp) + between, _NS)
        result: Ints = whole * log.frequency + part * log.frequency // _NS + log.timestamp
        return result

    return convert


_PAIR = np.complex128  # a number type of 16 bytes, to gather two words at once
_EVENT_HEADER = 0x50  # bytes
_EARLIER = {MESSAGE_FLAG.GUID: 0x01, MESSAGE_FLAG.TIMESTAMP: 0x07, MESSAGE_FLAG.SYSTEMINFO: 0x0F}  # fields before it
_MESSAGE_TYPE = {MESSAGE_FLAG.GUID: "V16", MESSAGE_FLAG.TIMESTAMP: "<i8", MESSAGE_FLAG.SYSTEMINFO: "<u8"}


CARRIED = ("time", "header_size", "pointer_size", "offset")
"""Columns that depend on the neighbours of an event, its log or its place: selections and copies keep them."""


class EventBlock:
    """Events of one window in file order, as columns of equal length.

    Always present: ``at`` int64 (8-byte words from the start of ``words`` to the event), ``head`` uint64 (the event's
    first word), ``size`` int64 (bytes, header included), ``buffer`` int32 (row of ``window.buffers``).

    Gathered on demand and kept: ``header`` uint8 (header type: a key of `layout.HEADERS`, or `layout.MESSAGE`),
    ``hook`` int32 (-1: none), ``time`` int64 (ticks of the log's clock), ``pid``, ``tid`` int32 (-1: none), ``cpu``
    int32, ``version``, ``opcode``, ``level``, ``channel`` uint8, ``id``, ``task``, ``options`` uint16, ``keyword``
    uint64, ``provider`` (n, 2) uint64 (the GUID as 16 bytes of the file), ``pointer_size`` uint8, ``offset`` int64
    (bytes from the start of the decompressed buffer), ``payload`` int64 (byte position in ``raw``) and
    ``payload_size`` int64.

    Everything is valid until the next block of the same pass is requested, which reuses the window's memory.
    """

    def __init__(self, window: Window, found: Walk, rules: Rules) -> None:
        self.window, self.found, self.rules = window, found, rules
        self.at, self.head, self.size, self.buffer = found.at, found.head, found.size, found.buffer

    @classmethod
    def of(cls, window: Window, rules: Rules) -> EventBlock:
        """All events of ``window``."""
        return cls(window, walk(window, rules.damage), rules)

    def take(self, which: Any) -> EventBlock:
        """The given events: an index array, a mask or a slice."""
        if (self.form >= MESSAGE_FORM).any():
            self.time  # noqa: B018 - an event without a time stamp has that of the event before it
        taken = EventBlock(self.window, self.found.take(which), self.rules)
        taken.__dict__.update({name: self.__dict__[name][which] for name in CARRIED if name in self.__dict__})
        return taken

    def __len__(self) -> int:
        return len(self.at)

    @property
    def words(self) -> NDArray[np.uint64]:
        return self.window.words

    @property
    def raw(self) -> NDArray[np.uint8]:
        return self.window.raw

    @property
    def header(self) -> NDArray[np.uint8]:
        return self.found.header

    @cached_property
    def form(self) -> NDArray[np.uint8]:
        return FORM.take(self.header)

    @cached_property
    def is_kernel(self) -> NDArray[np.bool_]:
        """Whether the header is one of the kernel's: a hook id instead of a GUID."""
        kernel: NDArray[np.bool_] = self.form <= PERFINFO
        return kernel

    @cached_property
    def hook(self) -> NDArray[np.int32]:
        hook: NDArray[np.int32] = self._quarter(3).astype(np.int32) | _NO_HOOK.take(self.header)
        return hook

    @cached_property
    def kernel_hook(self) -> NDArray[np.int32]:
        """`hook`, and for classic events under the GUID of a kernel group the hook that they would have."""
        rows = np.flatnonzero(self.form == FULL)
        if not len(rows):
            return self.hook
        hook, at = self.hook.copy(), self.at[rows]
        guids = np.stack([self.words.take(at + n) for n in (3, 4)], axis=1)
        hook[rows] = _classic_hooks(guids, self._quarter(2)[rows].astype(np.uint8))
        return hook

    @cached_property
    def pointer_size(self) -> NDArray[np.uint8]:
        if self.rules.override:
            own = self.is_kernel & (self._quarter(3) == _LOG_HEADER)  # which the rest of the log is read by
            return np.where(own, POINTER.take(self.header), self.rules.override).astype(np.uint8)
        size = POINTER.take(self.header)
        message = np.flatnonzero(self.form == MESSAGE_FORM)
        options = self.options[message]
        size[message[(options & MESSAGE_FLAG.POINTER32) != 0]] = 4
        size[message[(options & MESSAGE_FLAG.POINTER64) != 0]] = 8
        size[size == 0] = self.rules.pointer_size
        return size

    @cached_property
    def options(self) -> NDArray[np.uint16]:
        """OptionFlags of MESSAGE_FORM events, Flags of EVENT_HEADER ones, 0 for the others."""
        result = np.zeros(len(self), np.uint16)
        for form, quarter in ((MESSAGE_FORM, 3), (EVENT, 2)):
            rows = np.flatnonzero(self.form == form)
            result[rows] = self._quarter(quarter)[rows]
        return result

    @cached_property
    def packet_version(self) -> NDArray[np.uint16]:
        """Version of kernel headers with the bits that count counters, 0 for others."""
        return np.where(self.is_kernel, self._quarter(0), 0).astype(np.uint16)

    def _quarter(self, n: int) -> NDArray[np.uint16]:
        return self.head.view(np.uint16)[n::4]

    # -- from the words that follow; PAD keeps all of this inside the array

    def word(self, n: int) -> NDArray[np.uint64]:
        """The ``n``-th 64-bit word of each event, whether the event has it or not."""
        return self.words[n:].take(self.at)

    @cached_property
    def _stamp_words(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The words of the time stamp and of thread and process: `Walk.time`, `Walk.ids`."""
        if self.found.time is not None and self.found.ids is not None:
            return self.found.time, self.found.ids
        pairs = np.ndarray((len(self.words) - 2,), _PAIR, self.words, 8, (8,))  # each begins within the one before
        words = pairs[self.at - EARLY.take(self.header)].view(np.uint64).reshape(-1, 2)
        return np.ascontiguousarray(words[:, 1]), words[:, 0] | NO_IDS.take(self.header)

    @cached_property
    def _without_time(self) -> NDArray[np.bool_]:
        bare = (self.options & MESSAGE_FLAG.TIMESTAMP) == 0
        result: NDArray[np.bool_] = (self.form == OTHER) | ((self.form == MESSAGE_FORM) & bare)
        return result

    @cached_property
    def time(self) -> Ints:
        """Ticks. An event without a time stamp gets the previous event's time in its buffer; the first event gets the
        time of the log's begin."""
        time = self._stamp_words[0].view(np.int64)
        if (self.form < MESSAGE_FORM).all():
            return time if self.rules.to_log is None else self.rules.to_log(time)
        time, message = time.copy(), np.flatnonzero(self.form == MESSAGE_FORM)
        if len(message):
            time[message] = self._message(message, MESSAGE_FLAG.TIMESTAMP)
        untimed = np.flatnonzero(self._without_time)
        if len(untimed):
            # The index of the last event with a time, at or before each event and in its buffer.
            last = np.arange(len(self))
            last[untimed] = -1
            last = np.maximum.accumulate(last)[untimed]
            known = (last >= 0) & (self.buffer[last] == self.buffer[untimed])
            time[untimed] = np.where(known, time[last], self.window.header.timestamp)
        return time if self.rules.to_log is None else self.rules.to_log(time)

    @cached_property
    def tid(self) -> NDArray[np.int32]:
        return self._ids[0]

    @cached_property
    def pid(self) -> NDArray[np.int32]:
        return self._ids[1]

    @cached_property
    def _ids(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        halves = self._stamp_words[1]
        message = np.flatnonzero(self.form == MESSAGE_FORM)
        if len(message):
            halves, message = halves.copy(), message[(self.options[message] & MESSAGE_FLAG.SYSTEMINFO) != 0]
            halves[message] = self._message(message, MESSAGE_FLAG.SYSTEMINFO)
        pairs = halves.view(np.int32)
        return pairs[0::2], pairs[1::2]

    @cached_property
    def cpu(self) -> NDArray[np.int32]:
        return self.window.buffers.cpu.take(self.buffer)

    @cached_property
    def _descriptor(self) -> NDArray[np.uint64]:
        """From EVENT_HEADER: Id, Version, Channel, Level, Opcode, Task in one word; 0 for others."""
        return np.where(self.form == EVENT, self.word(5), _U64(0))

    @cached_property
    def id(self) -> NDArray[np.uint16]:
        """Id of manifest events, MessageNumber of WPP ones, 0 for the others."""
        own = self._descriptor.astype(np.uint16)
        return np.where(self.form == MESSAGE_FORM, self._quarter(2), own)

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
        rows = np.flatnonzero((self.form == MESSAGE_FORM) & named)
        if len(rows):
            guid[rows] = self._message(rows, MESSAGE_FLAG.GUID).view(np.uint64).reshape(-1, 2)
        return guid

    def _message(self, rows: Ints, flag: int) -> NDArray[Any]:
        """The field of ``flag`` of the messages ``rows``; none is aligned."""
        place = self.at[rows] * 8 + MESSAGE_BYTES.take(self.options[rows].astype(np.int64) & _EARLIER[flag])
        found: NDArray[Any] = view_unaligned(self.raw, _MESSAGE_TYPE[flag])[place]
        return found

    @cached_property
    def offset(self) -> Ints:
        return self.at * 8 - self.window.start.take(self.buffer)

    # -- payloads

    @cached_property
    def header_size(self) -> Ints:
        """Bytes before the payload: header, counter values, extended items."""
        size = HEADER_BYTES.take(self.header)
        message = np.flatnonzero(self.form == MESSAGE_FORM)
        size[message] = MESSAGE_BYTES.take(self.options[message].astype(np.int64) & 0xFF)
        counted = np.flatnonzero(self.packet_version & (PMC_COUNTERS | PEBS_INDEX))
        if len(counted):
            version = self.packet_version[counted].astype(np.int64)
            size[counted] += ((version & PMC_COUNTERS) >> 8) * 8 + ((version & PEBS_INDEX) >> 12)
        extended = np.flatnonzero((self.form == EVENT) & ((self.options & EVENT_FLAG.EXTENDED_INFO) != 0))
        if len(extended):
            size[extended] = _end_of_items(self.words, self.at[extended], self.size[extended])
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

    def payload_field(self, rows: Ints, place: int, dtype: Any) -> NDArray[Any]:
        """The ``dtype`` at byte ``place`` of the payloads of ``rows``, whether they are that long or not."""
        found: NDArray[Any] = view_unaligned(self.raw, dtype)[self.payload[rows] + place]
        return found


# -- From columns to `Event` objects, for callers that look at single events


CHUNK = 4096
"""Events that are made at once: an object takes about 1 KB."""

_ITEM = packed(EXTENDED_ITEM)
_ACTIVITY_AT = 0x40
_COUNTED = PMC_COUNTERS | PEBS_INDEX
_FIRST = ("header", "pointer_size", "time", "pid", "tid", "cpu", "hook")
_LATER = ("id", "version", "opcode", "level", "task", "channel", "keyword", "options")
"""The columns that are the first fields of `Event`, and those that follow its provider."""
_PLACES = ("at", "offset", "payload", "payload_size", "packet_version")


def events_of(block: EventBlock) -> list[Event]:
    """All events of ``block`` as objects, which do not depend on the block any more."""
    memory: Any = memoryview(block.raw)  # type: ignore[arg-type]
    guids = np.ascontiguousarray(block.provider).tobytes()
    providers = [guids[at : at + 16] for at in range(0, len(guids), 16)]
    first, later, places = ([getattr(block, name).tolist() for name in names] for names in (_FIRST, _LATER, _PLACES))
    fields = zip(*first, providers, *later, strict=True)
    buffers = block.window.buffers.offset.take(block.buffer).tolist()
    events = []
    for values, (at, offset, payload, length, packet), buffer in zip(
        fields, zip(*places, strict=True), buffers, strict=True
    ):
        event, begin = Event(*values), at * 8
        event.offset, event.buffer, event.payload = offset, buffer, bytes(memory[payload : payload + length])
        if event.header in EVENT_HEADERS:
            event.activity = bytes(memory[begin + _ACTIVITY_AT : begin + _ACTIVITY_AT + 16])
            if event.flags & EVENT_FLAG.EXTENDED_INFO:
                event.extended = extended_items(memory[begin + _EVENT_HEADER : payload])
                event.counters = counters_of(event.extended)
        elif packet & _COUNTED:
            begin += HEADERS[event.header].size
            words = struct.unpack_from(f"<{(payload - begin) // 8}Q", memory, begin)
            count = (packet & PMC_COUNTERS) >> 8
            event.counters = words[:count]
            event.extended = [(EXTENDED_TYPE.PEBS_INDEX, struct.pack("<Q", word)) for word in words[count:]]
        events.append(event)
    return events


def extended_items(data: bytes | memoryview) -> list[tuple[int, bytes]]:
    """(type, data) of the extended items at the begin of ``data``, as far as whole items fit."""
    items, at = [], 0
    while at + _ITEM.size <= len(data):
        size, kind, linkage, length = _ITEM.unpack_from(data, at)
        if size < _ITEM.size or at + size > len(data):
            break
        items.append((kind, bytes(data[at + _ITEM.size : at + min(size, _ITEM.size + length)])))
        if not linkage & 1:
            break
        at += size
    return items


def counters_of(items: list[tuple[int, bytes]]) -> tuple[int, ...]:
    """The PMC counter values among extended items."""
    data = next((data for kind, data in items if kind == EXTENDED_TYPE.PMC_COUNTERS), b"")
    return struct.unpack_from(f"<{len(data) // 8}Q", data)


def header_fields(block: EventBlock, i: int) -> dict[str, Any]:
    """All header fields of event ``i`` by their names in the specification, including fields that `Event` lacks."""
    at, kind = int(block.at[i]) * 8, int(block.header[i])
    declared = message_header(int(block.options[i])) if kind == MESSAGE else HEADERS[kind].fields
    return unpack_fields(declared, block.raw[at : at + packed(declared).size].tobytes())
