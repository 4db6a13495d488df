"""Types of branch entries, and call stacks rebuilt from them, by the compiled library (``native/branch_kinds.c``,
``call_stacks.c``).

`branch_kinds.BranchKinds` and `stacks.StackMaker` without it are their oracles.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..lbr import ACTIONS, KIND
from ..model import Array

if TYPE_CHECKING:
    from ctypes import CDLL

__all__ = ["NativeSites", "rebuilt_stacks"]

_DECLINED = -1


class NativeSites:
    """What is known of the branches at each source address of a scope: 1 + type, 255 where it depends on the target."""

    def __init__(self, library: CDLL) -> None:
        self._library = library
        self._sites = library.lb_sites_new(int.from_bytes(os.urandom(8)))
        if not self._sites:
            raise MemoryError
        weakref.finalize(self, library.lb_sites_free, self._sites)

    @classmethod
    def available(cls) -> NativeSites | None:
        """An empty table, or ``None`` without the library."""
        library = native.library()
        return None if library is None else cls(library)

    def kinds(
        self, scope: NDArray[np.int64], offsets: NDArray[np.int64], source: Array, flags: Array,
        find: Callable[[Array, Array], NDArray[np.uint8]],
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | None:  # fmt: skip
        """(uint8 type of each entry, int64 entries whose type depends on their target: theirs is 0).

        Stacks ``offsets`` (int64) of ``source`` and ``flags`` (uint64, any stride); ``scope`` (int64) has the owner of
        each. ``find`` gets scopes and sources that are new and gives what is to be known of them. ``None`` for scopes
        that the kernel does not take.
        """
        scope, offsets = np.ascontiguousarray(scope, np.int64), np.ascontiguousarray(offsets, np.int64)
        kind, fresh, pending = np.empty(len(source), np.uint8), np.empty(len(source), np.int64), np.zeros(1, np.int64)
        stacks = native.address(scope), native.address(offsets), len(scope), native.address(source), source.strides[0]
        out = map(native.address, (kind, fresh, pending))
        new = self._library.lb_sites_kinds(self._sites, *stacks, native.address(flags), flags.strides[0], *out)
        if new < _DECLINED:
            raise MemoryError
        if new == _DECLINED:
            return None
        if new:
            first = fresh[:new]
            owner, address = scope[np.searchsorted(offsets, first, side="right") - 1], source[first]
            columns = owner, address, find(owner, address)
            self._library.lb_sites_learn(self._sites, *map(native.address, columns), new)
        hidden = np.empty(pending[0], np.int64)
        if len(hidden):
            out = map(native.address, (kind, hidden))
            hidden = hidden[: self._library.lb_sites_resolve(self._sites, *stacks, *out)]
        return kind, hidden


def rebuilt_stacks(
    ip: NDArray[np.uint64], source: Array, target: Array, kind: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]] | None:
    """The frames of samples and their offsets, leaf first: ``ip`` (of the newest entry where it is 0), then the sources
    of `lbr.open_calls`. ``None`` without the library. ``kind`` is overwritten."""
    library = native.library()
    if library is None:
        return None
    ip, offsets = np.ascontiguousarray(ip, np.uint64), np.ascontiguousarray(offsets, np.int64)
    frame, bounds = np.empty(len(source) + len(ip), np.uint64), np.empty(len(ip) + 1, np.int64)
    entries = [word for c in (source, target) for word in (native.address(c), c.strides[0])]
    given = native.address(ip), native.address(offsets), len(ip), *entries
    found = library.lb_call_stacks(
        *given, *map(native.address, (kind, ACTIONS)), KIND["call"], *map(native.address, (frame, bounds))
    )
    return frame[:found].copy(), bounds
