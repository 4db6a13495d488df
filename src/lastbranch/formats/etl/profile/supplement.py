"""Takes in the events of `supplement_events`: what the kernel's events have no field for comes back into a profile.

A log may be of several profiles, merged: statements that contradict each other are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....model import Change, Module, ModuleKind, Profile, Segment, Timeline
from ....model import Event as ProfileEvent
from ..events.columns import EVENT, EventBlock, events_of
from ..payload.tracelogging import describe
from .supplement_events import EVENTS, MACHINE, PROVIDER

__all__ = ["Supplement"]


Fields = dict[str, Any]

_WORDS = np.frombuffer(PROVIDER.bytes_le, np.uint64)
_LATER = {"Mapping": {"LoadBias"}}
"""Fields that older logs lack."""
_KEYS = {
    "Recording": (), "Machine": (), "Header": ("Name",), "Lost": ("Name",), "Event": ("Source", "Hook"),
    "Information": ("Source", "Hook"), "Triggers": (), "Module": ("Number",), "Segments": ("Module",),
    "Mapping": ("Owner", "ImageBase", "Since"),
}  # fmt: skip
"""What an event is about. Of several about one thing the last one holds, unless they are of `_ONCE`."""
_ONCE = ("Module", "Segments", "Event")


@dataclass(slots=True)
class Supplement:
    """What the events of the provider said: `gather` each block, then `apply` once."""

    _said: dict[str, dict[tuple[Any, ...], Fields]] = field(default_factory=lambda: {name: {} for name in _KEYS})
    _twice: set[str] = field(default_factory=set)
    """Events that contradict each other: of profiles merged into one log, whose numbers collide."""

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
            if name in _KEYS and set(EVENTS[name]) - _LATER.get(name, set()) <= set(fields):
                about = tuple(fields[key] for key in _KEYS[name])
                if name in _ONCE and self._said[name].get(about, fields) != fields:
                    self._twice.add(name)
                self._said[name][about] = fields

    @property
    def extended(self) -> bool:
        """Whether the log declares extended Information words."""
        return any(fields["Extended"] for fields in self._said["Information"].values())

    @property
    def triggers(self) -> tuple[int, ...]:
        """Hooks that were configured to trigger branch records; none where the log does not say."""
        return tuple(int(hook) for hook in (self._one("Triggers") or {"Hooks": ()})["Hooks"])

    @property
    def recorded(self) -> bool:
        """Whether the log is of a recording, which tells of processes and images by itself."""
        return bool(self._said["Recording"])

    def _one(self, name: str, *about: Any) -> Fields | None:
        return None if name in self._twice else self._said[name].get(about)

    # -- events and the recording

    def own_period(self, source: int) -> bool:
        """Whether samples of a profile source have periods of their own, even if all of them are the same."""
        said = self._one("Event", source, -1)
        return said is not None and bool(said["OwnPeriod"])

    def event(self, event: ProfileEvent, source: int, hook: int) -> ProfileEvent:
        """``event``, of a profile source or a hook (-1: none), as it was programmed."""
        said = self._one("Event", source, hook)
        if said is None:
            return event
        pairs = (pair.partition("=") for pair in str(said["Programming"]).split())
        programming = {name: int(value) for name, _, value in pairs if value.lstrip("-").isdecimal()}
        kind = str(said["SelectKind"])
        return replace(
            event, name=str(said["Name"]), period=int(said["Period"]), frequency=int(said["Frequency"]),
            branch_select=int(said["Select"]) if kind else None, branch_select_kind=kind or "perf",
            has_callchain=bool(said["CallChain"]),
            programming=programming | event.programming,
        )  # fmt: skip

    def describe(self, profile: Profile) -> None:
        """What the recording says of itself."""
        recording = self._one("Recording")
        if recording is not None:
            profile.recorder = str(recording["Recorder"])
            profile.clock = replace(profile.clock, name=str(recording["Clock"]))
        for fields in self._said["Header"].values():
            profile.header.setdefault(str(fields["Name"]), str(fields["Value"]))
        for fields in self._said["Lost"].values():
            profile.lost[str(fields["Name"])] = int(fields["Count"])
        measured = {str(fields["Measured"]) for fields in self._said["Information"].values()}
        if measured:
            profile.header["branch records tell"] = "; ".join(sorted(measured)) or "where branches went"

    # -- machine and modules

    def apply(self, profile: Profile) -> None:
        """Complete the tables of ``profile``."""
        machine = self._one("Machine") or {}
        for name in machine.keys() & MACHINE.keys():
            setattr(profile.machine, MACHINE[name], machine[name])
        if not self._said["Module"] or "Module" in self._twice:
            return
        old, timeline = profile.modules, Timeline()
        timeline.names = profile.timeline.names
        new: list[Module] = []
        rows: dict[int, int] = {}
        columns = profile.timeline.columns()
        for values in zip(*(columns[name].tolist() for name in columns), strict=True):
            row = dict(zip(columns, values, strict=True))
            if row["kind"] == Change.MAP:
                said = self._one("Mapping", row["pid"], row["start"], row["time"])
                fields = None if said is None else self._one("Module", said["Module"])
                before = row["module"]
                code = -1 - before if said is None or fields is None else int(said["Module"])
                if code not in rows:
                    rows[code] = len(new)
                    new.append(old[before] if fields is None else self._completed(old[before], fields))
                row["module"] = rows[code]
                if said is not None and fields is not None:
                    row |= {"pid": said["ProcessID"], "start": said["Start"], "end": said["End"]}
                    row["offset"] = said["FileOffset"]
            timeline.add(**row)
        profile.modules, profile.timeline = new, timeline

    def _completed(self, module: Module, fields: Fields) -> Module:
        kind, said = str(fields["Kind"]), self._one("Segments", fields["Number"])
        return replace(
            module, name=str(fields["Name"]), kind=ModuleKind(kind) if kind in list(ModuleKind) else ModuleKind.FILE,
            build_id=bytes(fields["BuildId"]), code_selector=int(fields["CodeSelector"]), size=int(fields["Size"]),
            segments=() if said is None else _segments(said), missing="",
        )  # fmt: skip


def _segments(said: Fields) -> tuple[Segment, ...]:
    columns = [[int(value) for value in said[name]] for name in ("Address", "FileOffset", "Size", "Executable")]
    return tuple(Segment(a, o, s, bool(x)) for a, o, s, x in zip(*columns, strict=False))
