"""Where the indirect jumps and calls of a function went: a matrix of branches and targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Table, distinct_rows
from ..model import Array
from .branch_kinds import kinds_table
from .flow import Flow

__all__ = ["IndirectTargets", "indirect_targets"]

_INDIRECT = kinds_table("ind", "ind_call")


@dataclass(slots=True)
class IndirectTargets(Table):
    """The cells of the matrix that are not empty; equal-length arrays. Branches with the most entries come first, of
    each the target that it went to most often.

    ``edge`` int64: row of the edges of the function, which has the ends, ``count`` and predictions. ``site`` int64: row
    of the branch among the instructions. ``share`` float64: of the entries of the branch. ``column`` int64: number of
    the target, from 0 for the one that all branches together went to most often.
    """

    edge: Array
    site: Array
    share: Array
    column: Array


def indirect_targets(flow: Flow) -> IndirectTargets:
    """The targets of the indirect branches of ``flow`` that were seen to be taken."""
    edges = flow.edges
    edge = np.flatnonzero(edges.source >= 0)
    edge = edge[_INDIRECT[flow.kind[edges.source[edge]]]]
    site, count = edges.source[edge], edges.count[edge]
    of_site = np.bincount(site, count, len(flow))[site]
    rows, target = distinct_rows(edges.to_module[edge], edges.to_address[edge])
    rank = np.empty(len(rows), np.int64)
    rank[np.argsort(-np.bincount(target, count, len(rows)), kind="stable")] = np.arange(len(rows))
    order = np.lexsort((-count, site, -of_site))
    return IndirectTargets(edge, site, count / of_site, rank[target]).take(order)
