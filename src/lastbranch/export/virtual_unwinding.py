"""Branches replayed backwards from the call stack of each sample: which stack there was before each of them.

Undoing a call takes a frame from the stack, undoing a return adds one (llvm-profgen calls this virtual unwinding).
Stacks are nodes of a tree, each with the address of its last frame, so a stack is a number; what a step back does to a
stack is worked out once, then looked up.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .. import native
from ..arrays import Array, Ints, Table

if TYPE_CHECKING:
    from ctypes import CDLL

__all__ = ["ROOT", "Step", "Steps", "Unwinder", "Unwound", "new_unwinder"]

ROOT = 0
"""The stack without frames."""


class Step:
    """Bits of `Steps.how`, which the kernel knows as well. Flags of a range: it is the newest branch's range or lies
    outside; it counts; it cannot have been executed. The effect of a branch on the stack."""

    NO_RANGE, STRAIGHT, BROKEN = 0, 1, 2
    RANGE = 3
    CALL, RETURN, OTHER = 0, 4, 8


@dataclass(slots=True)
class Steps(Table):
    """Steps back: a branch and the range after it.

    ``how`` uint8 has the bits of `Step`; ``end`` of the range, ``source`` and ``target`` (the range's start) of the
    branch, and ``call``, the call that ends at the target, are uint64 addresses.
    """

    how: Array
    end: Array
    source: Array
    target: Array
    call: Array

    @classmethod
    def empty(cls) -> Steps:
        return cls(np.empty(0, np.uint8), *(np.empty(0, np.uint64) for _ in range(4)))

    def and_then(self, more: Steps) -> Steps:
        """These, then ``more``."""
        columns = zip(self.arrays().values(), more.arrays().values(), strict=True)
        return Steps(*(np.concatenate(pair) for pair in columns))


@dataclass(slots=True)
class Unwound:
    """The results, int64 but for ``address`` (uint64).

    ``parent`` and ``address`` are of stacks, whose parents come before them. Stack ``state[i] >> 1`` was seen
    ``times[i]`` times before the step ``step[i]`` was undone, and ``after[i] >> 1`` is what that led to. The lowest
    bit: the stack was lost, and only its last frame is known.
    """

    parent: Ints
    address: Array
    state: Ints
    step: Ints
    after: Ints
    times: Ints


class Unwinder(Protocol):
    """Replays the branches of samples, batch after batch."""

    def add(self, frame: Array, chains: Ints, step: Ints, ends: Ints, steps: Steps) -> None:
        """Take in samples. Sample ``i`` has the frames ``frame[chains[i]:chains[i + 1]]`` (uint64, leaf first, at least
        one), and ``step[ends[i]:ends[i + 1]]`` (int64, newest first), which are rows of ``steps``."""

    def rows(self) -> Unwound:
        """All stacks, and what was done to them."""


def new_unwinder() -> Unwinder:
    """The compiled form, or the other one without the library."""
    library = native.library()
    return PythonUnwinder() if library is None else CompiledUnwinder(library)


_DECLINED = -2


class CompiledUnwinder:
    """`Unwinder` by the compiled library."""

    def __init__(self, library: CDLL) -> None:
        self._library = library
        self._table = library.lb_unwinder_new(int.from_bytes(os.urandom(8)))
        if not self._table:
            raise MemoryError
        weakref.finalize(self, library.lb_unwinder_free, self._table)

    def add(self, frame: Array, chains: Ints, step: Ints, ends: Ints, steps: Steps) -> None:
        """As `Unwinder.add`."""
        given = [
            np.ascontiguousarray(frame, np.uint64),
            np.ascontiguousarray(chains, np.int64),
            np.ascontiguousarray(step, np.int64),
            np.ascontiguousarray(ends, np.int64),
        ]
        known = [np.ascontiguousarray(column) for column in (steps.how, steps.source, steps.call)]
        frames, bounds, rows, until = map(native.address, given)
        failed = self._library.lb_unwinder_add(
            self._table,
            frames,
            len(frame),
            bounds,
            rows,
            len(step),
            until,
            len(chains) - 1,
            *map(native.address, known),
            len(steps),
        )
        if failed == _DECLINED:
            raise ValueError("offsets or numbers of steps are out of range")
        if failed:
            raise MemoryError

    def rows(self) -> Unwound:
        """As `Unwinder.rows`."""
        nodes, events = self._library.lb_unwinder_nodes(self._table), self._library.lb_unwinder_events(self._table)
        found = Unwound(
            np.empty(nodes, np.int64), np.empty(nodes, np.uint64), *(np.empty(events, np.int64) for _ in range(4))
        )
        columns = found.parent, found.address, found.state, found.step, found.after, found.times
        self._library.lb_unwinder_rows(self._table, *map(native.address, columns))
        return found


class PythonUnwinder:
    """`Unwinder` by NumPy and dictionaries: the samples of a batch in step, each pair of a stack and a step once."""

    def __init__(self) -> None:
        self._parent, self._address = [ROOT], [0]
        self._children: dict[tuple[int, int], int] = {}
        self._after: dict[int, int] = {}
        self._times: Counter[int] = Counter()
        """Of each state and step: times 2**32 the state, plus the number of the step."""

    def add(self, frame: Array, chains: Ints, step: Ints, ends: Ints, steps: Steps) -> None:
        """As `Unwinder.add`: all samples frame by frame, then step by step."""
        addresses, place = np.unique(frame, return_inverse=True)
        depth = np.diff(chains)
        state = np.zeros(len(depth), np.int64)
        for k in range(int(depth.max(initial=0))):  # the outermost frame is the last one
            deep = np.flatnonzero(depth > k)
            keys, which = np.unique(state[deep] << 32 | place[chains[1:][deep] - 1 - k], return_inverse=True)
            found = [self._child(key >> 32, int(addresses[key & 0xFFFFFFFF])) for key in keys.tolist()]
            state[deep] = np.array(found, np.int64)[which]
        state <<= 1
        depth = np.diff(ends)
        for k in range(int(depth.max(initial=0))):
            deep = np.flatnonzero(depth > k)
            keys, which, number = np.unique(
                state[deep] << 32 | step[ends[:-1][deep] + k], return_inverse=True, return_counts=True
            )
            after = []
            for key, n in zip(keys.tolist(), number.tolist(), strict=True):
                self._times[key] += n
                if key not in self._after:
                    self._after[key] = self._before(key >> 32, steps, key & 0xFFFFFFFF)
                after.append(self._after[key])
            state[deep] = np.array(after, np.int64)[which]

    def _child(self, node: int, address: int) -> int:
        found = self._children.get((node, address))
        if found is None:
            found = self._children[node, address] = len(self._parent)
            self._parent.append(node)
            self._address.append(address)
        return found

    def _before(self, state: int, steps: Steps, step: int) -> int:
        """The state before a step."""
        how, source = int(steps.how[step]), int(steps.source[step])
        leaf, parent = state >> 1, self._parent[state >> 1]
        if state & 1 or how & Step.RANGE == Step.BROKEN:
            return self._child(ROOT, source) << 1 | 1
        does = how & ~Step.RANGE
        if does == Step.CALL and parent != ROOT and self._address[parent] == source:
            return parent << 1
        if does == Step.RETURN:
            leaf = self._child(parent, int(steps.call[step]))
            return self._child(leaf, source) << 1
        return self._child(parent, source) << 1

    def rows(self) -> Unwound:
        """As `Unwinder.rows`."""
        keys = np.array(list(self._times), np.int64)
        after = np.array([self._after[key] for key in self._times], np.int64)
        return Unwound(
            np.array(self._parent, np.int64),
            np.array(self._address, np.uint64),
            keys >> 32,
            keys & 0xFFFFFFFF,
            after,
            np.array(list(self._times.values()), np.int64),
        )
