"""Operations on NumPy columns that NumPy lacks: ragged columns, and rows with equal keys made one."""

from .grouping import distinct, distinct_stacks, group, group_unordered
from .ragged import (
    Array,
    Ints,
    bisect_within,
    in_groups,
    insertion_points,
    interval_of,
    offsets_of,
    positions,
    ranges,
    take_ranges,
    take_rows,
    unaligned,
)

__all__ = [
    "Array", "Ints", "bisect_within", "distinct", "distinct_stacks", "group", "group_unordered", "in_groups",
    "insertion_points", "interval_of", "offsets_of", "positions", "ranges", "take_ranges", "take_rows", "unaligned",
]  # fmt: skip
