"""Where the buffers are: header by header through the file, and back on the track where the chain is broken.

An uncompressed file has buffers of one size, so that whole runs of them are checked at once. In a compressed one each
buffer's BufferSize leads to the next. A header is believed if its fields are possible and, where there is doubt, if
what it leads to is a header, too, or the end of the file.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ....errors import Damage
from ....model import Source, read_at
from ..layout import BUFFER_FLAG, BUFFER_HEADER_SIZE, BUFFER_TYPE
from .buffers import BUFFER_DTYPE, DamageLog
from .header import MAX_BUFFER

__all__ = ["Found", "View", "locate_fixed", "locate_variable"]


# -- A piece of a trace file in memory, and the buffers found in it


HEAD = struct.Struct("<I44xIHH")
"""Of a buffer header: BufferSize, Offset, BufferFlag, BufferType."""


@dataclass(slots=True)
class View:
    """The bytes ``base`` to ``base + got`` of the file, and what is known about its buffers."""

    source: Source
    end: int
    """Size of the file."""
    damage: DamageLog
    stride: int
    """BufferSize of uncompressed buffers."""
    largest: int
    """Most bytes that a buffer holds."""
    data: memoryview
    raw: NDArray[np.uint8]
    """``data`` again."""
    base: int = 0
    got: int = 0
    broken_at: int | None = None
    """Offset from which on nothing was found that could be a buffer, and ``broken_by`` what is said about it."""
    broken_by: str = ""
    header_at: int = 0
    """Offset of the header buffer that governs what is read."""
    reserved: bool = False
    """Whether room behind the last buffer may never have been written to: a preallocated or circular file."""
    zeros_at: int | None = None
    """Offset from which on there were only zeros where buffers should be."""
    unwritten: int = 0
    """Places of such a file that no buffer was written to."""

    @property
    def at_end(self) -> bool:
        return self.base + self.got >= self.end

    def head(self, at: int) -> tuple[int, int, int, int] | None:
        """BufferSize, Offset, BufferFlag and BufferType of the header at ``at``; None behind the end of the file."""
        if at + BUFFER_HEADER_SIZE <= self.got:
            return HEAD.unpack_from(self.data, at)
        raw = read_at(self.source, self.base + at, BUFFER_HEADER_SIZE)
        return HEAD.unpack_from(raw) if len(raw) == BUFFER_HEADER_SIZE else None

    def ends_at(self, at: int) -> bool:
        return self.base + at == self.end


@dataclass(slots=True)
class Found:
    """Buffers of a view: position, bytes in the file and bytes in use of each.

    ``stop`` is the position behind them, ``more`` whether what comes there needs the view to move on.
    """

    at: list[NDArray[np.int64]] = field(default_factory=list)
    length: list[NDArray[np.int64]] = field(default_factory=list)
    filled: list[NDArray[np.int64]] = field(default_factory=list)
    stop: int = 0
    more: bool = True

    def add(self, at: object, length: object, filled: object) -> None:
        for part, values in ((self.at, at), (self.length, length), (self.filled, filled)):
            part.append(np.atleast_1d(np.asarray(values, np.int64)))


# -- Zeros where buffers should be: room that was never written to, or damage


def zeroed(view: View, at: int, written: NDArray[np.bool_]) -> None:
    """Keep where a run of zeros begins in the places from ``at`` on; one that a buffer follows is damage."""
    for row in np.flatnonzero(np.diff(written, prepend=view.zeros_at is None)).tolist():
        if written[row]:
            lost_zeros(view, at + row * view.stride)
        else:
            view.zeros_at = view.base + at + row * view.stride


def end_zeros(view: View, at: int) -> None:
    """Zeros before ``at``, with no buffer of the session behind them, may be room that was never written to."""
    if view.reserved and view.zeros_at is not None:
        view.unwritten += -(-(view.base + at - view.zeros_at) // view.stride)
        view.zeros_at = None
    lost_zeros(view, at)


def lost_zeros(view: View, at: int) -> None:
    """Say that what there is of zeros before ``at`` is damage."""
    if view.zeros_at is None:
        return
    begin, end, view.zeros_at = view.zeros_at, view.base + at, None
    note = Damage("zeros where a buffer should be", begin, "BufferSize", 0, end - begin)
    for skipped in range(begin, end, view.stride):
        view.damage.add(note, skipped=skipped)


_FIRST_RUN, _LONGEST_RUN = 16, 1 << 16  # short after damage: else damage in every second buffer costs its square
_COMPRESSED_FLAGS = re.compile(rb"[\x40-\x7f]\0[\0-\7]\0")  # BufferFlag with COMPRESSED, and BufferType
_FLAGS_AT = 0x34
_LEAST = BUFFER_HEADER_SIZE
_WRONG_HEADER = "header buffer of a wrong size"
_NO_BUFFER, _CUT = "no buffer where one should be", "file ends inside a buffer"


def locate_fixed(view: View, start: int) -> Found:
    """Buffers of an uncompressed file from ``start`` on, up to the next header buffer (``more`` is then false)."""
    found, at, run, stride = Found(), start, _FIRST_RUN, view.stride
    while True:
        if view.broken_at is not None:
            at = _recover(view, at, re.compile(re.escape(struct.pack("<I", stride))), 0, stride)
            if view.broken_at is not None:
                break
        count = min((view.got - at) // stride, run)
        if count > 0:
            heads = np.ndarray((count,), BUFFER_DTYPE, view.data, at, (stride,))
            used = heads["Offset"]
            fine = (heads["BufferSize"] == stride) & (used >= _LEAST) & (used <= stride)
            empty = (heads["BufferSize"] == 0) & (used == 0)
            other = heads["BufferType"] == BUFFER_TYPE.HEADER
            if at == start:
                other[0] = False
            good = (fine | empty) & ~other
            n = count if good.all() else int(good.argmin())
            rows = np.flatnonzero(fine[:n])
            found.add(at + rows * stride, np.full(len(rows), stride), used[rows])
            zeroed(view, at, fine[:n])
            at += n * stride
            run = min(run * 4, _LONGEST_RUN) if n == count else _FIRST_RUN
            if n == count:
                continue
            if other[n]:
                end_zeros(view, at)
                found.more = False
                break
        elif at == view.got or not view.at_end:
            break
        step = _odd(view, found, at)
        if step == 0:
            break
        at += step
    if view.at_end and at == view.got:
        end_zeros(view, at)
    found.stop = at
    return found


def _odd(view: View, found: Found, at: int) -> int:
    """One place of an uncompressed file where no regular buffer is; how far to go on, 0 if more bytes are needed."""
    stride, left, offset = view.stride, view.got - at, view.base + at
    head = view.head(at)
    if left < stride and not view.raw[at : min(at + _LEAST, view.got)].any():
        view.zeros_at = offset if view.zeros_at is None else view.zeros_at
        return left
    lost_zeros(view, at)
    if head is None or left < _LEAST:
        view.damage.add(Damage("file ends inside a buffer header", offset, lost=left), skipped=offset)
        return left
    size, used, _, _ = head
    if left < stride:  # the end of the file
        if _LEAST <= size <= MAX_BUFFER and _LEAST <= used <= size:
            return _last(view, found, at, size, used)
        return _give_up(view, at, left, size, used)
    if offset == view.header_at and size != stride and _LEAST <= used <= stride:  # the stride was checked
        view.damage.add(Damage(_WRONG_HEADER, offset, "BufferSize", size))
        found.add(at, stride, used)
        return stride
    if size == stride or _regular(view, at + stride):
        return _give_up(view, at, stride, size, used)
    if _LEAST <= size <= MAX_BUFFER and _LEAST <= used <= size and _regular(view, at + size):
        if at + size > view.got:
            return 0
        found.add(at, size, used)
        return size
    view.broken_at, view.broken_by = offset, _NO_BUFFER
    return 1


def _last(view: View, found: Found, at: int, size: int, used: int) -> int:
    """A buffer that the file may be too short for: what is there of it."""
    left = view.end - view.base - at
    if size > left:
        note = Damage(_CUT, view.base + at, "BufferSize", size, max(0, used - left))
        view.damage.add(note)
    found.add(at, min(size, left), min(used, left))
    return min(size, left)


def _give_up(view: View, at: int, lost: int, size: int, used: int) -> int:
    wrong = ("BufferSize", size) if size != view.stride else ("Offset", used)
    reason = "buffer of a wrong size" if size != view.stride else "buffer with more or less in use than it can hold"
    view.damage.add(Damage(reason, view.base + at, *wrong, lost), skipped=view.base + at)
    return lost


def _regular(view: View, at: int) -> bool:
    """Whether a buffer of the common size, an unwritten one or the end of the file is at ``at``."""
    if view.ends_at(at):
        return True
    head = view.head(at) if view.base + at < view.end else None
    if head is None:
        return False
    size, used = head[:2]
    return (size == view.stride and _LEAST <= used <= size) or size == used == 0


def locate_variable(view: View, start: int, budget: int) -> Found:
    """Buffers of a compressed file from ``start`` on, until they hold ``budget`` bytes (``more`` is then false)."""
    found, at, held = Found(), start, 0
    while True:
        if view.broken_at is not None:
            at = _recover(view, at, _COMPRESSED_FLAGS, _FLAGS_AT, 0)
            if view.broken_at is not None:
                break
        if view.got - at < _LEAST:
            if view.at_end and view.got > at:
                offset = view.base + at
                view.damage.add(Damage("file ends inside a buffer header", offset, lost=view.got - at), skipped=offset)
                at = view.got
            break
        size, used, flags, kind = HEAD.unpack_from(view.data, at)
        offset = view.base + at
        if kind == BUFFER_TYPE.HEADER and at > start:
            found.more = False
            break
        if offset == view.header_at:
            size = _header_size(view, at, size, used)
        if not _possible(view, size, used, flags):
            if _LEAST <= size <= MAX_BUFFER and _follows(view, at + size):
                reason = "buffer with more or less in use than it can hold"
                view.damage.add(Damage(reason, offset, "Offset", used, size), skipped=offset)
                at = min(at + size, view.got)
            else:
                view.broken_at, view.broken_by = offset, _NO_BUFFER
                at += 1
            continue
        if at + size > view.got:
            if not view.at_end:
                break
            if not flags & BUFFER_FLAG.COMPRESSED:
                at += _last(view, found, at, size, used)
            else:
                view.broken_at, view.broken_by = offset, _CUT
            continue
        if held and held + used > budget:
            found.more = False
            break
        found.add(at, size, used)
        held += used
        at += size
    found.stop = at
    return found


def _header_size(view: View, at: int, size: int, used: int) -> int:
    """BufferSize of the header buffer at ``at``; where a buffer begins before its end, or it can have none, up to that.

    Else a wrong one would take along the buffers behind it.
    """
    if not _LEAST <= used <= MAX_BUFFER or (used <= size <= MAX_BUFFER and _follows(view, at + size)):
        return size
    end = at + size if used <= size <= MAX_BUFFER else view.got
    for match in _COMPRESSED_FLAGS.finditer(view.data, min(at + used + _FLAGS_AT, view.got), view.got):
        place = match.start() - _FLAGS_AT
        head = view.head(place)
        if head is None or place >= end:
            break
        if _possible(view, *head[:3]) and _follows(view, place + head[0]):
            view.damage.add(Damage(_WRONG_HEADER, view.base + at, "BufferSize", size))
            return place - at
    return size


def _possible(view: View, size: int, used: int, flags: int) -> bool:
    room = view.largest if flags & BUFFER_FLAG.COMPRESSED else size
    return _LEAST <= size <= MAX_BUFFER and _LEAST <= used <= room


def _follows(view: View, at: int) -> bool:
    """Whether a possible buffer or the end of the file is at ``at``."""
    if view.ends_at(at):
        return True
    head = view.head(at) if view.base + at < view.end else None
    return head is not None and _possible(view, *head[:3])


def _recover(view: View, at: int, pattern: re.Pattern[bytes], back: int, stride: int) -> int:
    """The next position from ``at`` on where a header is that leads to another; the view's end if there is none.

    ``pattern`` stands ``back`` bytes behind the begin of every header; ``stride`` is the size of all buffers, or 0.
    """
    assert view.broken_at is not None
    for match in pattern.finditer(view.data, min(at + back, view.got), view.got):
        place = match.start() - back
        head = view.head(place)
        if head is None:
            break
        size, used, flags, _ = head
        if stride:
            good = _LEAST <= used <= size and _regular(view, place + size)
        else:
            good = _possible(view, size, used, flags) and _follows(view, place + size)
        if good:
            _close_gap(view, view.base + place, stride)
            return place
    if view.at_end:
        _close_gap(view, view.end, stride)
        return view.got
    return max(at, view.got - _LEAST + 1)


def _close_gap(view: View, offset: int, stride: int) -> None:
    """Say what was lost from ``broken_at`` to ``offset``."""
    assert view.broken_at is not None
    begin, view.broken_at = view.broken_at, None
    head = read_at(view.source, begin, _LEAST)
    size = HEAD.unpack_from(head)[0] if len(head) == _LEAST else None
    note = Damage(view.broken_by, begin, "BufferSize", size, offset - begin)
    for skipped in range(begin, offset, stride or offset - begin):
        view.damage.add(note, skipped=skipped)
