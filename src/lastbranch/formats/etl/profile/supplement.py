"""Reads the events of `supplement_events` back into a profile.

A log may hold several profiles, merged. Their numbers collide then: events that contradict each other are dropped.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....model import Change, Module, ModuleKind, Profile, Segment, Timeline
from ....model import Event as ProfileEvent
from ..events.columns import EVENT, EventBlock, events_of
from .supplement_events import MACHINE, PROVIDER, fields_of

__all__ = ["Supplement"]


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
        """Complete the tables of ``profile``."""
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
                    new.append(old[before] if fields is None else self._completed(old[before], fields))
                row["module"] = rows[code]
                if found is not None and fields is not None:
                    row |= {"pid": found["ProcessID"], "start": found["Start"], "end": found["End"]}
                    row["offset"] = found["FileOffset"]
            timeline.add(**row)
        profile.modules, profile.timeline = new, timeline

    def _completed(self, module: Module, fields: Fields) -> Module:
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
