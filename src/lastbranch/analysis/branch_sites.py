"""Branches by where they begin: how often each branch instruction was taken, how surely, and to how many targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Ints, Table, distinct_rows
from ..model import Array
from .count_tables import BranchTable

__all__ = ["SiteTable", "sites"]


@dataclass(slots=True)
class SiteTable(Table):
    """Distinct branch instructions, hottest first. Arrays of equal length.

    ``module`` int64 row of the modules table (-1 where nothing was mapped) and ``address`` uint64, as in `BranchTable`;
    ``count`` int64 entries; ``targets`` int64 distinct places that it went to; ``to_module``, ``to_address``: the
    target that it went to most often, ``to_count`` int64 times; ``mispredicted``, ``predicted`` int64 (both 0: the
    processor did not report it); ``cycles`` int64 sum over the ``timed`` entries; ``type`` int64 code of
    `lbr.branch_type` and ``process`` int64 row of the processes table, -1 where entries disagree.
    """

    module: Array
    address: Array
    count: Array
    targets: Array
    to_module: Array
    to_address: Array
    to_count: Array
    mispredicted: Array
    predicted: Array
    cycles: Array
    timed: Array
    type: Array
    process: Array


def sites(table: BranchTable) -> SiteTable:
    """The branches of ``table``, which is hottest first, summed over their targets; without entries that recorded
    nothing."""
    table = table.take(table.recorded)
    first, which = distinct_rows(table.from_module, table.from_address)  # the first row has the most frequent target

    def total(column: Array) -> Ints:
        out = np.zeros(len(first), np.int64)
        np.add.at(out, which, column)
        return out

    def common(column: Array) -> Array:
        differs = total(column != column[first][which]) > 0
        return np.where(differs, -1, column[first])

    found = SiteTable(
        module=table.from_module[first], address=table.from_address[first], count=total(table.count),
        targets=np.bincount(which, minlength=len(first)), to_module=table.to_module[first],
        to_address=table.to_address[first], to_count=table.count[first], mispredicted=total(table.mispredicted),
        predicted=total(table.predicted), cycles=total(table.cycles), timed=total(table.timed),
        type=common(table.type), process=common(table.process),
    )  # fmt: skip
    return found.take(np.argsort(-found.count, kind="stable"))
