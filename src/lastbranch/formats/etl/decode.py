"""Any event to named fields, and kernel events back to bytes.

    decoder = Decoder()
    for event in events:  # first pass: descriptions of manifest events may come after the events
        decoder.learn(event)
    for event in events:
        decoded = decoder.decode(event)  # decoded.provider_name, .event_name, .fields

What has no known layout stays whole: one field, the payload, and the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from ...errors import FormatError
from .event import Event
from .fields import Rest
from .kernel_session import META_DATA
from .kernel_tables import kernel_layout
from .manifest import Described, EventMap, MapKey, Property, parse_event_info, parse_map_info
from .manifest_payload import decode_described, fixed_layout
from .manifest_xml import CHUNK, MANIFEST_ID, Chunks, Manifests, parse_manifest
from .payloads import Layout, layout
from .providers import guid_text, kernel_key, kernel_names, opcode_name
from .tracelogging import describe

__all__ = ["PAYLOAD", "Decoded", "Decoder", "Kind", "Known"]

PAYLOAD = "payload"
"""The name of the only field of an event without a known layout."""

_META_DATA = UUID(META_DATA).bytes_le
_EVENT_INFO, _MAP_INFO = 32, 33
_CLASSIC = frozenset((10, 11, 20, 21))
_EVENT_HEADERS = frozenset((18, 19))
_LOG_HEADER = 0
_MOST_MISSING = 1000


Kind = Literal["kernel", "tracelogging", "manifest", "raw"]
"""Where the layout of an event comes from."""

_WHOLE = layout(**{PAYLOAD: Rest()})


@dataclass(slots=True)
class Decoded:
    """An event with names. Manifest events without a manifest have ``event_name`` "EventID(7)" and the layout "raw"."""

    provider_name: str
    event_name: str
    fields: dict[str, Any]
    layout: Kind
    reason: str = field(default="")
    """Why a raw event is raw."""

    @property
    def name(self) -> str:
        """ "Windows Kernel/Image/DCStart"."""
        return f"{self.provider_name}/{self.event_name}"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a type of event: its names, and one of ``layout`` and ``described`` unless it is raw.

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
    """Decodes events of one trace. It never raises for what an event holds.

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
        self._fixed: dict[Described, Layout | None] = {}

    def learn(self, event: Event) -> None:
        """Take in what an event says about others: EventMetadata and manifests of event sources; others do nothing."""
        if event.header in _EVENT_HEADERS:
            if event.id == MANIFEST_ID:
                text = self._chunks.add(event.provider, event.pid, event.payload)
                if text is not None:
                    events, maps = parse_manifest(text)
                    self._maps.update(maps)
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

    def _add(self, described: Described) -> None:
        number = described.opcode if described.classic else described.id
        self._described[described.provider, described.classic, number, described.version] = described
        self._fixed.clear()
        if described.provider not in self._given.names:
            self._names.setdefault(described.provider, described.provider_name)

    def decode(self, event: Event) -> Decoded:
        """The event with its fields by name, as far as its payload holds them."""
        known = self.find(event)
        fields = self.fields(known, event, self.pointer(event))
        return Decoded(known.provider_name, known.event_name, fields, known.kind, known.reason)

    def fields(self, known: Known, event: Event, pointer: int) -> dict[str, Any]:
        """The fields of an event of which that much is ``known``, read with that pointer size."""
        if known.described is not None:
            return decode_described(known.described, event.payload, pointer, self._maps)
        if known.layout is not None:
            return known.layout.decode(event.payload[known.skip :], pointer)
        return {PAYLOAD: event.payload}

    def find(self, event: Event) -> Known:
        """What is known of the type of ``event``, without decoding it."""
        key = kernel_key(event)
        if key is not None:
            names, fields = kernel_names(key), kernel_layout(key, event.version)
            if fields is None:
                return Known(*names, "raw", reason=f"no layout for version {event.version}")
            return Known(*names, "kernel", fields)
        if event.header in _EVENT_HEADERS:
            found = self._find_self_describing(event)
            if found is not None:
                return found
        classic = event.header in _CLASSIC
        described = self._described.get((event.provider, classic, event.opcode if classic else event.id, event.version))
        if described is None and not classic and event.header in _EVENT_HEADERS:
            described = self._given.events.get((event.provider, event.id, event.version))
        if described is not None:
            return Known(described.provider_name, described.event_name, "manifest", described=described)
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
        if not known or event.header not in _EVENT_HEADERS:
            return "no manifest in the trace or among those given"
        if len(self._missing) < _MOST_MISSING:
            self._missing.add((event.provider, event.id, event.version))
        return f"the manifest has version {', '.join(map(str, sorted(known)))} of it, not {event.version}"

    def misfit(self, known: Known, number: int) -> None:
        """Take notice that ``number`` payloads were not what a description says."""
        if known.described is not None:
            self._misfits[known.described] += number

    def notes(self) -> list[str]:
        """What the given manifests and the events contradict each other in, as far as events were decoded."""
        notes = []
        for guid, id_, version in sorted(self._missing):
            has = ", ".join(map(str, sorted(self._versions[guid, id_])))
            notes.append(f"{self._given.names[guid]}: event {id_} has version {version}, its manifest {has}")
        for described, number in self._misfits.items():
            name = f"{described.provider_name}/{described.event_name} version {described.version}"
            notes.append(f"{name}: {number} payloads are not what the manifest says; the rest of them stays bytes")
        for (guid, classic, id_, version), own in self._described.items():
            given = None if classic else self._given.events.get((guid, id_, version))
            if given is not None and _shape(given.properties) != _shape(own.properties):
                name = f"{own.provider_name}: event {id_} version {version}"
                notes.append(f"{name} is described in the trace, not as in the manifest given; the trace's is used")
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

    def columns_layout(self, known: Known) -> Layout | None:
        """The layout that makes columns of events of this type; None for those that are only decoded one by one."""
        if known.described is None:
            return known.layout or _WHOLE
        if known.described not in self._fixed:
            self._fixed[known.described] = fixed_layout(known.described, self._maps)
        return self._fixed[known.described]

    def layout_of(self, event: Event) -> Layout | None:
        """The declared layout of a kernel event, None for others and for what no table has."""
        key = kernel_key(event)
        return None if key is None else kernel_layout(key, event.version)

    def encode(self, event: Event, decoded: Decoded | Mapping[str, Any]) -> bytes:
        """The payload of the kernel event ``event`` with the given fields; what `decode` gave comes back exactly.

        FormatError for an event without a declared layout, and for a value that its field cannot hold.
        """
        fields = decoded.fields if isinstance(decoded, Decoded) else decoded
        known = self.layout_of(event)
        if known is None:
            if PAYLOAD in fields:
                return bytes(fields[PAYLOAD])
            raise FormatError("no layout to write this event with", field="provider", value=guid_text(event.provider))
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
    """What is stored, without how it is shown."""
    return tuple((p.name, p.in_type, p.count, p.length, _shape(p.members)) for p in properties)
