"""Pairs of addresses that are bound to modules: the rows that counts of branches and of ranges are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...arrays import StackSums, Table, group, group_unordered
from ...lbr import flag
from ...model import Array
from .early_pass import Spaces
from .pair_counter import RawPairs

__all__ = ["BRANCH_VALUES", "NO_PAIRS", "BoundPairs", "BoundColumns", "PairTable", "cycles_of", "outcomes_of"]

BRANCH_VALUES: dict[str, np.ufunc] = {
    "cycles": np.add,
    "timed": np.add,
    "in_tx": np.add,
    "abort": np.add,
    "type_low": np.minimum,
    "type_high": np.maximum,
}
"""The values of each branch beside its count, and how values combine."""

_SHRINK_ROWS = 1 << 17


@dataclass(slots=True)
class BoundPairs(Table):
    """Distinct pairs of bound addresses; equal-length arrays.

    ``process`` int64 row or -1; ``a_module``/``b_module`` int64 row or -1; ``a``/``b`` uint64 module addresses;
    ``count``, ``mispredicted``, ``predicted`` int64; ``values`` int64 by name of `BRANCH_VALUES`, on request.
    """

    process: Array
    a_module: Array
    a: Array
    b_module: Array
    b: Array
    count: Array
    mispredicted: Array
    predicted: Array
    values: dict[str, Array] = field(default_factory=dict)

    def take(self, rows: Array | slice) -> BoundPairs:
        """The rows of a bool mask, or of indices in the wanted order."""
        if isinstance(rows, np.ndarray) and rows.dtype == bool and rows.all():
            return self
        return replace(super(BoundPairs, self).take(rows), values={name: v[rows] for name, v in self.values.items()})


BoundColumns = tuple[list[Array], list[Array]]
"""The columns of `BoundPairs`: keys, and values."""

_NONE, _NOWHERE = np.empty(0, np.int64), np.empty(0, np.uint64)
NO_PAIRS = BoundPairs(_NONE, _NONE, _NOWHERE, _NONE, _NOWHERE, _NONE, _NONE, _NONE)


class PairTable:
    """Collects raw pairs, binds many pairs at once and keeps one row for each bound pair: a row a process, or, without
    ``by_process``, a row for all processes together. A thousand captures then have a thousandth of the rows."""

    def __init__(self, binder: Spaces, names: tuple[str, ...] = (), *, by_process: bool = True) -> None:
        self._binder, self._names, self._by_process = binder, names, by_process
        self._ops = [np.add] * 3 + [BRANCH_VALUES[n] for n in names]
        self._each = StackSums(1, len(self._ops))
        self._bound_ops = self._ops if by_process else [*self._ops, np.minimum, np.maximum]
        """The operations of the columns of bound rows; the lowest and the highest process are last if the process is no
        key."""
        self._waiting: list[tuple[Array, Array, Array, list[Array]]] = []
        self._keys: list[list[Array]] = []
        self._values: list[list[Array]] = []
        self._rows = self._waiting_rows = 0

    def add(self, raw: RawPairs) -> None:
        scope, a, b, tag, (count, *values) = raw
        self.add_sums(scope, a, b, [count, count * (tag & 1), count * (tag >> 1), *values])

    def add_each(self, scope: Array, a: Array, b: Array, tag: Array, values: list[Array]) -> None:
        """Add one pair a row, of which many are equal; uint64 ``tag``: bit 0 mispredicted, bit 1 predicted. The values
        (int64) must be sums."""
        ones = np.ones(len(scope), np.int64)
        ends = np.stack([a, b], axis=1).reshape(-1)
        self._each.add([scope], ends, np.arange(0, len(ends) + 1, 2), [ones, *outcomes_of(tag), *values])
        if self._each.size > 3 * _SHRINK_ROWS:  # a row and two ends each
            self._sum_each()

    def _sum_each(self) -> None:
        (scope,), ends, _, sums = self._each.take()
        a, b = ends.reshape(-1, 2).T
        self.add_sums(scope, a, b, list(sums))

    def add_sums(self, scope: Array, a: Array, b: Array, sums: list[Array]) -> None:
        """Add pairs with their count, mispredicted, predicted (int64) and values; the same pair may come again."""
        self._waiting.append((scope, a, b, sums))
        self._waiting_rows += len(scope)
        if self._waiting_rows > _SHRINK_ROWS:
            self._bind()

    def _bind_waiting(self) -> BoundColumns:
        """(keys, values) of the waiting pairs, bound; equal pairs are several rows."""
        *columns, waiting = zip(*self._waiting, strict=True)
        scope, a, b = map(_join_parts, columns)
        sums = [*map(_join_parts, zip(*waiting, strict=True))]
        self._waiting, self._waiting_rows = [], 0
        weight = self._binder.weights_of(scope)
        sums = [c * weight if op is np.add else c for c, op in zip(sums, self._ops, strict=True)]
        a_module, a = self._binder.locate(scope, a)
        b_module, b = self._binder.locate(scope, b)
        process, keys = self._binder.process_of(scope), [a_module, a, b_module, b]
        if self._by_process:
            keys.insert(0, process)
        else:
            sums += [process, process]
        return keys, sums

    def _bind(self) -> None:
        """Bind the waiting pairs, if any."""
        if not self._waiting_rows:
            return
        keys, sums = group_unordered(*self._bind_waiting(), self._bound_ops)
        self._keys.append(keys)
        self._values.append(sums)
        self._rows += len(keys[0])
        if self._rows > max(_SHRINK_ROWS, len(self._keys[0][0]) // 2):
            self._merge()
            self._rows = 0  # the limit is for pairs added from here on

    def _merge(self) -> None:
        """Make one part of all parts."""
        if len(self._keys) == 1:  # whose rows are distinct
            return
        keys = [np.concatenate(part) for part in zip(*self._keys, strict=True)]
        self._keys.clear()
        values = (np.concatenate(part) for part in zip(*self._values, strict=True))
        keys, sums = group_unordered(keys, values, self._bound_ops)
        self._keys, self._values = [keys], [sums]

    def take(self) -> Iterator[tuple[Array, Array, Array, list[Array]]]:
        """The added pairs, as `add_sums` takes them; for a binder whose processes are scopes and whose addresses are
        bound to themselves."""
        self._sum_each()
        yield from self._waiting
        for (process, _, a, _, b), sums in zip(self._keys, self._values, strict=True):
            yield process, a, b, sums

    def take_bound(self) -> Iterator[BoundColumns]:
        """(keys, values) of all added pairs, bound, in parts; no pair is left. Equal pairs may be several rows."""
        self._sum_each()
        parts = list(zip(self._keys, self._values, strict=True))
        if self._waiting_rows:
            parts.append(self._bind_waiting())
        self._keys, self._values, self._rows = [], [], 0
        yield from parts

    @property
    def bound(self) -> int:
        """Rows of the bound pairs."""
        return sum(len(keys[0]) for keys in self._keys)

    def result(self) -> BoundPairs:
        self._sum_each()
        self._bind()
        if not self._keys:
            none = np.empty(0, np.int64)
            address = np.empty(0, np.uint64)
            return BoundPairs(none, none, address, none, address, none, none, none, dict.fromkeys(self._names, none))
        if len(self._keys) > 1:
            self._merge()
        keys, (count, mispredicted, predicted, *values) = group(self._keys[0], self._values[0], self._bound_ops)
        if not self._by_process:
            *values, low, high = values
            keys = [np.where(low == high, low, -1), *keys]
        process, a_module, a, b_module, b = keys
        named = dict(zip(self._names, values, strict=True))
        return BoundPairs(process, a_module, a, b_module, b, count, mispredicted, predicted, named)


def _join_parts(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def outcomes_of(flags: NDArray[np.uint64]) -> list[Array]:
    """int64 columns ``mispredicted`` and ``predicted`` of each entry."""
    bits = flags.astype(np.int64)
    return [bits & 1, bits >> 1 & 1]


def cycles_of(flags: NDArray[np.uint64]) -> list[Array]:
    """The columns ``cycles`` and ``timed`` of `BRANCH_VALUES` for each entry."""
    cycles = flag(flags, "cycles").view(np.int64)
    return [cycles, (cycles != 0).astype(np.int64)]
