"""``--to bolt``: BOLT's pre-aggregated profile, for ``perf2bolt -pa``.

``B from to count mispredicted`` for each branch, ``F start end count`` for each range (a fall-through); hexadecimal
link addresses, 0 for an end outside of the module (bolt/docs, and DataAggregator.cpp).
"""

from __future__ import annotations

from typing import IO

import numpy as np

from ..analysis.pairs import group
from . import Exported, ExportOptions
from .modules import ModuleCounts, ModuleFormat

__all__ = ["FORMAT"]


def write(counts: ModuleCounts, out: IO[bytes], _options: ExportOptions) -> Exported:
    """Write the counts of a module."""
    source = np.where(counts.from_here, counts.source, np.uint64(0))
    target = np.where(counts.to_here, counts.target, np.uint64(0))
    (source, target), (taken, mispredicted) = group(
        [source, target], [counts.taken, counts.mispredicted], [np.add, np.add]
    )
    branches = zip(source.tolist(), target.tolist(), taken.tolist(), mispredicted.tolist(), strict=True)
    out.writelines(b"B %x %x %d %d\n" % row for row in branches)
    ranges = zip(counts.start.tolist(), counts.end.tolist(), counts.times.tolist(), strict=True)
    out.writelines(b"F %x %x %d\n" % row for row in ranges)
    return counts.exported([])


FORMAT = ModuleFormat("preagg.txt", write)
