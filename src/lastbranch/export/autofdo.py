"""``--to autofdo``: the text that AutoFDO reads with ``--profiler=text`` (create_gcov, create_llvm_prof).

Three sections, each a line with a number and as many lines: ranges ``begin-end:count``, addresses of samples
``addr:count``, branches ``from->to:count``. Hexadecimal offsets in the file, decimal counts. simpleperf writes the same
and ends it with the build id and the path as comments (simpleperf's cmd_inject.cpp).
"""

from __future__ import annotations

from typing import IO

import numpy as np

from ..model import counted
from .interface import ExportOptions, ExportResult, write_lines
from .modules import ModuleCounts, ModuleFormat

__all__ = ["FORMAT"]

_LONGEST = 1 << 20
"""AutoFDO takes longer ranges for errors of the hardware when it reads perf.data, but not in text, where it would keep
a record of each byte of them."""


def write(counts: ModuleCounts, out: IO[bytes], _options: ExportOptions) -> ExportResult:
    """Write the counts of a module."""
    both = counts.from_here & counts.to_here
    short = counts.end - counts.start <= np.uint64(_LONGEST)
    start, end = counts.file_offset(counts.start[short]), counts.file_offset(counts.end[short])
    source, target = counts.file_offset(counts.source[both]), counts.file_offset(counts.target[both])
    sections = (
        (b"%x-%x:%d\n", start, end, counts.times[short]),
        (b"%x:%d\n", counts.file_offset(counts.sampled), counts.sampled_times),
        (b"%x->%x:%d\n", source, target, counts.taken[both]),
    )
    for line, *columns in sections:
        out.write(b"%d\n" % len(columns[0]))
        write_lines(out, line, *columns)
    name = counts.module.name.replace("\n", " ").encode("utf-8", "surrogateescape")
    out.write(b"// build_id: 0x%s\n// %s\n" % (counts.module.build_id.ljust(20, b"\0").hex().encode(), name))
    left = len(short) - int(short.sum())
    why = f"{counted(left, 'range')} of more than 1 MiB left out: no straight-line code is that long"
    return counts.exported([why] if left else [], int(counts.times[short].sum()), why)


FORMAT = ModuleFormat("afdo.txt", write, linked=False, sampled=True)
