"""``--to profgen``: llvm-profgen's unsymbolized profile, for ``llvm-profgen --unsymbolized-profile``.

Two sections, each a line with a number and as many lines: ranges ``start-end:count``, branches ``from->to:count``.
Hexadecimal addresses count from the first page of code (what llvm-profgen's ``--use-offset`` expects by default). A
branch counts if its target is in the module; address 1 (modulo 2**64, less that page) stands for a source outside.
"""

from __future__ import annotations

from typing import IO

import numpy as np

from .interface import Exported, ExportOptions
from .modules import ModuleCounts, ModuleFormat
from .possible import possible

__all__ = ["FORMAT"]

_OUTSIDE = 1


def write(counts: ModuleCounts, out: IO[bytes], _options: ExportOptions) -> Exported:
    """Write the counts of a module."""
    recorded = counts
    counts, notes = possible(counts)
    base = np.uint64(counts.base)
    start, end = counts.start - base, counts.end - base
    inside = counts.to_here
    source = np.where(counts.from_here, counts.source, np.uint64(_OUTSIDE))[inside]
    target = counts.target[inside]
    # Sources outside are many addresses, but one line for each target.
    order = np.lexsort((target, source))
    source, target, taken = source[order], target[order], counts.taken[inside][order]
    first = np.ones(len(order), bool)
    first[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    at = np.flatnonzero(first)
    summed = np.add.reduceat(taken, at) if len(at) else taken
    out.write(b"%d\n" % len(start))
    ranges = zip(start.tolist(), end.tolist(), counts.times.tolist(), strict=True)
    out.writelines(b"%x-%x:%d\n" % row for row in ranges)
    out.write(b"%d\n" % len(at))
    columns = ((source[at] - base).tolist(), (target[at] - base).tolist(), summed.tolist())
    out.writelines(b"%x->%x:%d\n" % row for row in zip(*columns, strict=True))
    return recorded.exported(notes, int(counts.times.sum()), "; ".join(notes))


FORMAT = ModuleFormat("unsym.txt", write)
