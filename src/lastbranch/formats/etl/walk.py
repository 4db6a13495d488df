"""The event walk: where each event of a window of buffers is, in lockstep over all buffers.

Events are linked by their sizes, so a walk through one buffer waits for memory at each of them; walking all buffers of
a window in step overlaps the waits and needs a dozen array operations a step, whatever the number of buffers. To save
operations `STEPS` steps are taken without looking: a lane that meets what is no event stays there (its size is 0), one
that leaves its buffer goes on in other bytes, at most `STEPS` times 64 KiB further (`padding.PAD`); afterwards what
is behind the first such step is dropped. Where few lanes are left, a plain loop is faster and takes over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buffers import DamageLog
from .layout import END_OF_BUFFER, HEADERS, MESSAGE, MESSAGE_FIELDS, MESSAGE_FLAG
from .padding import FEW_LANES
from .windows import Window

__all__ = ["HEADER_BYTES", "KIND", "MESSAGE_BYTES", "Walk", "walk"]

STEPS = 16
NEAR = 1 << 14  # events that are looked at together, so that their lines are still in the cache for the next word

# By the upper half of an event's first u32 (header type and marker): the header kind, 0 for what is no event, and how
# far its Size is shifted in the first u64. A shift by 64 makes the size of what is no event 0.
KIND = np.zeros(1 << 16, np.uint8)
_SHIFT = np.full(1 << 16, 64, np.uint64)
for _marker in range(0xC0, 0x100):  # bits 31 and 30
    for _type, _kind in HEADERS.items():
        KIND[_marker << 8 | _type] = _type
        _SHIFT[_marker << 8 | _type] = 32 if _kind.is_system else 0
for _marker in range(0x90, 0xA0):  # bits 31 and 28, not 30 and 29
    KIND[_marker << 8 : (_marker + 1) << 8] = MESSAGE
    _SHIFT[_marker << 8 : (_marker + 1) << 8] = 0
_SHIFTS = _SHIFT.tolist()
_WORDS = (np.arange(1 << 16) + 7) >> 3  # by Size: how many words on the next event is

HEADER_BYTES = np.zeros(256, np.int64)
"""By header kind: bytes of the header without what its flags add."""
for _type, _kind in HEADERS.items():
    HEADER_BYTES[_type] = _kind.size
HEADER_BYTES[MESSAGE] = 8


def _message_bytes(options: int) -> int:
    at = 8
    for flag, (name, form) in MESSAGE_FIELDS:
        if options & flag and not (name == "MessageGuid" and options & MESSAGE_FLAG.COMPONENTID):
            at += struct.calcsize("<" + form)
    return at


MESSAGE_BYTES = np.array([_message_bytes(options) for options in range(256)], np.int64)
"""By the low byte of a message's OptionFlags: bytes of its header."""


_LEAST = HEADER_BYTES.take(KIND)
_IS_MESSAGE = KIND == MESSAGE
_STAMP = np.array([HEADERS[k].fields[-1][0] == "TimeStamp" and HEADERS[k].size == 16 if k in HEADERS else False
                   for k in range(256)]).take(KIND)  # fmt: skip


@dataclass(slots=True)
class Walk:
    """Events of a window in file order.

    ``at`` int64: word index. ``head``, ``second`` uint64: the first two words of each event; ``stamp`` int64: that of
    its words where its header kind has the time stamp. ``mark`` uint16: what the tables by marker are indexed with.
    ``size`` int64: bytes, header included, as the event says. ``buffer`` int32: row of the window's buffers.
    """

    at: NDArray[np.int64]
    head: NDArray[np.uint64]
    second: NDArray[np.uint64]
    stamp: NDArray[np.int64]
    mark: NDArray[np.uint16]
    size: NDArray[np.int64]
    buffer: NDArray[np.int32]

    def take(self, which: Any) -> Walk:
        """The given events: an index array, a mask or a slice."""
        parts = (self.at, self.head, self.second, self.stamp, self.mark, self.size, self.buffer)
        return Walk(*(np.ascontiguousarray(part[which]) for part in parts))


def walk(window: Window, damage: DamageLog) -> Walk:
    """All events of ``window``. Where the chain of a buffer breaks, its rest is left out and noted in ``damage``."""
    words = window.words
    first = (window.start >> 3) + 9
    limit = window.start + window.buffers.filled
    end = (limit + 7) >> 3
    at, stops = _chase(words, first, end)
    at.sort()  # half the time of sorting 64-bit integers
    found = at.astype(np.int64)
    counts = np.diff(np.append(np.searchsorted(at, first.astype(np.int32)), len(at)))
    buffer = np.repeat(np.arange(len(first), dtype=np.int32), counts)
    broken = np.flatnonzero(stops < end)
    for row in broken[(words.take(stops[broken]) & np.uint64(END_OF_BUFFER)) != END_OF_BUFFER].tolist():
        _note(window, damage, row, int(stops[row]), int(limit[row]))
    whole, bad = _look(words, found, buffer)
    if (limit & 7).any():  # a cut file: the last word need not be whole, and neither the event in it
        bad |= found * 8 + whole.size > limit.take(buffer)
    return _drop_after(window, damage, whole, bad, limit) if bad.any() else whole


def _look(
    words: NDArray[np.uint64], at: NDArray[np.int64], buffer: NDArray[np.int32]
) -> tuple[Walk, NDArray[np.bool_]]:
    """What the first words of the events say, and which events are smaller than their headers."""
    count = len(at)
    head, second = np.empty(count, np.uint64), np.empty(count, np.uint64)
    stamp, size = np.empty(count, np.int64), np.empty(count, np.int64)
    mark, bad = np.empty(count, np.uint16), np.empty(count, bool)
    for begin in range(0, count, NEAR):
        part = slice(begin, begin + NEAR)
        place = at[part]
        words.take(place, out=head[part], mode="clip")  # without a mode ``out`` would be filled by way of a copy
        words.take(place + 1, out=second[part], mode="clip")
        words.take(place + 2, out=stamp[part].view(np.uint64), mode="clip")
        mark[part] = head[part].view(np.uint16)[1::4]
        marks = mark[part].astype(np.int64)
        size[part] = head[part] >> _SHIFT.take(marks) & np.uint64(0xFFFF)
        np.copyto(stamp[part], second[part].view(np.int64), where=_STAMP.take(marks))
        bad[part] = size[part] < _LEAST.take(marks)
    whole = Walk(at, head, second, stamp, mark, size, buffer)
    message = np.flatnonzero(_IS_MESSAGE.take(mark))
    if len(message):
        bad[message] = size[message] < MESSAGE_BYTES.take((head[message] >> np.uint64(48)).astype(np.int64) & 0xFF)
    return whole, bad


def _chase(
    words: NDArray[np.uint64], first: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Word positions of all events from ``first`` to ``end`` of each lane, in no order, and where each lane stopped."""
    stops, parts = np.minimum(first, end), []
    lanes = np.flatnonzero(first < end)
    at, limit = first[lanes], end[lanes]
    step = _stepper(words, len(lanes))
    while len(lanes) > FEW_LANES:
        steps = np.empty((STEPS + 1, len(lanes)), np.int64)
        steps[0] = at
        for i in range(STEPS):
            step(steps[i], steps[i + 1])
        if ((steps[-1] > steps[-2]) & (steps[-1] < limit)).all():  # a lane that has stopped would have stayed so
            parts.append(steps[:-1].ravel())
            at = steps[-1]
            continue
        good = steps[1:] > steps[:-1]
        good &= steps[1:] <= limit
        parts.append(steps[:-1][good])
        at = steps[-1]
        alive = good[-1] & (at < limit)
        if not alive.all():
            done = np.flatnonzero(~alive)
            stops[lanes[done]] = steps[good[:, done].sum(axis=0), done]
            lanes, at, limit = lanes[alive], at[alive], limit[alive]
            step = _stepper(words, len(lanes))
    if len(lanes):
        memory: Any = memoryview(words)  # type: ignore[arg-type]
        found: list[int] = []
        for lane, place, stop in zip(lanes.tolist(), at.tolist(), limit.tolist(), strict=True):
            stops[lane] = _follow(memory, place, stop, found.append)
        parts.append(np.array(found, np.int64))
    return np.concatenate([np.empty(0, np.int64), *parts], dtype=np.int32, casting="same_kind"), stops


def _stepper(words: NDArray[np.uint64], lanes: int) -> Callable[[NDArray[np.int64], NDArray[np.int64]], object]:
    """``step(at, after)``: where the events behind those at ``at`` are. Its arrays are made once: half of the time."""
    head, shift, size = np.empty(lanes, np.uint64), np.empty(lanes, np.uint64), np.empty(lanes, np.int64)
    halves = head.view(np.uint16)
    marks, sizes = halves[1::4], halves[0::4]

    def step(at: NDArray[np.int64], after: NDArray[np.int64]) -> object:
        words.take(at, out=head, mode="clip")
        _SHIFT.take(marks, out=shift, mode="clip")
        np.right_shift(head, shift, out=head)
        _WORDS.take(sizes, out=size, mode="clip")
        return np.add(at, size, out=after)

    return step


def _follow(memory: Any, at: int, end: int, append: Any) -> int:
    """`_chase` of one lane."""
    shifts = _SHIFTS
    while at < end:
        head = memory[at]
        words = (head >> shifts[head >> 16 & 0xFFFF] & 0xFFFF) + 7 >> 3
        if not words or at + words > end:
            break
        append(at)
        at += words
    return at


def _drop_after(
    window: Window, damage: DamageLog, whole: Walk, bad: NDArray[np.bool_], limit: NDArray[np.int64]
) -> Walk:
    """Without the events that have no room for their headers or in their buffers, and what follows them there."""
    rows, index = np.unique(whole.buffer[bad], return_index=True)
    begin = np.flatnonzero(bad)[index]
    keep = np.ones(len(bad), bool)
    for row, i in zip(rows.tolist(), begin.tolist(), strict=True):
        keep[i : np.searchsorted(whole.at, limit[row] + 7 >> 3)] = False
        _note(window, damage, row, int(whole.at[i]), int(limit[row]))
    return whole.take(keep)


def _note(window: Window, damage: DamageLog, row: int, at: int, limit: int) -> None:
    """Say what is wrong at word ``at`` of buffer ``row``, which ends at byte ``limit``."""
    head = int(window.words[at])
    shift = _SHIFTS[head >> 16 & 0xFFFF]
    size = head >> shift & 0xFFFF
    field, value = "Size", size
    if shift == 64:
        reason, field, value = "unknown event header", "Marker", head & END_OF_BUFFER
    elif at * 8 + size > limit:
        reason = "event runs over the end of its buffer"
    else:
        reason = "event smaller than its header"
    window.note(damage, reason, row, at * 8, field, value, limit - at * 8)
