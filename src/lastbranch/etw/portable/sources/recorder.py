"""The sources of one session: the streams that its masks ask for, read in rounds and handed on as kernel events."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ....capture.perf_events.host import Host, read_host
from ....capture.perf_events.kernel import Kernel
from ....capture.procfs import memory_kb
from ....formats.etl.event import Event, encode_event
from ....formats.etl.kernel.hooks import PERF_INFO, SESSION
from ....formats.etl.kernel.layouts import kernel_event
from ....formats.etl.profile.session import Session
from ....model import Clock, Machine, Profile
from ...flags import ClientContext
from ...status import EtwError
from ..clock import FILETIME_EPOCH
from ..clock import Clock as SessionClock
from ..enable_map import WORDS, kinds_of
from .configuration import SourceConfiguration
from .events import Events, Ints, encoded
from .life import Life
from .stream import Counters, Stream
from .wanted import LIVES, Wanted, names_of, wanted_streams

__all__ = ["Recorder", "mask_event", "mask_events"]


# -- What a session says beside the events that are enabled: the machine, its profile sources, the group masks


_POINTER = 8
_COUNTERS, _SET, _START, _END = 0x30, 0x48, 0x49, 0x4A
_MASKS, _END_MASKS = 0x05, 0x20
_KERNEL_VERSION = 0x55


def mask_event(masks: Sequence[int], time: int, *, end: bool = False) -> Event:
    """The group masks that hold from ``time`` on (hook 0x0005), or (``end``) have held until then (0x0020)."""
    fields = {f"GroupMask{number}": word for number, word in enumerate([*masks, *[0] * WORDS][:WORDS], 1)}
    fields["KernelEventVersion"] = _KERNEL_VERSION
    return kernel_event((SESSION, _END_MASKS if end else _MASKS), time, _POINTER, fields, version=2)


def mask_events(masks: Sequence[int], time: int) -> list[bytes]:
    """For the header buffer of a system logger: its group masks at the begin, encoded."""
    return [encode_event(mask_event(masks, time))]


def machine_events(kernel: Kernel, host: Host, clock: int, time: int) -> list[Event]:
    """The processor, and what no event of Windows has a field for."""
    profile = Profile("session", "session", recorder="lastbranch session", machine=_machine(kernel, host))
    frequency = SessionClock(clock).frequency
    profile.clock = Clock("monotonic" if frequency == 1_000_000_000 else "system time", frequency)
    events = Session(profile).configuration()
    for event in events:
        event.time = time
    return events


def _machine(kernel: Kernel, host: Host) -> Machine:
    return Machine(
        arch=host.machine, host=(kernel.text("/proc/sys/kernel/hostname") or ""), os="Linux", os_release=host.release,
        cpu_description=host.model, cpuid=host.cpuid, cpus_online=len(host.cpus), cpus_available=host.possible,
        memory=memory_kb(kernel.text("/proc/meminfo") or "") * 1024, page_size=os.sysconf("SC_PAGESIZE"),
        hypervisor=host.hypervisor,
    )  # fmt: skip


def counter_event(names: Sequence[str], time: int) -> Event:
    """What the counter values in headers are called."""
    return kernel_event((PERF_INFO, _COUNTERS), time, _POINTER, {"Names": list(names)}, version=2)


def interval_events(
    names: Mapping[int, str], intervals: Mapping[int, int], before: Mapping[int, int], time: int, *, end: bool = False
) -> list[Event]:
    """The interval of each source of ``names``: at the begin (``before`` is empty), changed since ``before``, or at the
    end."""
    events = []
    for source, name in names.items():
        now, old = intervals[source], before.get(source)
        if old == now and not end:
            continue
        kind = _END if end else _START if old is None else _SET
        fields: dict[str, Any] = {"SampleSource": source, "NewInterval": now, "SourceName": name}
        fields["OldInterval"] = now if old is None else old
        events.append(kernel_event((PERF_INFO, kind), time, _POINTER, fields, version=3))
    return events


_FOREVER = (1 << 63) - 1


class Output(Protocol):
    """Where events go. Those of a processor come in the order of their times."""

    def put(self, cpu: int, data: bytes, sizes: Ints) -> None:
        """Events one after the other, filled up to multiples of 8 bytes; ``sizes`` int64: bytes of each."""

    def lost(self, number: int) -> None:
        """So many events could not be had."""


@dataclass(slots=True)
class _Open:
    wanted: Wanted
    stream: Stream


class Recorder:
    """Records from `begin` to `end`, by `configure` something else. Raises `EtwError` for what the kernel refuses."""

    def __init__(
        self, configuration: SourceConfiguration, output: Output, kernel: Kernel | None = None, host: Host | None = None
    ) -> None:
        self._kernel = kernel or Kernel()
        self._host = host or read_host(self._kernel)
        self._output, self._configuration = output, configuration
        self._wall = configuration.clock == ClientContext.SYSTEM_TIME
        self._offset = 0
        """ns from the monotonic clock to the system time."""
        self._streams: dict[tuple[object, ...], _Open] = {}
        self._life: Life | None = None
        self._counters = Counters((), self._kernel, self._host)
        self._names: dict[int, str] = {}
        self._intervals: Mapping[int, int] = {}
        self._floor = self._newest = 0
        """Ticks: nothing is told as earlier than the one any more; the time of the newest event that was told."""

    # -- time

    def _ticks(self, ns: Ints) -> Ints:
        """The session's time of ``ns``, which the kernel counts by its monotonic clock."""
        return (ns + self._offset) // 100 + FILETIME_EPOCH if self._wall else ns

    def _look_at_clock(self) -> int:
        """Now, in ns; how far the system time is from it may have changed."""
        now = time.monotonic_ns()
        self._offset = time.time_ns() - now
        return now

    def _moment(self) -> int:
        """Now, in ticks; nothing is told as earlier than this any more."""
        self._floor = max(int(self._ticks(np.array(self._look_at_clock()))), self._floor, self._newest)
        return self._floor

    # -- from begin to end

    def begin(self) -> None:
        """Open everything and write what there is already."""
        begin = self._moment()
        try:
            if self._configuration.sysconfig:
                self._say(machine_events(self._kernel, self._host, self._configuration.clock, begin))
            self.configure(self._configuration)
        except BaseException:
            self.close()
            raise

    def configure(self, configuration: SourceConfiguration) -> None:
        """Record what this asks for from now on. If that is refused, all stays as it was."""
        kinds = kinds_of(configuration.masks)
        wanted = wanted_streams(configuration, self._kernel, self._host)
        life, opened = self._life_for(kinds & LIVES), dict[tuple[object, ...], _Open]()
        counters, sources = self._counters, next((one.counters for one in wanted if one.counters), ())
        try:
            if sources != counters.sources:
                counters = Counters(sources, self._kernel, self._host)
            for one in wanted:
                if one.key not in self._streams:
                    spec = one.spec(self._host, counters.leaders)
                    opened[one.key] = _Open(one, Stream(spec, self._kernel, self._host))
            if any(one.wanted.counters for one in opened.values()):
                counters.start()
        except BaseException:
            for half in opened.values():
                half.stream.close()
            if life is not None and life is not self._life:
                life.close()
            if counters is not self._counters:
                counters.close()
            elif sources:
                with suppress(EtwError):  # without what had no room
                    counters.start()
            raise
        gone = [self._streams[key] for key in self._streams.keys() - {one.key for one in wanted}]
        for open_ in gone:
            open_.stream.disable()
        self.round()
        for open_ in gone:
            self._output.lost(open_.stream.untold())
            open_.stream.close()
            del self._streams[open_.wanted.key]
        if counters is not self._counters:
            self._counters.close()
            self._counters = counters
            self._say_counters(self._moment())
        self._settle(life, kinds & LIVES)
        self._change_intervals(wanted)
        self._streams |= opened
        if configuration.masks != self._configuration.masks:
            self._say([mask_event(configuration.masks, self._moment())])
        self._configuration = configuration

    def _say_counters(self, now: int) -> None:
        if sources := self._counters.sources:
            names = names_of(sources, self._kernel)
            self._say([counter_event([names[source] for source in sources], now)])

    def _life_for(self, kinds: frozenset[str]) -> Life | None:
        """What follows tasks: as it is where it can tell all that is wanted."""
        if not kinds or (self._life is not None and kinds <= self._life.wanted):
            return self._life if kinds else None
        return Life(kinds, self._kernel, self._host, self._ticks)

    def _settle(self, life: Life | None, kinds: frozenset[str]) -> None:
        old, self._life = self._life, life
        if old is not None and old is not life:
            old.close()
        if life is None:
            return
        if life is not old:
            self._write(life.begin(self._moment()))
        life.wanted = kinds

    def _change_intervals(self, wanted: list[Wanted]) -> None:
        """Program the intervals of streams that stay, and say what holds now."""
        intervals = {one.source: one.interval for one in wanted if one.source is not None}
        for one in wanted:
            stays = self._streams.get(one.key)
            if stays is not None and stays.wanted.period != one.period:
                stays.stream.retime(one.period)
                stays.wanted = one
        self._names = names_of(intervals, self._kernel)
        known = {source: value for source, value in self._intervals.items() if source in intervals}
        self._say(interval_events(self._names, intervals, known, self._moment()))
        self._intervals = intervals

    def round(self, until: int | None = None) -> int:
        """Hand on what happened so far; how many events. ``until``: ns."""
        now = self._look_at_clock()
        until = now if until is None else until
        parts: list[Events] = []
        lost = self._counters.gaps()
        if self._life is not None:
            took = self._life.stream.round(until)
            lost += took.lost
            parts.append(self._life.of(took, self._floor))
        for one in self._streams.values():
            took = one.stream.round(until)
            lost += took.lost
            if len(took.samples):
                batch = took.samples
                batch.columns["time"] = ticks = np.maximum(self._ticks(batch.time), self._floor)
                parts.append(one.wanted.convert(batch, ticks))
        if until != _FOREVER:
            self._floor = max(self._floor, int(self._ticks(np.array(until))))
        events = Events.joined(parts)
        self._write(events)
        if lost:
            self._output.lost(lost)
        return len(events)

    def end(self) -> None:
        """Stop, write what is left and the lists of what is still there, and close."""
        try:
            streams = [one.stream for one in self._streams.values()]
            streams += [self._life.stream] if self._life is not None else []
            for stream in streams:
                stream.disable()
            self.round(_FOREVER)
            self._output.lost(sum(stream.untold() for stream in streams))
            now = self._moment()
            if self._life is not None:
                self._write(self._life.end(now))
            self._say(interval_events(self._names, self._intervals, {}, now, end=True))
            self._say_counters(now)
            self._say([mask_event(self._configuration.masks, now, end=True)])
        finally:
            self.close()

    def close(self) -> None:
        """Give everything back; nothing is written."""
        for one in self._streams.values():
            one.stream.close()
        if self._life is not None:
            self._life.close()
        self._counters.close()
        self._streams, self._life = {}, None

    # -- output

    def _say(self, events: list[Event]) -> None:
        self._write(
            encoded([encode_event(event) for event in events], [event.time for event in events], self._host.cpus[0])
        )

    def _write(self, events: Events) -> None:
        """Each processor's part to its place."""
        if not len(events):
            return
        self._newest = max(self._newest, int(events.time.max()))
        cpus, first = np.unique(events.cpu, return_index=True)
        behind = np.append(first[1:], len(events))
        ends = np.cumsum(events.size)
        for cpu, lo, hi in zip(cpus.tolist(), first.tolist(), behind.tolist(), strict=True):
            start = int(ends[lo - 1]) if lo else 0
            self._output.put(cpu, events.words[start : int(ends[hi - 1])].tobytes(), events.size[lo:hi] * 8)
