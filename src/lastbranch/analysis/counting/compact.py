"""Compacted addresses: a pair of compacted addresses and a tag of two bits fit one 64-bit key.

A compacted address is the number of a region (16 MiB of one scope's addresses, numbered at first sight) and the 24 low
bits. The numbers last for a few processes, which most captures are of.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct
from ...model import Array

__all__ = ["INVALID", "Compactor", "sparse_zeros"]

INVALID = np.uint64(0xFFFFFFFFFFFFFFFF)
"""No pair has this key."""

_CANONICAL = 1 << 47
_LOW = np.uint64(0xFFFFFF)
_SHIFT = np.uint64(24)
_HIGH = np.uint64(32)
_VALUE = np.uint64((1 << 30) - 1)
_LOW_HALF = 0 if sys.byteorder == "little" else 1  # which half of a 64-bit word is the low one


class Compactor:
    """30 bits an address: 62 regions of 8 scopes.

    One look-up and one 32-bit addition compact an address: the table has, for each region, the difference between a
    compacted address and the low half of its address, modulo 2**32. The sum is never 0 because compacted addresses
    count from 1.
    """

    REGIONS = 63  # so that no pair has a key of all ones
    SCOPES, SCOPE_SHIFT = 8, 24

    def __init__(self) -> None:
        self._scopes: dict[int, int] = {}
        # One word for each region of each scope.
        self._table = sparse_zeros(self.SCOPES << self.SCOPE_SHIFT, np.uint32)
        self._scope_of = np.zeros(self.REGIONS, np.int64)
        self._base_of = np.zeros(self.REGIONS, np.uint64)
        self._next = 1
        self._full = False

    def compact(
        self, scope: NDArray[np.int64], depth: NDArray[np.int64], addresses: Sequence[Array]
    ) -> list[NDArray[np.uint32]] | None:
        """Compacted form of ragged uint64 ``addresses`` (``depth[i]`` of each belong to ``scope[i]``).

        ``None``: an address is beyond 48 bits, or the numbers have run out, as they have for all calls that follow.
        """
        if self._full or not all(map(_canonical, addresses)):
            return None
        scopes = distinct(scope)
        if len(self._scopes.keys() | set(scopes.tolist())) > self.SCOPES:
            self._full = True
            return None
        ranks = [self._scopes.setdefault(s, len(self._scopes)) for s in scopes.tolist()]
        shift = _for_entries(np.array(ranks, np.int64) << self.SCOPE_SHIFT, np.searchsorted(scopes, scope), depth)
        compacted = [self._compact(address, shift) for address in addresses]
        return None if self._full else compacted

    def _compact(self, address: NDArray[np.uint64], shift: Array) -> NDArray[np.uint32]:
        """Compact one column. ``shift``: a single value for all entries, or one value a sample or an entry."""
        index = address >> _SHIFT
        if int(address.max()) >> 47:  # kernel addresses
            index &= _LOW
        place = index.view(np.int64)
        if shift.ndim:  # one for each sample, or for each entry
            by_shift = place.reshape(len(shift), -1)
            by_shift += shift[:, None]
        else:
            place += shift
        out: NDArray[np.uint32] = self._table.take(place)
        if not out.all():
            self._number(distinct(place[out == 0]))
            self._table.take(place, out=out, mode="clip")
        out += _half(np.ascontiguousarray(address), _LOW_HALF)
        return out

    def _number(self, index: NDArray[np.int64]) -> None:
        if self._next + len(index) > self.REGIONS:
            self._full = True
            return
        numbers = np.arange(self._next, self._next + len(index))
        self._next += len(index)
        self._scope_of[numbers] = np.array(list(self._scopes), np.int64)[index >> self.SCOPE_SHIFT]
        region = index & ((1 << self.SCOPE_SHIFT) - 1)
        # If bit 47 is set, all bits above are set too.
        above = np.where(region >= 1 << 23, np.uint64(0xFFFF << 48), np.uint64(0))
        base = self._base_of[numbers] = (region.astype(np.uint64) << _SHIFT) | above
        self._table[index] = (numbers.astype(np.uint64) << _SHIFT) + np.uint64(1) - base  # modulo 2**32

    def keys(self, a: Array, b: Array, flags: Array | None, leave_out: Array | None, out: Array) -> None:
        """Write keys of pairs of compacted addresses to ``out`` (uint64), `INVALID` for the pairs in ``leave_out``.

        The two low bits of ``flags`` are the tag.
        """
        _half(out, _LOW_HALF)[:] = b
        high = _half(out, 1 - _LOW_HALF)
        if flags is None:
            high[:] = a
        else:
            np.bitwise_or(_half(np.ascontiguousarray(flags), _LOW_HALF) << 30, a, out=high)
        if leave_out is not None:
            out[leave_out] = INVALID

    def expand(
        self, keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint8]]:
        """(scope int64, a uint64, b uint64, tag uint8) of keys."""
        (scope, b), (_, a) = self._address(keys & _VALUE), self._address((keys >> _HIGH) & _VALUE)
        return scope, a, b, (keys >> np.uint64(62)).astype(np.uint8)

    def _address(self, value: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        value = value - np.uint64(1)
        number = (value >> _SHIFT).astype(np.int64)
        return self._scope_of[number], self._base_of[number] | (value & _LOW)


def _canonical(address: NDArray[np.uint64]) -> bool:
    """Whether all addresses are those of 48 bits, sign-extended."""
    signed = address.view(np.int64)
    return not len(signed) or (int(signed.min()) >= -_CANONICAL and int(signed.max()) < _CANONICAL)


def _for_entries(values: Array, where: Array, depth: Array) -> Array:
    """Spread ``values`` of scopes over entries: a single value, a value a sample if stacks are equally deep, or a value
    an entry.

    ``where`` is the index of each sample's scope in ``values``.
    """
    if len(values) == 1:
        return np.asarray(values[0])
    each: Array = values[where]
    return each if int(depth.min()) == int(depth.max()) else np.repeat(each, depth)


def sparse_zeros(count: int, dtype: Any) -> NDArray[Any]:
    """Zeros; only the pages that are written take memory.

    Memory of `np.zeros` has huge pages on Linux: a number in each of 63 regions took 105 MB.
    """
    kind = np.dtype(dtype)
    memory = mmap.mmap(-1, max(count, 1) * kind.itemsize)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, kind, count)


def _half(words: NDArray[np.uint64], which: int) -> NDArray[np.uint32]:
    return words.view(np.uint32)[which::2]
