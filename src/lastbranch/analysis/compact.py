"""Compacted addresses, so that a pair of them and a tag of two bits fit one 64-bit key.

A compacted address is the number of a region (16 MiB of one scope's addresses, numbered at first sight) and the 24 low
bits. `FewRegions` is the quick form, for what most captures are: a few processes. `Compactor` starts with it and
changes to `ManyRegions` for good when it runs out of numbers.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import distinct
from ..model import Array

__all__ = ["Compactor", "FewRegions", "INVALID", "ManyRegions", "canonical"]


# -- What both forms of compacted addresses share: a region is 16 MiB of one scope's addresses


Sides = Sequence[Array]
"""The from and to columns, or their compacted forms."""
Unpacked = tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint8]]

LOW = np.uint64(0xFFFFFF)
SHIFT = np.uint64(24)


def base_of(region: NDArray[np.int64]) -> NDArray[np.uint64]:
    """First address of regions, given as bits 24 to 47. Where bit 47 is set all bits above are set too."""
    kernel = region >= 1 << 23
    return (region.astype(np.uint64) << SHIFT) | np.where(kernel, np.uint64(0xFFFF << 48), np.uint64(0))


def for_entries(values: Array, where: Array, depth: Array) -> Array:
    """``values`` of scopes for entries: one for all, one a sample where all stacks are equally deep, else one an entry.

    ``where`` is the index of each sample's scope in ``values``.
    """
    if len(values) == 1:
        return np.asarray(values[0])
    each: Array = values[where]
    return each if int(depth.min()) == int(depth.max()) else np.repeat(each, depth)


def sparse_zeros(count: int, dtype: Any) -> NDArray[Any]:
    """Zeros; only the pages that are written take memory.

    Those of `np.zeros` are huge pages on Linux: a number in each of 63 regions took 105 MB.
    """
    kind = np.dtype(dtype)
    memory = mmap.mmap(-1, max(count, 1) * kind.itemsize)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, kind, count)


class _Form(ABC):
    """Numbers of regions, and of the scopes that they are of."""

    SCOPES: int
    SCOPE_SHIFT: int
    """Where the number of a scope is in the place of a region."""

    def __init__(self) -> None:
        self._scopes: dict[int, int] = {}

    def compact(self, scope: NDArray[np.int64], depth: NDArray[np.int64], addresses: Sides) -> Sides | None:
        scopes = distinct(scope)
        if len(self._scopes.keys() | set(scopes.tolist())) > self.SCOPES:
            return None
        ranks = [self._scopes.setdefault(s, len(self._scopes)) for s in scopes.tolist()]
        shift = for_entries(np.array(ranks, np.int64) << self.SCOPE_SHIFT, np.searchsorted(scopes, scope), depth)
        done = []
        for address in addresses:
            one = self._compact(address, shift)
            if one is None:
                return None
            done.append(one)
        return done

    @abstractmethod
    def _compact(self, address: NDArray[np.uint64], shift: Array) -> Array | None:
        """One side; ``None`` where numbers run out. ``shift``: that of all entries, or one a sample or an entry."""

    @abstractmethod
    def keys(self, a: Array, b: Array, flags: Array | None, leave_out: Array | None, out: Array) -> bool:
        """See `Compactor.keys`."""

    @abstractmethod
    def expand(self, keys: NDArray[np.uint64]) -> Unpacked:
        """See `Compactor.expand`."""


# -- Compacted addresses of captures with many processes, such as those of a whole system


_TAG = np.uint64(3)
_TAG_BITS = np.uint64(2)
_SCOPE_BITS, _SLOT_BITS, _REGION_BITS = 12, 13, 12


class _Numbers:
    """Numbers from 1 on for places in a table, at first sight; 0 is the number of none."""

    def __init__(self, places: int, most: int) -> None:
        self.table = sparse_zeros(places, np.uint16)
        self.place_of = np.zeros(most, np.int64)
        self._next = 1

    def of(self, place: NDArray[np.int64]) -> NDArray[np.uint16] | None:
        """The number of each place; ``None`` where they run out."""
        number = self.table.take(place)
        if not number.all():
            new = distinct(place[number == 0])
            if self._next + len(new) > len(self.place_of):
                return None
            numbers = np.arange(self._next, self._next + len(new))
            self._next += len(new)
            self.table[new] = numbers
            self.place_of[numbers] = new
            self.table.take(place, out=number, mode="clip")
        return number


class ManyRegions(_Form):
    """36 bits an address, and a number of 14 bits for each pair of regions that occurs, which is what makes a key fit.

    Five look-ups a pair where `FewRegions` has two. Up to 4,096 scopes, 4,095 regions of them and 16,382 pairs of
    regions.
    """

    SCOPES, SCOPE_SHIFT = 1 << _SCOPE_BITS, _SLOT_BITS
    SLOTS = 1 << _SLOT_BITS
    REGIONS = 1 << _REGION_BITS
    PAIRS = (1 << 14) - 1  # so that no pair has a key of all ones

    def __init__(self) -> None:
        super().__init__()
        self._slots = _Numbers(1 << 24, self.SLOTS)
        """Of regions, whichever scope they are of: with them the next table is small."""
        self._regions = _Numbers(1 << (_SCOPE_BITS + _SLOT_BITS), self.REGIONS)
        self._pairs = _Numbers(1 << (2 * _REGION_BITS), self.PAIRS)

    def _compact(self, address: NDArray[np.uint64], shift: Array) -> Array | None:
        slot = self._slots.of(((address >> SHIFT) & LOW).view(np.int64))
        if slot is None:
            return None
        place = slot.astype(np.int64)
        by_shift = place.reshape(shift.size, -1)
        by_shift += shift.reshape(-1, 1)
        region = self._regions.of(place)
        return None if region is None else (region.astype(np.uint64) << SHIFT) | (address & LOW)

    def keys(self, a: Array, b: Array, flags: Array | None, leave_out: Array | None, out: Array) -> bool:
        if leave_out is not None:  # else each two samples that follow one another would make a pair of regions
            a = a.copy()
            a[leave_out] = b[leave_out]
        place = ((a >> SHIFT) << np.uint64(_REGION_BITS)) | (b >> SHIFT)
        pair = self._pairs.of(place.view(np.int64))
        if pair is None:
            return False
        out[:] = pair
        out <<= _TAG_BITS
        if flags is not None:
            out |= flags & _TAG
        for side in (a, b):
            out <<= SHIFT
            out |= side & LOW
        return True

    def expand(self, keys: NDArray[np.uint64]) -> Unpacked:
        place = self._pairs.place_of[(keys >> np.uint64(50)).astype(np.int64)]
        a = self._regions.place_of[place >> _REGION_BITS]
        b = self._regions.place_of[place & ((1 << _REGION_BITS) - 1)]
        scope = np.array(list(self._scopes), np.int64)[b >> _SLOT_BITS]
        low_a, low_b = (keys >> SHIFT) & LOW, keys & LOW
        tag = ((keys >> np.uint64(48)) & _TAG).astype(np.uint8)
        return scope, self._base(a) | low_a, self._base(b) | low_b, tag

    def _base(self, place: NDArray[np.int64]) -> NDArray[np.uint64]:
        return base_of(self._slots.place_of[place & ((1 << _SLOT_BITS) - 1)])


INVALID = np.uint64(0xFFFFFFFFFFFFFFFF)
"""No pair has this key."""
_CANONICAL = 1 << 47
_PAUSE = 16
"""So many batches are not tried after one that had too many regions all alone: those of a pass are alike."""
_LOW_HALF = 0 if sys.byteorder == "little" else 1  # which half of a 64-bit word is the low one
_HIGH = np.uint64(32)
_VALUE = np.uint64((1 << 30) - 1)


class Compactor:
    """Numbers of regions, shared by the counters of one pass.

    ``decode`` of each counter is called when numbers are about to lose their meaning.
    """

    def __init__(self) -> None:
        self._decoders: list[Callable[[], None]] = []
        self._form: _Form = FewRegions()
        self._full = False
        self._pause = 0

    def before_restart(self, decode: Callable[[], None]) -> None:
        self._decoders.append(decode)

    def _restart(self) -> None:
        for decode in self._decoders:
            decode()
        self._form, self._full = ManyRegions(), False

    def compact(self, scope: NDArray[np.int64], depth: NDArray[np.int64], addresses: Sides) -> Sides | None:
        """Compacted form of ragged uint64 ``addresses`` (``depth[i]`` of each belong to ``scope[i]``).

        ``None``: it cannot be had; an address is beyond 48 bits, or the batch alone, or one shortly before it, has too
        many regions.
        """
        if not all(map(canonical, addresses)):
            return None
        if self._pause:
            self._pause -= 1
            return None
        done = None if self._full else self._form.compact(scope, depth, addresses)
        if done is None:
            self._restart()
            done = self._form.compact(scope, depth, addresses)
            if done is None:
                self._pause = _PAUSE
        return done

    def keys(self, a: Array, b: Array, flags: Array | None, leave_out: Array | None, out: Array) -> bool:
        """Keys of pairs of compacted addresses, into ``out`` (uint64), `INVALID` for those that ``leave_out`` names.

        The two low bits of ``flags`` are the tag. ``False``: there are more kinds of pairs than numbers.
        """
        if not self._form.keys(a, b, flags, leave_out, out):
            self._full = True  # the next batch starts anew
            return False
        if leave_out is not None:
            out[leave_out] = INVALID
        return True

    def expand(self, keys: NDArray[np.uint64]) -> Unpacked:
        """(scope int64, a uint64, b uint64, tag uint8) of keys."""
        return self._form.expand(keys)


def canonical(address: NDArray[np.uint64]) -> bool:
    """Whether all addresses are those of 48 bits, sign-extended: what both forms can hold."""
    signed = address.view(np.int64)
    return not len(signed) or (int(signed.min()) >= -_CANONICAL and int(signed.max()) < _CANONICAL)


class FewRegions(_Form):
    """30 bits an address: 62 regions of 8 scopes.

    One look-up and one 32-bit addition compact an address: the table has, for each region, what leads from the low half
    of its addresses to their compacted ones, modulo 2**32. That is never 0 because compacted addresses count from 1.
    """

    REGIONS = 63  # so that no pair has a key of all ones
    SCOPES, SCOPE_SHIFT = 8, 24

    def __init__(self) -> None:
        super().__init__()
        # One word for each region of each scope.
        self._table = sparse_zeros(self.SCOPES << 24, np.uint32)
        self._scope_of = np.zeros(self.REGIONS, np.int64)
        self._base_of = np.zeros(self.REGIONS, np.uint64)
        self._next = 1

    def _compact(self, address: NDArray[np.uint64], shift: Array) -> NDArray[np.uint32] | None:
        index = address >> SHIFT
        if int(address.max()) >> 47:  # kernel addresses
            index &= LOW
        place = index.view(np.int64)
        if shift.ndim:  # one for each sample, or for each entry
            by_shift = place.reshape(len(shift), -1)
            by_shift += shift[:, None]
        else:
            place += shift
        out: NDArray[np.uint32] = self._table.take(place)
        if not out.all():
            if not self._number(distinct(place[out == 0])):
                return None
            self._table.take(place, out=out, mode="clip")
        out += _half(np.ascontiguousarray(address), _LOW_HALF)
        return out

    def _number(self, index: NDArray[np.int64]) -> bool:
        if self._next + len(index) > self.REGIONS:
            return False
        numbers = np.arange(self._next, self._next + len(index))
        self._next += len(index)
        self._scope_of[numbers] = np.array(list(self._scopes), np.int64)[index >> 24]
        base = self._base_of[numbers] = base_of(index & 0xFFFFFF)
        self._table[index] = (numbers.astype(np.uint64) << SHIFT) + np.uint64(1) - base  # modulo 2**32
        return True

    def keys(self, a: Array, b: Array, flags: Array | None, leave_out: Array | None, out: Array) -> bool:
        _half(out, _LOW_HALF)[:] = b
        high = _half(out, 1 - _LOW_HALF)
        if flags is None:
            high[:] = a
        else:
            np.bitwise_or(_half(np.ascontiguousarray(flags), _LOW_HALF) << 30, a, out=high)
        return True

    def expand(self, keys: NDArray[np.uint64]) -> Unpacked:
        (scope, b), (_, a) = self._address(keys & _VALUE), self._address((keys >> _HIGH) & _VALUE)
        return scope, a, b, (keys >> np.uint64(62)).astype(np.uint8)

    def _address(self, value: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        value = value - np.uint64(1)
        number = (value >> SHIFT).astype(np.int64)
        return self._scope_of[number], self._base_of[number] | (value & LOW)


def _half(words: NDArray[np.uint64], which: int) -> NDArray[np.uint32]:
    return words.view(np.uint32)[which::2]
