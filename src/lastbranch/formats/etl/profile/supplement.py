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

`Supplement` reads them back. A log may hold several profiles, merged. Their numbers collide then: events that
contradict each other are dropped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np

from ....arrays import distinct
from ....lbr import FLAG_FIELDS, flags_from_info
from ....model import BRANCH, Change, Module, ModuleKind, Profile, SampleBatch, Segment, Timeline
from ....model import Event as ProfileEvent
from ..events.columns import EVENT, EventBlock, events_of
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
    "Supplement",
    "event_fields",
    "fields_of",
    "load_bias",
    "module_fields",
    "recording_events",
    "segment_fields",
    "supplement_event",
]


# -- The events


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
    """The fields of module ``number``'s segments; of more segments than an event has room for, executable ones."""
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


def _schema_of(name: str, fields: Mapping[str, int]) -> bytes:
    """The body of a schema."""
    return b"".join(
        [b"\0", name.encode(), b"\0", *(own.encode() + b"\0" + bytes([kind]) for own, kind in fields.items())]
    )


_LATER = {"Mapping": 1}
"""How many fields, the last ones, older versions did not write."""
_REQUIRED = {name: dict(list(fields.items())[: len(fields) - _LATER.get(name, 0)]) for name, fields in EVENTS.items()}
_BODIES = {name: _schema_of(name, fields) for name, fields in _REQUIRED.items()}


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
    body = _schema_of(name, EVENTS[name])
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
        """An Information event for each sampled event that has extended LBR_INFO words; plain words need none."""
        made = []
        for event, union in sorted(self._union.items()):
            if event in self._extended:
                measured = ", ".join(name for name, mask in _MEASURED.items() if union & mask)
                trigger = triggers[event]
                fields = {"Source": trigger.source, "Hook": trigger.hook, "Measured": measured, "Extended": 1}
                made.append(supplement_event("Information", time, fields))
        return made


# -- Read back into a profile


Fields = dict[str, Any]

_WORDS = np.frombuffer(PROVIDER.bytes_le, np.uint64)
_KEYS = {
    "Recording": (), "Machine": (), "Header": ("Name",), "Lost": ("Name",), "Event": ("Source", "Hook"),
    "Information": ("Source", "Hook"), "Triggers": (),
    "Bursts": ("Depth", "Records", "Full", "EndedBy"), "Targets": ("Processes", "DescendantsOf"),
    "Module": ("Number",), "Segments": ("Module",),
    "Mapping": ("Owner", "ImageBase", "Since"), "CpuTime": ("ProcessID", "ThreadID", "At"),
}  # fmt: skip
"""The fields that identify what an event describes. Of several for one thing the last one holds, but see `_ONCE`."""
_NUMBER = re.compile("-?[0-9]{1,20}")
_LISTS = frozenset({"Processes", "DescendantsOf"})
_ONCE = ("Module", "Segments", "Event")
"""Events that describe a thing in one way only, unless logs were merged."""


@dataclass(slots=True)
class Supplement:
    """The events of the provider: `gather` each block, then `apply` once."""

    _fields: dict[str, dict[tuple[Any, ...], Fields]] = field(default_factory=lambda: {name: {} for name in _KEYS})
    _contradicted: set[str] = field(default_factory=set)
    """Names of events that contradict each other."""
    short: Counter[str] = field(default_factory=Counter)
    """By name: events that end before the last of their fields."""

    def gather(self, block: EventBlock) -> None:
        """Add the events of ``block``."""
        rows = np.flatnonzero(block.form == EVENT)
        if len(rows):
            rows = rows[(block.take(rows).provider == _WORDS).all(axis=1)]
        for event in events_of(block.take(rows)) if len(rows) else ():
            name, fields = fields_of(event) or ("", {})
            if name and not fields:
                self.short[f"lastbranch/{name}"] += 1
            elif name:
                about = tuple(str(fields[key]) if key in _LISTS else fields[key] for key in _KEYS[name])
                if name in _ONCE and self._fields[name].get(about, fields) != fields:
                    self._contradicted.add(name)
                self._fields[name][about] = fields

    @property
    def extended(self) -> bool:
        """Whether the log declares extended Information words."""
        return any(fields["Extended"] for fields in self._fields["Information"].values())

    @property
    def triggers(self) -> tuple[int, ...]:
        """Hooks that were configured to trigger branch records; none where the log lacks them."""
        return tuple(int(hook) for hook in (self._find("Triggers") or {"Hooks": ()})["Hooks"])

    @property
    def has_targets(self) -> bool | None:
        """Whether the software branch record ever had a target; ``None``: it did not run."""
        named = [bool(fields["Processes"] or fields["DescendantsOf"]) for fields in self._fields["Targets"].values()]
        return any(named) if named else None

    @property
    def bursts(self) -> list[Fields]:
        """The Bursts of each recording by software."""
        return list(self._fields["Bursts"].values())

    @property
    def recorded(self) -> bool:
        """Whether the log was written from a recording, which has its own events of processes and images."""
        return bool(self._fields["Recording"])

    def _find(self, name: str, *about: Any) -> Fields | None:
        return None if name in self._contradicted else self._fields[name].get(about)

    # -- events and the recording

    def own_period(self, source: int) -> bool:
        """Whether samples of a profile source have periods of their own, even if all of them are the same."""
        found = self._find("Event", source, -1)
        return found is not None and bool(found["OwnPeriod"])

    def event(self, event: ProfileEvent, source: int, hook: int) -> ProfileEvent:
        """``event``, of a profile source or a hook (-1: none), as it was programmed."""
        found = self._find("Event", source, hook)
        if found is None:
            return event
        pairs = (pair.partition("=") for pair in str(found["Programming"]).split())
        programming = {name: int(value) for name, _, value in pairs if _NUMBER.fullmatch(value)}
        kind = str(found["SelectKind"])
        return replace(
            event,
            name=str(found["Name"]),
            period=int(found["Period"]),
            frequency=int(found["Frequency"]),
            branch_select=int(found["Select"]) if kind else None,
            branch_select_kind=kind or "perf",
            has_callchain=bool(found["CallChain"]),
            programming=programming | event.programming,
        )

    def describe(self, profile: Profile) -> None:
        """Add the recorder, its clock, header lines and losses to ``profile``."""
        recording = self._find("Recording")
        if recording is not None:
            profile.recorder = str(recording["Recorder"])
            profile.clock = replace(profile.clock, name=str(recording["Clock"]))
        for fields in self._fields["Header"].values():
            profile.header.setdefault(str(fields["Name"]), str(fields["Value"]))
        for fields in self._fields["Lost"].values():
            profile.lost[str(fields["Name"])] = int(fields["Count"])
        measured = {str(fields["Measured"]) for fields in self._fields["Information"].values()}
        if measured:
            profile.header["branch records hold"] = "; ".join(sorted(measured)) or "where branches went"

    # -- machine and modules

    def apply(self, profile: Profile) -> None:
        """Complete the machine, CPU times, modules and mappings of ``profile`` from the gathered events."""
        machine = self._find("Machine") or {}
        for name in machine.keys() & MACHINE.keys():
            setattr(profile.machine, MACHINE[name], machine[name])
        for one in self._fields["CpuTime"].values():
            pid, tid, ns = (int(one[name]) for name in ("ProcessID", "ThreadID", "Nanoseconds"))
            profile.timeline.add(Change.RAN, int(one["At"]), pid, tid=tid, start=ns)
        if not self._fields["Module"] or "Module" in self._contradicted:
            return
        old, timeline = profile.modules, Timeline()
        timeline.names = profile.timeline.names
        new: list[Module] = []
        rows: dict[int, int] = {}
        columns = profile.timeline.columns()
        for values in zip(*(columns[name].tolist() for name in columns), strict=True):
            row = dict(zip(columns, values, strict=True))
            if row["kind"] == Change.MAP:
                found = self._find("Mapping", row["pid"], row["start"], row["time"])
                fields = None if found is None else self._find("Module", found["Module"])
                before = row["module"]
                code = -1 - before if found is None or fields is None else int(found["Module"])
                if code not in rows:
                    rows[code] = len(new)
                    new.append(old[before] if fields is None else self._complete(old[before], fields))
                row["module"] = rows[code]
                if found is not None and fields is not None:
                    row |= {"pid": found["ProcessID"], "start": found["Start"], "end": found["End"]}
                    row["offset"] = found["FileOffset"]
            timeline.add(**row)
        profile.modules, profile.timeline = new, timeline

    def _complete(self, module: Module, fields: Fields) -> Module:
        kind, found = str(fields["Kind"]), self._find("Segments", fields["Number"])
        return replace(
            module,
            name=str(fields["Name"]),
            kind=ModuleKind(kind) if kind in list(ModuleKind) else ModuleKind.FILE,
            build_id=bytes(fields["BuildId"]),
            code_selector=int(fields["CodeSelector"]),
            size=int(fields["Size"]),
            segments=() if found is None else _segments(found),
            missing="",
        )


def _segments(fields: Fields) -> tuple[Segment, ...]:
    columns = [[int(value) for value in fields[name]] for name in ("Address", "FileOffset", "Size", "Executable")]
    return tuple(Segment(a, o, s, bool(x)) for a, o, s, x in zip(*columns, strict=False))
