"""A perf.data that is still being written: the added records, in a pass that begins at the end of the last pass.

`GrowingPerfData` gives the samples that were added, and keeps none. `GrowingIndex` gives profiles whose streams read
all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from ...errors import Damage, FormatError
from ...model import (
    ENTRY,
    IN_PLACE,
    MAX_ENTRIES,
    Profile,
    SampleBatch,
    SampleStream,
    Source,
    cuts,
    read_at,
    watermarks,
)
from .attr import event_of
from .layout import HEADER, RECORD
from .reader import LayoutSamples, Reader
from .records import HANDLERS
from .walk import LONGEST, Block, Inflater, halves, walk_blocks

__all__ = ["GrowingIndex", "GrowingPerfData", "IndexedSoFar"]

_SAMPLE = RECORD["SAMPLE"]
_WORDS = 3 * MAX_ENTRIES
_COLUMNS = frozenset((*ENTRY, IN_PLACE))
_SIZE_AT = 8 + 8 * HEADER.index("data.size")
"""Where a file says how long its data section is: 0 until it is complete."""
_FEATURES_AT = 8 + 8 * HEADER.index("features.0")


class GrowingPerfData:
    """The samples of ``source``, a perf.data whose end moves, in the order of the file; none is kept.

    `profile` has the tables as far as they were read, and no streams. Raises `FormatError` where the header is not, or
    not yet, that of a perf.data.
    """

    def __init__(self, source: Source) -> None:
        self._reader = Reader(source)
        self._reader.profile.damage.clear()  # that the recorder has not finished the file
        self._source = source
        self.start: int = self._reader.data[0]
        """Bytes before the first record."""
        self.at = self.start
        """Where the next record begins."""
        self._damage: list[Damage] = []
        self._inflater = Inflater(self._reader.big_endian, self._damage, source.limits)

    @property
    def profile(self) -> Profile:
        return self._reader.profile

    @property
    def compressed(self) -> bool:
        """Whether any record was compressed; a compressed record is of no use without all records before it."""
        return self._inflater.grown > 0

    @property
    def complete(self) -> bool:
        """Whether the recorder has completed the header; it does not in a pipe."""
        return self._size() > 0

    def _size(self) -> int:
        if self._reader.pipe:
            return 0
        return int.from_bytes(read_at(self._source, _SIZE_AT, 8), "big" if self._reader.big_endian else "little")

    def open_header(self) -> bytes:
        """The bytes before the records, in their state while the end of the records is not known."""
        header = bytearray(read_at(self._source, 0, self.start))
        if not self._reader.pipe:
            header[_SIZE_AT : _SIZE_AT + 8] = bytes(8)
            header[_FEATURES_AT : _FEATURES_AT + 32] = bytes(32)
        return bytes(header)

    def batches(self, changed: Callable[[], None]) -> Iterator[SampleBatch]:
        """The samples that were added, each batch valid until the next one is asked for.

        ``changed`` is called before samples that come after a change of the tables, of the address spaces or of the
        threads that were seen. Raises `FormatError` where the chain of records breaks or compressed ones are damaged,
        `UnavailableError` where they are compressed and zstandard is not installed.
        """
        size = self._size()
        end = self.start + size if size else self._source.size
        for block in walk_blocks(self._source, self.at, end, self._reader.big_endian, inflater=self._inflater):
            self.at = self._inflater.walked
            yield from self._block(block, changed)
        if self._damage:
            damage = self._damage.pop()
            raise FormatError(
                damage.reason, file=self._source.name, offset=damage.offset, field=damage.field, value=damage.value
            )
        if end - self.at >= LONGEST:
            size = int(np.frombuffer(read_at(self._source, self.at, 8), np.uint16)[0 if self._reader.big_endian else 3])
            raise FormatError(
                "record of impossible size", file=self._source.name, offset=self.at, field="size", value=size
            )

    def _block(self, block: Block, changed: Callable[[], None]) -> Iterator[SampleBatch]:
        reader, profile = self._reader, self._reader.profile
        before = self._state()
        profile.timeline.place(block.place)
        is_sample = block.types == _SAMPLE
        others = block.types[~is_sample]
        handled = np.isin(others, list(HANDLERS))
        if handled.any():
            reader._handle(block, block.at[~is_sample][handled], others[handled])
        found = []
        if is_sample.any():
            reader._group()
            reader.state.samples_seen = True
            for number, part, event in reader.by_layout(block, block.at[is_sample]):
                layout = reader.layouts[number].layout
                checked = layout.check(block, part)
                if checked.damaged < len(part):
                    profile.extend_time_range(checked.earliest, checked.latest)
                    reader.state.newest_time = max(reader.state.newest_time, checked.latest)
                    reader.threads.update(checked.threads.tolist())
                if checked.damaged:
                    lost = profile.lost
                    lost["damaged samples"] = lost.get("damaged samples", 0) + checked.damaged
                found.append((layout, part, event))
        if self._state() != before:
            self._complete_tables()
            changed()
        for layout, part, event in found:
            for lo, hi in cuts(np.cumsum(block.sizes(part) >> 3), _WORDS):
                yield layout.decode(block, part[lo:hi], event[lo:hi], _COLUMNS)

    def _state(self) -> tuple[int, ...]:
        profile, state = self.profile, self._reader.state
        tables = len(profile.modules), len(profile.timeline), len(state.attrs), len(state.event_names)
        return (*tables, len(self._reader.threads))

    def _complete_tables(self) -> None:
        """The entries of tables from records that came later than their subject."""
        reader, profile = self._reader, self._reader.profile
        reader._name_events()
        profile.events = [event_of(attr) for attr in reader.state.attrs]
        reader.state.finish_modules()
        profile.clock = reader._clock()
        pid, tid = halves(np.array(sorted(reader.threads), np.uint64), reader.big_endian)
        profile.seen_threads = set(zip(pid.tolist(), tid.tolist(), strict=True))

    def record_bytes(self, start: int, end: int) -> bytes:
        """The records, other than samples, between two places that `at` had."""
        parts = []
        for block in walk_blocks(self._source, start, end, self._reader.big_endian):
            kept = block.at[(block.types != _SAMPLE) & np.isin(block.types, list(HANDLERS))]
            for at, size in zip(kept.tolist(), block.sizes(kept).tolist(), strict=True):
                parts.append(block.raw[at * 8 : at * 8 + size].tobytes())
        return b"".join(parts)


# -- With streams, which read what was recorded again


@dataclass(slots=True, frozen=True)
class IndexedSoFar:
    """A perf.data as far as it was written: ``profile`` is as `read_perfdata` returns it for these bytes, without
    damage. Records indexed later are not in the profile.

    ``number`` is another where the index began anew. Else rows were added to the tables of before, and the modules are
    the same objects; where ``tables`` is the same, too, only samples were added, and the profiles share their tables.
    ``end`` is where the next record begins. ``since`` gives the streams of what follows an ``end`` that was given
    before, with the same ``number``.
    """

    profile: Profile
    number: int
    tables: Hashable
    end: int
    since: Callable[[int], list[SampleStream]]


class GrowingIndex:
    """The index of ``source``, a perf.data whose end moves, which goes on where it ended.

    Compressed records, hardware traces, and attributes that follow samples make this impossible; the index then begins
    anew. Raises `FormatError` where the header is not, or not yet, that of a perf.data.
    """

    def __init__(self, source: Source) -> None:
        self._source, self._numbers = source, count()
        self._begin()

    def _begin(self) -> None:
        self._reader = _BoundedReader(self._source)
        self._head = self._header()
        self._start = self._at = self._reader.data[0]
        self._end = self._reader.data[1] if self._is_complete() else None
        """Where the records end, if the file says so."""
        self._inflater = Inflater(self._reader.big_endian, None, self._source.limits)
        self._number = next(self._numbers)
        self._full = False
        self._before: IndexedSoFar | None = None

    def _header(self) -> bytes:
        return read_at(self._source, 0, 8 + 8 * len(HEADER))

    def _is_complete(self) -> bool:
        return not self._reader.pipe and any(self._head[_SIZE_AT : _SIZE_AT + 8])

    def extend(self) -> IndexedSoFar:
        """Index what was added. Raises `FormatError` where there is no attribute yet."""
        if not self._goes_on():
            self._begin()
        reader, end = self._reader, min(self._source.size, self._end or self._source.size)
        if not self._full:
            stream = self._inflater
            for block in walk_blocks(self._source, self._at, end, reader.big_endian, inflater=stream):
                self._full = not reader.index_block(block)
                self._at = stream.walked
                if self._full:
                    break
        reader.data = self._start, min(self._at, end)
        reader.complete()
        tables, profile, before = self._tables(), _apart(reader.profile), self._before
        if before is not None and before.tables == tables:
            profile.modules, profile.timeline = before.profile.modules, before.profile.timeline
        else:
            profile.modules, profile.timeline = list(profile.modules), copy.deepcopy(profile.timeline)
        self._before = IndexedSoFar(profile, self._number, tables, self._at, reader.since())
        return self._before

    def _goes_on(self) -> bool:
        """Whether what follows can be indexed without what precedes it."""
        state = self._reader.state
        cut_off = self._at > self._reader.data[1]  # inside the data that follow a record
        odd = state.late_attr or bool(state.aux.kind) or self._inflater.grown > 0 or cut_off
        return not odd and self._head[_HEAD] == self._header()[_HEAD]

    def _tables(self) -> Hashable:
        profile, state = self._reader.profile, self._reader.state
        tables = len(profile.modules), len(profile.timeline), len(state.attrs), len(state.event_names)
        return self._number, *tables, len(self._reader.threads)


_HEAD = slice(_SIZE_AT, None)
"""What the recorder writes last into the header of a file; in a pipe, a part of the first record."""


def _apart(profile: Profile) -> Profile:
    """``profile`` with what changes with each block, and is not long, as it is now."""
    made = copy.copy(profile)
    made.damage, made.machine, made.header = [], copy.copy(profile.machine), dict(profile.header)
    made.records, made.lost, made.losses = dict(profile.records), dict(profile.lost), list(profile.losses)
    return made


class _BoundedReader(Reader):
    """A `Reader` whose streams end where the index ended when they were made."""

    def _stream(self, number: int, entry: LayoutSamples) -> SampleStream:
        made = super()._stream(number, entry)
        made.drawer = made.blocks = None  # they are about blocks that differ from those of the index
        made.reader = self._bounded_batches(self.layouts.index(entry), *self.data, self._watermark(entry))
        return made

    def since(self) -> Callable[[int], list[SampleStream]]:
        """The streams of the profile from a place on, as they are now."""
        (_, end), streams = self.data, list(self.profile.streams)
        entries = [entry for entry in self.layouts if entry.samples or len(self.layouts) == 1]
        parts = [(self.layouts.index(entry), self._watermark(entry)) for entry in entries]

        def streams_since(start: int) -> list[SampleStream]:
            made = [copy.copy(stream) for stream in streams]
            for stream, (index, watermark) in zip(made, parts, strict=True):
                stream.reader = self._bounded_batches(index, start, end, watermark)
            return made

        return streams_since

    def _watermark(self, entry: LayoutSamples) -> Callable[[int], int]:
        """The earliest time of what follows a place, or an earlier one: reading has other blocks than the index."""
        starts, times = [start for start, _ in entry.blocks], list(entry.earliest)
        later: list[int] = []

        def watermark(place: int) -> int:
            if not later:
                later.extend(watermarks(times).tolist())
            at = int(np.searchsorted(starts, place, side="right")) - 1  # the block that the place is in
            return min(times[at], later[at]) if at >= 0 else min(times, default=0)

        return watermark

    def _bounded_batches(
        self, index: int, start: int, end: int, watermark: Callable[[int], int]
    ) -> Callable[[frozenset[str] | None], Iterator[tuple[SampleBatch, int]]]:
        def batches(wanted: frozenset[str] | None) -> Iterator[tuple[SampleBatch, int]]:
            for block in walk_blocks(self.source, start, end, self.big_endian):
                after = block.base + 8 * int(block.at[-1] if len(block.at) else 0)
                for part, event in self.of_layout(block, index):
                    yield from self.decode_part(block, index, part, event, wanted, watermark(after))

        return batches
