"""The event walk: the place of each event in a window of buffers, and its first word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from .... import native
from ..layout import END_OF_BUFFER, HEADERS, MESSAGE, MESSAGE_HEAD, message_header, packed

if TYPE_CHECKING:
    from ..container.buffers import DamageLog
    from ..container.read_windows import Window

__all__ = ["EARLY", "HEADER_BYTES", "KIND", "MESSAGE_BYTES", "NO_IDS", "SHIFT", "Walk", "chains", "walk"]


# -- Tables by marker: bits 16 to 31 of the first word of an event
#
# The marker has the header type and the bits that distinguish a header from other bytes. It says where the first word
# has the event's size.


KIND = np.zeros(1 << 16, np.uint8)
"""By marker: the header type, 0 for no event."""
SHIFT = np.full(1 << 16, 64, np.uint64)
"""By marker: the shift of Size in the first word. A shift by 64 gives other bytes than events the size 0."""
for _marker in range(0xC0, 0x100):  # bits 31 and 30
    for _type, _kind in HEADERS.items():
        KIND[_marker << 8 | _type] = _type
        SHIFT[_marker << 8 | _type] = 32 if _kind.is_system else 0
for _marker in range(0x90, 0xA0):  # bits 31 and 28, not 30 and 29
    KIND[_marker << 8 : (_marker + 1) << 8] = MESSAGE
    SHIFT[_marker << 8 : (_marker + 1) << 8] = 0

LIKELY = np.uint16(0xC000 + min(HEADERS)), np.uint16(0xC000 + max(HEADERS))
"""The range of markers that nearly all events have, and other bytes hardly ever."""

SHIFTS = np.array([32 if kind in HEADERS and HEADERS[kind].is_system else 0 for kind in range(256)], np.uint8)
"""By header type: the same shift."""

WORDS = (np.arange(1 << 16) + 7) >> 3
"""By Size: words to the next event."""

HEADER_BYTES = np.zeros(256, np.int64)
"""By header type: bytes of the header without those that its flags add."""
for _type, _kind in HEADERS.items():
    HEADER_BYTES[_type] = _kind.size
HEADER_BYTES[MESSAGE] = packed(MESSAGE_HEAD).size

MESSAGE_BYTES = np.array([packed(message_header(options)).size for options in range(256)], np.int64)
"""By the low byte of a message's OptionFlags: bytes of its header."""

EARLY = np.zeros(256, np.uint8)
"""By header type: 1 where the time stamp is the second word of an event, instead of the third."""
NO_IDS = np.full(256, ~np.uint64(0), np.uint64)
"""By header type: all bits set where the second word is not thread and process."""
for _type, _kind in HEADERS.items():
    EARLY[_type] = _kind.name.startswith("PERFINFO")
    NO_IDS[_type] = 0 if _kind.name.startswith(("SYSTEM", "COMPACT", "FULL", "INSTANCE", "EVENT")) else NO_IDS[_type]

_LIBRARY = (*map(native.address, (KIND, SHIFTS, EARLY, NO_IDS, HEADER_BYTES, MESSAGE_BYTES)), MESSAGE)
_TABLES = np.array(_LIBRARY, np.uintp)
"""The tables as the compiled library wants them."""


# -- Chains of events: the size of each event leads to the next. All chains of a window are followed in step
#
# A walk through one chain waits for memory at each event. Many chains in step overlap these waits and need five array
# operations per step, however many they are. To have many chains with buffers of any size, the walk cuts a buffer into
# lanes at words that look like events. Such a guess is proven if the lane before it ends there. A buffer with a wrong
# guess is followed again from its begin.
#
# To save operations, the walk takes `STEPS` steps without a check: a lane that meets no event stays there (its size is
# 0), one that leaves its bounds goes on in other bytes. Everything after the first such step is dropped afterwards. A
# plain loop is faster for few lanes, and takes over.
#
# The compiled library (``native/walk_events.c``) walks 16 buffers in step and needs no guesses.


STEPS = 16
LANES = 2048
"""Lanes to aim for. With more, the columns of a step would not fit in the processor's first cache."""
LEAST_LANE = 256
"""Fewest words of a lane that a buffer is cut into."""
FEW_LANES = 24
"""Lanes that are followed one by one."""
_LOOK = 128  # words that are searched for an event

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
_SHIFTS = SHIFT.tolist()


@dataclass(slots=True)
class Chains:
    """Events in file order: ``at`` int64, word index; ``head`` uint64, first word.

    For each buffer, ``count`` int64 is the number of its events and ``stop`` int64 the word where its chain ended.
    """

    at: Ints
    head: Words
    count: Ints
    stop: Ints


def chains(words: Words, first: Ints, end: Ints) -> Chains:
    """Follow the chains from ``first[i]`` up to ``end[i]``, ascending ranges of ``words``."""
    guess, owner = _guesses(words, first, end)
    while True:
        begin = np.concatenate([first, guess])
        order = np.argsort(begin, kind="stable")
        buffer, begin = np.concatenate([np.arange(len(first)), owner])[order], begin[order]
        last = np.diff(buffer, append=-1) != 0
        bound = np.where(last, end[buffer], np.append(begin[1:], 0))
        at, head, count, stop = _follow_all(words, begin, bound)
        wrong = buffer[~last & (stop != bound)]
        if not len(wrong):
            sums = np.bincount(buffer, count, len(first)).astype(np.int64)
            return Chains(at, head, sums, stop[last])
        kept = ~np.isin(owner, wrong)
        guess, owner = guess[kept], owner[kept]


def _guesses(words: Words, first: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Words where events may begin, ascending, and the buffer of each."""
    span = np.maximum(end - first, 0)
    lanes = np.clip(span // LEAST_LANE, 1, max(1, LANES // max(1, len(first))))
    none = np.empty(0, np.int64)
    if lanes.sum() <= FEW_LANES or lanes.max() == 1:
        return none, none
    buffer = np.repeat(np.arange(len(first)), lanes)
    number = np.arange(len(buffer)) - np.repeat(np.cumsum(lanes) - lanes, lanes)
    place = first[buffer] + span[buffer] * number // lanes[buffer]
    inner = (number > 0) & (place + _LOOK <= len(words))
    place, buffer = place[inner], buffer[inner]
    ahead = sliding_window_view(words, _LOOK)[place].view(np.uint16)[:, 1::4]
    found = place + (ahead - LIKELY[0] <= LIKELY[1] - LIKELY[0]).argmax(axis=1)
    head = words.take(found)
    after = found + WORDS.take((head >> SHIFT.take(_marks(head))).astype(np.uint16))
    next_ = _marks(words.take(after, mode="clip"))
    good = (after > found) & (after < end[buffer]) & (next_ >= LIKELY[0]) & (next_ <= LIKELY[1])
    found, which = np.unique(found[good], return_index=True)
    return found, buffer[good][which]


def _marks(head: Words) -> NDArray[np.uint16]:
    return head.view(np.uint16)[1::4]


def _follow_all(words: Words, begin: Ints, bound: Ints) -> tuple[Ints, Words, Ints, Ints]:
    """Positions and first words of the events, lane by lane; the number of events and the end of each lane."""
    stop, count = np.minimum(begin, bound), np.zeros(len(begin), np.int64)
    lanes = np.flatnonzero(begin < bound)
    at, limit = begin[lanes], bound[lanes]
    blocks: list[_StepBlock] = []
    while len(lanes) > FEW_LANES:
        block = _StepBlock(lanes, *_steps(words, at, limit))
        blocks.append(block)
        at = block.at[-1]
        alive = block.good[-1] & (at < limit)
        if alive.all():
            count[lanes] += STEPS
        else:
            number = block.good.sum(axis=0)
            count[lanes] += number
            done = np.flatnonzero(~alive)
            stop[lanes[done]] = block.at[number[done], done]
            lanes, at, limit = lanes[alive], at[alive], limit[alive]
    for lane, place, past in zip(lanes.tolist(), at.tolist(), limit.tolist(), strict=True):
        block, stop[lane] = _follow_one(words, lane, place, past)
        count[lane] += block.good.sum()
        blocks.append(block)
    return *_in_order(blocks), count, stop


@dataclass(slots=True)
class _StepBlock:
    """Steps of some lanes, arrays (steps, lanes). Only ``good`` ones count."""

    lanes: Ints
    at: Ints
    head: Words
    good: NDArray[np.bool_]


def _steps(words: Words, at: Ints, limit: Ints) -> tuple[Ints, Words, NDArray[np.bool_]]:
    """``at`` (one more row: where the next step begins), ``head`` and ``good`` of `STEPS` steps."""
    lanes = len(at)
    place, head = np.empty((STEPS + 1, lanes), np.int64), np.empty((STEPS, lanes), np.uint64)
    marks = head.view(np.uint16)[:, 1::4]
    shift, size = np.empty(lanes, np.uint64), np.empty(lanes, np.int64)
    sizes = shift.view(np.uint16)[0::4]
    place[0] = at
    for i in range(STEPS):
        words.take(place[i], out=head[i], mode="clip")  # without a mode, take fills ``out`` through a copy
        SHIFT.take(marks[i], out=shift, mode="clip")
        np.right_shift(head[i], shift, out=shift)
        WORDS.take(sizes, out=size, mode="clip")
        np.add(place[i], size, out=place[i + 1])
    good = place[1:] > place[:-1]
    good &= place[1:] <= limit
    return place, head, good


def _follow_one(words: Words, lane: int, at: int, limit: int) -> tuple[_StepBlock, int]:
    memory: Any = memoryview(words)  # type: ignore[arg-type]
    shifts, found = _SHIFTS, []
    while at < limit:
        head = memory[at]
        size = (head >> shifts[head >> 16 & 0xFFFF] & 0xFFFF) + 7 >> 3
        if not size or at + size > limit:
            break
        found.append(at)
        at += size
    places = np.zeros(-(-len(found) // STEPS) * STEPS, np.int64)
    places[: len(found)] = found
    good = np.arange(len(places)) < len(found)
    lanes = np.full(len(places) // STEPS, lane)
    whole = (places, words.take(places), good)
    return _StepBlock(lanes, *(part.reshape(-1, STEPS).T for part in whole)), at  # type: ignore[arg-type]


def _in_order(blocks: list[_StepBlock]) -> tuple[Ints, Words]:
    """The good events lane by lane. The steps of a lane in a block are neighbours, so that few pieces move."""
    lanes = np.concatenate([np.empty(0, np.int64), *(block.lanes for block in blocks)])
    order = np.argsort(lanes, kind="stable")

    def moved(name: str, dtype: Any) -> NDArray[Any]:
        whole, row = np.empty((len(lanes), STEPS), dtype), 0
        for block in blocks:
            whole[row : row + len(block.lanes)] = getattr(block, name)[:STEPS].T
            row += len(block.lanes)
        return whole.take(order, axis=0)

    good = moved("good", bool)
    return moved("at", np.int64)[good], moved("head", np.uint64)[good]


@dataclass(slots=True)
class Walk:
    """Events of a window in file order.

    ``at`` int64: word index. ``head`` uint64: the first word of each event. ``header`` uint8: a key of
    `layout.HEADERS`, or `layout.MESSAGE`. ``size`` int64: bytes, header included, as the event says. ``buffer`` int32:
    row of the window's buffers.

    ``time`` uint64: the word of the time stamp, where the header has it at a fixed place. ``ids`` uint64: the word of
    thread and process, all bits set where the header has none there. The compiled library gathers these columns in
    passing; without the library they are ``None``.
    """

    at: NDArray[np.int64]
    head: NDArray[np.uint64]
    header: NDArray[np.uint8]
    size: NDArray[np.int64]
    buffer: NDArray[np.int32]
    time: NDArray[np.uint64] | None = None
    ids: NDArray[np.uint64] | None = None

    def take(self, which: Any) -> Walk:
        """The given events: an index array, a mask or a slice."""
        parts = (self.at, self.head, self.header, self.size, self.buffer, self.time, self.ids)
        taken: list[Any] = [None if part is None else np.ascontiguousarray(part[which]) for part in parts]
        return Walk(*taken)


_COLUMNS = np.int64, np.uint64, np.uint8, np.int64, np.int32, np.uint64, np.uint64
"""Types of the columns of `Walk`."""
_GROUP = 1 << 17
"""Words that the compiled walk gathers the columns of at once: 1 MB stays in the processor's cache."""
_SPARSE = 64
"""Words of an event for which the first columns have room."""


def walk(window: Window, damage: DamageLog) -> Walk:
    """All events of ``window``. If the chain of a buffer breaks, the rest of the buffer is skipped and noted in
    ``damage``."""
    first = (window.start >> 3) + 9
    limit = window.start + window.buffers.filled
    end = (limit + 7) >> 3
    whole, stop, all_good = _walk_natively(window.words, first, end, limit) or _in_numpy(window.words, first, end)
    broken = np.flatnonzero(stop < end)
    ends = window.words.take(stop[broken]) & np.uint64(END_OF_BUFFER)
    for row in broken[ends != END_OF_BUFFER].tolist():
        _note(window, damage, row, int(stop[row]), int(limit[row]))
    bad = None if all_good else _bad(whole, limit)
    return whole if bad is None or not bad.any() else _drop_after(window, damage, whole, bad, limit)


def _bad(whole: Walk, limit: Ints) -> NDArray[np.bool_]:
    """Which events are too small for their headers or too long for their buffers."""
    bad: NDArray[np.bool_] = whole.size < HEADER_BYTES.take(whole.header)
    message = np.flatnonzero(whole.header == MESSAGE)
    if len(message):
        options = (whole.head[message] >> np.uint64(48)).astype(np.int64)
        bad[message] = whole.size[message] < MESSAGE_BYTES.take(options & 0xFF)
    if (limit & 7).any():  # a cut file: the last word, and the event in it, may be incomplete
        bad |= whole.at * 8 + whole.size > limit.take(whole.buffer)
    return bad


_Found = tuple[Walk, Ints, bool]
"""The events, the word where the chain of each buffer ended, and whether it is known that all sizes can be right."""


def _in_numpy(words: Words, first: Ints, end: Ints) -> _Found:
    found = chains(words, first, end)
    marks = found.head.view(np.uint16)[1::4].astype(np.int64)
    size = ((found.head >> SHIFT.take(marks)) & np.uint64(0xFFFF)).view(np.int64)
    buffer = np.repeat(np.arange(len(first), dtype=np.int32), found.count)
    return Walk(found.at, found.head, KIND.take(marks), size, buffer), found.stop, False


def _walk_natively(words: Words, first: Ints, end: Ints, limit: Ints) -> _Found | None:
    """The same, and the stamps; ``None`` without the library."""
    library = native.library()
    if library is None:
        return None
    address, span = native.address, np.clip(end - first, 0, len(words))
    total, room = int(span.sum()), 0
    columns: list[NDArray[Any]] = [np.empty(0, dtype) for dtype in _COLUMNS]
    lengths = np.empty(max(_GROUP, int(span.max(initial=0))), np.uint16)
    count, stop = np.empty((2, len(first)), np.int64)
    state = np.zeros(3, np.int64)
    given = address(words), len(words), address(first), address(end), address(limit), len(first)
    results = address(count), address(stop), address(state)
    while True:
        walked, number, bad = state.tolist()
        if walked == len(first):
            return Walk(*(column[:number] for column in columns)), stop, not bad
        density = 1.1 * number / max(1, int(span[:walked].sum()))  # of the rest, if it is like what was walked
        room = max(2 * room, int(total * density), total // _SPARSE + 16)
        columns = [_grow(column[:number], room) for column in columns]
        into = np.array([address(column) for column in columns], np.uintp)
        scratch = address(lengths), len(lengths)
        if library.lb_walk_events(address(_TABLES), *given, *scratch, address(into), room, *results):
            return None


def _grow(column: NDArray[Any], room: int) -> NDArray[Any]:
    """A column of ``room`` rows that begins with ``column``."""
    grown = np.empty(room, column.dtype)
    grown[: len(column)] = column
    return grown


def _drop_after(
    window: Window, damage: DamageLog, whole: Walk, bad: NDArray[np.bool_], limit: NDArray[np.int64]
) -> Walk:
    """Drop ``bad`` events, and what follows them in their buffers."""
    rows, index = np.unique(whole.buffer[bad], return_index=True)
    begin = np.flatnonzero(bad)[index]
    keep = np.ones(len(bad), bool)
    for row, i in zip(rows.tolist(), begin.tolist(), strict=True):
        keep[i : np.searchsorted(whole.at, limit[row] + 7 >> 3)] = False
        _note(window, damage, row, int(whole.at[i]), int(limit[row]))
    return whole.take(keep)


def _note(window: Window, damage: DamageLog, row: int, at: int, limit: int) -> None:
    """Note the damage at word ``at`` of buffer ``row``, which ends at byte ``limit``."""
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
