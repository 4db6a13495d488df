"""``--to profgen``: llvm-profgen's unsymbolized profile, for ``llvm-profgen --unsymbolized-profile``.

Two sections, each a line with a number and as many lines: ranges ``start-end:count``, branches ``from->to:count``.
Hexadecimal addresses count from the first page of code (what llvm-profgen's ``--use-offset`` expects by default). A
branch counts if its target is in the module; address 1 (modulo 2**64, less that page) means a source outside.
"""

from __future__ import annotations

from typing import IO

import numpy as np

from ..arrays import group
from .interface import ExportOptions, ExportResult, write_lines
from .modules import ModuleCounts, ModuleFormat, first_code

__all__ = ["FORMAT"]

_OUTSIDE = 1


def write(counts: ModuleCounts, out: IO[bytes], _options: ExportOptions) -> ExportResult:
    """Write the counts of a module."""
    recorded = counts
    counts, notes = counts.straight()
    base = np.uint64(first_code(counts.module))
    start, end = counts.start - base, counts.end - base
    inside = counts.to_here
    source = np.where(counts.from_here, counts.source, np.uint64(_OUTSIDE))[inside]
    target = counts.target[inside]
    # Sources outside are many addresses, but one line for each target.
    (source, target), (taken,) = group([source, target], [counts.taken[inside]], [np.add])
    out.write(b"%d\n" % len(start))
    write_lines(out, b"%x-%x:%d\n", start, end, counts.times)
    out.write(b"%d\n" % len(taken))
    write_lines(out, b"%x->%x:%d\n", source - base, target - base, taken)
    return recorded.exported(notes, int(counts.times.sum()), "; ".join(notes))


FORMAT = ModuleFormat("unsym.txt", write)
