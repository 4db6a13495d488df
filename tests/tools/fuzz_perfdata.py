"""Damaged captures by the thousand: ``python tests/tools/fuzz_perfdata.py --seconds 600``.

Each input is made from its seed, a number: a capture, rewritten in some form, with bytes changed, cut, moved or
repeated. A worker process with limited memory works through seeds; an input that is neither read nor refused with a
`LastbranchError` is reported with its seed, and ``--seed N`` runs only seed N, in this process.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import os
import random
import struct
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

import perfdata_writer as pw
from lastbranch.analysis import weights
from lastbranch.bind import bind
from lastbranch.errors import LastbranchError
from lastbranch.export import exporter
from lastbranch.export.interface import ExportOptions
from lastbranch.formats.perfdata.reader import read_perfdata
from lastbranch.model import REQUIRED, BytesSource, Profile, SampleBatch, SampleStream, column
from perfdata_writer import Builder, Capture

SECONDS_EACH = 20
MEMORY = 6 << 30  # address space: the counters reserve much more than they touch
PEAK = 1 << 20  # KiB that one worker may really use
SEEDS_A_WORKER = 400
NUMBERS = (0, 1, 7, 8, 9, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def examine(data: bytes) -> Profile | None:
    """Everything the package does with a capture; ``None`` if the package refuses it. All results must fit together."""
    try:
        profile = bind(read_perfdata(BytesSource(data)))
    except LastbranchError:
        return None
    for stream in profile.streams:
        batches = list(stream.batches())
        for batch in batches:
            check_batch(profile, stream, batch)
        assert sum(map(len, batches)) == stream.samples
        assert sum(b.entries for b in batches) == stream.entries
        assert max((int(b.depth.max(initial=0)) for b in batches), default=0) == stream.deepest
        times = [b.time for b in stream.batches((), ordered=True)]
        assert sum(map(len, times)) == stream.samples
        assert not times or bool((np.diff(np.concatenate(times)) >= 0).all())
    for name in ("counts", "brstack"):
        with suppress(LastbranchError):
            exporter(name)(profile, io.BytesIO(), ExportOptions())
    for key in ("process", "thread", "module"):
        assert int(weights(profile, key).samples.sum()) == profile.samples
    for table in ("modules", "processes", "threads", "events"):
        profile.table(table)
    assert all(str(d) and d.offset >= 0 and d.lost >= 0 for d in profile.damage)
    return profile


def check_batch(profile: Profile, stream: SampleStream, batch: SampleBatch) -> None:
    assert set(batch.columns) <= set(stream.columns)
    assert {c.name for c in REQUIRED} <= set(batch.columns)
    assert not len(batch) or 0 <= int(batch.event.min()) <= int(batch.event.max()) < len(profile.events)
    for name, values in batch.columns.items():
        declared = column(name)
        assert values.dtype == declared.dtype, name
        if declared.group == "sample":
            assert len(values) == len(batch), name
        else:
            offsets = batch.offsets[declared.group]
            assert (len(offsets), offsets[0], offsets[-1]) == (len(batch) + 1, 0, len(values)), name
            assert bool((np.diff(offsets) >= 0).all()), name


def small_capture() -> Capture:
    """Every kind of record and, in three layouts, every sample field, in some kilobytes."""
    kinds = (1 << 25) - 1 & ~pw.WEIGHT_STRUCT
    b = Builder(sample_type=kinds, read_format=23, sample_regs_user=7, branch_sample_type=pw.BRANCH_ANY | 1 << 17)
    b.attr(sample_type=kinds & ~pw.AUX, read_format=12, branch_sample_type=pw.BRANCH_ANY | 1 << 19, config=1)
    b.attr(sample_type=pw.IP | pw.TID | pw.IDENTIFIER | pw.BRANCH_STACK, config=2)
    for name in ("HOSTNAME", "OSRELEASE", "VERSION", "ARCH", "CPUDESC"):
        b.feature(name, value="x86_64")
    b.feature("NRCPUS", available=2, online=2)
    b.feature("CMDLINE", args=["perf", "record", "-b"])
    b.feature("NUMA_TOPOLOGY", nodes=[(0, 1 << 20, 1 << 19, "0-1")])
    b.feature("CPU_TOPOLOGY", cores=["0-1"], threads=["0", "1"], cpus=[(0, 0), (1, 0)])
    b.feature("CPU_PMU_CAPS", caps=[("branches", "32")])
    b.feature("CLOCK_DATA", version=1, clockid=1, wall=1 << 60, clock=1 << 40)
    b.feature("EVENT_DESC", attr_size=128, events=[(a.raw, 1, "cycles", a.ids) for a in b.capture.attrs])
    b.build_id("/bin/prog", bytes(range(20)))
    b.kernel_map(0xFFFFFFFF81000000, 0x1000000, time=0)
    b.mmap(pid=7, addr=0x300000, length=0x1000, pgoff=0, name="/bin/old", time=1)
    b.comm(pid=7, name="prog", time=2, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x2000, pgoff=0x1000, name="/bin/prog", time=3)
    b.mmap2(pid=7, addr=0x500000, length=0x1000, pgoff=0, name="/lib/b.so", build_id=bytes(range(20)), time=4)
    b.fork(pid=8, ppid=7, time=5)
    b.record("LOST", id=101, lost=3, time=6)
    b.record("KSYMBOL", addr=0xFFFFFFFFC0000000, length=64, ksym_type=1, name="bpf_prog_1", time=7)
    b.record("THROTTLE", time=8, id=101, stream_id=9)
    b.record("AUXTRACE", size=16, payload=bytes(16))
    for i in range(12):
        entries = [(0x400010 + 8 * k, 0x400020 + k, 1 << 4 | 2) for k in range(i % 5)]
        b.sample(
            event=0,
            ip=0x400100 + i,
            pid=7 + i % 2,
            time=100 + i,
            period=9,
            callchain=[(1 << 64) - 512, 0x400100],
            raw=b"abcdefg",
            branches=entries,
            regs_user=[1, 2, 3],
            stack=b"12345678",
            aux=b"aux",
        )
        b.sample(
            event=1, ip=0x400200, pid=7, time=99 + i, read_values=[(1, 2)], branches=entries, counters=range(i % 5)
        )
        b.sample(event=2, ip=0x500000 + i, pid=7, branches=entries)
    b.record("FINISHED_ROUND")
    b.exit(pid=8, time=300)
    return b.capture


@cache
def originals() -> tuple[Capture, ...]:
    """The captures to damage: the small capture, and the captures in ``$LASTBRANCH_DATA``."""
    found = []
    if "LASTBRANCH_DATA" in os.environ:
        root = Path(os.environ["LASTBRANCH_DATA"]) / "perf"
        for path in sorted([*root.glob("*.data"), *root.glob("synthetic/*.data")]):
            if path.stat().st_size < 1 << 20:
                capture = pw.parse(path.read_bytes())
                # The records in front name processes and mappings, those behind are samples.
                capture.records = [r for r in capture.records if r.type != 9][:300] + capture.named("SAMPLE")[:60]
                capture.features = {n: raw for n, raw in capture.features.items() if len(raw) < 60_000}  # one record
                found.append(capture)
    return (small_capture(), *found)


@cache
def base(number: int, form: int) -> bytes:
    capture = originals()[number]
    big = bool(form & 1) and set(capture.features) <= set(pw.FEATURES) - {1, 25, 26}
    return pw.encode(capture, big=big, pipe=bool(form & 2), compress=(0, 0, 81, 83)[form >> 2])


def damaged(seed: int) -> bytes:
    """The input of that seed."""
    rng = random.Random(seed)
    number = rng.choice([0, rng.randrange(len(originals()))])
    data = bytearray(base(number, rng.randrange(16)))
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        damage_once(rng, data)
    return bytes(data)


def damage_once(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(max(1, len(data)))
    if rng.random() < 0.4:  # headers and attributes are a small part of the file
        at = rng.randrange(min(400, max(1, len(data))))
    match rng.randrange(7):
        case 0 | 1:
            data[at : at + 1] = rng.randbytes(1)
        case 2 | 3:
            width = rng.choice([1, 2, 4, 8])
            at -= at % width
            value = rng.choice([*NUMBERS, rng.randrange(len(data) + 99)]) & (1 << 8 * width) - 1
            data[at : at + width] = value.to_bytes(width, rng.choice(["little", "big"]))
        case 4:
            del data[at:]
        case 5:
            del data[at : at + rng.choice([1, 8, rng.randrange(200)])]
        case 6:
            size = rng.choice([8, rng.randrange(400)])
            start = rng.randrange(max(1, len(data)))
            data[at:at] = data[start : start + size]


def work(first: int, number: int, report: int) -> None:
    """A worker: names each seed before its work on the seed, so that the parent knows where a worker died."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for seed in range(first, first + number):
        os.write(report, struct.pack("<Q", seed))
        faulthandler.dump_traceback_later(SECONDS_EACH, exit=True)
        examine(damaged(seed))
        if sys.platform != "win32":
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert peak < PEAK, f"{peak} KiB of memory"
    faulthandler.cancel_dump_traceback_later()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=None, help="seed to begin with (default: the clock's)")
    parser.add_argument("--seed", type=int, help="examine this one here")
    parser.add_argument("--write", type=Path, help="with --seed: write the input to this file first")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker, report=1)
        return 0
    if options.seed is not None:
        data = damaged(options.seed)
        if options.write:
            options.write.write_bytes(data)
        print(examine(data))
        return 0
    seed = int(time.time()) << 20 if options.first is None else options.first
    start, end, crashes = seed, time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        command = [sys.executable, __file__, "--worker", str(seed), str(SEEDS_A_WORKER)]
        done = subprocess.run(command, capture_output=True)
        last = struct.unpack("<Q", done.stdout[-8:])[0] if done.stdout else seed
        seed = last + 1
        if done.returncode:
            crashes += 1
            print(f"--seed {last}: exit code {done.returncode}\n{done.stderr.decode()[-3000:]}", flush=True)
    print(f"{seed - start} inputs from seed {start}, {crashes} crashes")
    return min(crashes, 1)


if __name__ == "__main__":
    sys.exit(main())
