"""Compacted addresses: 48 bits to 30, so that a pair of them and two bits more fit one 64-bit key.

A compacted address is a region number (handed out at first sight, for 16 MiB of one scope's addresses) and the 24 low
bits. One look-up and one 32-bit addition make it: the table has, for each region, what leads from the low half of its
addresses to their compacted ones, modulo 2**32. That is never 0 because compacted addresses count from 1. When region
numbers run out, everyone decodes what they hold and numbering starts anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..model import Array

__all__ = ["ADDRESS_BITS", "LOW_HALF", "Compactor", "low_half"]

ADDRESS_BITS = 30
LOW_HALF = 0 if sys.byteorder == "little" else 1
"""Which of the two halves of a 64-bit word is the low one."""
_REGIONS = 63  # so that no pair has a key of all ones
_SCOPES = 8
_LOW = np.uint64(0xFFFFFF)
_SHIFT = np.uint64(24)
_CANONICAL = 1 << 47


class Compactor:
    """Region numbers, shared by the counters of one pass."""

    def __init__(self) -> None:
        # One word for each region of each scope; only pages that are touched take memory.
        self._table = np.zeros(_SCOPES << 24, np.uint32)
        self._decoders: list[Callable[[], None]] = []
        self._clear()

    def _clear(self) -> None:
        self._touched: list[NDArray[np.int64]] = []
        self._scopes: dict[int, int] = {}
        self._scope_of = np.zeros(_REGIONS, np.int64)
        self._base_of = np.zeros(_REGIONS, np.uint64)
        self._next = 1

    def compact(
        self, scope: NDArray[np.int64], depth: NDArray[np.int64], *addresses: NDArray[np.uint64]
    ) -> list[NDArray[np.uint32]] | None:
        """30-bit values for ragged ``addresses`` (``depth[i]`` of each belong to ``scope[i]``); ``None``: cannot be."""
        lowest = [int(a.view(np.int64).min(initial=0)) for a in addresses]
        highest = max(int(a.view(np.int64).max(initial=0)) for a in addresses)
        if min(lowest) < -_CANONICAL or highest >= _CANONICAL:
            return None
        distinct = np.unique(scope)
        where = np.searchsorted(distinct, scope)
        for _ in range(2):
            if len(self._scopes.keys() | set(distinct.tolist())) <= _SCOPES:
                ranks = [self._scopes.setdefault(s, len(self._scopes)) for s in distinct.tolist()]
                shift = _for_entries(np.array(ranks, np.int64) << 24, where, depth)
                done = [self._compact(a, shift, low < 0) for a, low in zip(addresses, lowest, strict=True)]
                if all(d is not None for d in done):
                    return [d for d in done if d is not None]
            self.restart()
        return None

    def _compact(self, address: NDArray[np.uint64], shift: Array, signed: bool) -> NDArray[np.uint32] | None:
        index = address >> _SHIFT
        if signed:  # kernel addresses
            index &= _LOW
        place = index.view(np.int64)
        if shift.ndim:  # one for each sample, or for each entry
            by_shift = place.reshape(len(shift), -1)
            by_shift += shift[:, None]
        else:
            place += shift
        out: NDArray[np.uint32] = self._table.take(place)
        if not out.all():
            if not self._number(np.unique(place[out == 0])):
                return None
            self._table.take(place, out=out, mode="clip")
        out += low_half(address)
        return out

    def _number(self, index: NDArray[np.int64]) -> bool:
        if self._next + len(index) > _REGIONS:
            return False
        numbers = np.arange(self._next, self._next + len(index))
        self._next += len(index)
        self._touched.append(index)
        self._scope_of[numbers] = np.array(list(self._scopes), np.int64)[index >> 24]
        region = (index & 0xFFFFFF).astype(np.uint64)
        kernel = region >= np.uint64(1 << 23)  # bit 47 of a canonical address: all bits above are set too
        base = self._base_of[numbers] = (region << _SHIFT) | np.where(kernel, np.uint64(0xFFFF << 48), np.uint64(0))
        self._table[index] = (numbers.astype(np.uint64) << _SHIFT) + np.uint64(1) - base  # modulo 2**32
        return True

    def before_restart(self, decode: Callable[[], None]) -> None:
        """``decode`` is called when region numbers are about to lose their meaning."""
        self._decoders.append(decode)

    def restart(self) -> None:
        """Give up all region numbers, after everyone has decoded what they hold."""
        for decode in self._decoders:
            decode()
        for index in self._touched:
            self._table[index] = 0
        self._clear()

    def expand(self, value: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """(scope, address) of compacted values, given as 64 bits."""
        value = value - np.uint64(1)
        number = (value >> _SHIFT).astype(np.int64)
        return self._scope_of[number], self._base_of[number] | (value & _LOW)


def low_half(words: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The low 32 bits of each word, as a view."""
    return np.ascontiguousarray(words).view(np.uint32)[LOW_HALF::2]


def _for_entries(rank: Array, where: Array, depth: Array) -> Array:
    """Ranks of scopes for entries: one for all, one a sample where all stacks are equally deep, else one an entry."""
    if len(rank) == 1:
        return np.asarray(rank[0])
    ranks: Array = rank[where]
    return ranks if int(depth.min()) == int(depth.max()) else np.repeat(ranks, depth)
