"""A trace log as a profile: one index pass over system events and stacks, and a stream that reads the samples again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any
from uuid import UUID

import numpy as np

from ....model import BRANCH, Profile, Progress, SampleBatch, SampleStream, Source
from ....model import Event as ProfileEvent
from ..decode import AS_IT_SAYS, Decoder, Reading, batches_of, describes
from ..events.columns import EventBlock, events_of
from ..events.reader import EventType, TraceLog, count_events, first_of_types
from ..kernel.hooks import GROUPS, META_DATA, Key, guid_text, kernel_key, kernel_names
from ..payload.manifest_xml import MANIFEST_ID
from ..single_event import Event
from .samples import Intervals, IntervalTable, Sampler, Triggers
from .stacks import STACK_BYTES, Stacks
from .supplement import Supplement
from .system import HANDLERS, System, ThreadEvents, ThreadTable

__all__ = ["read_etl"]


_FLUSHED = 60
"""Seconds after its last sample that a buffer may be written."""
_MOST_LOSSES = 1 << 16


# -- Names of the counted types of events, from the kernel's tables, manifests and the log: those that `dump` shows


_META_DATA = UUID(META_DATA).bytes_le


class TypeNames:
    """The first event of each type of user events, and the log's descriptions of its events."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._first: dict[EventType, Event] = {}
        self._descriptions = 0

    def gather(self, block: EventBlock, counts: Counter[EventType]) -> None:
        """Add the types of ``block``, whose events are already in ``counts``."""
        new = [kind for kind in counts if kind.hook < 0 and kind not in self._first]
        descriptions = sum(n for kind, n in counts.items() if kind.id == MANIFEST_ID or kind.provider == _META_DATA)
        if not new and descriptions == self._descriptions:
            return
        rest = block.take(np.flatnonzero(~block.is_kernel))
        if descriptions != self._descriptions:
            self._descriptions = descriptions
            for event in events_of(rest.take(describes(rest))):
                self._decoder.learn(event)
        kinds, rows = first_of_types(rest)
        fresh = [i for i, kind in enumerate(kinds) if kind not in self._first]
        events = events_of(rest.take(rows[fresh])) if fresh else []
        self._first.update(zip((kinds[i] for i in fresh), events, strict=True))

    def name(self, kind: EventType) -> str:
        """PROVIDER/TASK/OPCODE, as far as known. All self-describing events of a provider are one type."""
        if kind.hook >= 0:
            return "/".join(kernel_names((kind.hook >> 8, kind.hook & 0xFF)))
        first = self._first.get(kind)
        if first is None:
            return f"{guid_text(kind.provider)}/{kind.id or kind.opcode}"
        known = self._decoder.find(first)
        return f"{known.provider_name}/{'TraceLogging' if known.kind == 'tracelogging' else known.event_name}"


_FOREVER = np.iinfo(np.int64).max
_TYPE_BYTES, _SYSTEM_BYTES, _THREAD_BYTES = 1200, 1200, 300
"""Bytes of memory for each type of events, each event that describes the system, each start or end of a thread."""
TIMER = 0
"""Profile source of SampledProfile events."""
_HOOKS = np.zeros(1 << 16, bool)
for _group, _type in HANDLERS:
    if isinstance(_group, int):
        _HOOKS[_group << 8 | _type] = True


def read_etl(
    source: Source, progress: Progress | None = None, *, reading: Reading = AS_IT_SAYS, stack_bytes: int = STACK_BYTES
) -> Profile:
    """Index ``source``, a Windows event trace log.

    About ``stack_bytes`` of call stacks are held in memory, the rest in temporary files. Raises `FormatError` where
    nothing of ``source`` is readable; damaged buffers are skipped and listed in ``profile.damage``.
    """
    return _LogReader(reading.log(source), reading, stack_bytes).profile(progress)


class _LogReader:
    def __init__(self, log: TraceLog, reading: Reading = AS_IT_SAYS, stack_bytes: int = STACK_BYTES) -> None:
        self.log, self._reading = log, reading
        self.stacks, self.supplement = Stacks(log.source, stack_bytes), Supplement()
        self.system_events = 0
        """Events that describe the system; those of images are kept until the end of the log."""
        self.triggers = Triggers()

    def profile(self, progress: Progress | None) -> Profile:
        log = self.log
        profile = Profile(log.source.name, "etl", clock=log.clock)
        profile.memory = log.source.limits.memory_of(log.source.size)
        self.system = System(profile)
        self.interval_table = IntervalTable(self.system.sources)
        self.thread_events = ThreadEvents()
        self._set_header(profile)
        decoder = self._reading.decoder()
        self.names = TypeNames(decoder)
        self.samples = self.entries = self.deepest = 0
        self.earliest: list[int] = []
        self.latest = -_FOREVER
        counts: Counter[EventType] = Counter()
        sampler = self.indexed = Sampler(log.source.size, self.triggers, ThreadTable(), None, frozenset())
        for walked, block in enumerate(log.blocks(), 1):
            count_events(block, counts)
            self.names.gather(block, counts)
            self._system_events(block, decoder)
            self.stacks.gather(block)
            self.supplement.gather(block)
            self._count(sampler.of(block))
            offset = int(block.window.buffers.offset[-1])
            profile.timeline.place(offset)
            if profile.over_memory_limit(offset, self._memory(counts)):
                log.most_blocks = walked
                break
            if progress:
                progress(min(offset, log.source.size), log.source.size)
        self._count(sampler.rest())
        if self.earliest:
            profile.first_time, profile.last_time = min(self.earliest), self.latest
        self.threads = ThreadTable(self.thread_events.finish(profile.timeline))
        self.system.finish()
        self.supplement.apply(profile)
        self.stacks.finish()
        self.stacked = bool(self.stacks)
        self._set_intervals(profile)
        profile.events = self._events()
        profile.streams = [self._stream()] if self.samples else []
        self._set_counts(profile, counts)
        self.supplement.describe(profile)
        del self.system  # it has the profile, whose stream reads by this reader: they would be a cycle
        return profile

    def _memory(self, counts: Counter[EventType]) -> int:
        """Bytes of memory used beside the tables of the profile, about."""
        types, threads = _TYPE_BYTES * len(counts), _THREAD_BYTES * len(self.thread_events)
        return types + threads + _SYSTEM_BYTES * self.system_events + self.system.memory

    def _count(self, batches: Iterator[SampleBatch]) -> None:
        for batch in batches:
            self.samples += len(batch)
            self.entries += batch.entries
            self.deepest = max(self.deepest, int(batch.depth.max(initial=0)))
            self.earliest.append(int(batch.time.min()))
            self.latest = max(self.latest, int(batch.time.max()))

    def _set_header(self, profile: Profile) -> None:
        h = self.log.header
        profile.machine.os = "Windows"
        profile.machine.os_release = f"{h.major}.{h.minor} build {h.provider_version}"
        profile.machine.bits = 8 * (self._reading.pointer_size or h.pointer_size)
        profile.machine.cpus_online = h.processors
        profile.recorder = "ETW"
        profile.start = self.log.header.timestamp
        profile.header["session"] = h.session_name
        profile.header["log file"] = h.file_name
        profile.header["log file mode"] = f"{h.mode:#x}"
        profile.header["buffer size"] = f"{h.buffer_size} bytes"

    def _system_events(self, block: EventBlock, decoder: Decoder) -> None:
        wanted = np.where(block.is_kernel, _HOOKS.take(np.maximum(block.hook, 0)), False)
        wanted |= np.isin(block.header, (10, 11, 20, 21))  # classic events, under a GUID
        rows = np.flatnonzero(wanted)
        self.interval_table.gather(block, decoder)
        self.thread_events.gather(block, decoder)
        own = block.take(rows)
        events, found = events_of(own), dict[int, tuple[Key, dict[str, Any]]]()
        for batch in batches_of(own, decoder):
            key = kernel_key(batch.first)
            if key in HANDLERS:
                self.system_events += len(batch)
                if batch.known.kind == "kernel":
                    found.update((row, (key, f)) for row, f in zip(batch.rows.tolist(), batch.fields(), strict=True))
        for row in sorted(found):
            key, fields = found[row]
            self.system.handle(key, events[row], fields)

    def _set_intervals(self, profile: Profile) -> None:
        """Set the intervals of each sampled profile source, and which sources' samples have periods of their own."""
        first, last = profile.first_time or 0, profile.last_time or 0
        sources = [number for kind, number in self.triggers.rows if kind == "source"]
        self.intervals = {number: self.interval_table.of(number, first, last) for number in sources}
        self.changing = {
            number: held
            for number, held in self.intervals.items()
            if len(held.since) > 1 or (len(held.since) and self.supplement.own_period(number))
        }
        if self.indexed.counted:  # a sample's period: how many interrupts it counts as, times their interval
            held = self.intervals[TIMER]
            self.changing[TIMER] = held if len(held.since) else Intervals(np.array([0]), np.array([1]))

    def _events(self) -> list[ProfileEvent]:
        out = []
        for kind, number in self.triggers.rows:
            if kind == "source":
                name = self.system.sources.get(number, f"profile source {number}")
                interval = self.intervals[number].first
            else:
                group = GROUPS.get(number >> 8)
                name = "/".join(kernel_names((number >> 8, number & 0xFF))) if kind == "hook" and group else "LBR"
                interval = 0
            # A timer's interval is time, not a count of events: its samples have periods in units of 100 ns.
            programming = {"source": number, "interval": interval} if kind == "source" else {"hook": number}
            select = self.indexed.options if self.indexed.recorded else None
            event = ProfileEvent(
                name,
                interval,
                branch_select=select,
                branch_select_kind="etw",
                has_callchain=self.stacked,
                has_period=kind == "source" and number in self.changing,
                programming=programming,
            )
            about = (number, -1) if kind == "source" else (-1, number if kind == "hook" else -1)
            out.append(self.supplement.event(event, *about))
        return out

    def _set_counts(self, profile: Profile, counts: Counter[EventType]) -> None:
        log = self.log
        for kind, n in sorted(counts.items(), key=lambda item: (item[0].hook, item[0].provider, item[0].id)):
            name = self.names.name(kind)
            profile.records[name] = profile.records.get(name, 0) + n
        lost = {"events": log.events_lost, "buffers": log.buffers_lost, "damaged buffers": log.skipped}
        profile.lost = {name: n for name, n in lost.items() if n}
        if profile.lost and profile.first_time is not None and profile.last_time is not None:
            # A mark for each buffer, at the time that it was written. Merged files have times of another clock there.
            times, last = log.lossy_times, profile.last_time
            times = times[(times >= profile.first_time) & (times <= last + _FLUSHED * profile.clock.frequency)]
            profile.losses = [(time, 1) for time in np.sort(np.minimum(times, last))[:_MOST_LOSSES].tolist()]
        by_hook = self.indexed.short + self.stacks.short + self.interval_table.short
        short: Counter[Key] = Counter({(hook >> 8, hook & 0xFF): n for hook, n in by_hook.items()})
        short += self.system.short + self.thread_events.short
        named = Counter({"/".join(kernel_names(key)): n for key, n in short.items()}) + self.supplement.short
        profile.lost |= {f"{name} events too short": n for name, n in sorted(named.items())}
        if self.stacks.unresolved:
            profile.lost["stack keys without a definition"] = self.stacks.unresolved
        for i, (when, words) in enumerate(self.system.masks):
            profile.header[f"group masks {i} ({when})"] = " ".join(f"{w:x}" for w in words)
        profile.damage += log.damage

    # -- the stream

    def _stream(self) -> SampleStream:
        columns = ["time", "ip", "pid", "tid", "cpu", "event", "period", "mode", "position"]
        columns += ["frame"] if self.stacked else []
        columns += ["branch_from", "branch_to", "branch_flags", "branch_info"] if self.indexed.recorded else []
        events = tuple(range(len(self.triggers.rows)))
        return SampleStream(0, tuple(columns), events, self.samples, self.entries, self.deepest, self._batches)

    def _batches(self, wanted: frozenset[str] | None) -> Iterator[tuple[SampleBatch, int]]:
        later = np.minimum.accumulate(np.array([*self.earliest, _FOREVER], np.int64)[::-1])[::-1][1:]
        stacks = self.stacks if self.stacked else None
        sampler = Sampler(
            self.log.source.size,
            self.triggers,
            self.threads,
            stacks,
            wanted,
            self.changing,
            extended=self.supplement.extended,
        )
        whole = chain.from_iterable(chain(map(sampler.of, self.log.blocks()), map(Sampler.rest, [sampler])))
        for batch, watermark in zip(whole, later.tolist(), strict=True):
            if not self.indexed.recorded:
                for name in ("branch_from", "branch_to", "branch_flags", "branch_info"):
                    batch.columns.pop(name, None)
                batch.offsets.pop(BRANCH, None)
            yield batch, watermark
