"""A small perf.data file with two processes."""

from __future__ import annotations

from pathlib import Path

import perfdata_writer as pw
from perfdata_writer import Builder


def build(path: Path, *, name: str = "/bin/prog", stacks: bool = True, **attr: int) -> Path:
    """Two processes, one mapped; 30 samples a microsecond apart, whose addresses hold their numbers."""
    kinds = pw.IP | pw.TID | pw.TIME | pw.PERIOD | (pw.BRANCH_STACK if stacks else 0)
    b = Builder(**{"sample_type": kinds, **attr})
    b.comm(pid=7, name="prog", time=1, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x10000, pgoff=0, name=name, time=2)
    b.mmap2(pid=7, addr=0x600000, length=0x10000, pgoff=0, name="/lib/other.so", time=2)
    for i in range(30):
        entries = [(0x400100 + 16 * (i % 3), 0x600200, 2 | 5 << 4), (0x600300, 0x400090, 1)]
        values = {"branches": entries} if stacks else {}
        b.sample(ip=0x400000 + i, pid=7 + i % 2, tid=7 + i % 5, time=1000 * (i + 1), period=100, **values)
    path.write_bytes(b.build())
    return path
