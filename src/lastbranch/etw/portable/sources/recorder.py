"""Records one session: reads, in rounds, the streams that its masks enable, and writes their samples as kernel
events."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ....capture import memory_kb
from ....capture.perf_events.host import Host, read_host
from ....capture.perf_events.linux_kernel import Kernel
from ....closing import on_failure
from ....formats.etl import Event, kernel_event
from ....formats.etl.kernel.hooks import PERF_INFO, SESSION
from ....formats.etl.profile.session_events import SessionEvents
from ....formats.etl.profile.supplement import supplement_event
from ....model import Clock, Machine, Profile, SampleBatch
from ...status import EtwError
from ..clock import Clock as SessionClock
from ..enable_map import WORDS, kinds_of
from .call_branches import CSWITCH, CallBranches
from .configuration import SourceConfiguration
from .event_words import Events, Ints, encode_events, made_or_counted, shown_hook, unwritten_name
from .joint_events import Feed, TracepointFollower
from .kinds import Raw
from .perf_records import FOREVER, Ticks
from .plan import COUNTERS, FOLLOWERS, TASKS, StreamPlan, names_of, plan_streams
from .ring_stream import Counters, Round, Stream
from .tasks import ProcessCounters, Tasks

__all__ = ["Recorder", "mask_event"]


# -- Events about the session itself: the machine, its profile sources, the group masks


_POINTER = 8
_COUNTERS, _SET, _START, _END = 0x30, 0x48, 0x49, 0x4A
_MASKS, _END_MASKS = 0x05, 0x20
_KERNEL_VERSION = 0x55


def mask_event(masks: Sequence[int], time: int, *, end: bool = False) -> Event:
    """The group masks from ``time`` on (hook 0x0005) or, with ``end``, until then (0x0020)."""
    fields = {f"GroupMask{number}": word for number, word in enumerate([*masks, *[0] * WORDS][:WORDS], 1)}
    fields["KernelEventVersion"] = _KERNEL_VERSION
    return kernel_event((SESSION, _END_MASKS if end else _MASKS), time, _POINTER, fields, version=2)


def configuration_events(kernel: Kernel, host: Host, clock: int, time: int) -> list[Event]:
    """The processor, and facts that no event of Windows has a field for."""
    profile = Profile("session", "session", recorder="lastbranch session", machine=_machine(kernel, host))
    frequency = SessionClock(clock).frequency
    profile.clock = Clock("monotonic" if frequency == 1_000_000_000 else "system time", frequency)
    events = SessionEvents(profile).configuration()
    for event in events:
        event.time = time
    return events


def _machine(kernel: Kernel, host: Host) -> Machine:
    return Machine(
        arch=host.machine,
        host=(kernel.text("/proc/sys/kernel/hostname") or ""),
        os="Linux",
        os_release=host.release,
        cpu_description=host.model,
        cpuid=host.cpuid,
        cpus_online=len(host.cpus),
        cpus_available=host.possible,
        memory=memory_kb(kernel.text("/proc/meminfo") or "") * 1024,
        page_size=os.sysconf("SC_PAGESIZE"),
        hypervisor=host.hypervisor,
    )


def counter_event(names: Sequence[str], time: int) -> Event:
    """The names of the counter values in headers."""
    return kernel_event((PERF_INFO, _COUNTERS), time, _POINTER, {"Names": list(names)}, version=2)


def interval_events(
    names: Mapping[int, str], intervals: Mapping[int, int], before: Mapping[int, int], time: int, *, end: bool = False
) -> Iterator[Event]:
    """The interval of each source of ``names``: at the beginning (``before`` is empty), changed since ``before``, or at
    the end."""
    for source, name in names.items():
        now, old = intervals[source], before.get(source)
        if old == now and not end:
            continue
        kind = _END if end else _START if old is None else _SET
        old = now if old is None else old
        fields: dict[str, Any] = {"SampleSource": source, "NewInterval": now, "OldInterval": old, "SourceName": name}
        yield kernel_event((PERF_INFO, kind), time, _POINTER, fields, version=3)


class Output(Protocol):
    """Takes the events. Events of a processor come in the order of their times."""

    def put(self, events: Events) -> None:
        """Write events, which are in the order of their processors; count events that could not be made as lost."""

    def lost(self, number: int) -> None:
        """Count events that the kernel dropped."""


@dataclass(slots=True)
class _Open:
    wanted: StreamPlan
    stream: Stream


class Recorder:
    """Records from `begin` to `end`; `configure` changes what. Raises `EtwError` for what the kernel refuses."""

    def __init__(
        self, configuration: SourceConfiguration, output: Output, kernel: Kernel | None = None, host: Host | None = None
    ) -> None:
        self._kernel = kernel or Kernel()
        self._host = host or read_host(self._kernel)
        self._output, self._configuration = output, configuration
        self._ticks = Ticks(configuration.clock)
        self._streams: dict[tuple[object, ...], _Open] = {}
        self._tasks: Tasks | None = None
        self._processes: ProcessCounters | None = None
        self._followers: dict[type[TracepointFollower], TracepointFollower] = {}
        self.call_branches = CallBranches()
        self._counters = Counters((), self._kernel, self._host)
        self._names: dict[int, str] = {}
        self._intervals: Mapping[int, int] = {}
        self._floor = self._newest = 0
        """Ticks: no event is written as earlier than the first; the second is the time of the newest event."""
        self._unwritten: Counter[str] = Counter()

    def _moment(self) -> int:
        """Now, in ticks; no event is written as earlier than this any more."""
        self._floor = max(self._ticks.of(self._ticks.now()), self._floor, self._newest)
        return self._floor

    # -- from begin to end

    def begin(self) -> None:
        """Open everything, and write the lists of what exists already."""
        begin = self._moment()
        with on_failure(self.close):
            if self._configuration.sysconfig:
                self._write_events(configuration_events(self._kernel, self._host, self._configuration.clock, begin))
            self.configure(self._configuration)

    def configure(self, configuration: SourceConfiguration) -> None:
        """Record as ``configuration`` says from now on. If the kernel refuses that, nothing changes."""
        kinds = kinds_of(configuration.masks) & TASKS
        wanted = plan_streams(configuration, self._kernel, self._host)
        opened = dict[tuple[object, ...], _Open]()
        with ExitStack() as refused:
            tasks = self._tasks_for(kinds)
            if tasks is not None and tasks is not self._tasks:
                refused.callback(tasks.close)
            processes = self._processes_for(COUNTERS in kinds_of(configuration.masks))
            if processes is not None and processes is not self._processes:
                refused.callback(processes.close)
            counters = self._counters_for(next((one.counters for one in wanted if one.counters), ()))
            refused.callback(self._restart if counters is self._counters else counters.close)
            for one in wanted:
                if one.key not in self._streams:
                    stream = Stream(one.spec(self._host, counters.leaders), self._kernel, self._host)
                    opened[one.key] = _Open(one, stream)
                    refused.callback(stream.close)
            if any(one.wanted.counters for one in opened.values()):
                counters.start()
            refused.pop_all()
        gone = [self._streams[key] for key in self._streams.keys() - {one.key for one in wanted}]
        for open_ in gone:
            open_.stream.disable()
        self.round(self._ticks.now())
        for open_ in gone:
            self._output.lost(open_.stream.unreported_losses())
            open_.stream.close()
            del self._streams[open_.wanted.key]
        if counters is not self._counters:
            self._counters.close()
            self._counters = counters
            self._write_counter_names(self._moment())
        self._follow(tasks, kinds)
        self._follow_processes(processes)
        self._set_intervals(wanted)
        self._streams |= opened
        self._use_followers(configuration, wanted)
        self.call_branches.use(configuration.call_hooks)
        if configuration.masks != self._configuration.masks:
            self._write_events([mask_event(configuration.masks, self._moment())])
        self._configuration = configuration

    def _write_counter_names(self, now: int) -> None:
        if sources := self._counters.sources:
            names = names_of(sources, self._kernel)
            self._write_events([counter_event([names[source] for source in sources], now)])

    def _tasks_for(self, kinds: frozenset[str]) -> Tasks | None:
        """The recorder of tasks: the present one if it records all ``kinds``."""
        if not kinds or (self._tasks is not None and kinds <= self._tasks.wanted):
            return self._tasks if kinds else None
        return Tasks(kinds, self._kernel, self._host, self._ticks)

    def _counters_for(self, sources: tuple[int, ...]) -> Counters:
        """The counters of ``sources``: the present counters if they have the same sources."""
        return self._counters if sources == self._counters.sources else Counters(sources, self._kernel, self._host)

    def _restart(self) -> None:
        """Let the counters go on without what could not join them."""
        with suppress(EtwError):
            self._counters.start()

    def _follow(self, tasks: Tasks | None, kinds: frozenset[str]) -> None:
        old, self._tasks = self._tasks, tasks
        if old is not None and old is not tasks:
            old.close()
        if tasks is None:
            return
        if tasks is not old:
            self._write(tasks.begin(self._moment()))
        tasks.wanted = kinds

    def _processes_for(self, wanted: bool) -> ProcessCounters | None:
        if not wanted:
            return None
        return self._processes or ProcessCounters(self._kernel, self._host, self._ticks)

    def _follow_processes(self, processes: ProcessCounters | None) -> None:
        old, self._processes = self._processes, processes
        if old is not None and old is not processes:
            old.close()
        if processes is not None and processes is not old:
            self._write(processes.begin(self._moment()))

    def _use_followers(self, configuration: SourceConfiguration, wanted: list[StreamPlan]) -> None:
        """Keep the followers that have streams, and set which events are wanted of them."""
        used = {one.follower for one in wanted if one.follower is not None}
        self._followers = {kind: self._followers.get(kind) or kind(self._kernel) for kind in FOLLOWERS if kind in used}
        for kind, follower in self._followers.items():
            follower.kinds = kinds_of(configuration.masks) & kind.needs.keys()
            follower.stack_hooks = configuration.stack_hooks

    def _set_intervals(self, wanted: list[StreamPlan]) -> None:
        """Set the intervals of streams that stay open, and write the intervals in force now."""
        intervals = {one.source: one.interval for one in wanted if one.source is not None}
        for one in wanted:
            stays = self._streams.get(one.key)
            if stays is not None and stays.wanted.period != one.period:
                stays.stream.retime(one.period)
                stays.wanted = one
        self._names = names_of(intervals, self._kernel)
        known = {source: value for source, value in self._intervals.items() if source in intervals}
        self._write_events(interval_events(self._names, intervals, known, self._moment()))
        self._intervals = intervals

    def round(self, until: int | None = None) -> int:
        """Write what happened until now, or ``until`` (ns). Returns how many events that was. Without ``until``, events
        wait for the branch records that they may trigger."""
        now = self._ticks.now()
        until = self.call_branches.limit(now) if until is None else until
        parts: list[Events] = []
        lost = self._counters.gaps()
        if self._tasks is not None:
            took = self._tasks.stream.round(until)
            lost += took.lost
            parts.append(self._convert("Process, Thread and Image", took, self._tasks))
        if self._processes is not None:
            took = self._processes.stream.round(until)
            lost += took.lost
            parts.append(self._convert("Process/PerfCtr", took, self._processes))
        feeds: dict[type[TracepointFollower], list[Feed]] = {}
        for one in self._streams.values():
            took = one.stream.round(until)
            lost += took.lost
            if len(took.samples):
                batch, ns = took.samples, took.samples.time
                batch.columns["time"] = ticks = np.maximum(self._ticks(ns), self._floor)
                if one.wanted.follower is None:
                    shown, number = shown_hook(one.wanted.hook), len(batch)
                    triggered = made_or_counted(shown, 0, partial(self._branch_records, one.wanted, batch, ns, ticks))
                    parts += [made_or_counted(shown, number, partial(one.wanted.convert, batch, ticks)), triggered]
                else:
                    feed = Feed(one.wanted.tracepoint, batch, ticks, Raw(batch, one.wanted.fields))
                    feeds.setdefault(one.wanted.follower, []).append(feed)
        for kind, mine in feeds.items():
            if kind in self._followers:
                rows = sum(len(feed.batch) for feed in mine)
                parts.append(made_or_counted(kind.__name__, rows, partial(self._followers[kind].events, mine)))
        if until != FOREVER:
            self._floor = max(self._floor, self._ticks.of(until))
        events = Events.join(parts)
        self._write(events)
        if lost:
            self._output.lost(lost)
        return len(events)

    def _convert(self, kind: str, took: Round, of: Tasks | ProcessCounters) -> Events:
        """The events that ``of`` makes of a round."""
        return made_or_counted(kind, len(took.at), lambda: of.of(took, self._floor))

    def _branch_records(self, stream: StreamPlan, batch: SampleBatch, ns: Ints, ticks: Ints) -> Events:
        """The branch records that samples of ``stream`` at ``ns`` trigger."""
        if stream.hook not in self.call_branches.hooks or (
            stream.hook == CSWITCH and "prev_state" not in stream.fields
        ):
            return Events.join([])
        state = Raw(batch, stream.fields)["prev_state"] if stream.hook == CSWITCH else None
        return self.call_branches.following(stream.hook, batch, ns, ticks, state)

    def end(self) -> None:
        """Stop, write the rest and the lists of what still exists, and close."""
        try:
            streams = [one.stream for one in self._streams.values()]
            streams += [one.stream for one in (self._tasks, self._processes) if one is not None]
            for stream in streams:
                stream.disable()
            self.round(FOREVER)
            self._output.lost(sum(stream.unreported_losses() for stream in streams))
            now = self._moment()
            for listed in (self._tasks, self._processes, *self._followers.values()):
                if listed is not None:
                    self._write(made_or_counted(type(listed).__name__, 1, partial(listed.end, now)))
            self._write_events(interval_events(self._names, self._intervals, {}, now, end=True))
            self._write_counter_names(now)
            self._write_events([mask_event(self._configuration.masks, now, end=True)])
            self._write_events(
                supplement_event("Lost", now, {"Name": unwritten_name(kind), "Count": number})
                for kind, number in (+self._unwritten).items()
            )
        finally:
            self.close()

    def close(self) -> None:
        """Close everything; nothing is written."""
        for one in self._streams.values():
            one.stream.close()
        for other in (self._tasks, self._processes):
            if other is not None:
                other.close()
        self._counters.close()
        self._streams, self._tasks, self._processes = {}, None, None

    # -- output

    def _write_events(self, events: Iterable[Event]) -> None:
        self._write(encode_events(events, self._host.cpus[0]))

    def _write(self, events: Events) -> None:
        self._unwritten += events.unwritten
        if len(events):
            self._newest = max(self._newest, int(events.time.max()))
        if len(events) or events.unwritten:
            self._output.put(events)
