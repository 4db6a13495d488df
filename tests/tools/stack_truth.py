"""The truth for exports of call stacks: stacks counted by event and process, by name."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import perfdata_writer as pw
from lastbranch.analysis import weights
from lastbranch.analysis.naming import Namer
from lastbranch.analysis.stacks.call_stacks import call_stacks
from lastbranch.export.folded import folded_stacks
from lastbranch.model import Profile, visible
from lastbranch.opening import open_profile
from lastbranch.symbols import Symbolizer, SymbolOptions

STACKED = ("snb_callchain_and_branch-3.4", "cfl_9700_callgraph_lbr", "demo_2proc")
"""Captures with call chains, in LBR call-stack mode, and with stacks that are rebuilt with the binaries at hand."""

OTHERS = ("skx_6154_32deep_pie", "arm_etm_inject_hwindex", "simpleperf_32deep_lbrloop", "demo_features")
"""Captures whose stacks are of one frame: several processes and events, empty branch stacks, other processors."""

Stacks = Counter[tuple[str, ...]]


@dataclass
class Truth:
    """The profile, its distinct stacks (process, then functions, root first) with their samples, and all sums."""

    profile: Profile
    stacks: Stacks
    threads: Counter[tuple[int, int]]
    """(pid, tid) -> samples."""
    samples: Counter[str]
    period: Counter[str]
    """By the name of the event."""


def truth(path: Path, symfs: str | None = None) -> Truth:
    profile = open_profile(path, symfs=symfs)
    stacks: Stacks = Counter()
    with Symbolizer(profile, SymbolOptions(cache=None)) as symbols:
        for names, count in folded_stacks(profile, call_stacks(profile), Namer(profile, symbols), "inline"):
            stacks[tuple(map(visible, names))] += count
    threads: Counter[tuple[int, int]] = Counter()
    table = weights(profile, "thread")
    samples, period = Counter[str](), Counter[str]()
    for event, row, count, sum_ in zip(
        *(c.tolist() for c in (table.event, table.key, table.samples, table.period)), strict=True
    ):
        thread = profile.threads[row]
        threads[profile.processes[thread.process].pid, thread.tid] += count
        samples[profile.events[event].name] += count
        period[profile.events[event].name] += sum_
    return Truth(profile, stacks, threads, samples, period)


def two_threads(path: Path) -> Path:
    """A capture of two events with call chains: threads of one process, names with what is not printable."""
    kernel, user = (1 << 64) - 128, (1 << 64) - 512
    base = pw.IP | pw.TID | pw.TIME | pw.PERIOD | pw.CALLCHAIN
    b = pw.Builder(sample_type=base | pw.ID, sample_period=1000)
    b.attr(sample_type=base | pw.ID, sample_period=50, config=1)
    b.comm(pid=7, tid=7, name='m"\x1b;ain', time=1_000_000)
    b.comm(pid=7, tid=8, name="worker", time=1_000_000)
    b.mmap2(pid=7, addr=0x401000, length=0x2000, pgoff=0x1000, name="/opt/a b/p\udcffrog", time=1_000_000)
    chain = [kernel, 0xFFFFFFFF81000010, user, 0x401010, 0x401020]
    for i in range(6):
        b.sample(
            ip=0x401100 + i % 2,
            pid=7,
            tid=7 + i % 2,
            time=4_500_000 - 500_000 * i,
            period=1000 + i,
            callchain=chain[: 3 + i % 3] if i % 3 else [],
            event=i % 3 == 2,
        )
    path.write_bytes(b.build())
    return path


def symfs_of(name: str, symfs) -> list[str]:
    """The option that lays the binaries of a synthetic capture at hand."""
    return ["--symfs", os.fspath(symfs(name))] if name.startswith("demo") else []
