"""Compacted addresses of captures with many processes, such as those of a whole system."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..model import Array
from .regions import LOW, SHIFT, Sides, Unpacked, base_of, distinct, for_entries, sparse_zeros

__all__ = ["ManyRegions"]

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


class ManyRegions:
    """36 bits an address, and a number of 14 bits for each pair of regions that occurs, which is what makes a key fit.

    Five look-ups a pair where `FewRegions` has two. Up to 4,096 scopes, 4,095 regions of them and 16,382 pairs of
    regions.
    """

    SCOPES = 1 << _SCOPE_BITS
    SLOTS = 1 << _SLOT_BITS
    REGIONS = 1 << _REGION_BITS
    PAIRS = (1 << 14) - 1  # so that no pair has a key of all ones

    def __init__(self) -> None:
        self._scopes: dict[int, int] = {}
        self._slots = _Numbers(1 << 24, self.SLOTS)
        """Of regions, whichever scope they are of: with them the next table is small."""
        self._regions = _Numbers(1 << (_SCOPE_BITS + _SLOT_BITS), self.REGIONS)
        self._pairs = _Numbers(1 << (2 * _REGION_BITS), self.PAIRS)

    def compact(self, scope: NDArray[np.int64], depth: NDArray[np.int64], addresses: Sides) -> Sides | None:
        scopes = np.unique(scope)
        if len(self._scopes.keys() | set(scopes.tolist())) > self.SCOPES:
            return None
        ranks = [self._scopes.setdefault(s, len(self._scopes)) for s in scopes.tolist()]
        shift = for_entries(np.array(ranks, np.int64) << _SLOT_BITS, np.searchsorted(scopes, scope), depth)
        done = []
        for address in addresses:
            slot = self._slots.of(((address >> SHIFT) & LOW).view(np.int64))
            if slot is None:
                return None
            place = slot.astype(np.int64)
            by_shift = place.reshape(shift.size, -1)
            by_shift += shift.reshape(-1, 1)
            region = self._regions.of(place)
            if region is None:
                return None
            done.append((region.astype(np.uint64) << SHIFT) | (address & LOW))
        return done

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
