"""The buffers of a trace file: their headers as columns, where they are in the file, and the damage between them.

An uncompressed file has buffers of one size, so that whole runs of them are checked at once. In a compressed one each
buffer's BufferSize leads to the next. A header is believed if its fields are plausible and, in doubt, if it leads to
another header or to the end of the file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....arrays import view_unaligned
from ....errors import Damage
from ....model import Source, read_at
from ..layout import BUFFER_FLAG, BUFFER_HEADER, BUFFER_HEADER_SIZE, BUFFER_TYPE, MAX_BUFFER, offset_of, picked

__all__ = ["Buffers", "DamageLog", "Found", "RegularHeads", "View", "locate_fixed", "locate_variable"]


_NUMPY = {"B": "u1", "H": "<u2", "I": "<u4", "i": "<i4", "Q": "<u8", "q": "<i8"}
_DTYPE = np.dtype([(name, _NUMPY.get(form) or re.sub(r"(\d+)s", r"V\1", form)) for name, form in BUFFER_HEADER])
_HEAD = picked(BUFFER_HEADER, "BufferSize", "Offset", "BufferFlag", "BufferType")
_FLAGS_AT = offset_of(BUFFER_HEADER, "BufferFlag")
_LEAST = BUFFER_HEADER_SIZE

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Buffers:
    """Buffers as columns, one row each, in file order.

    ``offset`` int64: position in the file; ``length`` int64: bytes there. ``filled`` int64: bytes in use after
    decompression, including the 72 of the header, less what a cut file lacks. ``sequence``, ``time`` int64 (ticks of
    the flush; FILETIME in merged files), ``cpu`` int32, ``flags`` (BUFFER_FLAG), ``type`` (BUFFER_TYPE), ``logger``
    int32.
    """

    offset: Ints
    length: Ints
    filled: Ints
    sequence: Ints
    time: Ints
    cpu: NDArray[np.int32]
    flags: NDArray[np.int32]
    type: NDArray[np.int32]
    logger: NDArray[np.int32]

    @classmethod
    def of(cls, raw: NDArray[np.uint8], at: Ints, base: int, length: Ints, filled: Ints | None = None) -> Buffers:
        """The buffers whose headers begin at bytes ``at`` of ``raw``, which begins at byte ``base`` of the file.

        ``filled`` defaults to what the headers say.
        """
        heads = view_unaligned(raw, _DTYPE)[at]
        # Windows 7 has u8 ProcessorNumber, u8 Alignment where later versions have u16 ProcessorIndex.
        index, flags = heads["ProcessorIndex"].astype(np.int32), heads["BufferFlag"].astype(np.int32)
        cpu = np.where(flags & BUFFER_FLAG.PROC_INDEX, index, index & 0xFF).astype(np.int32)
        used = heads["Offset"].astype(np.int64) if filled is None else filled
        return cls(
            base + at,
            length,
            used,
            heads["SequenceNumber"].astype(np.int64),
            heads["TimeStamp"].astype(np.int64),
            cpu,
            flags,
            heads["BufferType"].astype(np.int32),
            heads["LoggerId"].astype(np.int32),
        )

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def compressed(self) -> Mask:
        """Which buffers are compressed."""
        mask: Mask = (self.flags & BUFFER_FLAG.COMPRESSED) != 0
        return mask

    def take(self, rows: Any) -> Buffers:
        """The given rows: an index array, a mask or a slice."""
        return Buffers(*(getattr(self, f.name)[rows] for f in fields(self)))

    @staticmethod
    def concatenate(parts: Iterable[Buffers]) -> Buffers:
        """All rows of ``parts``, in order."""
        none = np.empty(0, np.int64)
        kept = [Buffers.of(np.empty(0, np.uint8), none, 0, none), *parts]
        return Buffers(*(np.concatenate([getattr(p, f.name) for p in kept]) for f in fields(Buffers)))


class RegularHeads(NamedTuple):
    """The headers at the places of buffers of one size: bytes in use, and masks."""

    used: NDArray[np.uint32]
    plausible: Mask
    """A header of that size with a plausible Offset."""
    empty: Mask
    header: Mask
    """A header buffer."""

    @classmethod
    def of(cls, data: memoryview, at: int, count: int, stride: int) -> RegularHeads:
        """``count`` places, ``stride`` bytes apart from byte ``at`` on."""
        heads = np.ndarray((count,), _DTYPE, data, at, (stride,))
        size, used = heads["BufferSize"], heads["Offset"]
        plausible = (size == stride) & (used >= _LEAST) & (used <= stride)
        return cls(used, plausible, (size == 0) & (used == 0), heads["BufferType"] == BUFFER_TYPE.HEADER)


# -- Damage, counted once however often a file is read

MOST_NAMED = 1000
"""Places that are named one by one: a file that is damaged all over must not fill the memory."""
MOST_COUNTED = 1_000_000
"""Skipped buffers that are counted."""


class DamageLog:
    """Damage by place: a second pass over a file does not count it again.

    ``skipped`` holds the offsets of buffers that were skipped as a whole, at most `MOST_COUNTED` of them.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], Damage] = {}
        self.skipped: set[int] = set()

    def __iter__(self) -> Iterator[Damage]:
        return iter(sorted(self._found.values(), key=lambda d: d.offset))

    def __len__(self) -> int:
        return len(self._found)

    def add(self, damage: Damage, *, skipped: Iterable[int] = ()) -> None:
        """Note ``damage``; ``skipped`` are the offsets of the buffers that are skipped for it."""
        for offset in skipped:
            if len(self.skipped) >= MOST_COUNTED:
                break
            self.skipped.add(offset)
        if len(self._found) < MOST_NAMED:
            self._found.setdefault((damage.offset, damage.reason), damage)


# -- Part of a trace file in memory, and the buffers found in it


@dataclass(slots=True)
class View:
    """Bytes ``base`` to ``base + got`` of the file, and what is known about its buffers."""

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
    """``data`` as an array."""
    base: int = 0
    got: int = 0
    broken_at: int | None = None
    """Offset from which on no plausible buffer was found, and ``broken_by`` the reason to report."""
    broken_by: str = ""
    header_at: int = 0
    """Offset of the header buffer that governs what is read."""
    reserved: bool = False
    """Whether space after the last buffer may be unwritten: a preallocated or circular file."""
    zeros_at: int | None = None
    """Offset from which on only zeros were found."""
    unwritten: int = 0
    """Places of a reserved file without a buffer."""

    @property
    def at_end(self) -> bool:
        return self.base + self.got >= self.end

    def head(self, at: int) -> tuple[int, int, int, int] | None:
        """BufferSize, Offset, BufferFlag and BufferType of the header at ``at``; None after the end of the file."""
        if at + _LEAST <= self.got:
            return _HEAD.unpack_from(self.data, at)
        raw = read_at(self.source, self.base + at, _LEAST)
        return _HEAD.unpack_from(raw) if len(raw) == _LEAST else None

    def break_off(self, at: int, reason: str) -> None:
        """Note that from ``at`` on no plausible buffer was found."""
        self.broken_at, self.broken_by = self.base + at, reason

    def skip(self, reason: str, at: int, field: str | None, value: object, lost: int) -> int:
        """Note a buffer at ``at`` that is skipped; its ``lost`` bytes."""
        self.damage.add(Damage(reason, self.base + at, field, value, lost), skipped=[self.base + at])
        return lost


@dataclass(slots=True)
class Found:
    """Buffers of a view: position, bytes in the file and bytes in use of each.

    ``stop`` is the position after them. ``more`` is whether the next ones need the view to move on.
    """

    at: list[Ints] = field(default_factory=list)
    length: list[Ints] = field(default_factory=list)
    filled: list[Ints] = field(default_factory=list)
    stop: int = 0
    more: bool = True

    def add(self, at: object, length: object, filled: object) -> None:
        for part, values in ((self.at, at), (self.length, length), (self.filled, filled)):
            part.append(np.atleast_1d(np.asarray(values, np.int64)))

    def buffers(self, view: View) -> tuple[Buffers, Ints]:
        """The buffers as columns, and the position of each in the view."""
        at, length, filled = map(np.concatenate, (self.at, self.length, self.filled))
        return Buffers.of(view.raw, at, view.base, length, filled), at


# -- Zeros in place of buffers: space that was never written to, or damage


def _follow_zeros(view: View, at: int, written: Mask) -> None:
    """Remember where runs of zeros begin in the places from ``at`` on. One that a buffer follows is damage."""
    for row in np.flatnonzero(np.diff(written, prepend=view.zeros_at is None)).tolist():
        if written[row]:
            _report_zeros(view, at + row * view.stride)
        else:
            view.zeros_at = view.base + at + row * view.stride


def _end_zeros(view: View, at: int) -> None:
    """Zeros before ``at`` that no buffer of the session follows may be space that was never written to."""
    if view.reserved and view.zeros_at is not None:
        view.unwritten += -(-(view.base + at - view.zeros_at) // view.stride)
        view.zeros_at = None
    _report_zeros(view, at)


def _report_zeros(view: View, at: int) -> None:
    """Report zeros before ``at`` as damage."""
    if view.zeros_at is None:
        return
    begin, end, view.zeros_at = view.zeros_at, view.base + at, None
    note = Damage("zeros where a buffer should be", begin, "BufferSize", 0, end - begin)
    view.damage.add(note, skipped=range(begin, end, view.stride))


# -- Uncompressed files

_FIRST_RUN, _LONGEST_RUN = 16, 1 << 16  # short after damage: else damage in every second buffer costs its square
_COMPRESSED_FLAGS = re.compile(rb"[\x40-\x7f]\0[\0-\7]\0")  # BufferFlag with COMPRESSED, and BufferType
_WRONG_HEADER = "header buffer of a wrong size"
_WRONG_USED = "buffer with an impossible number of bytes in use"
_CUT_HEADER = "file ends inside a buffer header"
_NO_BUFFER, _CUT = "no buffer where one should be", "file ends inside a buffer"


def locate_fixed(view: View, start: int) -> Found:
    """Buffers of an uncompressed file from ``start`` on, up to the next header buffer (``more`` is then false)."""
    found, at, run, stride = Found(), start, _FIRST_RUN, view.stride
    while True:
        if view.broken_at is not None:
            at = _resynchronize(view, at, re.compile(re.escape(struct.pack("<I", stride))), 0, stride)
            if view.broken_at is not None:
                break
        count = min((view.got - at) // stride, run)
        if count > 0:
            heads = RegularHeads.of(view.data, at, count, stride)
            if at == start:
                heads.header[0] = False
            good = (heads.plausible | heads.empty) & ~heads.header
            n = count if good.all() else int(good.argmin())
            rows = np.flatnonzero(heads.plausible[:n])
            found.add(at + rows * stride, np.full(len(rows), stride), heads.used[rows])
            _follow_zeros(view, at, heads.plausible[:n])
            at += n * stride
            run = min(run * 4, _LONGEST_RUN) if n == count else _FIRST_RUN
            if n == count:
                continue
            if heads.header[n]:
                _end_zeros(view, at)
                found.more = False
                break
        elif at == view.got or not view.at_end:
            break
        step = _irregular(view, found, at)
        if step == 0:
            break
        at += step
    if view.at_end and at == view.got:
        _end_zeros(view, at)
    found.stop = at
    return found


def _irregular(view: View, found: Found, at: int) -> int:
    """Handle one place that holds no regular buffer. Returns how far to go on, 0 if more bytes are needed."""
    stride, left, offset = view.stride, view.got - at, view.base + at
    head = view.head(at)
    if left < stride and not view.raw[at : min(at + _LEAST, view.got)].any():
        view.zeros_at = offset if view.zeros_at is None else view.zeros_at
        return left
    _report_zeros(view, at)
    if head is None or left < _LEAST:
        return view.skip(_CUT_HEADER, at, None, None, left)
    size, used, _, _ = head
    is_possible = _LEAST <= size <= MAX_BUFFER and _LEAST <= used <= size
    if left < stride and is_possible:  # the end of the file
        return _add_last(view, found, at, size, used)
    if left >= stride and offset == view.header_at and size != stride and _LEAST <= used <= stride:
        view.damage.add(Damage(_WRONG_HEADER, offset, "BufferSize", size))  # the stride was checked
        found.add(at, stride, used)
        return stride
    if size == stride:
        return view.skip(_WRONG_USED, at, "Offset", used, min(stride, left))
    if left < stride or _is_regular(view, at + stride):
        return view.skip("buffer of a wrong size", at, "BufferSize", size, min(stride, left))
    if is_possible and _is_regular(view, at + size):
        if at + size > view.got:
            return 0
        found.add(at, size, used)
        return size
    view.break_off(at, _NO_BUFFER)
    return 1


def _add_last(view: View, found: Found, at: int, size: int, used: int) -> int:
    """Add as much of a buffer as the file has; its bytes there."""
    left = view.end - view.base - at
    if size > left:
        view.damage.add(Damage(_CUT, view.base + at, "BufferSize", size, max(0, used - left)))
    found.add(at, min(size, left), min(used, left))
    return min(size, left)


def _is_regular(view: View, at: int) -> bool:
    """Whether a buffer of the common size, an unwritten one or the end of the file is at ``at``."""
    if view.base + at >= view.end:
        return view.base + at == view.end
    head = view.head(at)
    if head is None:
        return False
    size, used = head[:2]
    return (size == view.stride and _LEAST <= used <= size) or size == used == 0


# -- Compressed files


def locate_variable(view: View, start: int, budget: int) -> Found:
    """Buffers of a compressed file from ``start`` on, until they hold ``budget`` bytes (``more`` is then false)."""
    found, at, held = Found(), start, 0
    while True:
        if view.broken_at is not None:
            at = _resynchronize(view, at, _COMPRESSED_FLAGS, _FLAGS_AT, 0)
            if view.broken_at is not None:
                break
        if view.got - at < _LEAST:
            if view.at_end and view.got > at:
                at += view.skip(_CUT_HEADER, at, None, None, view.got - at)
            break
        size, used, flags, kind = _HEAD.unpack_from(view.data, at)
        if kind == BUFFER_TYPE.HEADER and at > start:
            found.more = False
            break
        if view.base + at == view.header_at:
            size = _header_size(view, at, size, used)
        if not _is_plausible(view, size, used, flags):
            if _LEAST <= size <= MAX_BUFFER and _leads_on(view, at + size):
                at = min(at + view.skip(_WRONG_USED, at, "Offset", used, size), view.got)
            else:
                view.break_off(at, _NO_BUFFER)
                at += 1
        elif at + size > view.got:
            if not view.at_end:
                break
            if flags & BUFFER_FLAG.COMPRESSED:
                view.break_off(at, _CUT)
            else:
                at += _add_last(view, found, at, size, used)
        elif held and held + used > budget:
            found.more = False
            break
        else:
            found.add(at, size, used)
            held += used
            at += size
    found.stop = at
    return found


def _header_size(view: View, at: int, size: int, used: int) -> int:
    """BufferSize of the header buffer at ``at``. If it is wrong, the distance to the next buffer.

    A wrong size would skip the buffers that follow.
    """
    if not _LEAST <= used <= MAX_BUFFER or (used <= size <= MAX_BUFFER and _leads_on(view, at + size)):
        return size
    end = at + size if used <= size <= MAX_BUFFER else view.got
    for match in _COMPRESSED_FLAGS.finditer(view.data, min(at + used + _FLAGS_AT, view.got), view.got):
        place = match.start() - _FLAGS_AT
        head = view.head(place)
        if head is None or place >= end:
            break
        if _is_plausible(view, *head[:3]) and _leads_on(view, place + head[0]):
            view.damage.add(Damage(_WRONG_HEADER, view.base + at, "BufferSize", size))
            return place - at
    return size


def _is_plausible(view: View, size: int, used: int, flags: int) -> bool:
    room = view.largest if flags & BUFFER_FLAG.COMPRESSED else size
    return _LEAST <= size <= MAX_BUFFER and _LEAST <= used <= room


def _leads_on(view: View, at: int) -> bool:
    """Whether a plausible buffer or the end of the file is at ``at``."""
    if view.base + at >= view.end:
        return view.base + at == view.end
    head = view.head(at)
    return head is not None and _is_plausible(view, *head[:3])


# -- Past damage: the next plausible header


def _resynchronize(view: View, at: int, pattern: re.Pattern[bytes], back: int, stride: int) -> int:
    """The next position from ``at`` on whose header leads to another one; the view's end if there is none.

    ``pattern`` matches ``back`` bytes after the begin of every header. ``stride`` is the size of all buffers, or 0.
    """
    for match in pattern.finditer(view.data, min(at + back, view.got), view.got):
        place = match.start() - back
        head = view.head(place)
        if head is None:
            break
        size, used, flags, _ = head
        if stride:
            good = _LEAST <= used <= size and _is_regular(view, place + size)
        else:
            good = _is_plausible(view, size, used, flags) and _leads_on(view, place + size)
        if good:
            _report_gap(view, view.base + place, stride)
            return place
    if view.at_end:
        _report_gap(view, view.end, stride)
        return view.got
    return max(at, view.got - _LEAST + 1)


def _report_gap(view: View, offset: int, stride: int) -> None:
    """Report what was lost from ``broken_at`` to ``offset``."""
    assert view.broken_at is not None
    begin, view.broken_at = view.broken_at, None
    head = read_at(view.source, begin, _LEAST)
    size = _HEAD.unpack_from(head)[0] if len(head) == _LEAST else None
    note = Damage(view.broken_by, begin, "BufferSize", size, offset - begin)
    view.damage.add(note, skipped=range(begin, offset, stride or offset - begin))
