"""Any event to named fields, and kernel events back to bytes.

    decoder = Decoder()
    for event in events:  # first pass: descriptions of manifest events may come after the events
        decoder.learn(event)
    for event in events:
        decoded = decoder.decode(event)  # decoded.provider_name, .event_name, .fields

An event without a known layout has one field, the payload, and a reason.

One decoder with two faces: `Decoder.decode` takes one event, `batches_of` all events of a block. Kernel tables,
TraceLogging schemas and manifests all make a `Layout`, and both faces run it: `Layout.decode` value by value,
`decode_columns` as columns. Events whose counts or lengths are in other fields are decoded event by event for both
faces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError
from ...model import Source
from .events.columns import EVENT, MESSAGE_FORM, EventBlock, Ints, events_of
from .events.reader import TraceLog
from .events.walk import HEADER_BYTES
from .kernel.hooks import META_DATA, guid_text, kernel_key, kernel_names, opcode_name
from .kernel.layouts import kernel_layout
from .layout import CLASSIC_HEADERS, EVENT_FLAG, EVENT_HEADERS, PMC_COUNTERS
from .payload.layouts import REST, Layout, layout
from .payload.manifest import (
    Described,
    EventMap,
    MapKey,
    Property,
    described_layout,
    parse_event_info,
    parse_map_info,
)
from .payload.manifest_xml import CHUNK, MANIFEST_ID, Chunks, Manifests, parse_manifest
from .payload.payload_columns import FieldColumn, Lists, Objects, Payloads, decode_columns
from .payload.tracelogging import CHANNEL, describe
from .payload.types import Rest
from .single_event import Event

__all__ = [
    "AS_IT_SAYS",
    "Batch",
    "COUNTERS",
    "Decoded",
    "Decoder",
    "Known",
    "PAYLOAD",
    "Reading",
    "batches_of",
    "describes",
    "types_of",
]


PAYLOAD = "payload"
"""The name of the only field of an event without a known layout."""

_META_DATA = UUID(META_DATA).bytes_le
_EVENT_INFO, _MAP_INFO = 32, 33
_LOG_HEADER = 0
_MOST_MISSING = 1000


Kind = Literal["kernel", "tracelogging", "manifest", "raw"]
"""Where the layout of an event comes from."""

_WHOLE = layout(**{PAYLOAD: Rest()})


class _Named:
    __slots__ = ()
    provider_name: str
    event_name: str

    @property
    def name(self) -> str:
        """ "Windows Kernel/Image/DCStart"."""
        return f"{self.provider_name}/{self.event_name}"


@dataclass(slots=True)
class Decoded(_Named):
    """An event with names. Manifest events without a manifest have ``event_name`` "EventID(7)" and the layout "raw"."""

    provider_name: str
    event_name: str
    fields: dict[str, Any]
    layout: Kind
    reason: str = ""
    """Why a raw event is raw."""


@dataclass(frozen=True, slots=True)
class Known(_Named):
    """A type of event: its names, its ``layout`` unless the payload is raw, and its description in a manifest.

    ``skip`` bytes of the payload come before the layout.
    """

    provider_name: str
    event_name: str
    kind: Kind
    layout: Layout | None = None
    described: Described | None = None
    skip: int = 0
    reason: str = ""


class Decoder:
    """Decodes events of one trace. It never raises for the contents of an event.

    ``pointer_size`` overrides the pointer size that the headers of events claim (the log header's own excepted), for
    traces whose writer got it wrong. ``manifests`` describe events that the trace itself does not.
    """

    def __init__(self, *, pointer_size: int | None = None, manifests: Manifests | None = None) -> None:
        self._pointer_size = pointer_size
        self._given = manifests or Manifests()
        self._described: dict[tuple[bytes, bool, int, int], Described] = {}
        self._names: dict[bytes, str] = dict(self._given.names)
        self._maps: dict[MapKey, EventMap] = dict(self._given.maps)
        self._versions: dict[tuple[bytes, int], set[int]] = {}
        for guid, id_, version in self._given.events:
            self._versions.setdefault((guid, id_), set()).add(version)
        self._missing: set[tuple[bytes, int, int]] = set()
        self._misfits: Counter[Described] = Counter()
        self._chunks = Chunks()
        self._layouts: dict[int, Layout] = {}
        """By the id of their description."""

    def learn(self, event: Event) -> None:
        """Take in an event that describes others: EventMetadata or the manifest of an event source."""
        if event.header in EVENT_HEADERS:
            if event.id == MANIFEST_ID:
                text = self._chunks.add(event.provider, event.pid, event.payload)
                if text is not None:
                    events, maps = parse_manifest(text)
                    self._maps.update(maps)
                    self._layouts.clear()
                    for described in events:
                        self._add(described)
        elif event.provider == _META_DATA and event.hook < 0:
            if event.opcode == _EVENT_INFO:
                info = parse_event_info(event.payload)
                if info is not None:
                    self._add(info)
            elif event.opcode == _MAP_INFO:
                known = parse_map_info(event.payload)
                if known is not None:
                    self._maps[known[0]] = known[1]
                    self._layouts.clear()

    def _add(self, described: Described) -> None:
        number = described.opcode if described.classic else described.id
        self._described[described.provider, described.classic, number, described.version] = described
        self._layouts.clear()
        if described.provider not in self._given.names:
            self._names.setdefault(described.provider, described.provider_name)

    def decode(self, event: Event) -> Decoded:
        """The event with its fields by name, as far as its payload holds them."""
        known = self.find(event)
        fields = self.fields(known, event, self.pointer(event))
        return Decoded(known.provider_name, known.event_name, fields, known.kind, known.reason)

    def fields(self, known: Known, event: Event, pointer: int) -> dict[str, Any]:
        """The fields of an event of type ``known``, read with that pointer size."""
        return (known.layout or _WHOLE).decode(event.payload[known.skip :], pointer)

    def find(self, event: Event) -> Known:
        """The type of ``event``, without decoding the event."""
        key = kernel_key(event)
        if key is not None:
            names, fields = kernel_names(key), kernel_layout(key, event.version)
            if fields is None:
                return Known(*names, "raw", reason=f"no layout for version {event.version}")
            return Known(*names, "kernel", fields)
        if event.header in EVENT_HEADERS:
            found = self._find_self_describing(event)
            if found is not None:
                return found
        classic = event.header in CLASSIC_HEADERS
        described = self._described.get((event.provider, classic, event.opcode if classic else event.id, event.version))
        if described is None and not classic and event.header in EVENT_HEADERS:
            described = self._given.events.get((event.provider, event.id, event.version))
        if described is not None:
            fields = self._described_layout(described)
            return Known(described.provider_name, described.event_name, "manifest", fields, described)
        provider = self._names.get(event.provider) or guid_text(event.provider)
        if not classic and event.id == MANIFEST_ID:
            chunk = CHUNK.decode(event.payload, 8)
            if chunk.get("Format") == 1 and "Manifest" in chunk:
                return Known(provider, "ManifestData", "manifest", CHUNK)
        name = f"Opcode({event.opcode})" if classic else f"EventID({event.id})"
        return Known(provider, name, "raw", reason=self._why_raw(event))

    def _why_raw(self, event: Event) -> str:
        if not self._given.events:
            return "no manifest in the trace"
        known = self._versions.get((event.provider, event.id))
        if not known or event.header not in EVENT_HEADERS:
            return "no manifest in the trace or among those given"
        if len(self._missing) < _MOST_MISSING:
            self._missing.add((event.provider, event.id, event.version))
        return f"the manifest has version {', '.join(map(str, sorted(known)))} of it, not {event.version}"

    def misfit(self, known: Known, number: int) -> None:
        """Count ``number`` payloads that contradict the description of their type."""
        if known.described is not None:
            self._misfits[known.described] += number

    def notes(self) -> list[str]:
        """Contradictions between the given manifests and the events decoded so far."""
        notes = []
        for guid, id_, version in sorted(self._missing):
            has = ", ".join(map(str, sorted(self._versions[guid, id_])))
            notes.append(f"{self._given.names[guid]}: event {id_} has version {version}, its manifest {has}")
        for described, number in self._misfits.items():
            name = f"{described.provider_name}/{described.event_name} version {described.version}"
            notes.append(f"{name}: {number} payloads do not match the manifest; the rest of each stays undecoded")
        for (guid, classic, id_, version), own in self._described.items():
            given = None if classic else self._given.events.get((guid, id_, version))
            if given is not None and _shape(given.properties) != _shape(own.properties):
                name = f"{own.provider_name}: event {id_} version {version}"
                notes.append(
                    f"{name} is described differently in the trace and in the given manifest; the trace's "
                    f"description is used"
                )
        return notes

    def _find_self_describing(self, event: Event) -> Known | None:
        said = describe(event)
        if said is None:
            return None
        schema, traits, payload = said
        provider = traits.name if traits else self._names.get(event.provider) or guid_text(event.provider)
        opcode = opcode_name(event.opcode)
        name = f"{schema.name}/{opcode}" if opcode else schema.name
        return Known(provider, name, "tracelogging", schema.layout, skip=len(event.payload) - len(payload))

    def _described_layout(self, described: Described) -> Layout:
        if id(described) not in self._layouts:
            self._layouts[id(described)] = described_layout(described, self._maps)
        return self._layouts[id(described)]

    def layout_of(self, event: Event) -> Layout | None:
        """The declared layout of a kernel event; None for other events, and where no table has one."""
        key = kernel_key(event)
        return None if key is None else kernel_layout(key, event.version)

    def encode(self, event: Event, decoded: Decoded | Mapping[str, Any]) -> bytes:
        """The payload of the kernel event ``event`` with the given fields; the inverse of `decode`.

        FormatError for an event without a declared layout, and for a value that its field cannot hold.
        """
        fields = decoded.fields if isinstance(decoded, Decoded) else decoded
        known = self.layout_of(event)
        if known is None:
            if PAYLOAD in fields:
                return bytes(fields[PAYLOAD])
            raise FormatError(
                "no layout is known for writing this event", field="provider", value=guid_text(event.provider)
            )
        try:
            return known.encode(fields, self.pointer(event))
        except ValueError as error:
            raise FormatError(f"a field cannot be written: {error}", field="hook", value=event.hook) from error

    def pointer(self, event: Event) -> int:
        """The pointer size that the payload is read with."""
        if self._pointer_size is None or event.hook == _LOG_HEADER:
            return event.pointer_size
        return self._pointer_size


def _shape(properties: tuple[Property, ...]) -> tuple[object, ...]:
    """How properties are stored, without how they are shown."""
    return tuple((p.name, p.in_type, p.count, p.length, _shape(p.members)) for p in properties)


# -- Events of a block by type, all fields of all events of a type at once
#
#     for block in log.blocks():
#         for batch in batches_of(block, decoder):
#             batch.known.event_name, batch.rows, batch.columns["ImageBase"].values
#
# A type is what has one layout: hook or provider and id, version, pointer size. `Decoder.decode` gives the same for one
# event. Events that only this decoder can read (counts in other fields, payloads that end early) are delivered as
# batches, too.


COUNTERS = "Counters"
"""The column of the PMC counter values of event headers; it follows the fields."""

_U64 = np.uint64
_ROW = _U64((1 << 31) - 1)  # more than a block has events
_ODD = _U64(0x9E37_79B9_7F4A_7C15)  # 2**64 by the golden ratio
_Groups = Iterator[Ints]


@dataclass(slots=True)
class Batch:
    """Events of one type with the same fields.

    ``rows`` int64: which events of the block, ascending. ``columns`` have one value for each. The fields of the type's
    layout, as far as these payloads hold them, and `REST` for the remaining bytes. ``first`` is one of the events.
    """

    known: Known
    first: Event
    rows: Ints
    columns: dict[str, FieldColumn]

    def __len__(self) -> int:
        return len(self.rows)

    def fields(self) -> list[dict[str, Any]]:
        """The fields of each event by name, equal to those of `Decoder.decode`."""
        if not self.columns:
            return [{} for _ in range(len(self))]
        cells = zip(*(column.tolist() for column in self.columns.values()), strict=True)
        return [dict(zip(self.columns, values, strict=True)) for values in cells]


def batches_of(block: EventBlock, decoder: Decoder) -> Iterator[Batch]:
    """All events of ``block``, each in one batch, in no particular order. Batches do not depend on the block."""
    if not len(block):
        return
    groups = list(types_of(block))
    firsts = block.take(np.array([rows[0] for rows in groups], np.int64))
    apart = _is_single(firsts)
    plain = [rows for rows, single in zip(groups, apart.tolist(), strict=True) if not single]
    for first, rows in zip(events_of(firsts.take(~apart)), plain, strict=True):
        yield from _batches(block, decoder, decoder.find(first), first, rows)
    if apart.any():
        single = [groups[i] for i in np.flatnonzero(apart).tolist()]
        yield from _self_describing(block, decoder, np.sort(np.concatenate(single)))


def describes(block: EventBlock) -> NDArray[np.bool_]:
    """Which events describe others, for `Decoder.learn`."""
    meta = (block.provider == np.frombuffer(_META_DATA, np.uint64)).all(axis=1)
    described: NDArray[np.bool_] = ~block.is_kernel & ((block.id == MANIFEST_ID) | meta)
    return described


def types_of(block: EventBlock) -> _Groups:
    """Rows of each type of event, ascending. Several types of user events may be one type to the decoder."""
    kernel = block.is_kernel
    rows = np.flatnonzero(kernel)
    if len(rows):
        wide = (block.pointer_size[rows] == 8).astype(np.uint64) << _U64(16)
        yield from _alike(rows, [block.head[rows] & _U64(0xFFFF_0000_0000_FFFF) | wide])  # hook and packet version
    rows = np.flatnonzero(~kernel)
    if len(rows):
        at, form = block.at[rows], block.form[rows]
        guid = [np.where(form < MESSAGE_FORM, block.words.take(at + n), _U64(0)) for n in (3, 4)]
        descriptor = np.where(form == EVENT, block.words.take(at + 5), _U64(0))
        yield from _alike(rows, [block.head[rows] >> _U64(16), *guid, descriptor])


def _alike(rows: Ints, keys: list[NDArray[np.uint64]]) -> _Groups:
    """``rows`` in groups with the same ``keys``.

    Sorts numbers with a hash of the keys in the high bits and the row in the low ones, which takes a fraction of the
    time of an argsort. Keys of equal hash may come in more than one group.
    """
    mixed = np.zeros(len(rows), np.uint64)
    for key in keys:
        mixed ^= key
        mixed *= _ODD
    mixed &= ~_ROW
    mixed |= np.arange(len(rows), dtype=np.uint64)
    mixed.sort()
    order = (mixed & _ROW).astype(np.int64)
    change = np.zeros(len(rows) - 1, bool)
    for key in keys:
        sorted_ = key[order]
        change |= sorted_[1:] != sorted_[:-1]
    yield from np.split(rows[order], np.flatnonzero(change) + 1)


def _is_single(block: EventBlock) -> NDArray[np.bool_]:
    """Whether the types of these events only become known event by event."""
    extended = (block.options & EVENT_FLAG.EXTENDED_INFO) != 0
    event: NDArray[np.bool_] = block.form == EVENT
    event &= extended | (block.channel == CHANNEL) | (block.id == MANIFEST_ID)
    return event | (block.form >= MESSAGE_FORM)


def _batches(
    block: EventBlock, decoder: Decoder, known: Known, first: Event, rows: Ints, skip: Ints | None = None
) -> Iterator[Batch]:
    layout = known.layout or _WHOLE
    if layout.dependent:
        yield from _one_by_one(block, decoder, known, rows)
        return
    at = block.payload[rows]
    end = at + block.payload_size[rows]
    payloads = Payloads(block.raw, at if skip is None else at + skip, end, decoder.pointer(first))
    for which, columns in decode_columns(layout, payloads):
        if columns is None:
            yield from _one_by_one(block, decoder, known, rows[which])
            continue
        mine = rows[which]
        if REST in columns:
            decoder.misfit(known, len(mine))
        columns |= _counters(block, first, mine)
        yield Batch(known, first, mine, columns)


def _counters(block: EventBlock, first: Event, rows: Ints) -> dict[str, FieldColumn]:
    """Counter values after the headers of kernel events. All events of a type have the same number of them."""
    count = (int(block.packet_version[rows[0]]) & PMC_COUNTERS) >> 8
    if not count:
        return {}
    begin = block.at[rows] + (HEADER_BYTES.take(block.header[rows]) >> 3)
    values = block.words.take(begin[:, None] + np.arange(count))
    return {COUNTERS: Lists(values.ravel(), np.arange(0, values.size + 1, count))}


def _self_describing(block: EventBlock, decoder: Decoder, rows: Ints) -> Iterator[Batch]:
    """Events with extended items, messages and manifests, grouped by what the decoder knows of each."""
    groups: dict[object, tuple[Known, Event, list[tuple[int, int, list[int]]]]] = {}
    for row, event in zip(rows.tolist(), events_of(block.take(rows)), strict=True):
        known = decoder.find(event)
        key = (
            known.provider_name,
            known.event_name,
            known.kind,
            known.reason,
            id(known.layout),
            decoder.pointer(event),
            len(event.counters),
        )
        groups.setdefault(key, (known, event, []))[2].append((row, known.skip, list(event.counters)))
    for known, first, found in groups.values():
        mine, skip, counters = zip(*found, strict=True)
        whole = np.array(mine, np.int64)
        for batch in _batches(block, decoder, known, first, whole, np.array(skip, np.int64)):
            if first.counters and first.header in EVENT_HEADERS:
                batch.columns[COUNTERS] = Objects([counters[i] for i in np.searchsorted(whole, batch.rows).tolist()])
            yield batch


def _one_by_one(block: EventBlock, decoder: Decoder, known: Known, rows: Ints) -> Iterator[Batch]:
    """Events that only `Decoder.decode` can read, by the fields that it finds."""
    groups: dict[tuple[str, ...], tuple[Event, list[tuple[Any, ...]]]] = {}
    for row, event in zip(rows.tolist(), events_of(block.take(rows)), strict=True):
        fields = decoder.decode(event).fields
        if REST in fields:
            decoder.misfit(known, 1)
        if event.counters and event.header not in EVENT_HEADERS:
            fields = fields | {COUNTERS: list(event.counters)}
        groups.setdefault(tuple(fields), (event, []))[1].append((row, *fields.values()))
    for names, (first, found) in groups.items():
        mine, *cells = zip(*found, strict=True)
        columns: dict[str, FieldColumn] = {name: Objects(own) for name, own in zip(names, cells, strict=True)}
        yield Batch(known, first, np.array(mine, np.int64), columns)


# -- Options for logs that describe themselves insufficiently or wrongly


@dataclass(frozen=True, slots=True)
class Reading:
    """``pointer_size`` (4 or 8 bytes) overrides the pointer size of event headers for all payloads; ``None``: no
    override."""

    pointer_size: int | None = None
    manifests: Manifests | None = None
    """Descriptions of events that the log itself does not describe."""

    def __bool__(self) -> bool:
        return self != AS_IT_SAYS

    def provider_of(self, name: str) -> UUID | None:
        """The provider of that name, in upper or lower case, by the manifests."""
        names = self.manifests.names if self.manifests is not None else {}
        return next((UUID(bytes_le=guid) for guid, own in names.items() if own.lower() == name.lower()), None)

    def log(self, source: Source) -> TraceLog:
        """The log in ``source``. Raises `FormatError` for a file that cannot be read at all."""
        return TraceLog(source, pointer_size=self.pointer_size)

    def decoder(self) -> Decoder:
        """A decoder for its events."""
        return Decoder(pointer_size=self.pointer_size, manifests=self.manifests)


AS_IT_SAYS = Reading()
