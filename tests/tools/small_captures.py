"""Small perf.data files."""

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


def three_branches(path: Path, number: int, build_id: bytes = b"", wall: int | None = None) -> Path:
    """Three branches from one place in a program, ``number`` of them to the second place; ``wall`` seconds since 1970
    are the start of its clock."""
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK, use_clockid=1, clockid=1)
    b.mmap2(pid=7, addr=0x400000, length=0x10000, pgoff=0, name="/bin/prog", time=2, build_id=build_id)
    b.mmap2(pid=7, addr=0x600000, length=0x10000, pgoff=0, name="/bin/same", time=2, build_id=b"\5" * 20)
    for i in range(3):
        target = 0x400800 + 16 * (i < number)
        b.sample(ip=0x600000, pid=7, tid=7, time=9 + i, branches=[(0x400010, target, 1)] * 2)
    if wall is not None:
        b.feature("CLOCK_DATA", version=1, clockid=1, wall=wall * 10**9, clock=0)
    path.write_bytes(b.build())
    return path
