"""Samples, last branch records and stacks of a batch as the bytes of kernel events: the other direction of `samples`.

A sample is up to four events of its processor with one time: the interval of its profile source from then on, the
sample (SampledProfile, or a PMC interrupt with its profile source), its last branch record, its stack.

On a 32-bit system, an event whose values fit is written in its 32-bit form. A branch record without predictions has
this form on every system: its Information has no bit for "mispredicted", so readers do not count the branches as
predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....arrays import Ints, distinct, offsets_of, ranges
from ....lbr import flags_from_info
from ....model import BRANCH, FRAME, Array, SampleBatch
from ..kernel.hooks import LBR_SAMPLE, PMC_SAMPLE, SAMPLED_PROFILE, SET_INTERVAL, STACK
from ..layout import LARGEST_EVENT
from .lbr_information import information_of

__all__ = [
    "MOST_ENTRIES",
    "MOST_FRAMES",
    "MOST_INTERVAL",
    "PeriodEncoder",
    "PeriodEncoding",
    "Trigger",
    "frames_of",
    "sample_events",
]


Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Trigger:
    """How an event of the profile is written: as samples of a profile source, as a bare event of ``hook``, or (-1) not
    at all, only its branch records."""

    source: int = -1
    hook: int = -1
    options: int = 0
    """LBR configuration of its branch records."""


def _column_of(triggers: list[Trigger], name: str, batch: SampleBatch) -> Ints:
    """An attribute of the trigger of each sample."""
    taken: Ints = np.array([getattr(trigger, name) for trigger in triggers], np.int64).take(batch.event)
    return taken


# -- The periods of samples: an interval of a profile source holds from its event on, and a sample of the timer may
# count as several (Count)


MOST_INTERVAL = 0xFFFFFFFF
_MOST_COUNT = 0xFFFF
_TIMER = 0


@dataclass(slots=True)
class PeriodEncoding:
    """How a log expresses the periods of a batch.

    ``count`` int64 of each sample; ``interval`` int64: the interval of the sample's source from this sample on, if
    ``changed`` (bool); ``before`` int64: the one until then; ``lost``: how many samples keep no period.
    """

    count: Ints
    interval: Ints
    before: Ints
    changed: NDArray[np.bool_]
    lost: int


class PeriodEncoder:
    """The intervals of the profile sources as they are written. ``intervals``: those at the start, by source."""

    def __init__(self, intervals: dict[int, int]) -> None:
        self._base = intervals
        self.now = dict(intervals)
        """Those that hold at the end of what was written so far."""
        self._last: dict[int, int] = {}

    def encode(self, batch: SampleBatch, time: Ints, triggers: list[Trigger]) -> PeriodEncoding:
        """The periods of ``batch``, whose samples are written at ``time``. A period of 0 is not known and not
        written."""
        number, source = len(batch), _column_of(triggers, "source", batch)
        count, interval, before = np.ones((3, number), np.int64)
        made = PeriodEncoding(count, interval, before, np.zeros(number, bool), 0)
        period = np.minimum(batch.period, np.uint64(MOST_INTERVAL + 1)).astype(np.int64)
        for which in distinct(source[(source >= 0) & (period > 0)]).tolist():
            rows = np.flatnonzero((source == which) & (period > 0))
            too_large = period[rows] > MOST_INTERVAL
            made.lost += int(too_large.sum())
            rows = rows[~too_large]
            rows = rows[np.argsort(time[rows], kind="stable")]
            if len(rows):
                self._encode_source(made, which, rows, period[rows], time[rows])
        return made

    def _encode_source(self, made: PeriodEncoding, source: int, rows: Ints, period: Ints, time: Ints) -> None:
        """Fill in the ``rows`` of one source, in the order of their times."""
        interval, base = period.copy(), self._base.get(source, 0)
        if source == _TIMER and base:
            several = (period % base == 0) & (period <= base * _MOST_COUNT)
            made.count[rows[several]] = period[several] // base
            interval[several] = base
        # All samples of a tick have the interval of the tick's last sample.
        first = np.flatnonzero(np.append(True, time[1:] != time[:-1]))
        size = np.diff(np.append(first, len(rows)))
        held = interval[first + size - 1]
        if time[0] == self._last.get(source):
            held[0] = self.now[source]
        made.lost += int(np.count_nonzero(np.repeat(held, size) != interval))
        before = np.append(self.now.get(source, 0), held[:-1])
        where = rows[first]
        made.interval[where], made.before[where], made.changed[where] = held, before, held != before
        self.now[source], self._last[source] = int(held[-1]), int(time[-1])


# -- Events


_HEADER, _BEFORE_ENTRIES, _BEFORE_FRAMES, _INTERVAL = 16, 24, 16, 44  # bytes; _INTERVAL: of the whole event
MOST_ENTRIES = (LARGEST_EVENT - _HEADER - _BEFORE_ENTRIES) // 24
MOST_FRAMES = (LARGEST_EVENT - _HEADER - _BEFORE_FRAMES) // 8
_CONTEXT = np.uint64((1 << 64) - 4095)
_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(32)
_SYSTEM32, _PERFINFO32 = 1, 16  # header types; of the 64-bit form: one more
_VERSION, _MARKER = 2, 0xC0 << 24


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


def _entries_of(batch: SampleBatch) -> tuple[Ints, Words, NDArray[np.bool_]]:
    """(count of each sample; from, to and Information of all entries (n, 3); which entries know their prediction)."""
    offsets = batch.offsets.get(BRANCH, np.zeros(len(batch) + 1, np.int64))
    entries = np.zeros((int(offsets[-1]), 3), np.uint64)
    if not len(entries):
        return np.diff(offsets), entries, np.empty(0, bool)
    entries[:, 0], entries[:, 1] = batch["branch_from"], batch["branch_to"]
    entries[:, 2] = batch["branch_info"] if "branch_info" in batch else information_of(batch["branch_flags"])
    flags = batch["branch_flags"] if "branch_flags" in batch else flags_from_info(entries[:, 2])
    return np.diff(offsets), entries, flags & np.uint64(3) != 0


def sample_events(
    batch: SampleBatch, time: Ints, triggers: list[Trigger], periods: PeriodEncoding, *, narrow: bool
) -> tuple[bytes, Ints, Ints, Ints]:
    """The events of ``batch`` at ``time``: (bytes, end of each event, its time, its sample), each padded to 8 bytes.

    ``narrow``: of a 32-bit system.
    """
    source, hook, options = (_column_of(triggers, name, batch) for name in ("source", "hook", "options"))
    hook = np.where(source < 0, hook, np.where(source == _TIMER, SAMPLED_PROFILE, PMC_SAMPLE))
    depth, entries, predicted = _entries_of(batch)
    frame_at, frames = frames_of(batch)
    height = np.diff(frame_at)
    time = _apart(batch, time, height > 0)

    wide = np.ones((4, len(batch)), bool)
    if narrow:
        wide[0], wide[1], wide[3] = False, (batch.ip > _LOW) & (source >= 0), _any_of_each(height, frames > _LOW)
    if narrow or not predicted.all():
        long = _any_of_each(depth, predicted | (entries > _LOW).any(axis=1))
        wide[2] = long | ~(_any_of_each(depth, entries[:, 2] != 0) | narrow)
    pointer = np.where(wide, 8, 4)
    by_kind = (
        np.where(periods.changed, _INTERVAL, 0),
        np.where(hook < 0, 0, np.where(source < 0, _HEADER, _HEADER + pointer[1] + 8)),
        np.where((depth > 0) | (hook < 0), _HEADER + _BEFORE_ENTRIES + 3 * depth * pointer[2], 0),
        np.where(height > 0, _HEADER + _BEFORE_FRAMES + height * pointer[3], 0),
    )
    sizes = np.stack(by_kind)
    ends, begin, out = _places_of(sizes)
    stamp, thread = time.view(np.uint64), _pair(batch.pid, batch.tid)

    def put(which: int, hooks: Ints | int, kind: int) -> tuple[Ints, Ints]:
        """Write the first word of each header; the samples that have such an event, and where its second word is."""
        rows = np.flatnonzero(sizes[which])
        size = sizes[which] | np.broadcast_to(hooks, len(batch)) << 16
        out[begin[which, rows]] = _pair(_VERSION | kind + wide[which] << 16 | _MARKER, size)[rows]
        return rows, begin[which, rows] + 1

    rows, at = put(0, SET_INTERVAL, _SYSTEM32)
    out[at + 1] = stamp[rows]  # before this version: no process and thread; after it: no processor times
    out[at + 3], out[at + 4] = _pair(source, periods.interval)[rows], periods.before[rows].view(np.uint64)

    rows, at = put(1, hook, _PERFINFO32)
    out[at] = stamp[rows]
    extra = np.where(source == _TIMER, periods.count, source)
    for is_wide, words in ((True, (batch.ip, _pair(batch.tid, extra))), (False, (_pair(batch.ip, batch.tid), extra))):
        mine = (wide[1, rows] == is_wide) & (source[rows] >= 0)
        for i, word in enumerate(words, 1):
            out[at[mine] + i] = word[rows[mine]].astype(np.uint64)

    rows, at = put(2, LBR_SAMPLE, _PERFINFO32)
    out[at], out[at + 1], out[at + 2], out[at + 3] = stamp[rows], stamp[rows], thread[rows], options[rows]
    _put_pointers(out, begin[2] + 5, 3 * depth, entries.ravel(), wide[2])

    rows, at = put(3, STACK, _PERFINFO32)
    out[at], out[at + 1], out[at + 2] = stamp[rows], stamp[rows], thread[rows]
    _put_pointers(out, begin[3] + 4, height, frames, wide[3])
    written = np.flatnonzero(sizes.T.ravel())
    return out.tobytes(), ends[written] * 8, np.repeat(time, 4)[written], written // 4


def _places_of(sizes: Ints) -> tuple[Ints, Ints, Words]:
    """(ends of the events in order, begin of each by kind and sample, memory for all), in words of 8 bytes; ``sizes``
    are bytes by kind and sample."""
    words = sizes.T.ravel() + 7 >> 3
    ends = np.cumsum(words)
    return ends, (ends - words).reshape(-1, 4).T, np.zeros(int(ends[-1]) if len(ends) else 0, np.uint64)


def _any_of_each(count: Ints, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether any of the ``count`` flags of each sample is set."""
    owner = np.repeat(np.arange(len(count)), count)
    return np.bincount(owner[flags], minlength=len(count)) > 0


def _apart(batch: SampleBatch, time: Ints, stacked: NDArray[np.bool_]) -> Ints:
    """``time``, with samples of one event, thread and time a tick apart if they are ``stacked``, as the records of one
    burst: a log has nothing else than thread and time by which the call stack of a sample is found."""
    again = np.zeros(len(time), bool)
    again[1:] = stacked[1:] & stacked[:-1] & (time[1:] == time[:-1]) & (batch.tid[1:] == batch.tid[:-1])
    again[1:] &= batch.event[1:] == batch.event[:-1]
    if not again.any():
        return time
    row = np.arange(len(time))
    moved: Ints = np.maximum.accumulate(time + row - np.maximum.accumulate(np.where(again, 0, row)))
    return moved


def _pair(low: Array, high: Array) -> Words:
    """Two numbers as one word, each as its low 32 bits."""
    words: Words = (low.astype(np.uint64) & _LOW) | high.astype(np.uint64) << _HIGH
    return words


def _put_pointers(out: Words, at: Ints, count: Ints, values: Words, wide: NDArray[np.bool_]) -> None:
    """Put ``count[i]`` of ``values`` from word ``at[i]`` on, in 8 bytes each where ``wide``, else in 4."""
    if wide.all():
        out[ranges(at, count)] = values
        return
    mine = np.repeat(wide, count)
    out[ranges(at[wide], count[wide])] = values[mine]
    out.view(np.uint32)[ranges(2 * at[~wide], count[~wide])] = values[~mine]
