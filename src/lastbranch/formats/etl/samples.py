"""Samples, counter interrupts and last branch records of a block, as one batch.

A last branch record follows its trigger on the same processor with the same time stamp. If the trigger is a sample
it is attached to that; if it is any other event, or none is there, it stands as a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...lbr import flags_from_info
from ...model import BRANCH, FRAME, Array, Mode, SampleBatch, concatenate
from .carry import Carry, Newest, attach, newest_events
from .columns import EventBlock
from .stacks import Stacks

__all__ = ["LBR", "PMC", "SAMPLED", "Sampler", "ThreadTable", "Triggers"]

SAMPLED, PMC, LBR = 0x0F2E, 0x0F2F, 0x0C20
_KERNEL_HALF = np.uint64(1 << 63)
_KERNEL_HALF_32 = np.uint64(1 << 31)


@dataclass(slots=True)
class Triggers:
    """Rows of the events table: (kind, number) -> row, in the order they were met."""

    rows: dict[tuple[str, int], int] = field(default_factory=dict)

    def row(self, kind: str, number: int) -> int:
        return self.rows.setdefault((kind, number), len(self.rows))


class ThreadTable:
    """Which process a thread id belonged to at a time: samples carry the thread alone."""

    def __init__(self, threads: list[tuple[int, int, int]]) -> None:
        known = sorted(threads)
        self._tid = np.array([t for t, _, _ in known], np.int64)
        self._time = np.array([t for _, t, _ in known], np.int64)
        self._pid = np.array([p for _, _, p in known], np.int64)

    def pid(self, tid: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 pid of each thread, -1 unknown; thread 0 is the idle process 0."""
        out = np.where(tid == 0, 0, -1)
        if len(self._tid):
            first = np.searchsorted(self._tid, tid, "left")
            last = np.searchsorted(self._tid, tid, "right")
            for i in np.unique(tid).tolist():
                rows = np.flatnonzero(tid == i)
                lo, hi = int(first[rows[0]]), int(last[rows[0]])
                if lo < hi and i != 0:
                    at = np.searchsorted(self._time[lo:hi], time[rows], "right") - 1
                    out[rows] = self._pid[lo + np.maximum(at, 0)]
        return out


class Sampler:
    """Samples of one pass over a log, window by window.

    Column ``frame`` only with ``stacks``. Rows come in file order, but for those that wait for their record at the end
    of a window, which come with the next one. ``size`` is that of the file: behind its end no record comes.
    """

    def __init__(
        self, size: int, triggers: Triggers, threads: ThreadTable, stacks: Stacks | None, wanted: frozenset[str] | None
    ) -> None:
        self._triggers, self._threads = triggers, threads
        self._stacks = stacks if wanted is None or FRAME in wanted else None
        self._carry, self._size = Carry(), size

    def of(self, block: EventBlock) -> Iterator[SampleBatch]:
        """The rows of ``block``, and those that were held back and are done; none of the batches is empty."""
        newest = newest_events(block)
        rows = np.flatnonzero((block.hook == SAMPLED) | (block.hook == PMC) | (block.hook == LBR))
        hooks, held, main = {}, {}, None
        for cpu, now in newest.items():
            named = (int(block.hook[i]) for i in now.rows if block.hook[i] >= 0)
            hooks[cpu] = next((hook for hook in named if hook not in (SAMPLED, PMC, LBR)), -1)
        hooks = {cpu: hook for cpu, hook in hooks.items() if hook >= 0}
        if len(rows):
            main, keep = _samples(block, rows, self._triggers, self._threads, self._carry)
            row_of = {int(row): i for i, row in zip(*_around(rows, newest), strict=True)}
            buffers = block.window.buffers
            at_end = buffers.offset[-1] + buffers.length[-1] >= self._size
            for cpu, now in () if at_end else newest.items():
                sample = next((i for i in now.rows if block.hook[i] in (SAMPLED, PMC)), None)
                if sample is not None:
                    held[cpu] = main.select(np.array([row_of[sample]]))
                    keep[row_of[sample]] = False
            main = main.select(np.flatnonzero(keep))
        yield from self._finished(self._carry.follow(newest, hooks, held))
        if main is not None:
            yield from self._finished([main])

    def rest(self) -> Iterator[SampleBatch]:
        """What is held back at the end of the log."""
        yield from self._finished(self._carry.rest())

    def _finished(self, batches: Iterable[SampleBatch]) -> Iterator[SampleBatch]:
        kept = [batch for batch in batches if len(batch)]
        if not kept:
            return
        batch = concatenate(kept)
        if self._stacks is not None:
            offsets, frames = self._stacks.find(batch.time, batch.tid.astype(np.int64))
            batch.columns["frame"], batch.offsets[FRAME] = frames, offsets
        yield batch


def _around(rows: NDArray[np.int64], newest: dict[int, Newest]) -> tuple[list[int], list[int]]:
    """(places in ``rows``, rows) of the newest events of all processors."""
    wanted = np.sort(np.concatenate([now.rows for now in newest.values()]).astype(np.int64))
    places = np.searchsorted(rows, wanted)
    found = np.append(rows, -1)[places] == wanted
    return places[found].tolist(), wanted[found].tolist()


def _samples(
    block: EventBlock, rows: NDArray[np.int64], triggers: Triggers, threads: ThreadTable, carry: Carry
) -> tuple[SampleBatch, NDArray[np.bool_]]:
    """All events ``rows``, entries with their triggers, and which of them are rows of their own."""
    part = block.take(rows)
    pointer8 = part.pointer_size == 8
    n = len(part)
    at = part.payload >> 3
    first, second = (part.words.take(at + i, mode="clip") for i in range(2))
    is_lbr, is_pmc = part.hook == LBR, part.hook == PMC
    ip = np.where(pointer8, first, first & np.uint64(0xFFFFFFFF))
    low = np.where(pointer8, second & np.uint64(0xFFFFFFFF), first >> np.uint64(32))
    extra = np.where(pointer8, second >> np.uint64(32), second)
    tid = np.where(is_lbr, second >> np.uint64(32), low).astype(np.int64)
    number = (extra & np.uint64(0xFFFF)).astype(np.int64)
    ip[is_lbr] = 0
    event = np.full(n, 0 if (is_lbr | is_pmc).all() else triggers.row("source", 0), np.int32)
    for source in np.unique(number[is_pmc]).tolist():
        event[is_pmc & (number == source)] = triggers.row("source", source)
    time = part.time.copy()
    pid = np.where(is_lbr, (second & np.uint64(0xFFFFFFFF)).astype(np.int64), threads.pid(tid, time))
    # A sample that stands for several (Count) has that many intervals; what one is stands in the events table.
    kernel = ip >= np.where(pointer8, _KERNEL_HALF, _KERNEL_HALF_32)
    columns: dict[str, Array] = {
        "time": time,
        "ip": ip,
        "pid": pid.astype(np.int32),
        "tid": tid.astype(np.int32),
        "cpu": part.cpu.copy(),
        "event": event,
        "period": np.zeros(n, np.uint64),
        "mode": np.where(kernel, Mode.KERNEL, Mode.USER).astype(np.uint8),
        "position": part.window.buffers.offset.take(part.buffer) + part.at * 8 - part.window.start.take(part.buffer),
    }
    trigger = _triggers_of(block, rows, is_lbr)
    late = np.zeros(n, bool)
    for row in np.flatnonzero(is_lbr & (trigger < 0)).tolist():
        cpu, now = int(part.cpu[row]), int(time[row])
        late[row] = carry.holds(cpu, now)
        hook = -1 - int(trigger[row]) if trigger[row] < -1 else carry.hook_at(cpu, now)
        if not late[row]:
            event[row] = triggers.row("hook", hook) if hook >= 0 else triggers.row("none", 0)
        columns["mode"][row] = Mode.UNKNOWN
    count = _entry_counts(part, is_lbr, pointer8)
    entries = _entries(part, count, pointer8)
    columns |= {"branch_from": entries[0], "branch_to": entries[1], "branch_info": entries[2],
                "branch_flags": flags_from_info(entries[2])}  # fmt: skip
    batch = SampleBatch(columns, {BRANCH: np.concatenate([[0], np.cumsum(count)])})
    if late.any():
        carry.join(batch.select(np.flatnonzero(late)))
    # Entries move to the row of their trigger, whose record then is gone.
    owner = np.where(is_lbr & (trigger >= 0), trigger, np.arange(n))
    return attach(batch, owner, np.ones(n, bool)), (~is_lbr | (trigger < 0)) & ~late


def _triggers_of(block: EventBlock, rows: NDArray[np.int64], is_lbr: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each record, the row (of ``rows``) of the sample that triggered it; else -1 - hook of the event before it
    on its processor with its time, -1 where there is none."""
    out = np.full(len(rows), -1, np.int64)
    record = np.flatnonzero(is_lbr)
    if not len(record):
        return out
    row_of = np.full(len(block), -1, np.int64)
    row_of[rows] = np.arange(len(rows))
    me = rows[record]
    # Mostly the trigger is the event before, in the same buffer.
    before = np.maximum(me - 1, 0)
    near = (me > 0) & (block.buffer[before] == block.buffer[me]) & (block.time[before] == block.time[me])
    near &= np.isin(block.hook[before], (SAMPLED, PMC))
    out[record[near]] = row_of[before[near]]
    record, me = record[~near], me[~near]
    if not len(record):
        return out
    # File order within a processor is time order; buffers of one processor can stand apart.
    order = np.lexsort((np.arange(len(block)), block.window.buffers.sequence.take(block.buffer), block.cpu))
    place = np.empty(len(block), np.int64)
    place[order] = np.arange(len(block))
    back = place[me] - 1
    while len(record):
        other = order[np.maximum(back, 0)]
        same = (back >= 0) & (block.time[other] == block.time[me]) & (block.cpu[other] == block.cpu[me])
        record, me, back, other = record[same], me[same], back[same], other[same]
        hook = block.hook[other].astype(np.int64)
        sample = np.isin(hook, (SAMPLED, PMC))
        out[record[sample]] = row_of[other[sample]]
        named = ~sample & (hook != LBR) & (hook >= 0) & (out[record] == -1)
        out[record[named]] = -1 - hook[named]
        record, me, back = record[~sample], me[~sample], back[~sample] - 1
    return out


def _entry_counts(part: EventBlock, is_lbr: NDArray[np.bool_], pointer8: NDArray[np.bool_]) -> NDArray[np.int64]:
    room = np.where(pointer8, part.payload_size - 24, part.payload_size - 20)
    return np.where(is_lbr, np.maximum(room, 0) // np.where(pointer8, 24, 12), 0)


def _entries(part: EventBlock, count: NDArray[np.int64], pointer8: NDArray[np.bool_]) -> list[NDArray[np.uint64]]:
    """from, to, information of all entries, record after record, newest first."""
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    within = np.arange(total) - np.repeat(ends - count, count)
    wide = np.repeat(pointer8, count)
    payload, size = np.repeat(part.payload, count), np.repeat(part.payload_size, count)
    # 32-bit: entries of 12 bytes begin at 0x14, or behind a u32 that is not used, at 0x18: the one that comes out even.
    start = payload + np.where(wide, 24, np.where((size - 20) % 12 == 0, 20, 24))
    out = []
    halves = part.raw.view(np.uint32)
    for i in range(3):
        at8 = (start + 24 * within + 8 * i) >> 3
        at4 = (start + 12 * within + 4 * i) >> 2
        value = np.where(wide, part.words.take(at8, mode="clip"), halves.take(at4, mode="clip").astype(np.uint64))
        out.append(value)
    return out
