"""Self-describing events of our own provider, for the facts of a profile that kernel events have no field for.

The provider is called ``lastbranch``; its GUID derives from the name as with EventSource. Any consumer of ETW shows the
fields, since each event carries their names and types (TraceLogging, channel 11, extended item 11).

    Recording    the recorder and its clock; Header and Lost: its header lines and its losses, an event each
    Event        a trigger (its profile source, or its hook): how it was programmed, and its selection of branches
    Information  a trigger's branch records: the fields that were measured, and whether words are extended
                 (`lbr_information`)
    Triggers     the arguments of TraceConfigureLastBranchRecord: EVNTRACE_LBR_FLAGS, and the hooks that trigger
    Targets      the processes whose branches are recorded by software from then on, and those whose descendants are
    Bursts       at the end of a software recording: its branch records, how many of them have Depth branches, and why
                 bursts ended
    Module       a row of the modules table: ELF build id, kind, and the name that images have
    Segments     the load segments of a module's ELF file, as in its program headers
    Mapping      precedes the image event of the same Owner and ImageBase: its module, the part of the file (Linux maps
                 files in pieces), and the recorded mapping; Since is 0 for those that existed when the log began
    CpuTime      CPU time of a thread in ns that no such event before it said, known at the tick At
    Machine      processor and system, where SysConfig has no field

`supplement` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np

from ....arrays import distinct
from ....lbr import FLAG_FIELDS, flags_from_info
from ....model import BRANCH, Module, Profile, SampleBatch, Segment
from ....model import Event as ProfileEvent
from ..payload.layouts import Layout
from ..payload.tracelogging import CHANNEL, SCHEMA_ITEM, TRAITS_ITEM, describe, parse_schema
from ..single_event import Event
from .lbr_information import information_of, is_extended
from .sample_events import Trigger

__all__ = [
    "EVENTS",
    "MACHINE",
    "Measured",
    "PROVIDER",
    "event_fields",
    "fields_of",
    "load_bias",
    "module_fields",
    "recording_events",
    "segment_fields",
    "supplement_event",
]


PROVIDER = UUID("837b9dd1-8fd1-5257-b489-337f706aca79")
NAME = b"lastbranch\0"
_INFORMATION = 4  # Level
_EVENT_HEADER64 = 19
_WIDE, _I32, _U32, _I64, _U64, _BINARY, _ARRAY = 1, 7, 8, 9, 10, 14, 0x40  # TlgIn_*

EVENTS: dict[str, dict[str, int]] = {
    "Recording": {"Recorder": _WIDE, "Clock": _WIDE},
    "Header": {"Name": _WIDE, "Value": _WIDE},
    "Lost": {"Name": _WIDE, "Count": _U64},
    "Event": {
        "Source": _I32, "Hook": _I32, "Name": _WIDE, "Period": _U64, "Frequency": _U64, "SelectKind": _WIDE,
        "Select": _U64, "CallChain": _U32, "OwnPeriod": _U32, "Programming": _WIDE,
    },
    "Triggers": {"Flags": _U32, "Hooks": _U32 | _ARRAY},
    "Targets": {"Processes": _U32 | _ARRAY, "DescendantsOf": _U32 | _ARRAY},
    "Bursts": {"Depth": _U32, "Records": _U32, "Full": _U32, "EndedBy": _WIDE},
    "Information": {"Source": _I32, "Hook": _I32, "Measured": _WIDE, "Extended": _U32},
    "Module": {"Number": _U32, "Name": _WIDE, "Kind": _WIDE, "BuildId": _BINARY, "CodeSelector": _U32, "Size": _U64},
    "Segments": {
        "Module": _U32, "Address": _U64 | _ARRAY, "FileOffset": _U64 | _ARRAY, "Size": _U64 | _ARRAY,
        "Executable": _U32 | _ARRAY,
    },
    "Mapping": {
        "Module": _U32, "Owner": _U32, "ImageBase": _U64, "Since": _I64,
        "ProcessID": _I32, "Start": _U64, "End": _U64, "FileOffset": _U64, "LoadBias": _I64,
    },
    "CpuTime": {"ProcessID": _I32, "ThreadID": _I32, "At": _I64, "Nanoseconds": _U64},
    "Machine": {
        "Arch": _WIDE, "CpuDescription": _WIDE, "Cpuid": _WIDE, "Hypervisor": _WIDE, "Os": _WIDE, "OsRelease": _WIDE,
        "CpusOnline": _U32, "CpusAvailable": _U32, "Memory": _U64,
    },
}  # fmt: skip
"""Fields of each event, and their in-types."""

MACHINE = {
    "Arch": "arch", "CpuDescription": "cpu_description", "Cpuid": "cpuid", "Hypervisor": "hypervisor", "Os": "os",
    "OsRelease": "os_release", "CpusOnline": "cpus_online", "CpusAvailable": "cpus_available", "Memory": "memory",
}  # fmt: skip
_OF_THE_LOG = ("session", "log file", "buffer size", "group masks")
"""Prefixes of the header lines that a reader derives from the log itself."""
_LOSSES = ("events", "records", "samples", "buffers")
"""Losses that the log file header counts."""
_MOST_TEXT = 4096
_MOST_SEGMENTS = 2048
"""Of 28 bytes each, in an event of 64 KB."""


def module_fields(number: int, module: Module) -> dict[str, Any]:
    return {
        "Number": number,
        "Name": module.name,
        "Kind": str(module.kind),
        "BuildId": module.build_id,
        "CodeSelector": module.code_selector,
        "Size": module.size,
    }


def segment_fields(number: int, segments: Sequence[Segment]) -> dict[str, Any]:
    """Of a file with more segments than an event has room for, the executable ones, as far as they fit."""
    if len(segments) > _MOST_SEGMENTS:
        segments = [segment for segment in segments if segment.executable][:_MOST_SEGMENTS]
    return {
        "Module": number,
        "Address": [s.address for s in segments],
        "FileOffset": [s.offset for s in segments],
        "Size": [s.size for s in segments],
        "Executable": [int(s.executable) for s in segments],
    }


def load_bias(module: Module, start: int, end: int, offset: int) -> int:
    """The difference between addresses in the mapping ``start:end`` of the file from ``offset`` on and link addresses;
    0 where no segment determines it."""
    for segment in module.segments:
        if segment.executable and segment.offset < offset + end - start and offset < segment.offset + segment.size:
            bias = start - (segment.address + offset - segment.offset)
            return (bias + (1 << 63)) % (1 << 64) - (1 << 63)
    return 0


def event_fields(event: ProfileEvent, trigger: Trigger) -> dict[str, Any]:
    """The fields of an Event. SelectKind is empty where no branches were selected."""
    selects = event.branch_select is not None
    return {
        "Source": trigger.source,
        "Hook": trigger.hook,
        "Name": event.name,
        "Period": event.period,
        "Frequency": event.frequency,
        "SelectKind": event.branch_select_kind if selects else "",
        "Select": event.branch_select or 0,
        "CallChain": int(event.has_callchain),
        "OwnPeriod": int(event.has_period),
        "Programming": " ".join(f"{name}={value}" for name, value in event.programming.items()),
    }


def recording_events(profile: Profile, time: int) -> Iterator[Event]:
    """Recording, Header and Lost of ``profile``; none for one that was read from a log."""
    if profile.format == "etl" or profile.header.get("source format") == "etl":
        return
    yield supplement_event("Recording", time, {"Recorder": profile.recorder, "Clock": profile.clock.name})
    for name, value in profile.header.items():
        if not name.startswith(_OF_THE_LOG):
            yield supplement_event("Header", time, {"Name": name, "Value": value[:_MOST_TEXT]})
    for name, count in profile.lost.items():
        if name not in _LOSSES:
            yield supplement_event("Lost", time, {"Name": name, "Count": count})


def _described(name: str, fields: Mapping[str, int]) -> bytes:
    """The body of a schema."""
    return b"".join(
        [b"\0", name.encode(), b"\0", *(own.encode() + b"\0" + bytes([kind]) for own, kind in fields.items())]
    )


_LATER = {"Mapping": 1}
"""How many fields, the last ones, older versions did not write."""
_REQUIRED = {name: dict(list(fields.items())[: len(fields) - _LATER.get(name, 0)]) for name, fields in EVENTS.items()}
_BODIES = {name: _described(name, fields) for name, fields in _REQUIRED.items()}


def fields_of(event: Event) -> tuple[str, dict[str, Any]] | None:
    """(which of `EVENTS` it is, its fields) for an event of our provider. The fields are empty where it ends before the
    last of them. ``None``: its schema does not begin with the fields of any, in their types; newer versions may write
    more."""
    body = dict(reversed(event.extended)).get(SCHEMA_ITEM, b"")[2:]
    name = body[1:].partition(b"\0")[0].decode("ascii", "replace")
    described = describe(event) if name in _BODIES and body.startswith(_BODIES[name]) else None
    if described is None:
        return None
    fields = described[0].layout.decode(described[2], 8)
    return name, fields if _REQUIRED[name].keys() <= fields.keys() else {}


@lru_cache
def _schema(name: str) -> tuple[bytes, Layout]:
    """The schema item of an event, and its layout."""
    body = _described(name, EVENTS[name])
    raw = (len(body) + 2).to_bytes(2, "little") + body
    parsed = parse_schema(raw)
    assert parsed is not None
    return raw, parsed.layout


def supplement_event(name: str, time: int, fields: Mapping[str, Any]) -> Event:
    """The event ``name`` (of `EVENTS`) of processor 0. Raises ValueError for a value that its type cannot hold."""
    schema, declared = _schema(name)
    traits = (len(NAME) + 2).to_bytes(2, "little") + NAME
    return Event(
        _EVENT_HEADER64,
        8,
        time,
        0,
        0,
        0,
        -1,
        PROVIDER.bytes_le,
        0,
        0,
        0,
        _INFORMATION,
        channel=CHANNEL,
        extended=[(TRAITS_ITEM, traits), (SCHEMA_ITEM, schema)],
        payload=declared.encode(fields, 8),
    )


# -- Which fields of their Information the branch records of a profile measured


_NAMES = {"prediction": ("mispred", "predicted"), "cycles": ("cycles",), "type": ("type", "new_type"),
          "transaction": ("in_tx", "abort"), "privilege": ("priv",), "speculation": ("spec",)}  # fmt: skip
_MEASURED = {
    name: sum((1 << FLAG_FIELDS[part][1]) - 1 << FLAG_FIELDS[part][0] for part in parts)
    for name, parts in _NAMES.items()
}
"""A quantity that a record can measure -> its bits of perf's flag word."""


class Measured:
    """The quantities that the branch records of each event of a profile measured."""

    def __init__(self) -> None:
        self._union: dict[int, int] = {}
        """By event: flag words or-ed together."""
        self._extended: set[int] = set()

    def add(self, batch: SampleBatch) -> None:
        """Add the entries of ``batch``."""
        owner = np.repeat(batch.event, np.diff(batch.offsets[BRANCH]))
        flags = batch["branch_flags"] if "branch_flags" in batch else flags_from_info(batch["branch_info"])
        info = batch.columns.get("branch_info")
        for event in distinct(owner).tolist():
            words = flags[owner == event]
            self._union[event] = self._union.get(event, 0) | int(np.bitwise_or.reduce(words))
            own = information_of(words) if info is None else info[owner == event]
            if is_extended(own).any() and (info is None or (flags_from_info(own) != words).any()):
                self._extended.add(event)

    def events(self, triggers: Sequence[Trigger], time: int) -> list[Event]:
        """The Information events; none for an event whose LBR_INFO words say everything."""
        made = []
        for event, union in sorted(self._union.items()):
            if event in self._extended:
                measured = ", ".join(name for name, mask in _MEASURED.items() if union & mask)
                trigger = triggers[event]
                fields = {"Source": trigger.source, "Hook": trigger.hook, "Measured": measured, "Extended": 1}
                made.append(supplement_event("Information", time, fields))
        return made
