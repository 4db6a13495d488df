"""Lines of ``perf script``: event records and branch entries; and a text as blocks of whole lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage
from ...lbr import BRANCH_TYPES, FLAG_FIELDS, NEW_TYPES, SPEC
from ...model import Source

__all__ = [
    "TextBlock",
    "Entries",
    "Map",
    "RECORD",
    "Task",
    "decode_flags",
    "find_entries",
    "hexadecimal",
    "parse_record",
    "time_before_record",
    "walk_blocks",
]


RECORD = b"PERF_RECORD_"
"""Mark of a line with a record other than a sample."""

_TIME = re.compile(rb"(\d+)\.(\d{1,9}):\s*$")


def time_before_record(prefix: bytes) -> int | None:
    """The time (ns) that ends ``prefix``, the part of a line before `RECORD`."""
    match = _TIME.search(prefix)
    return int(match[1]) * 1_000_000_000 + int(match[2].ljust(9, b"0")) if match else None


class Map(NamedTuple):
    """A mapping: ``size`` bytes at ``start`` of a file from ``offset`` on."""

    pid: int
    tid: int
    start: int
    size: int
    offset: int
    build_id: bytes
    name: str


class Task(NamedTuple):
    """COMM (``name``; ``parent`` 1: by exec), FORK (of ``parent``) or EXIT of a thread."""

    kind: str
    pid: int
    tid: int
    parent: int
    name: str


_MAP = re.compile(
    rb"MMAP2? (?P<pid>-?\d+)/(?P<tid>-?\d+): "
    rb"\[(?P<start>0x[0-9a-f]{1,16}|0)\((?P<size>0x[0-9a-f]{1,16}|0)\) @ (?P<offset>0x[0-9a-f]{1,16}|0)"
    rb"(?: <(?P<id>[0-9a-f]{2,40})>| [^]]*)?\]: \S+ (?P<name>.*)$",
    re.DOTALL,
)
_TASK = re.compile(rb"(?P<kind>FORK|EXIT)\((?P<pid>-?\d+):(?P<tid>-?\d+)\):\((?P<parent>-?\d+):-?\d+\)")
_COMM = re.compile(rb"COMM(?P<exec> exec)?: (?P<name>.*):(?P<pid>-?\d+)/(?P<tid>-?\d+)\s*$", re.DOTALL)


def parse_record(text: bytes) -> Map | Task | None:
    """The record in ``text``, the part of a line after `RECORD`; ``None`` for other kinds.

    Raises `ValueError` for one whose fields cannot be read. Formats: perf_event__fprintf_mmap2 and its neighbours in
    Linux tools/perf/util/event.c.
    """
    if text.startswith(b"MMAP"):
        match = _MAP.match(text)
        if match is None:
            raise ValueError("mapping that cannot be read")
        build_id = bytes.fromhex((match["id"] or b"").decode()) if len(match["id"] or b"") % 2 == 0 else b""
        pid, tid, start, size, offset = (int(match[n], 0) for n in ("pid", "tid", "start", "size", "offset"))
        return Map(pid, tid, start, size, offset, build_id, match["name"].decode("utf-8", "surrogateescape"))
    if match := _TASK.match(text):
        return Task(match["kind"].decode(), int(match["pid"]), int(match["tid"]), int(match["parent"]), "")
    if match := _COMM.match(text):
        name = match["name"].decode("utf-8", "surrogateescape")
        return Task("COMM", int(match["pid"]), int(match["tid"]), int(match["exec"] is not None), name)
    if text.startswith((b"FORK", b"EXIT", b"COMM")):
        raise ValueError("task record that cannot be read")
    return None


# -- Branch entries in text, decoded as columns: ``0xFROM/0xTO/M|P|-/X|-/A|-/CYCLES[/TYPE[/SPEC]]``
#
# perf 5 prints 6 fields, 6.1 the branch type as a seventh, 6.12 the speculation as an eighth; Intel SEP prints 6 with
# other values. The places of its two ``x`` locate all of an entry.


PAD = 32
"""Blanks before and after the text, so that every window of digits is inside."""

_Positions = NDArray[np.int64]
_Text = NDArray[np.uint8]
_MOST_DIGITS = 16


@dataclass(slots=True)
class Entries:
    """Entries of a text, in its order, as positions in the padded text.

    ``start`` where the entry begins, ``high`` where the digits of its second address begin and ``end`` the slash after
    them; ``good`` (bool) entries have all their fields.
    """

    start: _Positions
    high: _Positions
    end: _Positions
    good: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)

    def only(self, rows: NDArray[np.bool_]) -> Entries:
        """The entries of a bool mask."""
        return self if rows.all() else Entries(self.start[rows], self.high[rows], self.end[rows], self.good[rows])


def find_entries(text: _Text) -> Entries:
    """The entries in ``text``, which begins and ends with `PAD` blanks."""
    crosses = np.flatnonzero(text == ord("x"))
    second = np.flatnonzero(text[crosses - 2] == ord("/"))
    high = crosses[second] + 1
    before = crosses[np.maximum(second - 1, 0)]
    digits = high - before - 4
    good = (digits > 0) & (digits <= _MOST_DIGITS)
    good &= (text[high - 2] == ord("0")) & (text[before - 1] == ord("0")) & (text[before - 2] <= ord(" "))
    end = _slash_after(text, high, np.clip(digits, 1, _MOST_DIGITS))
    good &= text[end] == ord("/")
    return Entries(np.where(good, before - 1, high - 3), high, end, good)


_IS_HEX, _IS_PREDICTION = np.zeros(256, bool), np.zeros(256, bool)
_IS_HEX[list(b"0123456789abcdef")] = _IS_PREDICTION[list(b"MPN-")] = True


def _slash_after(text: _Text, at: _Positions, digits: _Positions) -> _Positions:
    """The first slash after the digits at each place; most often there are as many ``digits`` as before."""
    end = at + digits
    # Only this slash of an entry stands between a digit and a letter of the prediction.
    guessed = (text[end] == ord("/")) & _IS_HEX[text[end - 1]] & _IS_PREDICTION[text[end + 1]]
    other = np.flatnonzero(~guessed)
    end[other] = _first_slash(text, at[other])
    return end


def _first_slash(text: _Text, at: _Positions) -> _Positions:
    """The first slash 1 to 16 bytes after each place; 1 after it without a slash."""
    found = np.ones(len(at), np.int64)
    for n in range(_MOST_DIGITS, 0, -1):
        found[text[at + n] == ord("/")] = n
    return at + found


def hexadecimal(text: _Text, begin: _Positions, end: _Positions) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """(uint64 value, whether all are digits) of the 1 to 16 lower-case hexadecimal digits ``begin:end`` each."""
    digits = end - begin
    value, bad = _value(_last_digits(text, end - 8, np.minimum(digits, 8)))
    if int(digits.max(initial=0)) > 8:
        # Nearly all code is near other code: most often, few addresses begin with other digits than the first one.
        word = _last_digits(text, end - 16, np.maximum(digits - 8, 0))
        other = np.flatnonzero(word != word[0])
        high, high_bad = _value(np.concatenate([word[:1], word[other]]))
        high <<= np.uint64(32)
        if len(other):
            value[other] ^= high[1:] ^ high[0]
            bad[other] |= high_bad[1:]
        value ^= high[0]
        if high_bad[0]:
            bad[word == word[0]] |= high_bad[0]
    return value, bad == 0


def _windows(text: _Text) -> NDArray[np.uint64]:
    """The 8 bytes from each place of ``text`` on, first byte lowest; a view."""
    return np.ndarray((len(text) - 7,), "<u8", text, 0, (1,))


_ONES = 0x0101010101010101
_KEPT = np.array([(1 << 64) - (1 << 8 * (8 - n)) for n in range(9)], np.uint64)
"""By number of digits: the bytes of a window that they are, its last ones."""
_ZEROS = np.uint64(_ONES * ord("0")) & ~_KEPT
_FOLDS = tuple(
    (np.uint64(1 + (16**n << 8 * n)), np.uint64(8 * n), np.uint64(mask))
    for n, mask in ((1, 0x00FF00FF00FF00FF), (2, 0x0000FFFF0000FFFF), (4, 0xFFFFFFFF))
)
"""Factor, shift and mask that make one number of each two neighbours of 1, 2, 4 bytes, the first being the higher."""
_LOW, _BIT4, _ONE, _SIX, _UPPER, _BIT5 = (np.uint64(_ONES * n) for n in (0x0F, 0x10, 1, 6, 0xA0, 0x20))
_NINE, _THREE, _TWO_BITS, _SIX_BITS = (np.uint64(n) for n in (9, 3, 2, 6))


def _last_digits(text: _Text, at: _Positions, digits: _Positions) -> NDArray[np.uint64]:
    """The 8 characters at each place, all but the last ``digits`` of them as zeros."""
    word = _windows(text)[at]
    fewest = int(digits.min(initial=8))
    if fewest < 8:
        number = fewest if fewest == int(digits.max()) else digits
        word &= _KEPT[number]
        word |= _ZEROS[number]
    return word


def _value(word: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """(value, not 0 where one is no digit) of 8 hexadecimal digits each, all at once; ``word`` is used up."""
    letter = word >> _SIX_BITS
    letter &= _ONE
    value = word & _LOW
    # Digits 0-9 with 6 more, letters 1-6 with 9 more stay below 16; bits 4 and 6 differ; bit 5 is set and 7 is not.
    bad = letter * _THREE
    bad += value
    bad += _SIX
    letter *= _NINE
    value += letter
    unlike = word >> _TWO_BITS
    unlike ^= word
    bad |= np.invert(unlike, out=unlike)
    bad &= _BIT4
    word &= _UPPER
    word ^= _BIT5
    bad |= word
    for factor, shift, mask in _FOLDS:
        value *= factor
        value >>= shift
        value &= mask
    return value, bad


# -- flags

_MOST_CYCLES = 0xFFFF
_LETTERS = np.zeros(256, np.uint64)
for _letter, _bits in (("M", 1), ("P", 2), ("N", 1 << FLAG_FIELDS["not_taken"][0])):
    _LETTERS[ord(_letter)] = _bits
_SHIFT = {name: np.uint64(shift) for name, (shift, _) in FLAG_FIELDS.items()}


def decode_flags(text: _Text, entries: Entries) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """(uint64 flag words as in `lbr.flags`, whether they could be read) of ``entries``, all of them good."""
    prediction = entries.end + 1
    wide = text[prediction + 1] != ord("/")  # MN, PN
    fields = prediction + wide
    in_tx, abort, cycles = fields + 2, fields + 4, fields + 6
    read = (text[fields + 1] == ord("/")) & (text[fields + 3] == ord("/")) & (text[fields + 5] == ord("/"))
    flags = _LETTERS[text[prediction]]
    if wide.any():
        flags |= np.where(wide, _LETTERS[text[fields]], np.uint64(0))
    for at, letter, name in ((in_tx, "X", "in_tx"), (abort, "A", "abort")):
        flags |= (text[at] == ord(letter)).astype(np.uint64) << _SHIFT[name]
    number, end = _decimal(text, cycles)
    number <<= _SHIFT["cycles"]
    flags |= number
    read &= end > cycles
    typed = np.flatnonzero(text[end] == ord("/"))
    if len(typed):
        kind = end[typed] + 1
        named = np.flatnonzero(text[kind] >= ord("A"))
        spec = kind + 1  # most often there is no name before it
        if len(named):
            flags[typed[named]] |= _words(text, kind[named], _TYPE_BITS)
            spec[named] = _first_slash(text, kind[named]) + 1
        more = np.flatnonzero((text[spec - 1] == ord("/")) & (text[spec] >= ord("A")))
        if len(more):
            flags[typed[more]] |= _words(text, spec[more], _SPEC_BITS)
    return flags, read


def _decimal(text: _Text, at: _Positions) -> tuple[NDArray[np.uint64], _Positions]:
    """(value, at most what the field holds; place after it) of the decimal digits at each place."""
    digit = text[at] - np.uint8(ord("0"))
    inside = digit < 10
    value = np.where(inside, digit, 0).astype(np.uint64)
    end = at + inside
    more = np.flatnonzero(inside)
    for _ in range(5):
        digit = text[end[more]] - np.uint8(ord("0"))
        more, digit = more[digit < 10], digit[digit < 10]
        if not len(more):
            break
        value[more] = value[more] * np.uint64(10) + digit
        end[more] += 1
    return np.minimum(value, np.uint64(_MOST_CYCLES)), end


_TYPE_BITS = {name.upper(): code << FLAG_FIELDS["type"][0] for code, name in enumerate(BRANCH_TYPES[1:15], 1)}
_TYPE_BITS |= {
    name.upper(): 15 << FLAG_FIELDS["type"][0] | code << FLAG_FIELDS["new_type"][0]
    for code, name in enumerate(NEW_TYPES)
}
_SPEC_BITS = {name.upper(): code << FLAG_FIELDS["spec"][0] for code, name in enumerate(SPEC) if name}


def _words(text: _Text, at: _Positions, bits: dict[str, int]) -> NDArray[np.uint64]:
    """The bits of the names at each place, which their first 8 letters tell apart; 0 for what is no name."""
    found, which = np.unique(_windows(text)[at], return_inverse=True)
    known: NDArray[np.uint64] = np.array([_bits_of(window.tobytes(), bits) for window in found], np.uint64)[which]
    return known


def _bits_of(window: bytes, bits: dict[str, int]) -> int:
    name = window.split(b"/")[0].split(b" ")[0].decode("latin-1").strip()
    if len(name) < 8:
        return bits.get(name, 0)
    return next((value for known, value in bits.items() if known[:8] == name), 0)


# -- A text in blocks of whole lines


BLOCK = 1 << 21
_LONGEST_LINE = 1 << 24
"""A stack of 64 entries has 4,000 bytes."""
_NEWLINE, _BLANK = 10, 32
_TAIL = 1 << 16
_Place = TypeVar("_Place", int, NDArray[np.int64])


class TextBlock(NamedTuple):
    """Whole lines. ``text`` has `PAD` blanks around them; ``offset`` is the place of the first line in the file.

    ``starts`` and ``ends`` int64: first byte of each line in ``text``, and the place of its end of line.
    """

    offset: int
    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def position(self, at: _Place) -> _Place:
        """The offset in the file of the byte ``at`` of ``text``."""
        return at + (self.offset - PAD)

    def line(self, i: int) -> bytes:
        """Line ``i`` without its end."""
        return self.text[self.starts[i] : self.ends[i]].tobytes()


def walk_blocks(source: Source, damage: list[Damage] | None = None) -> Iterator[TextBlock]:
    """The lines of ``source``; what is too long for a line is stepped over and noted in ``damage``."""
    offset, size, rest = 0, source.size, np.empty(0, np.uint8)
    while offset < size:
        begins, kept = offset - len(rest), len(rest)
        text = np.empty(PAD + kept + BLOCK + 1 + PAD, np.uint8)
        text[:PAD] = _BLANK
        text[PAD : PAD + kept] = rest
        got = source.readinto(offset, text.data[PAD + kept : PAD + kept + min(BLOCK, size - offset)])
        if not got:
            return
        offset, end = offset + got, PAD + kept + got
        cut = end if offset >= size else _after_last_line(text, end)
        rest = text[cut:end].copy()
        if cut > PAD:
            yield _block(text, cut, begins)
        elif len(rest) > _LONGEST_LINE:
            if damage is not None:
                damage.append(Damage("line that does not end", begins, "line", None, len(rest)))
            rest = rest[:0]


def _after_last_line(text: NDArray[np.uint8], end: int) -> int:
    """The place after the last end of line before ``end``; `PAD` without one."""
    for begin in range(end - _TAIL, PAD - _TAIL, -_TAIL):
        at = max(begin, PAD)
        found = text[at : at + _TAIL].tobytes().rfind(b"\n", 0, min(end - at, _TAIL))
        if found >= 0:
            return at + found + 1
    return PAD


def _block(text: NDArray[np.uint8], end: int, offset: int) -> TextBlock:
    """The lines of ``text`` up to ``end``, with an end of line after the last one, and blanks."""
    if text[end - 1] != _NEWLINE:
        text[end] = _NEWLINE
        end += 1
    text[end : end + PAD] = _BLANK
    text = text[: end + PAD]
    ends = np.flatnonzero(text == _NEWLINE)
    starts = np.empty_like(ends)
    starts[0] = PAD
    starts[1:] = ends[:-1] + 1
    return TextBlock(offset, text, starts, ends)
