"""Kernel events as columns of 64-bit words: built many at once, with headers, each followed by its call stack.

Layouts: `formats.etl.layout` (headers), `formats.etl.kernel.layouts` (StackWalk).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from traceback import print_exception

import numpy as np
from numpy.typing import NDArray

from ....arrays import distinct, offsets_of, take_ranges
from ....errors import FormatError
from ....formats.etl import Event, encode_event, kernel_names
from ....formats.etl.container.trace_file import pad_event
from ....formats.etl.kernel.hooks import guid_text, kernel_key
from ....formats.etl.profile.sample_events import PeriodEncoding, Trigger, frames_of, sample_events
from ....model import Array, SampleBatch

__all__ = [
    "Events",
    "Ints",
    "Words",
    "count_unwritten",
    "encode_events",
    "kernel_events",
    "made_or_counted",
    "of_samples",
    "shown_hook",
    "unwritten_name",
    "with_values",
]

Words = NDArray[np.uint64]
Ints = NDArray[np.int64]

_U32, _U48 = np.uint64(32), np.uint64(48)
_MARK = 0xC0 << 24
_COMPACT64, _PERFINFO64 = 4, 17
_STACK = 0x1820
_VERSION = 2


@dataclass(slots=True)
class Events:
    """Events in on-disk form, each filled up to words. ``size`` int64: words of each; ``time`` int64: ns; ``cpu``
    int32."""

    words: Words
    size: Ints
    time: Ints
    cpu: NDArray[np.int32]
    unwritten: Counter[str] = field(default_factory=Counter)
    """By kind: events that could not be made of what happened."""

    def __len__(self) -> int:
        return len(self.size)

    @classmethod
    def join(cls, parts: Sequence[Events]) -> Events:
        """All of ``parts``, by processor and time; equal times keep their order."""
        if not parts:
            return encode_events([], 0)
        time, cpu = np.concatenate([p.time for p in parts]), np.concatenate([p.cpu for p in parts])
        size, words = np.concatenate([p.size for p in parts]), np.concatenate([p.words for p in parts])
        order = np.lexsort((time, cpu))
        first = offsets_of(size)[:-1]
        unwritten = sum((p.unwritten for p in parts), Counter[str]())
        return cls(take_ranges(words, first[order], size[order]), size[order], time[order], cpu[order], unwritten)

    def by_processor(self) -> Iterator[tuple[int, bytes, Ints]]:
        """(processor, its events, bytes of each), for events in the order of their processors."""
        ends = offsets_of(self.size)
        for cpu in distinct(self.cpu).tolist():
            first, past = np.searchsorted(self.cpu, [cpu, cpu + 1]).tolist()
            yield cpu, self.words[ends[first] : ends[past]].tobytes(), self.size[first:past] * 8


def encode_events(events: Iterable[Event], cpu: int) -> Events:
    """``events`` of one processor in their form on disk. An event that has no such form is counted."""
    filled: list[bytes] = []
    times: list[int] = []
    unwritten: Counter[str] = Counter()
    for event in events:
        try:
            filled.append(pad_event(encode_event(event)))
        except Exception as error:  # numbers of any program: one odd event must not end the source
            count_unwritten(unwritten, _kind(event), error)
        else:
            times.append(event.time)
    size = np.array([len(event) >> 3 for event in filled], np.int64)
    words = np.frombuffer(b"".join(filled), np.uint64)
    return Events(words, size, np.array(times, np.int64), np.full(len(size), cpu, np.int32), unwritten)


# -- What cannot be written
# Every process of the machine causes events, and no oddity of one process may end the recording of the others. So only
# one event fails, or the events of a round that are made together: they are lost, by kind.


_said: set[str] = set()
"""Kinds whose first failure was reported."""


def count_unwritten(into: Counter[str], kind: str, error: Exception, number: int = 1) -> None:
    """Count ``number`` events of a ``kind`` that ``error`` keeps from being written. The first error of each kind goes
    to standard error, which a session logs: a fault of ours with where it is."""
    into[kind] += number
    if kind in _said:
        return
    _said.add(kind)
    with suppress(OSError):
        if isinstance(error, FormatError):
            print(f"{kind}: not written: {error}", file=sys.stderr, flush=True)
        else:
            print_exception(error)


def made_or_counted(kind: str, number: int, make: Callable[[], Events]) -> Events:
    """The events that ``make`` returns; if ``make`` fails, no events, and ``number`` events of a ``kind`` count as
    lost."""
    try:
        return make()
    except Exception as error:  # as above, for events that are made together
        none = encode_events([], 0)
        count_unwritten(none.unwritten, kind, error, number)
        return none


def shown_hook(hook: int) -> str:
    """The name of a kernel event."""
    return "/".join(kernel_names((hook >> 8, hook & 0xFF)))


def unwritten_name(kind: str) -> str:
    """Under which name the losses of a log have events of ``kind``."""
    return f"{kind} events that could not be written"


def _kind(event: Event) -> str:
    key = kernel_key(event)
    return guid_text(event.provider) if key is None else "/".join(kernel_names(key))


def of_samples(
    batch: SampleBatch, ticks: Ints, triggers: list[Trigger], periods: PeriodEncoding, cpu: NDArray[np.int32]
) -> Events:
    """Interrupts with branch records and stacks, as `sample_events` makes them; ``cpu``: of each sample."""
    data, ends, times, owner = sample_events(batch, ticks, triggers, periods, narrow=False)
    return Events(np.frombuffer(data, np.uint64), np.diff(ends, prepend=0) >> 3, times, cpu[owner])


def kernel_events(
    batch: SampleBatch, ticks: Ints, hook: int | Array, payload: Sequence[Words], size: int, *, compact: bool = False
) -> Events:
    """An event for each row of ``batch``, followed by the row's call chain, if any.

    ``payload``: the words of the rows, ``size`` of whose bytes count. ``hook``: one for all, or a column. ``ticks``:
    the rows' times as the session counts it. ``compact``: with thread and process in the header.
    """
    count = len(batch)
    head, kind = (3, _COMPACT64) if compact else (2, _PERFINFO64)
    offsets, frames = frames_of(batch)
    depth = np.diff(offsets)
    own, chain = head + len(payload), np.where(depth > 0, 4 + depth, 0)
    sizes = np.stack([np.full(count, own), chain], axis=1).ravel()
    begin = offsets_of(sizes)
    words = np.zeros(int(begin[-1]), np.uint64)
    time = ticks.view(np.uint64)
    task = batch.pid.astype(np.uint32).astype(np.uint64), batch.tid.astype(np.uint32).astype(np.uint64)
    at = begin[:-1:2]
    words[at] = _head(kind, hook, 8 * head + size)
    words[at + head - 1] = time
    if compact:
        words[at + 1] = task[1] | task[0] << _U32
    for i, column in enumerate(payload):
        words[at + head + i] = column
    rows = np.flatnonzero(depth)
    at = begin[1::2][rows]
    words[at] = _head(_PERFINFO64, _STACK, 8 * (4 + depth[rows]))
    words[at + 1] = words[at + 2] = time[rows]
    words[at + 3] = task[0][rows] | task[1][rows] << _U32
    owner = np.repeat(rows, depth[rows])
    words[begin[1::2][owner] + 4 + np.arange(len(owner)) - offsets[owner]] = frames
    written = np.flatnonzero(sizes)
    return Events(words, sizes[written], np.repeat(batch.time, 2)[written], np.repeat(batch.cpu, 2)[written])


def with_values(events: Events, hook: int, values: Words) -> Events:
    """``events`` with counter values in the headers of those of ``hook``: (n, up to 7), a row for each."""
    begin = offsets_of(events.size)[:-1]
    first = events.words[begin]
    own = np.flatnonzero(first >> _U48 == np.uint64(hook))
    head = np.where(first[own] >> np.uint64(16) & np.uint64(0xFF) == np.uint64(_COMPACT64), 3, 2)
    count = values.shape[1]
    words = events.words.copy()
    words[begin[own]] += np.uint64(count << 8 | 8 * count << 32)  # Version bits 8 to 10, Size
    words = np.insert(words, np.repeat(begin[own] + head, count), values.ravel())
    size = events.size.copy()
    size[own] += count
    return Events(words, size, events.time, events.cpu, events.unwritten)


def _head(kind: int, hook: int | Array, size: int | Array) -> Array:
    """The first word of kernel headers: Version, HeaderType, MarkerFlags, Size, HookId."""
    first = np.uint64(_VERSION | kind << 16 | _MARK)
    word: Array = first | np.asarray(size).astype(np.uint64) << _U32 | np.asarray(hook).astype(np.uint64) << _U48
    return word
