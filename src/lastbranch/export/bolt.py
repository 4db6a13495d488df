"""``--to bolt``: BOLT's pre-aggregated profile, for ``perf2bolt -pa``.

``B from to count mispredicted`` for each branch, ``F start end count`` for each range (a fall-through); hexadecimal
link addresses, 0 for an end outside the module (bolt/docs, and DataAggregator.cpp).

Ranges within the procedure linkage table are left out. BOLT has no control flow of these stubs, so nothing in them is a
fall-through to it, and perf2bolt 19 counts each as one that contradicts the binary. Branches to and from stubs stay.
"""

from __future__ import annotations

from typing import IO

import numpy as np

from ..arrays import group
from ..model import Array
from ..opening import code_of
from .interface import Exported, ExportOptions, write_lines
from .modules import ModuleCounts, ModuleFormat

__all__ = ["FORMAT"]


def write(counts: ModuleCounts, out: IO[bytes], _options: ExportOptions) -> Exported:
    """Write the counts of a module."""
    source = np.where(counts.from_here, counts.source, np.uint64(0))
    target = np.where(counts.to_here, counts.target, np.uint64(0))
    (source, target), (taken, mispredicted) = group(
        [source, target], [counts.taken, counts.mispredicted], [np.add, np.add]
    )
    write_lines(out, b"B %x %x %d %d\n", source, target, taken, mispredicted)
    kept = ~_in_stubs(counts)
    write_lines(out, b"F %x %x %d\n", counts.start[kept], counts.end[kept], counts.times[kept])
    return counts.exported([])


def _in_stubs(counts: ModuleCounts) -> Array:
    """Which ranges begin in the procedure linkage table."""
    code = code_of(counts.module)
    found = np.zeros(len(counts.start), bool)
    for section in code.image.linkage_stubs if code else ():
        found |= (counts.start >= np.uint64(section.vaddr)) & (counts.start - np.uint64(section.vaddr) < section.size)
    return found


FORMAT = ModuleFormat("preagg.txt", write)
