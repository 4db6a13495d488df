"""Samples, counter interrupts and last branch records of a block, as batches.

A last branch record is attached to the sample that triggered it (`records`). If any other event did, or none is there,
it stands as a row of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ....arrays import Ints, offsets_of
from ....model import (
    BRANCH,
    FRAME,
    KERNEL_HALF,
    KERNEL_HALF_32,
    MAX_ENTRIES,
    MAX_SAMPLES,
    Array,
    Mode,
    SampleBatch,
    concatenate,
    cuts,
)
from ..events.columns import EventBlock
from .information import flags_of
from .intervals import Intervals
from .records import (
    IS_SAMPLE,
    LBR,
    PMC,
    CachedSamples,
    Carry,
    Newest,
    Records,
    newest_events,
    rows_of,
    too_short,
)
from .stacks import Stacks
from .system import ThreadTable

__all__ = ["Sampler", "Triggers"]


_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(32)
_RANK = {"source": 0, "hook": 1, "none": 2}
_NOBODY = 1 << 32  # no thread's id
_FLAGS = "branch_flags"
_ENTRY = ("branch_from", "branch_to", "branch_info", _FLAGS)


@dataclass(slots=True)
class Triggers:
    """Rows of the events table: (kind, number) -> row, in the order they were met."""

    rows: dict[tuple[str, int], int] = field(default_factory=dict)

    def row(self, kind: str, number: int) -> int:
        return self.rows.setdefault((kind, number), len(self.rows))


class Sampler:
    """Samples of one pass over a log, window by window.

    Optional columns are those that are ``wanted``; column ``frame`` only with ``stacks``. Rows come in file order, but
    for those that wait for their record at the end of a window, which come with the next one. ``size`` is that of the
    file: behind its end no record comes. ``changing``: the intervals of profile sources whose samples have periods
    of their own. ``extended``: whether the log declares extended Information words. Of what came so far, ``counted``:
    whether a sample stood for several (Count); ``recorded``: whether there was a record; ``options``: what all records
    have been configured with; ``short``: by hook, events that end before what they must have.
    """

    def __init__(
        self,
        size: int,
        triggers: Triggers,
        threads: ThreadTable,
        stacks: Stacks | None,
        wanted: frozenset[str] | None,
        changing: Mapping[int, Intervals] | None = None,
        *,
        extended: bool = False,
    ) -> None:
        self._changing, self._extended = changing or {}, extended
        self._triggers, self._threads, self._wanted = triggers, threads, wanted
        self._stacks = stacks if self._wants(FRAME) else None
        self._carry, self._size = Carry(), size
        self.counted = self.recorded = False
        self.options = 0
        self.short: Counter[int] = Counter()

    def _wants(self, *names: str) -> bool:
        return self._wanted is None or not self._wanted.isdisjoint(names)

    def of(self, block: EventBlock) -> Iterator[SampleBatch]:
        """The rows of ``block``, and those that were held back and are done; none of the batches is empty.

        They must be taken before the next block is asked for.
        """
        short = too_short(block)
        if len(short):
            self.short.update(block.kernel_hook[short].tolist())
            block = block.take(np.delete(np.arange(len(block)), short))
        records, newest = Records.of(block), newest_events(block)
        if len(records):
            self.recorded, self.options = True, self.options | records.options
        late = self._carry.complete(block, records)
        if late.any():
            self._carry.join(self._batch(block, records.row[late], records.take(late)))
            records = records.take(~late)
        records = records.by_owner()
        is_row = IS_SAMPLE.take(block.kernel_hook)
        is_row[records.row[records.owner == records.row]] = True
        waiting = self._waiting(block, newest)
        waits = np.zeros(len(block), bool)
        waits[waiting] = True
        held = self._batch(block, waiting, records.take(waits[records.owner]))
        of_row = {row: held.slice(i, i + 1) for i, row in enumerate(waiting.tolist())}
        yield from self._finished(self._carry.follow(block, newest, of_row))
        if len(waiting):
            is_row[waiting] = False
            records = records.take(~waits[records.owner])
        rows = np.flatnonzero(is_row)
        depth = np.zeros(len(rows), np.int64)
        np.add.at(depth, np.searchsorted(rows, records.owner), records.count)
        for lo, hi in cuts(np.cumsum(depth), MAX_ENTRIES):
            batch = self._batch(block, rows[lo:hi], _between(records, rows[lo], rows[hi - 1] + 1))
            yield from self._finished([batch])
        cached = CachedSamples.of(block)
        for lo in range(0, len(cached), MAX_SAMPLES):
            yield from self._finished([self._cached(block, cached.slice(lo, lo + MAX_SAMPLES))])

    def rest(self) -> Iterator[SampleBatch]:
        """What is held back at the end of the log."""
        yield from self._finished(self._carry.rest())

    def _finished(self, batches: Iterable[SampleBatch]) -> Iterator[SampleBatch]:
        kept = [batch for batch in batches if len(batch)]
        if not kept:
            return
        batch = concatenate(kept)
        if self._stacks is not None:
            offsets, frames = self._stacks.find(batch.time, np.where(self._has_stack(batch), batch.tid, _NOBODY))
            batch.columns["frame"], batch.offsets[FRAME] = frames, offsets
        yield batch

    def _has_stack(self, batch: SampleBatch) -> NDArray[np.bool_]:
        """Which rows may have a call stack: a record without a trigger has none, and of several events of a thread at
        one time only one, which is a sample if there is one."""
        kind = np.array([_RANK[kind] for kind, _ in self._triggers.rows] or [0])[batch.event]
        order = np.lexsort((kind, batch.tid, batch.time))
        time, tid = batch.time[order], batch.tid[order]
        first = np.ones(len(batch), bool)
        first[order[1:]] = (time[1:] != time[:-1]) | (tid[1:] != tid[:-1])
        return np.asarray((kind == _RANK["source"]) | (first & (kind == _RANK["hook"])))

    def _waiting(self, block: EventBlock, newest: dict[int, Newest]) -> Ints:
        """The rows of the samples whose records may still come, ascending."""
        buffers = block.window.buffers
        at_end = buffers.offset[-1] + buffers.length[-1] >= self._size
        rows = rows_of({} if at_end else newest)
        return rows[IS_SAMPLE.take(block.kernel_hook[rows])]

    def _batch(self, block: EventBlock, rows: Ints, records: Records) -> SampleBatch:
        """The events ``rows``, ascending, with the entries of ``records``, which are theirs and in their order."""
        part = block.take(rows)
        wide, is_lbr, is_pmc = part.pointer_size == 8, part.kernel_hook == LBR, part.kernel_hook == PMC
        first, second = (part.words.take((part.payload >> 3) + i, mode="clip") for i in range(2))
        ip = np.where(wide, first, first & _LOW)
        low = np.where(wide, second & _LOW, first >> _HIGH)
        number = (np.where(wide, second >> _HIGH, second) & np.uint64(0xFFFF)).astype(np.int64)
        count = np.where(is_lbr | is_pmc, 1, number)
        self.counted |= bool((count > 1).any())
        tid = np.where(is_lbr, second >> _HIGH, low).astype(np.int64)
        pid = np.where(is_lbr, (second & _LOW).astype(np.int64), self._threads.pid(tid, part.time))
        if len(records) and (pid < 0).any():  # no thread event tells: the record of the sample does
            mine = np.searchsorted(rows, records.owner)
            said = block.words.take((block.payload[records.row] >> 3) + 1) & _LOW
            pid[mine] = np.where(pid[mine] < 0, said.astype(np.int64), pid[mine])
        mode = np.where(ip >= np.where(wide, np.uint64(KERNEL_HALF), np.uint64(KERNEL_HALF_32)), Mode.KERNEL, Mode.USER)
        columns: dict[str, Array] = {
            "time": part.time.copy(),
            "ip": np.where(is_lbr, np.uint64(0), ip),
            "pid": pid.astype(np.int32),
            "tid": tid.astype(np.int32),
            "cpu": part.cpu.copy(),
            "event": self._events(is_lbr, is_pmc, number, records.hook[records.owner == records.row]),
            "period": self._periods(np.where(is_pmc, number, np.where(is_lbr, -1, 0)), part.time, count),
            "mode": np.where(is_lbr, Mode.UNKNOWN, mode).astype(np.uint8),
        }
        if self._wants("position"):
            columns["position"] = _positions(part)
        if self._wants(*_ENTRY):
            entries = records.entries(block)
            columns |= zip(("branch_from", "branch_to", "branch_info"), entries, strict=True)
            if self._wants(_FLAGS):
                pointer_size = np.repeat(records.pointer_size, records.count)
                columns[_FLAGS] = flags_of(entries[2], pointer_size, extended=self._extended)
        depth = np.zeros(len(rows), np.int64)
        np.add.at(depth, np.searchsorted(rows, records.owner), records.count)
        return SampleBatch(columns, {BRANCH: offsets_of(depth)})

    def _cached(self, block: EventBlock, samples: CachedSamples) -> SampleBatch:
        """A row for each of ``samples``."""
        part, none = block.take(samples.row), np.zeros(len(samples), np.int64)
        self.counted |= bool((samples.count > 1).any())
        kernel = samples.ip >= np.where(samples.wide, np.uint64(KERNEL_HALF), np.uint64(KERNEL_HALF_32))
        columns: dict[str, Array] = {
            "time": part.time.copy(),
            "ip": samples.ip,
            "pid": self._threads.pid(samples.tid, part.time).astype(np.int32),
            "tid": samples.tid.astype(np.int32),
            "cpu": part.cpu.copy(),
            "event": np.full(len(samples), self._triggers.row("source", 0), np.int32),
            "period": self._periods(none, part.time, samples.count),
            "mode": np.where(kernel, Mode.KERNEL, Mode.USER).astype(np.uint8),
        }
        if self._wants("position"):
            columns["position"] = _positions(part)
        if self._wants(*_ENTRY):
            columns |= {name: np.empty(0, np.uint64) for name in _ENTRY if name != _FLAGS or self._wants(name)}
        return SampleBatch(columns, {BRANCH: np.zeros(len(samples) + 1, np.int64)})

    def _periods(self, source: Ints, time: Ints, count: Ints) -> NDArray[np.uint64]:
        """Of sources that are in ``changing`` the interval at its time of each event, times its ``count``. Of the
        others it stands in the events table."""
        period = np.zeros(len(source), np.uint64)
        for number, (since, interval) in self._changing.items():
            mine = np.flatnonzero(source == number)
            here = np.maximum(np.searchsorted(since, time[mine], "right") - 1, 0)
            period[mine] = interval[here] * np.maximum(count[mine], 1)
        return period

    def _events(
        self, is_lbr: NDArray[np.bool_], is_pmc: NDArray[np.bool_], source: Ints, hook: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Rows of the events table; ``source`` of all events, ``hook`` of the records among them."""
        event = np.zeros(len(is_lbr), np.int32)
        sampled = ~(is_lbr | is_pmc)
        if sampled.any():
            event[sampled] = self._triggers.row("source", 0)
        for number in np.flatnonzero(np.bincount(source[is_pmc])).tolist():
            event[is_pmc & (source == number)] = self._triggers.row("source", number)
        own = np.flatnonzero(is_lbr)
        # Those of samples in windows before are about to join them.
        for number in np.unique(hook[~IS_SAMPLE.take(hook)]).tolist():
            trigger = ("hook", number) if number >= 0 else ("none", 0)
            event[own[hook == number]] = self._triggers.row(*trigger)
        return event


def _positions(part: EventBlock) -> Ints:
    """Where in the file events stand; of a compressed buffer as if it were not."""
    start = part.window.buffers.offset.take(part.buffer) - part.window.start.take(part.buffer)
    return np.asarray(start + part.at * 8)


def _between(records: Records, first: int, past: int) -> Records:
    """Those whose owners are in ``first:past``; they are in the order of their owners."""
    return records.take(slice(*np.searchsorted(records.owner, (first, past))))
