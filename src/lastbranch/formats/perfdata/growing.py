"""A perf.data that is still being written: what was added to it, in one pass from where the last one ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...errors import Damage, FormatError
from ...model import ENTRY, IN_PLACE, MAX_ENTRIES, Profile, SampleBatch, Source, cuts, read_at
from .attr import event_of
from .layout import HEADER, RECORD
from .reader import Reader
from .records import HANDLERS
from .walk import LONGEST, Block, Inflater, halves, walk_blocks

__all__ = ["GrowingPerfData"]

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
        """Whether any records were, which are of no use without all those before them."""
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
        """What precedes the records, as it is while it is not known where they end."""
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
            raise FormatError(damage.reason, file=self._source.name, offset=damage.offset, field=damage.field,
                              value=damage.value)  # fmt: skip
        if end - self.at >= LONGEST:
            size = int(np.frombuffer(read_at(self._source, self.at, 8), np.uint16)[0 if self._reader.big_endian else 3])
            raise FormatError("record of impossible size", file=self._source.name, offset=self.at, field="size",
                              value=size)  # fmt: skip

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
        """What the tables have of records that came later than what they are about."""
        reader, profile = self._reader, self._reader.profile
        reader._name_events()
        profile.events = [event_of(attr) for attr in reader.state.attrs]
        reader.state.finish_modules()
        profile.clock = reader._clock()
        pid, tid = halves(np.array(sorted(reader.threads), np.uint64), reader.big_endian)
        profile.seen_threads = set(zip(pid.tolist(), tid.tolist(), strict=True))

    def record_bytes(self, start: int, end: int) -> bytes:
        """The records between two places that `at` had that say more than samples do."""
        parts = []
        for block in walk_blocks(self._source, start, end, self._reader.big_endian):
            kept = block.at[(block.types != _SAMPLE) & np.isin(block.types, list(HANDLERS))]
            for at, size in zip(kept.tolist(), block.sizes(kept).tolist(), strict=True):
                parts.append(block.raw[at * 8 : at * 8 + size].tobytes())
        return b"".join(parts)
