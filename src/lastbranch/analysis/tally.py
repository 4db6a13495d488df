"""Counting stacks of addresses: as they were recorded first, bound and named when few are left."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..bind import binder_of
from ..model import Array, Profile
from .same import distinct_stacks, taken

__all__ = ["Tallied", "Tally"]

_FRAMES = 1 << 20
_STACKS = 1 << 18
"""So many are collected before equal ones are made one."""


class Tallied(NamedTuple):
    """Distinct stacks, the heaviest first; columns as `stacks.CallStacks` describes them."""

    event: Array
    process: Array
    samples: Array
    period: Array
    offsets: Array
    frame: Array
    module: Array
    address: Array


class _Part(NamedTuple):
    """Stacks by event and owner (a scope before they are bound, a process after), with samples and periods."""

    event: Array
    owner: Array
    samples: Array
    period: Array
    frame: Array
    offsets: Array


class Tally:
    """Counts equal stacks of addresses by event and process."""

    def __init__(self, profile: Profile) -> None:
        self._profile, self._binder = profile, binder_of(profile)
        self._frames: dict[tuple[int, int], int] = {}
        self._fresh: list[_Part] = []
        self._bound: list[_Part] = []
        self._waiting = self._kept = self._merged = 0

    def add(self, event: Array, scope: Array, period: Array, frame: Array, offsets: Array) -> None:
        """Count a stack for each sample: uint64 ``frame``, ragged by int64 ``offsets``; ``scope`` as `bind.Binder`
        gives it, uint64 ``period``."""
        self._fresh.append(_Part(event.astype(np.int64), scope, np.ones(len(event), np.int64), period, frame, offsets))
        self._waiting += len(frame) + len(event)
        if self._waiting > _FRAMES:
            self._bind()

    def result(self) -> Tallied:
        """The stacks that were counted."""
        self._bind()
        event, process, samples, period, frame, offsets = _one_of_each(_joined(self._bound))
        order = np.lexsort((process, event, -samples))  # and then as they were first seen
        numbers, bounds = taken(frame, offsets, order)
        module, address = zip(*self._frames, strict=True) if self._frames else ((), ())
        return Tallied(
            event[order], process[order], samples[order], period[order], bounds, numbers.astype(np.int64),
            np.array(module, np.int64), np.array(address, np.uint64),
        )  # fmt: skip

    def _bind(self) -> None:
        if not self._fresh:
            return
        event, scope, samples, period, frame, offsets = _one_of_each(_joined(self._fresh))
        self._fresh, self._waiting = [], 0
        numbers = self._numbers(*self._binder.locate(np.repeat(scope, np.diff(offsets)), frame))
        self._bound.append(_Part(event, self._binder.process_of(scope), samples, period, numbers, offsets))
        self._kept += len(event)
        if self._kept > _STACKS + 2 * self._merged:  # merging costs less than what has come since
            self._bound = [_one_of_each(_joined(self._bound))]
            self._kept = self._merged = len(self._bound[0].event)

    def _numbers(self, module: Array, address: Array) -> NDArray[np.int32]:
        """The number of each frame, the same wherever it occurs."""
        distinct, place = np.unique(address, return_inverse=True)
        width = len(self._profile.modules) + 1
        pairs, back = np.unique(place.reshape(-1) * width + module + 1, return_inverse=True)
        places, modules = np.divmod(pairs, width)
        keys = zip((modules - 1).tolist(), distinct[places].tolist(), strict=True)
        numbers = [self._frames.setdefault(key, len(self._frames)) for key in keys]
        return np.array(numbers, np.int32)[back.reshape(-1)]


def _joined(parts: list[_Part]) -> _Part:
    """One part of all."""
    if not parts:
        none = np.empty(0, np.int64)
        return _Part(none, none, none, none.astype(np.uint64), none, np.zeros(1, np.int64))
    *columns, offsets = zip(*parts, strict=True)
    sizes = np.concatenate([np.diff(o) for o in offsets])
    event, owner, samples, period, frame = map(np.concatenate, columns)
    return _Part(event, owner, samples, period, frame, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def _one_of_each(part: _Part) -> _Part:
    """Equal stacks made one, in the order of their first ones."""
    rows, which = distinct_stacks([part.event, part.owner], part.frame, part.offsets)
    samples, period = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint64)
    np.add.at(samples, which, part.samples)
    np.add.at(period, which, part.period)
    return _Part(part.event[rows], part.owner[rows], samples, period, *taken(part.frame, part.offsets, rows))
