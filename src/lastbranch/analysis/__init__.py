"""Counts: branches, fall-through ranges, and weights by process, thread or module."""

from .counting import Bound, Counted, count_stacks, how_to_record, why_no_ranges, why_no_stacks
from .tables import (
    BranchTable,
    Key,
    RangeTable,
    WeightTable,
    branches,
    merge_processes,
    ranges,
    weights,
    without_binary,
)

__all__ = [
    "Bound",
    "BranchTable",
    "Counted",
    "Key",
    "RangeTable",
    "WeightTable",
    "branches",
    "count_stacks",
    "how_to_record",
    "merge_processes",
    "ranges",
    "weights",
    "why_no_ranges",
    "why_no_stacks",
    "without_binary",
]
