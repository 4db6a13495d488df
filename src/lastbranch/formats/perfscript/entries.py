"""Branch entries in text, decoded as columns: ``0xFROM/0xTO/M|P|-/X|-/A|-/CYCLES[/TYPE[/SPEC]]``.

perf 5 prints 6 fields, 6.1 the branch type as a seventh, 6.12 the speculation as an eighth; Intel SEP prints 6 with
other values. All that stands in an entry is found from the places of its two ``x``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...lbr import BRANCH_TYPES, FLAG_FIELDS, NEW_TYPES, SPEC

__all__ = ["PAD", "Entries", "decode_flags", "find_entries", "hexadecimal"]

PAD = 32
"""Bytes that must stand before and behind the text, so that every window of digits is inside."""

_Positions = NDArray[np.int64]
_Text = NDArray[np.uint8]
_MOST_DIGITS = 16


@dataclass(slots=True)
class Entries:
    """Entries of a text, in its order, as positions in the padded text.

    ``start`` where the entry begins, ``high`` where the digits of its second address begin and ``end`` the slash behind
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
    """Where the entries stand in ``text``, which begins and ends with `PAD` blanks."""
    crosses = np.flatnonzero(text == ord("x"))
    second = np.flatnonzero(text[crosses - 2] == ord("/"))
    high = crosses[second] + 1
    before = crosses[np.maximum(second - 1, 0)]
    digits = high - before - 4
    good = (digits > 0) & (digits <= _MOST_DIGITS)
    good &= (text[high - 2] == ord("0")) & (text[before - 1] == ord("0")) & (text[before - 2] <= ord(" "))
    end = _slash_behind(text, high, np.clip(digits, 1, _MOST_DIGITS))
    good &= text[end] == ord("/")
    return Entries(np.where(good, before - 1, high - 3), high, end, good)


_IS_HEX, _IS_PREDICTION = np.zeros(256, bool), np.zeros(256, bool)
_IS_HEX[list(b"0123456789abcdef")] = _IS_PREDICTION[list(b"MPN-")] = True


def _slash_behind(text: _Text, at: _Positions, digits: _Positions) -> _Positions:
    """The first slash behind the digits at each place; most often there are as many ``digits`` as before."""
    end = at + digits
    # Of the slashes of an entry, only this one stands between a digit and a letter of the prediction.
    guessed = (text[end] == ord("/")) & _IS_HEX[text[end - 1]] & _IS_PREDICTION[text[end + 1]]
    other = np.flatnonzero(~guessed)
    end[other] = _first_slash(text, at[other])
    return end


def _first_slash(text: _Text, at: _Positions) -> _Positions:
    """The first slash 1 to 16 bytes behind each place; 1 behind it where there is none."""
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
    number, behind = _decimal(text, cycles)
    number <<= _SHIFT["cycles"]
    flags |= number
    read &= behind > cycles
    typed = np.flatnonzero(text[behind] == ord("/"))
    if len(typed):
        kind = behind[typed] + 1
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
    """(value, at most what the field holds; place behind it) of the decimal digits at each place."""
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
