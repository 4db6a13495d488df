"""Branches with sums over samples: what is kept of them where the samples themselves are not.

They add up over captures, and with the sums of squares the test of `significance` needs no samples any more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

import numpy as np

from .. import native
from ..arrays import Table, group, group_unordered
from ..model import BRANCH, ENTRY, AddressSpaces, Array, SampleBatch
from .counting import Sampled, cycles_of

__all__ = ["BranchSums", "SampleSums", "SummedBranches"]

_SHRINK_ROWS = 1 << 19
"""Rows that wait to be merged."""


@dataclass(slots=True)
class SummedBranches(Table):
    """Distinct branches of a capture. Equal-length arrays.

    ``a_module``/``b_module`` int64 rows of the modules table or -1, ``a``/``b`` uint64 module addresses, as in
    `counting.Bound`; all others int64: ``count`` entries, of which ``mispredicted`` and ``predicted``; ``cycles``
    over the ``timed`` ones; ``samples`` that have it, and over these the sums of the square of its entries
    (``squares``) and of its entries times all entries of the sample (``crossed``).
    """

    a_module: Array
    a: Array
    b_module: Array
    b: Array
    count: Array
    mispredicted: Array
    predicted: Array
    cycles: Array
    timed: Array
    samples: Array
    squares: Array
    crossed: Array


@dataclass(slots=True)
class SampleSums:
    """All that is kept of the samples of an event: what `comparison.compare_sums` needs.

    ``stacks`` samples have branch entries, ``entries`` in all; ``entries_squared`` is the sum of the squares of theirs.
    """

    branches: SummedBranches
    sampled: Sampled
    stacks: int
    entries: int
    entries_squared: int


_KEYS = 4
_VALUES = len(fields(SummedBranches)) - _KEYS


class BranchSums:
    """Sums the branches of the batches that it is given, whose samples are all of one event."""

    def __init__(self, binder: AddressSpaces) -> None:
        self._binder = binder
        self._parts: list[list[Array]] = []
        self._rows = 0

    def add(self, batch: SampleBatch) -> None:
        """Add a batch that has the columns of branch entries."""
        offsets = batch.offsets[BRANCH]
        if not offsets[-1]:
            return
        scope = self._binder.scopes(batch)
        found = _summed_compiled(scope, batch)
        self._parts.append(_summed(scope, batch) if found is None else found)
        self._rows += len(self._parts[-1][0])
        if self._rows > max(_SHRINK_ROWS, 2 * len(self._parts[0][0])):
            self._merge()

    def _merge(self) -> list[Array]:
        """Make one part of all parts."""
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        keys, sums = group_unordered(columns[:3], columns[3:], [np.add] * _VALUES)
        self._parts, self._rows = [[*keys, *sums]], 0
        return self._parts[0]

    def result(self) -> SummedBranches:
        """All that was added, by modules and addresses."""
        if not self._parts:
            kinds = [np.int64, np.uint64, np.int64, np.uint64, *[np.int64] * _VALUES]
            return SummedBranches(*(np.empty(0, kind) for kind in kinds))
        scope, a, b, *sums = self._merge()
        keys = [*self._binder.locate(scope, a), *self._binder.locate(scope, b)]
        keys, sums = group(keys, sums, [np.add] * _VALUES)
        return SummedBranches(*keys, *sums)


def _summed(scope: Array, batch: SampleBatch) -> list[Array]:
    """Scope, source and target of the distinct branches of a batch, and their sums."""
    depth = batch.depth
    sample, flags = np.repeat(np.arange(len(depth)), depth), batch["branch_flags"]
    values = [np.ones(len(sample), np.int64), *_outcome(flags), *cycles_of(flags)]
    keys = [sample, batch["branch_from"], batch["branch_to"]]
    (sample, a, b), sums = group_unordered(keys, values, [np.add] * len(values))
    count = sums[0]
    sums += [np.ones(len(count), np.int64), count * count, count * depth[sample]]
    keys, sums = group_unordered([scope[sample], a, b], sums, [np.add] * _VALUES)
    return [*keys, *sums]


_WORDS = 3 + _VALUES + 2
"""Of a row of ``native/sample_sums.c``."""


def _summed_compiled(scope: Array, batch: SampleBatch) -> list[Array] | None:
    """`_summed` by the compiled library; ``None`` without it."""
    library = native.library()
    if library is None:
        return None
    scope, offsets = np.ascontiguousarray(scope, np.int64), np.ascontiguousarray(batch.offsets[BRANCH], np.int64)
    entries = int(offsets[-1])
    slots, rows = np.zeros(1 << (entries.bit_length() + 1), np.uint32), np.empty((entries, _WORDS), np.uint64)
    columns = [batch[name] for name in ENTRY]
    strided = [word for column in columns for word in (native.address(column), column.strides[0])]
    found = library.lb_sample_sums(
        native.address(scope), native.address(offsets), len(scope), *strided, int.from_bytes(os.urandom(8)),
        native.address(slots), len(slots), native.address(rows),
    )  # fmt: skip
    owner, a, b, *sums = (np.ascontiguousarray(rows[:found, i]) for i in range(3 + _VALUES))
    return [owner.view(np.int64), a, b, *(column.view(np.int64) for column in sums)]


def _outcome(flags: Array) -> list[Array]:
    """Columns ``mispredicted`` and ``predicted`` of each entry."""
    flags = flags.astype(np.int64)
    return [flags & 1, flags >> 1 & 1]
