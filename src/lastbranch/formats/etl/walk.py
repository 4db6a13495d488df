"""The event walk: where each event of a window of buffers is, and what its first word says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buffers import DamageLog
from .chains import chains
from .layout import END_OF_BUFFER, MESSAGE
from .markers import HEADER_BYTES, KIND, MESSAGE_BYTES, SHIFT
from .windows import Window

__all__ = ["Walk", "walk"]

_SHIFTS = SHIFT.tolist()


@dataclass(slots=True)
class Walk:
    """Events of a window in file order.

    ``at`` int64: word index. ``head`` uint64: the first word of each event. ``header`` uint8: a key of
    `layout.HEADERS`, or `layout.MESSAGE`. ``size`` int64: bytes, header included, as the event says. ``buffer`` int32:
    row of the window's buffers.
    """

    at: NDArray[np.int64]
    head: NDArray[np.uint64]
    header: NDArray[np.uint8]
    size: NDArray[np.int64]
    buffer: NDArray[np.int32]

    def take(self, which: Any) -> Walk:
        """The given events: an index array, a mask or a slice."""
        parts = (self.at, self.head, self.header, self.size, self.buffer)
        return Walk(*(np.ascontiguousarray(part[which]) for part in parts))


def walk(window: Window, damage: DamageLog) -> Walk:
    """All events of ``window``. Where the chain of a buffer breaks, its rest is left out and noted in ``damage``."""
    first = (window.start >> 3) + 9
    limit = window.start + window.buffers.filled
    end = (limit + 7) >> 3
    found = chains(window.words, first, end)
    broken = np.flatnonzero(found.stop < end)
    ends = window.words.take(found.stop[broken]) & np.uint64(END_OF_BUFFER)
    for row in broken[ends != END_OF_BUFFER].tolist():
        _note(window, damage, row, int(found.stop[row]), int(limit[row]))
    marks = found.head.view(np.uint16)[1::4].astype(np.int64)
    header = KIND.take(marks)
    size = ((found.head >> SHIFT.take(marks)) & np.uint64(0xFFFF)).view(np.int64)
    bad = size < HEADER_BYTES.take(header)
    message = np.flatnonzero(header == MESSAGE)
    if len(message):
        options = (found.head[message] >> np.uint64(48)).astype(np.int64)
        bad[message] = size[message] < MESSAGE_BYTES.take(options & 0xFF)
    buffer = np.repeat(np.arange(len(first), dtype=np.int32), found.count)
    whole = Walk(found.at, found.head, header, size, buffer)
    if (limit & 7).any():  # a cut file: the last word need not be whole, and neither the event in it
        bad |= found.at * 8 + size > limit.take(buffer)
    return _drop_after(window, damage, whole, bad, limit) if bad.any() else whole


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
