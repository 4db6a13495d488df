"""perf.data to a profile: one index pass over the records, then streams that read the samples again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct
from ...errors import Damage, FormatError
from ...lbr import PERF_SELECT
from ...model import (
    ENTRY,
    IN_PLACE,
    MAX_ENTRIES,
    REQUIRED,
    Clock,
    Profile,
    Progress,
    SampleBatch,
    SampleStream,
    Source,
    StackWatcher,
    cuts,
    read_at,
    watermarks,
)
from ..fields import decode
from .attr import event_of
from .auxtrace import ARM_SPE, COLUMNS, TRACES, Counts, Trace
from .header import decode_feature, read_header, read_magic
from .layout import FEATURES, MISC, PIPE_HEADER_SIZE, RECORD, RECORD_FIELDS, RECORDS, SAMPLE, TYPE
from .records import ATTR, COUNTED, HANDLERS, handle, has_time_stamps, trailer_of
from .sample import SampleLayout
from .state import IndexState
from .walk import AUXTRACE, COMPRESSED, COMPRESSED2, TRACING_DATA, Block, first_of_each, halves, walk_blocks

__all__ = ["read_perfdata"]


_SAMPLE = RECORD["SAMPLE"]
_HANDLED = np.zeros(max(HANDLERS) + 2, bool)
_HANDLED[list(HANDLERS)] = True
"""By type; the last is any larger one."""
_SWITCHES = tuple(RECORD[name] for name in ("SWITCH", "SWITCH_CPU_WIDE"))
_BATCH_WORDS = 3 * MAX_ENTRIES
_CLOCK_NAMES = {
    0: "CLOCK_REALTIME",
    1: "CLOCK_MONOTONIC",
    4: "CLOCK_MONOTONIC_RAW",
    7: "CLOCK_BOOTTIME",
    11: "CLOCK_TAI",
}
_MOST_TRACING_DATA = 64 << 20
"""Bytes. All event formats of a kernel are about 5 MB."""
_MANY = 64
"""Records in a block from which on it is worth to look for repeated ones."""
_MOST_LAYOUTS = 16
"""Each is a stream of its own, for which the file is read again. Recorders have one, or a few."""
_DRAWN_BYTES = 1 << 20
"""How much is read at each place of `SampleStream.drawer`."""
_PACKED = {RECORDS[kind] for kind in (COMPRESSED, COMPRESSED2)}
_STACKS = frozenset((*ENTRY, IN_PLACE))
_THREAD_COST = 600
"""Bytes for each process and thread that has samples, with its row of the tables."""


def read_perfdata(source: Source, progress: Progress | None = None, watcher: StackWatcher | None = None) -> Profile:
    """Index ``source``, a perf.data in file or pipe mode, of either byte order. ``watcher`` sees its branch stacks.

    Raises `FormatError` where nothing can be read: no perf.data, a header that is cut short, no attribute. Other damage
    is in ``profile.damage``; what precedes it is delivered.
    """
    reader = Reader(source, watcher)
    reader.index(progress)
    return reader.profile


@dataclass(slots=True)
class LayoutSamples:
    """Samples of one record layout: a stream in the making."""

    layout: SampleLayout
    events: list[int]
    samples: int = 0
    entries: int = 0
    deepest: int = 0
    earliest: list[int] = field(default_factory=list)
    """Earliest time of each block, for the watermarks."""
    blocks: list[tuple[int, int]] = field(default_factory=list)
    """Where each block begins, and the samples before it."""


class SampleReader:
    """Reads the samples of indexed blocks, by their layouts: what streams need of a `Reader`."""

    def __init__(self, source: Source, data: tuple[int, int], big_endian: bool) -> None:
        self.source, self.data, self.big_endian = source, data, big_endian
        self.layouts: list[LayoutSamples] = []
        self.layout_of_attr = np.empty(0, np.int64)
        self.id_bit = 0
        self.ids = np.empty(0, np.uint64)
        self.attr_of_id = np.empty(0, np.int64)
        self.walked: int | None = None
        """Blocks that were read, where that is not all."""

    def blocks(self, damage: list[Damage] | None = None) -> Iterator[Block]:
        """The blocks of the data section, as far as the index pass came."""
        return islice(walk_blocks(self.source, *self.data, self.big_endian, damage), self.walked)

    def by_layout(
        self, block: Block, at: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int32]]]:
        """(layout, positions, event of each) for the samples at ``at``; those of unknown events are left out."""
        if not self.layouts:
            return
        if not self.id_bit:
            if len(at):
                yield 0, at, np.zeros(len(at), np.int32)
            return
        offset = self.layouts[0].layout.fixed[self.id_bit]
        value = block.words.take(at + offset, mode="clip")
        if len(self.ids) == 0:
            attr = np.zeros(len(at), np.int64)
        else:
            where = np.minimum(np.searchsorted(self.ids, value), len(self.ids) - 1)
            attr = np.where(self.ids[where] == value, self.attr_of_id[where], -1)
            attr[value == 0] = 0  # what perf does with samples of no id
        layout = np.where(attr >= 0, self.layout_of_attr[attr], -1)
        for number in distinct(layout).tolist():
            if number >= 0:
                mine = layout == number
                yield number, at[mine], attr[mine].astype(np.int32)

    def of_layout(self, block: Block, index: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """(positions, event of each) of the samples of one layout in a block, if there are any."""
        for number, part, event in self.by_layout(block, block.at[block.types == _SAMPLE]):
            if number == index:
                yield part, event

    def batches(
        self, index: int, wanted: frozenset[str] | None, later: NDArray[np.int64]
    ) -> Iterator[tuple[SampleBatch, int]]:
        blocks = 0
        for block in self.blocks():
            for part, event in self.of_layout(block, index):
                yield from self.decode_part(block, index, part, event, wanted, int(later[blocks]))
                blocks += 1

    def decode_part(
        self,
        block: Block,
        index: int,
        part: NDArray[np.int64],
        event: NDArray[np.int32],
        wanted: frozenset[str] | None,
        watermark: int,
    ) -> Iterator[tuple[SampleBatch, int]]:
        """The samples at ``part`` of a block as batches, each with the earliest time of what comes after it;
        ``watermark`` is that of what comes after the block."""
        layout = self.layouts[index].layout
        for lo, hi in cuts(np.cumsum(block.sizes(part) >> 3), _BATCH_WORDS):
            batch = layout.decode(block, part[lo:hi], event[lo:hi], wanted)
            # Samples of the same block that come later are no later than the watermark promises.
            yield batch, int(layout.times(block, part[hi:]).min(initial=watermark))

    def draw(self, index: int, places: int, wanted: frozenset[str] | None) -> Iterator[SampleBatch]:
        entry = self.layouts[index]
        if not entry.samples:
            return
        before = np.array([samples for _, samples in entry.blocks])
        middle = (2 * np.arange(places) + 1) * entry.samples // (2 * places)
        for chosen in distinct(np.searchsorted(before, middle, side="right") - 1).tolist():
            start, _ = entry.blocks[chosen]
            past = min(start + _DRAWN_BYTES, entry.blocks[chosen + 1][0] if chosen + 1 < len(before) else self.data[1])
            for block in walk_blocks(self.source, start, past, self.big_endian):
                for part, event in self.of_layout(block, index):
                    for lo, hi in cuts(np.cumsum(block.sizes(part) >> 3), _BATCH_WORDS):
                        yield entry.layout.decode(block, part[lo:hi], event[lo:hi], wanted)

    def again(self, index: int, numbers: Collection[int]) -> Iterator[tuple[int, SampleBatch]]:
        """The stacks of some blocks of the index pass; neighbouring blocks are read in one go."""
        entry, wanted = self.layouts[index], np.sort(np.fromiter(numbers, np.int64, len(numbers)))
        starts = np.array([*(start for start, _ in entry.blocks), self.data[1]])
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) > 1) + 1) if len(wanted) else ():
            for block in walk_blocks(self.source, int(starts[run[0]]), int(starts[run[-1] + 1]), self.big_endian):
                for part, event in self.of_layout(block, index):
                    number = np.searchsorted(starts, block.base + part * 8, side="right") - 1
                    bounds = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(part)]
                    for lo, hi in pairwise(bounds):
                        yield int(number[lo]), entry.layout.decode(block, part[lo:hi], event[lo:hi], _STACKS)


class Reader(SampleReader):
    """Makes the profile of a perf.data: one pass over its records, block by block."""

    def __init__(self, source: Source, watcher: StackWatcher | None = None) -> None:
        order, self.pipe = read_magic(source)
        super().__init__(source, (PIPE_HEADER_SIZE, source.size), order == ">")
        self.watcher = watcher
        self.profile = Profile(source.name, "perf.data (pipe)" if self.pipe else "perf.data")
        self.profile.machine.byte_order = "big" if self.big_endian else "little"
        self.profile.machine.os = "Linux"
        self.state = IndexState(self.profile, order)
        self.damaged = 0
        self.profile.memory = source.limits.memory_of(source.size)
        self.aux: Counts | None = None
        """What the AUX areas hold, where they are decoded."""
        self.threads: set[int] = set()
        self._counts = Counter[int]()
        """Records of each type."""
        if not self.pipe:
            self.data = read_header(source, self.state)

    # -- index pass

    def index(self, progress: Progress | None) -> None:
        """Read every record once: tables, counts, and where streams find their samples."""
        state = self.state
        for walked, block in enumerate(self.blocks(self.profile.damage), 1):
            if not self.index_block(block):
                self.walked = walked
                break
            if progress:
                progress(min(block.base, self.data[1]) - self.data[0], self.data[1] - self.data[0])
        self.complete()
        if self.watcher is not None:  # the counter sees one stream, read once
            self.watcher.end(len(self.layouts) == 1 and not state.late_attr and not state.aux.decoded)

    def index_block(self, block: Block) -> bool:
        """Index one more block. Whether the tables have room for another one."""
        profile, counts = self.profile, self._counts
        profile.timeline.place(block.place)
        is_sample = block.types == _SAMPLE
        samples = int(np.count_nonzero(is_sample))
        if samples < len(is_sample):
            others = np.flatnonzero(~is_sample)
            kinds = block.types[others]
            counts.update(kinds.tolist())
            handled = _HANDLED.take(kinds, mode="clip")
            if handled.any():
                self._handle(block, block.at[others[handled]], kinds[handled])
        if block.types[-1:] == TRACING_DATA:
            self._tracing_data(*block.trailing_data)
        if block.types[-1:] == AUXTRACE:
            self._aux_block(block)
        if samples:
            counts[_SAMPLE] += samples
            self._index_samples(block, block.at if samples == len(is_sample) else block.at[is_sample])
        return not profile.over_memory_limit(block.place, self.state.weight + _THREAD_COST * len(self.threads))

    def complete(self) -> None:
        """Complete the tables of the profile, and make its streams, as far as blocks were indexed. Raises `FormatError`
        where there was no attribute."""
        self.profile.records = {RECORDS.get(k, f"TYPE_{k}"): n for k, n in sorted(self._counts.items())}
        if not self.state.attrs:
            raise FormatError("no event attribute in the file", file=self.source.name, hint="was a pipe cut off?")
        if self.state.late_attr:
            self.layouts, self.layout_of_attr, self.damaged = [], np.empty(0, np.int64), 0
            for block in self.blocks():
                self._index_samples(block, block.at[block.types == _SAMPLE])
        self._group()
        self._finish()

    def _tracing_data(self, offset: int, size: int) -> None:
        """Pipe mode: the contents of the feature section follow the record."""
        if size > _MOST_TRACING_DATA:
            reason = "tracing data of impossible size"
            self.profile.damage.append(Damage(reason, offset, "size", size))
        elif offset + size <= self.source.size:  # else the walk says that they are cut off
            data = read_at(self.source, offset, size)
            decode_feature(self.state, FEATURES.index("TRACING_DATA"), data, offset)

    def _aux_block(self, block: Block) -> None:
        """Note where the bytes of an AUX area are, which follow the last record of ``block``."""
        at, (offset, size) = block.at[-1:], block.trailing_data
        place = block.base + int(at[0]) * 8
        if block.packed_at is not None:
            self.profile.damage.append(Damage("AUX data in a compressed record, which are not read", block.packed_at))
            return
        body = block.body(int(at[0]), int(block.sizes(at)[0]))
        try:
            self.state.aux.block(decode(RECORD_FIELDS["AUXTRACE"], body, self.state.order), offset, size)
        except ValueError as error:
            damage = Damage(f"record cannot be read: {error}", place, "type", AUXTRACE, len(body) + 8 + size)
            self.profile.damage.append(damage)

    def _aux_samples(self) -> None:
        """Index the samples that an AUX area holds, and name one that is not decoded."""
        profile, aux = self.profile, self.state.aux
        if aux.kind:
            trace = TRACES.get(aux.kind, Trace(f"AUX trace of type {aux.kind}"))
            profile.hardware_trace = trace.name
            profile.header["hardware trace"] = f"{trace.name}, {aux.bytes} bytes"
            if aux.kind != ARM_SPE:
                profile.decoded_by = trace.stacks
                how = f"; for branch stacks: {trace.stacks}" if trace.stacks else ""
                profile.header["hardware trace"] += f", not decoded{how}"
        if not aux.decoded:
            return
        if profile.records.keys() & {"SWITCH", "SWITCH_CPU_WIDE"}:
            self._switches()
        aux.prepare(profile, self.state.attrs)
        self.aux = aux.count(self.source, profile.damage)
        if not self.aux.samples or self.aux.latest is None:
            return
        profile.extend_time_range(min(self.aux.earliest), self.aux.latest)

    def _switches(self) -> None:
        """Have the AUX areas know which threads were switched to."""
        state = self.state
        for block in self.blocks():
            at = block.at[np.isin(block.types, _SWITCHES)]
            misc, sizes = block.misc(at), block.sizes(at)
            came = misc & MISC.SWITCH_OUT == 0
            kinds = block.types[np.isin(block.types, _SWITCHES)][came]
            for where, size, kind in zip(at[came].tolist(), sizes[came].tolist(), kinds.tolist(), strict=True):
                trailer, _ = trailer_of(state, kind, block.body(where, size))
                if "tid" in trailer:
                    state.aux.started(trailer, trailer)

    def _handle(self, block: Block, at: NDArray[np.int64], kinds: NDArray[np.int64]) -> None:
        """Handle the records that are not samples. Repeated records are counted."""
        sizes = block.sizes(at)
        times = np.ones(len(at), np.int64)
        if len(at) >= _MANY:
            first = first_of_each(block, at, sizes)
            if not has_time_stamps(self.state):  # then their place is their time: only what follows itself says nothing
                again = (first == np.append(-1, first[:-1])) | np.isin(kinds, COUNTED)
                first = np.where(again, first, np.arange(len(at)))
            first[kinds == ATTR] = np.flatnonzero(kinds == ATTR)
            times = np.bincount(first, minlength=len(at))
            kept = times > 0
            at, kinds, sizes, times = at[kept], kinds[kept], sizes[kept], times[kept]
        columns = (kinds, block.misc(at), at, sizes, times)
        for kind, misc, where, size, often in zip(*(c.tolist() for c in columns), strict=True):
            handle(self.state, kind, misc, block.body(where, size), block.base + where * 8, often)

    def _index_samples(self, block: Block, at: NDArray[np.int64]) -> None:
        self._group()
        profile, self.state.samples_seen = self.profile, True
        for number, part, event in self.by_layout(block, at):
            entry, stacks = self.layouts[number], None
            if self.watcher is not None and entry.layout.stacked and len(self.layouts) == 1:
                checked, stacks = entry.layout.check_stacks(block, part, event)
            else:
                checked = entry.layout.check(block, part)
            if checked.damaged:
                where = block.base + int(part[checked.first_damaged]) * 8
                damage = Damage("samples whose fields do not fit in their records", where, "samples", checked.damaged)
                profile.damage.append(damage)
                self.damaged += checked.damaged
            entry.blocks.append((block.base, entry.samples))
            entry.samples += len(part) - checked.damaged
            entry.entries += checked.entries
            entry.deepest = max(entry.deepest, checked.deepest)
            entry.earliest.append(checked.earliest)
            if len(part) == checked.damaged:
                continue
            profile.extend_time_range(checked.earliest, checked.latest)
            self.state.newest_time = max(self.state.newest_time, checked.latest)
            self.threads.update(checked.threads.tolist())
            if stacks is not None and self.watcher is not None:
                times = checked.earliest, checked.latest
                self.watcher.add(stacks, len(entry.blocks) - 1, *times, profile.timeline)

    def _group(self) -> None:
        """Attributes with equal sample layouts make one stream. In a pipe they may still arrive."""
        attrs = self.state.attrs
        if len(self.layout_of_attr) == len(attrs):
            return
        keys: dict[tuple[int, ...], int] = {}
        numbers = [keys.setdefault(a.layout_key, len(keys)) for a in attrs]
        for i in range(len(self.layout_of_attr), len(attrs)):
            if numbers[i] == len(self.layouts) < _MOST_LAYOUTS:
                self.layouts.append(LayoutSamples(SampleLayout(attrs[i]), []))
            if numbers[i] < len(self.layouts):
                self.layouts[numbers[i]].events.append(i)
        if len(keys) > _MOST_LAYOUTS >= len(set(numbers[: len(self.layout_of_attr)])):
            reason = f"events of more than {_MOST_LAYOUTS} sample layouts; samples of the others are not read"
            self.profile.damage.append(Damage(reason, 0, "attributes", len(attrs)))
        self.layout_of_attr = np.array([n if n < len(self.layouts) else -1 for n in numbers], np.int64)
        shared = SAMPLE.IDENTIFIER if all(a.sample_type & SAMPLE.IDENTIFIER for a in attrs) else SAMPLE.ID
        same = shared == SAMPLE.IDENTIFIER or len({entry.layout.fixed.get(SAMPLE.ID) for entry in self.layouts}) == 1
        self.id_bit = shared if len(attrs) > 1 and same and attrs[0].sample_type & shared else 0
        ids = sorted(self.state.attr_of_id.items())
        self.ids = np.array([i for i, _ in ids], np.uint64)
        self.attr_of_id = np.array([a for _, a in ids], np.int64)

    def _finish(self) -> None:
        profile, state = self.profile, self.state
        self._name_events()
        self._aux_samples()
        profile.events = [event_of(a) for a in state.attrs]
        if self.aux is not None and self.aux.entries:
            for row in state.aux.events:
                profile.events[row].branch_select = PERF_SELECT["ANY"]
        state.finish_modules()
        simpleperf = any(name.startswith("SIMPLEPERF") for name in state.features)
        profile.recorder = "simpleperf" if simpleperf else f"perf {profile.header.get('perf version', '')}".strip()
        profile.clock = self._clock()
        profile.start = min((t for t in (profile.start, profile.first_time) if t is not None), default=None)
        if profile.machine.arch in ("i686", "i386", "armv7l", "armv8l"):
            profile.machine.bits = 32
        later = sum({1 << b for e in self.layouts for b in range(64) if e.layout.unknown >> b & 1})
        if later:
            profile.header["sample fields that are not known"] = f"sample_type {later:#x}"
        unknown = profile.records.get("SAMPLE", 0) - self.damaged - sum(e.samples for e in self.layouts)
        if unknown:
            profile.lost["samples of unknown events"] = unknown
        made = [entry for entry in self.layouts if entry.samples or len(self.layouts) == 1]
        profile.streams = [self._stream(number, entry) for number, entry in enumerate(made)]
        if self.aux is not None and self.aux.samples:
            profile.streams = [*(s for s in profile.streams if s.samples), self._aux_stream(self.aux)]
        words = np.array(sorted(self.threads), np.uint64)
        pid, tid = halves(words, self.big_endian)
        profile.seen_threads = set(zip(pid.tolist(), tid.tolist(), strict=True))
        if self.aux is not None:
            profile.seen_threads |= self.aux.threads

    def _name_events(self) -> None:
        state, unplaced = self.state, []
        for ids, name in state.event_names:
            named = {state.attr_of_id[j] for j in ids if j in state.attr_of_id}
            for i in named:
                state.attrs[i].name = name
            if not named:
                unplaced.append(name)
        without = [attr for attr in state.attrs if not attr.ids]
        if len(unplaced) == len(without):  # files without ids list names in the order of attributes
            for attr, name in zip(without, unplaced, strict=True):
                attr.name = name
        for attr in state.attrs:
            if not attr.name and attr.fields["type"] == TYPE.TRACEPOINT:
                attr.name = state.tracepoints.get(attr.fields["config"], "")

    def _clock(self) -> Clock:
        if not any(a.timed for a in self.state.attrs):
            return Clock("file order", 0)
        first = self.state.attrs[0]
        number = first.fields["clockid"]
        name = _CLOCK_NAMES.get(number, f"clock {number}") if "use_clockid" in first.flags else "perf_clock"
        return Clock(name, wall=self.state.wall)

    # -- streams

    def _sample_reader(self) -> SampleReader:
        """What streams read samples by, without the profile, which has the streams. Streams and profile would keep each
        other in memory, with all that was counted, until Python looks for cycles."""
        made = SampleReader(self.source, self.data, self.big_endian)
        made.layouts, made.layout_of_attr, made.walked = self.layouts, self.layout_of_attr, self.walked
        made.id_bit, made.ids, made.attr_of_id = self.id_bit, self.ids, self.attr_of_id
        return made

    def _aux_stream(self, counts: Counts) -> SampleStream:
        aux, later, source = self.state.aux, watermarks(counts.earliest), self.source
        names = tuple(dict.fromkeys((*(c.name for c in REQUIRED), *COLUMNS)))
        return SampleStream(
            len(self.profile.streams),
            names,
            tuple(aux.events),
            counts.samples,
            counts.entries,
            1 if counts.entries else 0,
            lambda wanted: aux.batches(source, wanted, later),
        )

    def _stream(self, number: int, entry: LayoutSamples) -> SampleStream:
        # Watermark of a block: the earliest time of all later blocks.
        later = watermarks(entry.earliest)
        index, reader = self.layouts.index(entry), self._sample_reader()
        layout, random_access = entry.layout, self.walked is None and not self.profile.records.keys() & _PACKED
        return SampleStream(
            number,
            layout.columns,
            tuple(entry.events),
            entry.samples,
            entry.entries,
            entry.deepest,
            lambda wanted: reader.batches(index, wanted, later),
            drawer=(lambda places, wanted: reader.draw(index, places, wanted)) if random_access else None,
            blocks=(lambda numbers: reader.again(index, numbers)) if random_access else None,
        )
