"""What a profile says and the kernel's events have no field for: self-describing events of a provider of our own.

The provider is called ``lastbranch``; its GUID is made from the name as EventSource makes it. Any consumer of ETW
shows the fields, since each event carries their names and types (TraceLogging, channel 11, extended item 11).

    Module   a row of the modules table: ELF build id, kind, and the name that images have
    Mapping  stands before the image event of the same Owner and ImageBase: which module it is, which part of its file
             (Linux maps files in pieces), and as what it was recorded; Since is 0 for what was there all along
    Machine  processor and system, where SysConfig has no field

`Supplement` takes them in again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np

from ...model import Change, Machine, Module, ModuleKind, Profile, Timeline
from .columns import EventBlock
from .event import Event
from .forms import EVENT
from .materialise import events_of
from .payloads import Layout
from .tracelogging import CHANNEL, SCHEMA_ITEM, TRAITS_ITEM, describe, parse_schema

__all__ = ["EVENTS", "PROVIDER", "Supplement", "machine_fields", "mapping_fields", "module_fields", "supplement_event"]

PROVIDER = UUID("837b9dd1-8fd1-5257-b489-337f706aca79")
NAME = b"lastbranch\0"
_WORDS = np.frombuffer(PROVIDER.bytes_le, np.uint64)
_INFORMATION = 4  # Level
_EVENT_HEADER64 = 19
_WIDE, _I32, _U32, _I64, _U64, _BINARY = 1, 7, 8, 9, 10, 14  # TlgIn_*

EVENTS: dict[str, dict[str, int]] = {
    "Module": {"Number": _U32, "Name": _WIDE, "Kind": _WIDE, "BuildId": _BINARY, "CodeSelector": _U32, "Size": _U64},
    "Mapping": {
        "Module": _U32, "Owner": _U32, "ImageBase": _U64, "Since": _I64,
        "ProcessID": _I32, "Start": _U64, "End": _U64, "FileOffset": _U64,
    },
    "Machine": {
        "Arch": _WIDE, "CpuDescription": _WIDE, "Cpuid": _WIDE, "Hypervisor": _WIDE, "Os": _WIDE, "OsRelease": _WIDE,
        "CpusOnline": _U32, "CpusAvailable": _U32, "Memory": _U64,
    },
}  # fmt: skip
"""Fields of each event, and their in-types."""

_MACHINE = {
    "Arch": "arch", "CpuDescription": "cpu_description", "Cpuid": "cpuid", "Hypervisor": "hypervisor", "Os": "os",
    "OsRelease": "os_release", "CpusOnline": "cpus_online", "CpusAvailable": "cpus_available", "Memory": "memory",
}  # fmt: skip


def module_fields(number: int, module: Module) -> dict[str, Any]:
    return {
        "Number": number, "Name": module.name, "Kind": str(module.kind), "BuildId": module.build_id,
        "CodeSelector": module.code_selector, "Size": module.size,
    }  # fmt: skip


def mapping_fields(
    module: int, owner: int, base: int, since: int, pid: int, start: int, end: int, offset: int
) -> dict[str, Any]:
    values = (module, owner, base, since, pid, start, end, offset)
    return dict(zip(EVENTS["Mapping"], values, strict=True))


def machine_fields(machine: Machine) -> dict[str, Any]:
    return {name: getattr(machine, attribute) for name, attribute in _MACHINE.items()}


@lru_cache
def _schema(name: str) -> tuple[bytes, Layout]:
    """The schema item of an event, and the layout that it stands for."""
    body = b"\0" + name.encode() + b"\0"
    body += b"".join(field.encode() + b"\0" + bytes([kind]) for field, kind in EVENTS[name].items())
    raw = (len(body) + 2).to_bytes(2, "little") + body
    parsed = parse_schema(raw)
    assert parsed is not None
    return raw, parsed.layout


def supplement_event(name: str, time: int, fields: Mapping[str, Any]) -> Event:
    """The event ``name`` (of `EVENTS`) of processor 0. Raises ValueError for a value that its type cannot hold."""
    schema, declared = _schema(name)
    traits = (len(NAME) + 2).to_bytes(2, "little") + NAME
    return Event(
        _EVENT_HEADER64, 8, time, 0, 0, 0, -1, PROVIDER.bytes_le, 0, 0, 0, _INFORMATION, channel=CHANNEL,
        extended=[(TRAITS_ITEM, traits), (SCHEMA_ITEM, schema)], payload=declared.encode(fields, 8),
    )  # fmt: skip


@dataclass(slots=True)
class Supplement:
    """What the events of the provider said: `gather` each block, then `apply` once."""

    _modules: dict[int, dict[str, Any]] = field(default_factory=dict)
    _mappings: dict[tuple[int, int, int], dict[str, Any]] = field(default_factory=dict)
    _machine: dict[str, Any] = field(default_factory=dict)
    _twice: bool = False

    def gather(self, block: EventBlock) -> None:
        """Take in the events of ``block``."""
        rows = np.flatnonzero(block.form == EVENT)
        if len(rows):
            rows = rows[(block.take(rows).provider == _WORDS).all(axis=1)]
        for event in events_of(block.take(rows)) if len(rows) else ():
            described = describe(event)
            if described is None:
                continue
            name, fields = described[0].name, described[0].layout.decode(described[2], 8)
            if set(EVENTS.get(name, {"": 0})) <= set(fields):
                self._take(name, fields)

    def _take(self, name: str, fields: dict[str, Any]) -> None:
        if name == "Machine":
            self._machine = fields
        elif name == "Module":
            self._twice |= self._modules.setdefault(int(fields["Number"]), fields) != fields
        else:
            self._mappings[int(fields["Owner"]), int(fields["ImageBase"]), int(fields["Since"])] = fields

    def apply(self, profile: Profile) -> None:
        """Complete ``profile``. Of two profiles merged into one log, whose numbers of modules collide, nothing."""
        for name, attribute in _MACHINE.items():
            if self._machine:
                setattr(profile.machine, attribute, self._machine[name])
        if not self._modules or self._twice:
            return
        old, timeline = profile.modules, Timeline()
        timeline.names = profile.timeline.names
        new: list[Module] = []
        rows: dict[int, int] = {}
        columns = profile.timeline.columns()
        for values in zip(*(columns[name].tolist() for name in columns), strict=True):
            row = dict(zip(columns, values, strict=True))
            if row["kind"] == Change.MAP:
                said = self._mappings.get((row["pid"], row["start"], row["time"]))
                fields = None if said is None else self._modules.get(int(said["Module"]))
                before = row["module"]
                code = -1 - before if said is None or fields is None else int(said["Module"])
                if code not in rows:
                    rows[code] = len(new)
                    new.append(old[before] if fields is None else _completed(old[before], fields))
                row["module"] = rows[code]
                if said is not None and fields is not None:
                    row |= {"pid": said["ProcessID"], "start": said["Start"], "end": said["End"]}
                    row["offset"] = said["FileOffset"]
            timeline.add(**row)
        profile.modules, profile.timeline = new, timeline


def _completed(module: Module, fields: dict[str, Any]) -> Module:
    kind = str(fields["Kind"])
    return replace(
        module, name=str(fields["Name"]), kind=ModuleKind(kind) if kind in list(ModuleKind) else ModuleKind.FILE,
        build_id=bytes(fields["BuildId"]), code_selector=int(fields["CodeSelector"]), size=int(fields["Size"]),
    )  # fmt: skip
