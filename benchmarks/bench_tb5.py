"""TB5 files: how fast records are written, scanned and bound.

    python benchmarks/bench_tb5.py [--folder DIR] [--samples N] [--gigabytes N] [--capture PERF.DATA --symfs DIR]

Prints one line a measurement, the best of three, files cached. Binding is measured beside a plain Python `bisect` in
the same run: 5,000 modules that come and go in 300 processes.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lastbranch.formats.tb5 import NEVER, STRUCTS, Scope, Table, Tb5File, Tb5Writer
from lastbranch.formats.tb5.constants import ModuleFlag
from lastbranch.opening import open_source
from lastbranch.store import bind_stream, unbind_stream

DATA = Table(Scope.STREAM, 0, 2)
SAMPLE = np.dtype([("pc", STRUCTS["TBRW_SampleRecordPC"].dtype), ("tsc", "<u8")])
PROCESSES, MODULES, BATCH = 300, 5000, 65_536
SPAN = 10_000_000_000


def best(work: Callable[[], object], rounds: int = 3) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def say(what: str, amount: float, unit: str, seconds: float) -> None:
    print(f"{what:<44} {amount / seconds:>9.2f} {unit}/s   {seconds:.3f} s", flush=True)


def modules(random: np.random.Generator) -> np.ndarray:
    """Each of 5,000 modules has a place of its own in one process, or in several that load it; most of them come and
    go."""
    rows = np.zeros(MODULES, STRUCTS["TBRW_MODULE"].dtype)
    pid = 1000 + np.arange(MODULES) % PROCESSES
    slot = np.arange(MODULES) // PROCESSES
    rows["module_associated_pid"] = pid
    rows["module_load_address"] = 0x7F00_0000_0000 + (slot // 2) * 0x100_0000 + random.integers(0, 16, MODULES) * 4096
    rows["module_length"] = random.integers(1, 0xE00, MODULES) * 4096
    # the second of two in the same place is loaded when the first is gone
    half = SPAN // 2
    rows["module_event_when"] = np.where(slot % 2 == 0, 0, half + random.integers(0, half // 2, MODULES))
    rows["module_unload_tsc"] = np.where(slot % 2 == 0, random.integers(1, half, MODULES), NEVER)
    kernel = np.arange(MODULES) < 20
    rows["module_flags"][kernel] = ModuleFlag.GLOBAL_LOAD
    rows["module_load_address"][kernel] = np.uint64(0xFFFF_FFFF_8000_0000) + np.arange(20, dtype=np.uint64) * np.uint64(
        0x100_0000
    )
    rows["module_event_when"][kernel], rows["module_unload_tsc"][kernel] = 0, NEVER
    return rows


def samples(random: np.random.Generator, mods: np.ndarray, number: int, first: int, whole: int) -> np.ndarray:
    rows = np.zeros(number, SAMPLE)
    which = random.integers(0, MODULES, number)
    address, length = mods["module_load_address"][which], mods["module_length"][which]
    pc = rows["pc"]
    pc["iip"] = address + (random.random(number) * length * 1.05).astype(np.uint64)
    pid = np.where(mods["module_flags"][which] == 0, mods["module_associated_pid"][which], 1000)
    pc["pidRecIndex"], pc["tid"] = pid, pid * 4 + random.integers(0, 4, number)
    pc["bitFields2"] = 1 << 28 | 1 << 29 | 1 << 30
    rows["tsc"] = ((first + np.arange(number)) * SPAN) // whole
    return rows


def write_capture(path: Path, number: int) -> np.ndarray:
    random = np.random.default_rng(1)
    mods = modules(random)
    with Tb5Writer.create(path) as writer:
        writer.put(Table(Scope.GLOBAL, 0, 3), mods)
        entries = np.zeros(2, STRUCTS["TBRW_SAMPREC_DESC_ENTRY"].dtype)
        entries["desc_offset"], entries["desc_data_size"], entries["desc_type"] = (0, 32), (32, 8), (1, 7)
        writer.put(Table(Scope.STREAM, 0, 1), entries)
        info = np.zeros(1, STRUCTS["TBRW_STREAM_INFO"].dtype)
        info["stream_type"] = 1
        writer.put(Table(Scope.STREAM, 0, 4), info)
        table = writer.table(DATA, SAMPLE.itemsize)
        for at in range(0, number, 1 << 20):
            table.write(samples(random, mods, min(1 << 20, number - at), at, number))
        table.done()
    return mods


def python_bisect(mods: np.ndarray, rows: np.ndarray) -> tuple[int, list[int], float]:
    """Module of each sample as one writes it in plain Python, with process and thread by dictionaries: (samples, rows,
    seconds). The tables are made before."""
    spaces: dict[int, list[tuple[int, int, int, int, int]]] = {}
    for i, m in enumerate(mods):
        owner = -1 if m["module_flags"] else int(m["module_associated_pid"])
        start, end = int(m["module_load_address"]), int(m["module_load_address"] + m["module_length"])
        spaces.setdefault(owner, []).append((start, int(m["module_event_when"]), int(m["module_unload_tsc"]), end, i))
    starts = {}
    for owner, inside in spaces.items():
        inside.sort()
        starts[owner] = [one[0] for one in inside]
    pc = rows["pc"]
    columns = [c.tolist() for c in (pc["iip"], pc["pidRecIndex"], pc["tid"], rows["tsc"])]
    pids = {p: i for i, p in enumerate(sorted(set(columns[1])))}
    tids = {t: i for i, t in enumerate(sorted(set(zip(columns[1], columns[2], strict=True))))}
    out, found = [], []
    start = time.perf_counter()
    for ip, pid, tid, when in zip(*columns, strict=True):
        owner = -1 if ip >> 63 else pid
        inside, module = spaces.get(owner, []), NEVER
        at = bisect_right(starts.get(owner, []), ip) - 1
        while at >= 0 and inside[at][0] > ip - 0x100_0000:
            _, load, unload, end, row = inside[at]
            if ip < end and load <= when < unload:
                module = row
                break
            at -= 1
        out.append(module)
        found.append((pids[pid], tids[pid, tid]))
    return len(out), out, time.perf_counter() - start


def records(folder: Path, gigabytes: float) -> None:
    path = folder / "records.tb5"
    number = int(gigabytes * 1e9) // 40 // BATCH * BATCH
    block = np.random.default_rng(0).integers(0, 256, (BATCH, 40), np.uint8)

    written: list[float] = []

    def write() -> None:
        start = time.perf_counter()
        with Tb5Writer.create(path) as writer:
            table = writer.table(DATA, 40)
            for _ in range(number // BATCH):
                table.write(block)
            table.done()
            written.append(time.perf_counter() - start)

    field = np.dtype({"names": ["ip"], "formats": ["<u8"], "offsets": [0], "itemsize": 40})

    def scan(verify: bool) -> None:
        with Tb5File(open_source(str(path)), verify=verify) as file:
            sum(int(rows.reshape(-1).view(field)["ip"].sum()) for rows in file.blocks(DATA))

    size = number * 40 / 1e9
    durable = best(write)
    say("write 40-byte records", size, "GB", min(written))
    say("write 40-byte records, until they are on disk", size, "GB", durable)
    say("scan one field, verified", size, "GB", best(lambda: scan(True)))
    say("scan one field, unverified", size, "GB", best(lambda: scan(False)))
    path.unlink()


def binding(folder: Path, number: int) -> None:
    path = folder / "bind.tb5"
    mods = write_capture(path, number)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        done = bind_stream(path)
        seconds.append(time.perf_counter() - start)
        print(f"bound {done.module / done.samples:.1%} of {done.samples} samples to {len(mods)} modules")
        with Tb5File(open_source(str(path))) as file:
            head = file.read(Table(Scope.BIND, 0, 4), 0, 200_000).view("<u8")[:, 0]
            tail = file.read(Table(Scope.BIND, 0, 4), number - 200_000).view("<u8")[:, 0]
            rows = [file.read(DATA, at, 200_000).reshape(-1).view(SAMPLE) for at in (0, number - 200_000)]
        unbind_stream(path)
    say("bind module, process, thread", number / 1e6, "M samples", min(seconds))
    rate = 0.0
    for part, bound in zip(rows, (head, tail), strict=True):
        count, expected, took = python_bisect(mods, part)
        assert bound.tolist() == expected, "binding and bisect disagree"
        rate = max(rate, count / took)
    say("the same by Python bisect", rate / 1e6, "M samples", 1)
    print(f"{'times as fast as bisect':<44} {number / min(seconds) / rate:>9.1f}")
    path.unlink()


def report(folder: Path, capture: str, symfs: str) -> None:
    path = folder / "capture.tb5"
    program = [sys.executable, "-m", "lastbranch"]
    start = time.perf_counter()
    subprocess.run([*program, "convert", "--force", capture, path], check=True, stderr=subprocess.DEVNULL)
    say("convert", os.path.getsize(capture) / 1e9, "GB", time.perf_counter() - start)
    outputs = []

    def run(file: str | Path) -> None:
        outputs.append(
            subprocess.run([*program, "report", file, "--symfs", symfs], check=True, capture_output=True).stdout
        )

    times = [best(lambda f=file: run(f), 5) for file in (capture, path)]  # type: ignore[misc]
    assert len(set(outputs)) == 1, "reports differ"
    for what, seconds in zip(("report on the capture", "report on its .tb5"), times, strict=True):
        say(what, os.path.getsize(capture) / 1e9, "GB", seconds)
    print(f"{'time of the .tb5, share':<44} {times[1] / times[0]:>9.2f}")
    path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--samples", type=int, default=20_000_000)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--capture")
    parser.add_argument("--symfs", default="/")
    parser.add_argument("--only", choices=["records", "bind", "report"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        if given.only in (None, "records"):
            records(folder, given.gigabytes)
        if given.only in (None, "bind") and given.samples:
            binding(folder, given.samples)
        if given.capture and given.only in (None, "report"):
            report(folder, given.capture, given.symfs)
    print(f"largest resident set of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
