"""``--to bolt``: BOLT's pre-aggregated profile, for ``perf2bolt -pa``.

``B from to count mispredicted`` for each branch, ``F start end count`` for each range (a fall-through), ``f`` for one
that a return led into; hexadecimal link addresses, 0 for an end outside the module (bolt/docs, and
DataAggregator.cpp).

BOLT adds the edge from a call to the block after the call for ranges of kind ``f`` only. Counts do not say which branch
led into a range: where returns and other branches arrive at one address, the ranges from there are divided as these
are.

Ranges within the procedure linkage table are left out. BOLT has no control flow of these stubs. It sees no fall-through
in a stub, and perf2bolt 19 counts each range in a stub as a contradiction of the binary. Branches to and from stubs
stay.
"""

from __future__ import annotations

from typing import IO

import numpy as np

from ..analysis.counting.branch_kinds import CodeOf
from ..analysis.counting.executed import row_of
from ..arrays import group
from ..binaries.image import Image
from ..lbr import KIND
from ..model import Array
from ..opening import code_of
from .interface import ExportOptions, ExportResult, write_lines
from .modules import ModuleCounts, ModuleFormat

__all__ = ["FORMAT", "in_stubs", "times_after_return"]


def write(counts: ModuleCounts, out: IO[bytes], _options: ExportOptions) -> ExportResult:
    """Write the counts of a module."""
    source = np.where(counts.from_here, counts.source, np.uint64(0))
    target = np.where(counts.to_here, counts.target, np.uint64(0))
    (source, target), (taken, mispredicted) = group(
        [source, target], [counts.taken, counts.mispredicted], [np.add, np.add]
    )
    write_lines(out, b"B %x %x %d %d\n", source, target, taken, mispredicted)
    code = code_of(counts.module)
    kept = ~in_stubs(code.image, counts.start) if code else np.ones(len(counts.start), bool)
    start, end, times = counts.start[kept], counts.end[kept], counts.times[kept]
    back = times_after_return(counts, start, times)
    for kind, n in (b"F", times - back), (b"f", back):
        some = n > 0
        write_lines(out, kind + b" %x %x %d\n", start[some], end[some], n[some])
    return counts.exported([])


def times_after_return(counts: ModuleCounts, start: Array, times: Array) -> Array:
    """int64: how many ``times`` the ranges from each ``start`` followed a return; those from elsewhere are returns."""
    kind = CodeOf(counts.profile).kinds(np.where(counts.from_here, counts.row, -1), counts.source)
    by_return = counts.to_here & ((kind == KIND["ret"]) | ~counts.from_here)
    (target,), (all_ways, returns) = group(
        [counts.target[counts.to_here]],
        [counts.taken[counts.to_here], np.where(by_return, counts.taken, 0)[counts.to_here]],
        [np.add, np.add],
    )
    row = row_of(target, start)
    share = (returns / np.maximum(all_ways, 1))[row] if len(target) else np.zeros(len(row))
    return np.where(row >= 0, np.rint(times * share), 0).astype(np.int64)


def in_stubs(image: Image, address: Array) -> Array:
    """Which addresses are in the procedure linkage table."""
    found = np.zeros(len(address), bool)
    for section in image.linkage_stubs:
        found |= (address >= np.uint64(section.vaddr)) & (address - np.uint64(section.vaddr) < section.size)
    return found


FORMAT = ModuleFormat("preagg.txt", write, relocatable=False)
