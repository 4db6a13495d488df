"""Samples, last branch records and stacks of a batch as the bytes of kernel events: the other direction of `samples`.

A sample is up to four events of its processor with one time: the interval of its profile source from then on, the
sample (SampledProfile, or a PMC interrupt with its profile source), its last branch record, its stack. The 64-bit forms
are written in bulk; of a 32-bit system those samples whose values fit have the 32-bit forms, as have records whose
Information had no room for "mispredicted" and does not tell it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....arrays import offsets_of
from ....lbr import flags_from_info
from ....model import BRANCH, FRAME, Array, SampleBatch
from ..layout import LARGEST_EVENT
from .information import information_of, is_extended

__all__ = ["MOST_ENTRIES", "MOST_FRAMES", "MOST_INTERVAL", "Periods", "Told", "Trigger", "frames_of", "sample_events"]


# -- How the periods of samples are told: an interval of a profile source holds from its event on, and a sample of the
# timer may stand for several (Count)


MOST_INTERVAL = 0xFFFFFFFF
_MOST_COUNT = 0xFFFF
_TIMER = 0

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Told:
    """What says the periods of a batch.

    ``count`` int64 of each sample; ``interval`` int64: that of its source from it on, where ``changed`` (bool) says so;
    ``before`` int64: the one until then; ``lost``: samples whose period nothing says.
    """

    count: Ints
    interval: Ints
    before: Ints
    changed: NDArray[np.bool_]
    lost: int


class Periods:
    """The intervals of the profile sources as they are written. ``intervals``: those at the begin, by source."""

    def __init__(self, intervals: dict[int, int]) -> None:
        self._base = intervals
        self.now = dict(intervals)
        """Those that hold at the end of what was written so far."""
        self._last: dict[int, int] = {}

    def of(self, batch: SampleBatch, time: Ints, source: Ints) -> Told:
        """Of the samples of ``batch`` that are written at ``time``; ``source`` is -1 for those of none. A period of 0
        is not known, and not told."""
        number = len(batch)
        count, interval, before = np.ones((3, number), np.int64)
        told = Told(count, interval, before, np.zeros(number, bool), 0)
        period = np.minimum(batch.period, np.uint64(MOST_INTERVAL + 1)).astype(np.int64)
        for which in np.unique(source[(source >= 0) & (period > 0)]).tolist():
            rows = np.flatnonzero((source == which) & (period > 0))
            too_large = period[rows] > MOST_INTERVAL
            told.lost += int(too_large.sum())
            rows = rows[~too_large]
            rows = rows[np.argsort(time[rows], kind="stable")]
            if len(rows):
                self._source(told, which, rows, period[rows], time[rows])
        return told

    def _source(self, told: Told, source: int, rows: Ints, period: Ints, time: Ints) -> None:
        """Fill in the ``rows`` of one source, in the order of their times."""
        interval, base = period.copy(), self._base.get(source, 0)
        if source == _TIMER and base:
            several = (period % base == 0) & (period <= base * _MOST_COUNT)
            told.count[rows[several]] = period[several] // base
            interval[several] = base
        # One interval holds for all samples of a tick: that of its last one.
        first = np.flatnonzero(np.append(True, time[1:] != time[:-1]))
        size = np.diff(np.append(first, len(rows)))
        held = interval[first + size - 1]
        if time[0] == self._last.get(source):
            held[0] = self.now[source]
        told.lost += int(np.count_nonzero(np.repeat(held, size) != interval))
        before = np.append(self.now.get(source, 0), held[:-1])
        where = rows[first]
        told.interval[where], told.before[where], told.changed[where] = held, before, held != before
        self.now[source], self._last[source] = int(held[-1]), int(time[-1])


def column_of(values: list[int], batch: SampleBatch) -> Array:
    """A value of the event of each sample."""
    taken: Array = np.array(values, np.int64).take(batch.event)
    return taken


SAMPLED, PMC, LBR, STACK, SET_INTERVAL = 0x0F2E, 0x0F2F, 0x0C20, 0x1820, 0x0F48
_HEAD, _BEFORE_ENTRIES, _BEFORE_FRAMES = 0x10, 0x18, 0x10
MOST_ENTRIES = (LARGEST_EVENT - _HEAD - _BEFORE_ENTRIES) // 24
MOST_FRAMES = (LARGEST_EVENT - _HEAD - _BEFORE_FRAMES) // 8
_CONTEXT = np.uint64((1 << 64) - 4095)
_U64, _U32 = np.uint64, np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_SYSTEM32, _SYSTEM64, _PERFINFO32, _PERFINFO64 = 1, 2, 16, 17
_VERSION = 2
_INTERVAL = struct.Struct("<HBBHHIIqQIII")  # SYSTEM header without ids and times, source, interval, the one before
_INTERVAL_WORDS = 6

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Trigger:
    """How an event of the profile is written: as samples of a profile source, as a bare event of ``hook``, or (-1) not
    at all, only its branch records."""

    source: int = -1
    hook: int = -1
    options: int = 0
    """LBR configuration of its branch records."""


def frames_of(batch: SampleBatch) -> tuple[Ints, Words]:
    """(offsets, frames) without the context markers of Linux, and at most `MOST_FRAMES` of each sample."""
    if FRAME not in batch.offsets:
        return np.zeros(len(batch) + 1, np.int64), np.empty(0, np.uint64)
    offsets, frames = batch.offsets[FRAME], batch["frame"]
    owner = np.repeat(np.arange(len(batch)), np.diff(offsets))
    keep = frames < _CONTEXT
    rank = np.cumsum(keep) - 1
    first = offsets_of(np.bincount(owner[keep], minlength=len(batch)))
    keep &= rank - first[owner] < MOST_FRAMES
    return offsets_of(np.bincount(owner[keep], minlength=len(batch))), frames[keep]


def sample_events(
    batch: SampleBatch, time: Ints, triggers: list[Trigger], told: Told, *, narrow: bool
) -> tuple[bytes, Ints, Ints, Ints]:
    """The events of ``batch`` at ``time``: (bytes, end of each event, its time, its sample), each filled up to 8 bytes.

    ``told``: what says their periods. ``narrow``: in 32-bit form where the values fit.
    """
    frame_at, frames = frames_of(batch)
    branch_at = batch.offsets.get(BRANCH, np.zeros(len(batch) + 1, np.int64))
    entries = np.zeros((int(branch_at[-1]), 3), np.uint64)
    if len(entries):
        entries[:, 0], entries[:, 1] = batch["branch_from"], batch["branch_to"]
        has_info = "branch_info" in batch
        entries[:, 2] = batch["branch_info"] if has_info else information_of(batch["branch_flags"])
    flags = batch["branch_flags"] if len(entries) and "branch_flags" in batch else flags_from_info(entries[:, 2])
    predicted = flags & _U64(3) != 0
    parts = _Parts(batch, time, triggers, told, branch_at, entries, predicted, frame_at, frames)
    untold = bool((~predicted & (entries[:, 2] != 0) & ~is_extended(entries[:, 2])).any())
    return parts.one_by_one(narrow) if narrow or untold else parts.wide()


@dataclass(slots=True)
class _Parts:
    batch: SampleBatch
    time: Ints
    triggers: list[Trigger]
    told: Told
    branch_at: Ints
    entries: Words
    predicted: NDArray[np.bool_]
    """Of each entry, whether it tells "mispredicted" or "predicted"."""
    frame_at: Ints
    frames: Words

    def wide(self) -> tuple[bytes, Ints, Ints, Ints]:
        batch, number = self.batch, len(self.batch)
        source = column_of([t.source for t in self.triggers], batch)
        hook = column_of([t.hook for t in self.triggers], batch)
        hook = np.where(source < 0, hook, np.where(source == 0, SAMPLED, PMC))
        depth, frames = np.diff(self.branch_at), np.diff(self.frame_at)
        words = np.stack(
            [
                np.where(self.told.changed, _INTERVAL_WORDS, 0),
                np.where(hook < 0, 0, np.where(source < 0, 2, 4)),
                np.where((depth > 0) | (hook < 0), 5 + 3 * depth, 0),
                np.where(frames > 0, 4 + frames, 0),
            ],
            axis=1,
        )  # of the four events of each sample
        ends = np.cumsum(words.ravel())
        begin = (ends - words.ravel()).reshape(-1, 4)
        out = np.zeros(int(ends[-1]) if number else 0, np.uint64)
        tid = batch.tid.astype(np.uint32).astype(np.uint64)
        pid = batch.pid.astype(np.uint32).astype(np.uint64)
        stamp = self.time.view(np.uint64)
        # interval
        rows = np.flatnonzero(words[:, 0])
        at = begin[rows, 0]
        _heads(out, at, np.full(len(rows), _INTERVAL.size), np.full(len(rows), SET_INTERVAL), stamp[rows], _SYSTEM64)
        out[at + 1], out[at + 2] = 0, stamp[rows]
        interval, before = (part[rows].astype(np.uint64) for part in (self.told.interval, self.told.before))
        out[at + 4], out[at + 5] = source[rows].astype(np.uint64) | interval << _U32, before
        # sample
        rows = np.flatnonzero(words[:, 1])
        at = begin[rows, 1]
        _heads(out, at, words[rows, 1] * 8, hook[rows], stamp[rows])
        rows = np.flatnonzero(words[:, 1] == 4)
        at = begin[rows, 1]
        extra = np.where(source[rows] == 0, self.told.count[rows], source[rows]).astype(np.uint64)
        out[at + 2], out[at + 3] = batch.ip[rows], tid[rows] | extra << _U32
        # last branch record
        rows = np.flatnonzero(words[:, 2])
        at = begin[rows, 2]
        _heads(out, at, words[rows, 2] * 8, np.full(len(rows), LBR), stamp[rows])
        out[at + 2], out[at + 3] = stamp[rows], pid[rows] | tid[rows] << _U32
        out[at + 4] = column_of([t.options for t in self.triggers], batch)[rows].astype(np.uint64)
        owner = np.repeat(np.arange(number), depth)
        place = begin[owner, 2] + 5 + 3 * (np.arange(len(owner)) - self.branch_at[owner])
        for i in range(3):
            out[place + i] = self.entries[:, i]
        # stack
        rows = np.flatnonzero(words[:, 3])
        at = begin[rows, 3]
        _heads(out, at, words[rows, 3] * 8, np.full(len(rows), STACK), stamp[rows])
        out[at + 2], out[at + 3] = stamp[rows], pid[rows] | tid[rows] << _U32
        owner = np.repeat(np.arange(number), frames)
        out[begin[owner, 3] + 4 + np.arange(len(owner)) - self.frame_at[owner]] = self.frames
        written = np.flatnonzero(words.ravel())
        return out.tobytes(), ends[written] * 8, np.repeat(self.time, 4)[written], written // 4

    def one_by_one(self, narrow: bool) -> tuple[bytes, Ints, Ints, Ints]:
        """In 32-bit forms where the values fit; if not ``narrow``, only records that tell no prediction."""
        batch, told = self.batch, self.told
        out, ends, owners = bytearray(), [], []
        for i in range(len(batch)):
            trigger = self.triggers[int(batch.event[i])]
            time, ip = int(self.time[i]), int(batch.ip[i])
            pid, tid = int(batch.pid[i]) & 0xFFFFFFFF, int(batch.tid[i]) & 0xFFFFFFFF
            entries = self.entries[self.branch_at[i] : self.branch_at[i + 1]]
            frames = self.frames[self.frame_at[i] : self.frame_at[i + 1]]
            events = []
            if told.changed[i]:
                kind, change = _SYSTEM32 if narrow else _SYSTEM64, (int(told.interval[i]), int(told.before[i]))
                fixed = (_VERSION, kind, 0xC0, _INTERVAL.size, SET_INTERVAL, 0, 0, time, 0)
                out += _INTERVAL.pack(*fixed, trigger.source, *change)
                out += bytes(-len(out) % 8)
                ends.append(len(out))
                owners.append(i)
            if trigger.source >= 0:
                hook, extra = (PMC, trigger.source) if trigger.source else (SAMPLED, int(told.count[i]))
                events.append((hook, b"", np.array([ip], np.uint64), struct.pack("<II", tid, extra)))
            elif trigger.hook >= 0:
                events.append((trigger.hook, b"", np.empty(0, np.uint64), b""))
            if len(entries) or not events:
                head = struct.pack("<QIIII", time, pid, tid, trigger.options, 0)
                events.append((LBR, head, entries.ravel(), b""))
            if len(frames):
                events.append((STACK, struct.pack("<QII", time, pid, tid), frames, b""))
            for hook, head, pointers, tail in events:
                # Information of 32 bits cannot tell "mispredicted", so a reader takes it to tell neither.
                predicted = self.predicted[self.branch_at[i] : self.branch_at[i + 1]] if hook == LBR else None
                fits = not len(pointers) or int(pointers.max()) <= 0xFFFFFFFF
                if predicted is not None:
                    fits &= not predicted.any() and (narrow or bool((entries[:, 2] != 0).any()))
                else:
                    fits &= narrow
                values = pointers.astype("<u4" if fits else "<u8").tobytes()
                payload = head + values + tail
                kind = _PERFINFO32 if fits else _PERFINFO64
                size = _HEAD + len(payload)
                out += struct.pack("<HBBHHq", _VERSION, kind, 0xC0, size, hook, time) + payload
                out += bytes(-len(out) % 8)
                ends.append(len(out))
                owners.append(i)
        owner = np.array(owners, np.int64)
        return bytes(out), np.array(ends, np.int64), self.time[owner], owner


def _heads(out: Words, at: Ints, size: Array, hook: Array, time: Words, kind: int = _PERFINFO64) -> None:
    """PERFINFO64 headers: Version, HeaderType, MarkerFlags, Size, Type and Group, TimeStamp."""
    first = _VERSION | kind << 16 | 0xC0 << 24
    out[at] = _U64(first) | size.astype(np.uint64) << _U32 | hook.astype(np.uint64) << _U64(48)
    out[at + 1] = time
