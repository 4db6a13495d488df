"""The event walk: where each event of a window of buffers is, and what its first word says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ..layout import END_OF_BUFFER, HEADERS, MESSAGE, MESSAGE_HEAD, message_header, packed

if TYPE_CHECKING:
    from ..container.buffers import DamageLog
    from ..container.windows import Window

__all__ = ["HEADER_BYTES", "KIND", "MESSAGE_BYTES", "SHIFT", "Walk", "chains", "walk"]


# -- What the first word of an event says, by its marker: tables with a place for each value of its bits 16 to 31
#
# These are the header type and the bits that tell a header from other bytes; with them the word tells the event's size.


KIND = np.zeros(1 << 16, np.uint8)
"""By marker: the header type, 0 for what is no event."""
SHIFT = np.full(1 << 16, 64, np.uint64)
"""By marker: how far Size is shifted in the first word. A shift by 64 makes the size of what is no event 0."""
for _marker in range(0xC0, 0x100):  # bits 31 and 30
    for _type, _kind in HEADERS.items():
        KIND[_marker << 8 | _type] = _type
        SHIFT[_marker << 8 | _type] = 32 if _kind.is_system else 0
for _marker in range(0x90, 0xA0):  # bits 31 and 28, not 30 and 29
    KIND[_marker << 8 : (_marker + 1) << 8] = MESSAGE
    SHIFT[_marker << 8 : (_marker + 1) << 8] = 0

LIKELY = np.uint16(0xC000 + min(HEADERS)), np.uint16(0xC000 + max(HEADERS))
"""The markers, from and to, that nearly all events have and other bytes hardly ever look like."""

WORDS = (np.arange(1 << 16) + 7) >> 3
"""By Size: how many words on the next event is."""

HEADER_BYTES = np.zeros(256, np.int64)
"""By header type: bytes of the header without what its flags add."""
for _type, _kind in HEADERS.items():
    HEADER_BYTES[_type] = _kind.size
HEADER_BYTES[MESSAGE] = packed(MESSAGE_HEAD).size

MESSAGE_BYTES = np.array([packed(message_header(options)).size for options in range(256)], np.int64)
"""By the low byte of a message's OptionFlags: bytes of its header."""


# -- Chains of events: each one's size leads to the next. All chains of a window are followed in step
#
# A walk through one chain waits for memory at each event; many in step overlap the waits and need five array operations
# a step, however many they are. To have many, whatever the size of the buffers, a buffer is cut into several lanes at
# what looks like an event. Such a guess is proven where the lane before it ends right there; a buffer with a lane that
# does not is followed again from its begin.
#
# To save operations `STEPS` steps are taken without looking: a lane that meets what is no event stays there (its size
# is 0), one that leaves its bounds goes on in other bytes; what is behind the first such step is dropped afterwards.
# Where few lanes are left a plain loop is faster and takes over.


STEPS = 16
LANES = 2048
"""So many lanes are wanted: with more their columns of a step leave the processor's first cache."""
LEAST_LANE = 256
"""Words of a lane that a buffer may be cut into."""
FEW_LANES = 24
"""So many lanes are followed one by one."""
_LOOK = 128  # words in which an event is looked for

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
_SHIFTS = SHIFT.tolist()


@dataclass(slots=True)
class Chains:
    """Events in file order: ``at`` int64, word index; ``head`` uint64, first word.

    Of each buffer, ``count`` int64 is how many there are and ``stop`` int64 the word where its chain ended.
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
    """Where events may begin, ascending, to cut the buffers at, and the buffer of each."""
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
    """Positions and first words of the events of the lanes, lane by lane; of each lane their number and its end."""
    stop, count = np.minimum(begin, bound), np.zeros(len(begin), np.int64)
    lanes = np.flatnonzero(begin < bound)
    at, limit = begin[lanes], bound[lanes]
    blocks: list[_Block] = []
    while len(lanes) > FEW_LANES:
        block = _Block(lanes, *_steps(words, at, limit))
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
class _Block:
    """Some steps of some lanes, of which each counts as far as it is ``good``; (steps, lanes) all of them."""

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
        words.take(place[i], out=head[i], mode="clip")  # without a mode ``out`` would be filled by way of a copy
        SHIFT.take(marks[i], out=shift, mode="clip")
        np.right_shift(head[i], shift, out=shift)
        WORDS.take(sizes, out=size, mode="clip")
        np.add(place[i], size, out=place[i + 1])
    good = place[1:] > place[:-1]
    good &= place[1:] <= limit
    return place, head, good


def _follow_one(words: Words, lane: int, at: int, limit: int) -> tuple[_Block, int]:
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
    return _Block(lanes, *(part.reshape(-1, STEPS).T for part in whole)), at  # type: ignore[arg-type]


def _in_order(blocks: list[_Block]) -> tuple[Ints, Words]:
    """The good events lane by lane: the steps of a lane in a block are together, so few pieces are moved."""
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
