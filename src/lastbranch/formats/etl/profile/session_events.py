"""Session events for writing a profile: log file header, group masks, configuration, profile sources."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ....errors import FormatError, SelectionError
from ....lbr import convert, no_ranges_because
from ....model import Event as ProfileEvent
from ....model import Profile
from ..container.header import LogHeader
from ..kernel.hooks import PERF_INFO, SESSION, SYS_CONFIG, SYS_CONFIG_EX
from ..kernel.layouts import kernel_event
from ..layout import FILETIME_EPOCH
from ..single_event import Event
from .sample_events import MOST_INTERVAL, Trigger
from .supplement import MACHINE, event_fields, recording_events, supplement_event

__all__ = ["SessionEvents", "session_header"]


_QPC, _SYSTEM_TIME, _TSC = 1, 2, 3  # ReservedFlags of the log file header
_CLOCKS = {"system time": _SYSTEM_TIME, "TSC": _TSC}
_FIRST_SOURCE = 64  # of profile sources without a number on Windows: after those of machines
_TIMER = 0
_LOST_EVENTS, _LOST_BUFFERS = ("events", "records", "samples"), ("buffers",)  # counters of .etl and of perf.data
_MOST = 0xFFFFFFFF
_BIND = 0x1 | 0x2 | 0x4  # Masks[0]: PROCESS, THREAD, IMAGE_LOAD
_PROFILE, _PMC_PROFILE = 0x2, 0x400  # Masks[1]
_KERNEL_VERSION = 0x55
_EXTENSION, _END_EXTENSION = 0x05, 0x20
_INTERVAL_START, _INTERVAL_END = 0x49, 0x4A
_OF_ETW = {"source", "interval", "hook"}
"""Programming that the kernel's own events express."""
_NAME_UNITS = 255  # of a computer, and a NUL


class SessionEvents:
    """The session that a profile is written as. ``begin`` is its first tick, ``pointer`` the size of its pointers.

    FormatError for a selection of branches that a reader of the log would take for another one.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.begin = _begin(profile)
        self.pointer = 4 if profile.machine.bits == 32 else 8
        self.triggers = [_trigger(row, event) for row, event in enumerate(profile.events)]

    def masks(self) -> list[Event]:
        """The kernel groups that were enabled at start and end, for the header buffer."""
        sources = {trigger.source for trigger in self.triggers}
        groups = (_PROFILE if _TIMER in sources else 0) | (_PMC_PROFILE if sources - {_TIMER, -1} else 0)
        fields = {"GroupMask1": _BIND, "GroupMask2": groups, "KernelEventVersion": _KERNEL_VERSION}
        kinds = (_EXTENSION, _END_EXTENSION)
        return [kernel_event((SESSION, kind), self.begin, self.pointer, fields, version=2) for kind in kinds]

    def configuration(self) -> list[Event]:
        """The machine, and how its profile sources were programmed."""
        machine, clock = self._profile.machine, self._profile.clock
        cpu: dict[str, Any] = {
            "MHz": min(clock.frequency // 1_000_000, 0xFFFFFFFF) if clock.name == "TSC" else 0,
            "NumberOfProcessors": max(machine.cpus_online, 0),
            "MemSize": min(machine.memory >> 20, 0xFFFFFFFF),
            "PageSize": machine.page_size,
            "ComputerName": machine.host[:_NAME_UNITS],
            "DomainName": "",
        }
        build: dict[str, Any] = {"BuildLab": machine.os_release, "ProductName": machine.os}
        return [
            kernel_event((SYS_CONFIG, 0x0A), self.begin, self.pointer, cpu, version=3),
            kernel_event((SYS_CONFIG_EX, 32), self.begin, self.pointer, build, version=0),
            supplement_event("Machine", self.begin, {name: getattr(machine, of) for name, of in MACHINE.items()}),
            *recording_events(self._profile, self.begin),
            *(
                supplement_event("Event", self.begin, event_fields(event, trigger))
                for event, trigger in zip(self._profile.events, self.triggers, strict=True)
                if _is_foreign(event)
            ),
            *self.interval_events(self.intervals, begin=True, time=self.begin),
        ]

    @property
    def intervals(self) -> dict[int, int]:
        """The intervals of the profile sources when the session began."""
        events = zip(self._profile.events, self.triggers, strict=True)
        return {
            trigger.source: min(event.programming.get("interval", 0) or event.period, MOST_INTERVAL)
            for event, trigger in events
            if trigger.source >= 0
        }

    def interval_events(self, intervals: dict[int, int], *, begin: bool, time: int) -> list[Event]:
        """The intervals of the profile sources, which have the names of the profile's events."""
        events: list[Event] = []
        kind = _INTERVAL_START if begin else _INTERVAL_END
        for event, trigger in zip(self._profile.events, self.triggers, strict=True):
            if trigger.source >= 0:
                interval = intervals[trigger.source]
                fields: dict[str, Any] = {"SampleSource": trigger.source, "SourceName": event.name}
                fields |= {"NewInterval": interval, "OldInterval": interval}
                events.append(kernel_event((PERF_INFO, kind), time, self.pointer, fields, version=3))
        return events


def _begin(profile: Profile) -> int:
    """The first tick with a sample or a change; changes at 0 came before the log."""
    times = profile.timeline.columns()["time"]
    known = [int(times[times > 0].min())] if (times > 0).any() else []
    return min([*known, *([] if profile.first_time is None else [profile.first_time])], default=0)


def session_header(
    profile: Profile, begin: int, pointer: int, buffer_size: int, mode: int, maximum_file_size: int
) -> LogHeader:
    """The log file header, with the losses. Without a wall time its StartTime is 0; else that of ``begin``, in steps of
    100 ns."""
    clock = profile.clock
    kind = _CLOCKS.get(clock.name, _QPC)
    mhz = clock.frequency // 1_000_000 if kind == _TSC else 0
    if clock.frequency != {_SYSTEM_TIME: 10_000_000, _TSC: mhz * 1_000_000}.get(kind, clock.frequency):
        kind = _QPC
    wall = clock.wall_ns(begin)
    header = LogHeader(
        buffer_size=buffer_size,
        timestamp=begin,
        start_time=0 if wall is None else FILETIME_EPOCH + wall // 100,
        clock_type=kind,
        perf_freq=clock.frequency,
        cpu_mhz=mhz,
        mode=mode,
        maximum_file_size=maximum_file_size,
        pointer_size=pointer,
        session_name="lastbranch",
        file_name=os.path.basename(profile.name),
    )
    events, buffers = (sum(profile.lost.get(name, 0) for name in names) for names in (_LOST_EVENTS, _LOST_BUFFERS))
    return replace(header, events_lost=min(events, _MOST), buffers_lost=min(buffers, _MOST))


def _is_foreign(event: ProfileEvent) -> bool:
    """Whether Windows has no such programming."""
    selected = event.branch_select is not None and event.branch_select_kind != "etw"
    return selected or bool(event.frequency or event.programming.keys() - _OF_ETW)


def _trigger(row: int, event: ProfileEvent) -> Trigger:
    """How the samples of an event are written, and the LBR configuration of their branch records."""
    options = 0 if event.branch_select is None else _options(event.name, event.branch_select_kind, event.branch_select)
    if "hook" in event.programming:
        hook = event.programming["hook"]
        return Trigger(hook=hook or -1, options=options)
    source = event.programming.get("source", _FIRST_SOURCE + row)
    return Trigger(source=source, options=options)


def _options(name: str, kind: str, select: int) -> int:
    """The selection in ETW's notation. FormatError where a reader would then count ranges that do not exist."""
    reason = no_ranges_because(kind, select)
    try:
        options = convert(select, kind, "etw").value
    except SelectionError:
        options = 0  # no processor recorded them: no kind of branch was left out
    if reason and not no_ranges_because("etw", options):
        raise FormatError(f"event {name}: no .etl flag expresses that {reason}", field="branch_select", value=select)
    return options
