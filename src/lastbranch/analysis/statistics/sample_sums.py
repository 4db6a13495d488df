"""Branches with sums over samples: what is kept of them where the samples themselves are not.

They add up over captures, and with the sums of squares the test of `significance` needs no samples any more.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from ... import native
from ...arrays import Ints, Table, group, group_unordered
from ...model import Array, SampleBatch
from ..counting.bound_pairs import cycles_of, outcomes_of
from ..counting.count_stacks import entry_places
from ..counting.early_pass import Spaces
from .significance import Totals

if TYPE_CHECKING:
    from ctypes import CDLL

__all__ = ["BranchSums", "SampleSums", "SummedBranches", "SummedThings"]

_SHRINK_ROWS = 1 << 19
"""Rows that wait to be merged."""


@dataclass(slots=True)
class SummedBranches(Table):
    """Distinct branches of a capture. Equal-length arrays.

    ``a_module``/``b_module`` int64 rows of the modules table or -1, ``a``/``b`` uint64 module addresses, as in
    `bound_pairs.Bound`; all others int64: ``count`` entries, of which ``mispredicted`` and ``predicted``; ``cycles``
    over the ``timed`` ones; ``samples`` with the thing, and over these samples the sums of the square of its entries
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
class SummedThings(Table):
    """Distinct branches, or addresses of samples, with sums over the samples of a side. Equal-length arrays.

    ``a_module``/``a`` and, of branches, ``b_module``/``b`` as in `SummedBranches`; ``present`` int64, and the sums
    ``present_for``, ``part``, ``part_squared`` and ``part_weight`` float64, as in `significance.Clusters`.
    """

    a_module: Array
    a: Array
    b_module: Array
    b: Array
    present: Array
    present_for: Array
    part: Array
    part_squared: Array
    part_weight: Array


@dataclass(slots=True)
class SampleSums:
    """All that is kept of the samples of an event: what `comparison.compare_sums` needs. For branches, ``stacks`` are
    the totals of samples with branch entries."""

    branches: SummedThings
    stacks: Totals
    addresses: SummedThings
    samples: Totals


_KEYS = 4
_VALUES = len(fields(SummedBranches)) - _KEYS


class BranchSums:
    """Sums the branches of batches whose samples are all of one event."""

    def __init__(self, binder: Spaces) -> None:
        self._binder = binder
        self._parts: list[list[Array]] = []
        self._rows = 0
        self._kernel = _NativeSums.available()

    def add(self, batch: SampleBatch) -> None:
        """Add a batch that has the columns of branch entries."""
        if not batch.entries:
            return
        scope = self._binder.scopes(batch)
        if self._kernel is None:
            self._keep(_sum_batch(scope, batch))
        elif self._kernel.add(scope, batch) > _SHRINK_ROWS:
            self._keep(self._kernel.take())

    def _keep(self, part: list[Array]) -> None:
        self._parts.append(part)
        self._rows += len(part[0])
        if self._rows > max(_SHRINK_ROWS, 2 * len(self._parts[0][0])):
            self._merge()

    def _merge(self) -> list[Array]:
        """Make one part of all parts."""
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        keys, sums = group_unordered(columns[:3], columns[3:], [np.add] * _VALUES)
        self._parts, self._rows = [[*keys, *sums]], 0
        return self._parts[0]

    @property
    def rows(self) -> int:
        """Rows that it has in memory, some of them of the same branches."""
        return sum(len(part[0]) for part in self._parts) + (self._kernel.rows if self._kernel is not None else 0)

    def _finish(self) -> None:
        """Bring all that was added to the parts."""
        if self._kernel is not None and self._kernel.rows:
            self._keep(self._kernel.take())

    def pour(self, other: BranchSums, scope: Ints) -> None:
        """Add these sums to ``other``, under ``scope`` of each scope here; scopes with -1 are left out."""
        self._finish()
        for owner, *columns in self._parts:
            into = scope[owner]
            kept = into >= 0
            other._keep([into[kept], *(column[kept] for column in columns)])

    def result(self) -> SummedBranches:
        """All that was added, by modules and addresses."""
        self._finish()
        if not self._parts:
            kinds = [np.int64, np.uint64, np.int64, np.uint64, *[np.int64] * _VALUES]
            return SummedBranches(*(np.empty(0, kind) for kind in kinds))
        scope, a, b, *sums = self._merge()
        keys = [*self._binder.locate(scope, a), *self._binder.locate(scope, b)]
        keys, sums = group(keys, sums, [np.add] * _VALUES)
        return SummedBranches(*keys, *sums)


def _sum_batch(scope: Array, batch: SampleBatch) -> list[Array]:
    """Scope, source and target of the distinct branches of a batch, and their sums."""
    depth = batch.depth
    sample, flags = np.repeat(np.arange(len(depth)), depth), batch["branch_flags"]
    values = [np.ones(len(sample), np.int64), *outcomes_of(flags), *cycles_of(flags)]
    keys = [sample, batch["branch_from"], batch["branch_to"]]
    (sample, a, b), sums = group_unordered(keys, values, [np.add] * len(values))
    count = sums[0]
    sums += [np.ones(len(count), np.int64), count * count, count * depth[sample]]
    keys, sums = group_unordered([scope[sample], a, b], sums, [np.add] * _VALUES)
    return [*keys, *sums]


class _NativeSums:
    """`_sum_batch` of batch after batch, by the compiled library (``native/sample_sums.c``)."""

    def __init__(self, library: CDLL) -> None:
        self._library, self.rows = library, 0
        self._sums = library.lb_branch_sums_new(int.from_bytes(os.urandom(8)))
        if not self._sums:
            raise MemoryError
        weakref.finalize(self, library.lb_branch_sums_free, self._sums)

    @classmethod
    def available(cls) -> _NativeSums | None:
        """Nothing yet, or ``None`` without the library."""
        library = native.library()
        return None if library is None else cls(library)

    def add(self, scope: Array, batch: SampleBatch) -> int:
        """Add a batch; how many rows there are now."""
        (first, columns), depth = entry_places(batch), batch.depth
        given = map(native.address, (scope := np.ascontiguousarray(scope, np.int64), first, depth))
        self.rows = self._library.lb_branch_sums_add(self._sums, *given, len(scope), *columns)
        if self.rows < 0:
            raise MemoryError
        return self.rows

    def take(self) -> list[Array]:
        """The rows, in no order; there are none after that."""
        scope, (a, b) = np.empty(self.rows, np.int64), np.empty((2, self.rows), np.uint64)
        values = np.empty((_VALUES, self.rows), np.int64)
        self._library.lb_branch_sums_take(self._sums, *map(native.address, (scope, a, b, values)))
        self.rows = 0
        return [scope, a, b, *values]
