"""TB5 files: the speed of writing, scanning and binding records, and the cost of reports.

    python benchmarks/bench_tb5.py [--folder DIR] [--samples N] [--gigabytes N] [--capture PERF.DATA --symfs DIR]
                                   [--scale GIGABYTES [--large PERF.DATA]]

Prints one line for each measurement: name, rate, seconds, and, if there is a target, the ratio or the memory beside its
limit. Figures are the best of some rounds, with cached files. Binding is measured beside a plain Python `bisect` in the
same run: 5,000 modules that come and go in 300 processes. ``--scale`` writes the samples of the capture again and again
until the file is so large, and prints the largest resident set of what reads it. Programs run as installed ones do,
with compiled modules.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lastbranch.formats.tb5.layout import NEVER, STRUCTS, ModuleFlag, Scope, Table, empty_records
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.formats.tb5.writer import Tb5Writer
from lastbranch.opening import open_source
from lastbranch.tbrw.binding import bind_stream, unbind_stream
from lastbranch.tbrw.c.build import build, missing

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
    print(f"{what:<46}{amount / seconds:>9.2f} {unit + '/s':<12}{seconds:>8.3f} s", flush=True)


def required(what: str, value: float, unit: str, limit: str) -> None:
    print(f"{what:<46}{value:>9.2f} {unit:<12}{'':>10}   required: {limit}", flush=True)


def modules(random: np.random.Generator) -> np.ndarray:
    """Each of 5,000 modules has an address range of its own in one process or several processes; most modules come and
    go."""
    rows = empty_records("TBRW_MODULE", MODULES)
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
    rows["module_flags"] = np.where(kernel, ModuleFlag.TSC_USED | ModuleFlag.GLOBAL_LOAD, ModuleFlag.TSC_USED)
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
    shared = (mods["module_flags"][which] & ModuleFlag.GLOBAL_LOAD) != 0
    pid = np.where(shared, 1000, mods["module_associated_pid"][which])
    pc["pidRecIndex"], pc["tid"] = pid, pid * 4 + random.integers(0, 4, number)
    pc["bitFields2"] = 1 << 28 | 1 << 29 | 1 << 30
    rows["tsc"] = ((first + np.arange(number)) * SPAN) // whole
    return rows


def write_capture(path: Path, number: int) -> np.ndarray:
    random = np.random.default_rng(1)
    mods = modules(random)
    with Tb5Writer.create(path) as writer:
        writer.put(Table(Scope.GLOBAL, 0, 3), mods)
        entries = empty_records("TBRW_SAMPREC_DESC_ENTRY", 2)
        entries["desc_offset"], entries["desc_data_size"], entries["desc_type"] = (0, 32), (32, 8), (1, 7)
        writer.put(Table(Scope.STREAM, 0, 1), entries)
        info = empty_records("TBRW_STREAM_INFO", 1)
        info["stream_type"] = 1
        writer.put(Table(Scope.STREAM, 0, 4), info)
        table = writer.table(DATA, SAMPLE.itemsize)
        for at in range(0, number, 1 << 20):
            table.write(samples(random, mods, min(1 << 20, number - at), at, number))
        table.done()
    return mods


def python_bisect(mods: np.ndarray, rows: np.ndarray) -> tuple[int, list[int], float]:
    """The module of each sample in plain Python, with process and thread from dictionaries: (samples, rows, seconds).
    The tables are made before."""
    spaces: dict[int, list[tuple[int, int, int, int, int]]] = {}
    for i, m in enumerate(mods):
        owner = -1 if m["module_flags"] & ModuleFlag.GLOBAL_LOAD else int(m["module_associated_pid"])
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
    required("times as fast as bisect", number / min(seconds) / rate, "", "at least 12")
    path.unlink()


def program(folder: Path, *words: str | Path) -> tuple[bytes, float, float]:
    """(output, seconds, MB of the largest resident set) of a run of lastbranch."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "lastbranch", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as child:
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        seconds, child.returncode = time.perf_counter() - start, os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, f"{words}: {child.returncode}"
    return output, seconds, usage.ru_maxrss / 1024


def report(folder: Path, capture: str, symfs: str) -> None:
    path, size = folder / "capture.tb5", os.path.getsize(capture) / 1e9
    say("convert", size, "GB", program(folder, "convert", "--force", capture, path)[1])
    runs: dict[str, list[tuple[bytes, float, float]]] = {capture: [], str(path): []}
    for _ in range(7):  # in turns: what else the machine does hits both
        for file, done in runs.items():
            done.append(program(folder, "report", file, "--symfs", symfs))
    assert len({out for done in runs.values() for out, _, _ in done}) == 1, "reports differ"
    before, after = (min(seconds for _, seconds, _ in done) for done in runs.values())
    say("report on the capture", size, "GB", before)
    say("report on its .tb5", size, "GB", after)
    required("time of the .tb5, share", after / before, "", "at most 0.50")
    path.unlink()


def scale(folder: Path, capture: str, symfs: str, gigabytes: float, large: str | None) -> None:
    """Memory: a file of ``gigabytes`` and a conversion of ``large``."""
    path = folder / "large.tb5"
    code = (
        "import sys\n"
        "from lastbranch.opening import open_profile\n"
        "from lastbranch.formats.tb5.profile_writer import ProfileWriter\n"
        "path, out, limit = sys.argv[1:]; profile = open_profile(path); writer = ProfileWriter(out, profile.machine)\n"
        "(stream,) = profile.streams; to = writer.stream(stream.columns, depth=stream.deepest)\n"
        "while to.samples * to.layout.dtype.itemsize < float(limit):\n"
        "    for batch in stream.batches(): to.write(batch)\n"
        "writer.finish(profile)\n"
    )
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, capture, path, str(gigabytes * 1e9)], check=True)
    size = path.stat().st_size / 1e9
    say(f"write a .tb5 of {size:.1f} GB", size, "GB", time.perf_counter() - start)
    for verb in (["report", path, "--symfs", symfs], ["branches", path, "--symfs", symfs], ["verify", path]):
        _, seconds, memory = program(folder, *verb)
        say(f"{verb[0]} on it", size, "GB", seconds)
        required(f"{verb[0]} on it, largest resident set", memory, "MB", "at most 300")
    path.unlink()
    if large:
        size = os.path.getsize(large) / 1e9
        _, seconds, memory = program(folder, "convert", large, path)
        say(f"convert a perf.data of {size:.1f} GB", size, "GB", seconds)
        required("convert, largest resident set", memory, "MB", "at most 300")
        path.unlink()


def c_library(folder: Path, number: int) -> None:
    """Records a second of processor time through libtbrw."""
    build(folder)
    program, binaries = folder / "tbrw_records", folder / "analyzer" / "bin"
    words = ["gcc", "-O2", "-I", str(folder / "analyzer" / "include"), "-o", str(program)]
    words += [str(Path(__file__).with_name("tbrw_records.c")), f"-L{binaries}", "-ltbrw", f"-Wl,-rpath,{binaries}"]
    subprocess.run(words, check=True)
    out = subprocess.run([program, folder / "c.tb5", str(number)], check=True, capture_output=True, text=True).stdout
    rates = {name: float(rate) for name, rate in map(str.split, out.splitlines())}
    required("C: enumerate_data", rates["enumerate_data"], "M records/s", "at least 1")
    required("C: single add_data", rates["add_data"], "M records/s", "at least 0.3")
    required("C: add_data of a record in two halves", rates["halves"], "M records/s", "at least 0.3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--samples", type=int, default=20_000_000)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--capture")
    parser.add_argument("--symfs", default="/")
    parser.add_argument("--scale", type=float, metavar="GIGABYTES")
    parser.add_argument("--large", metavar="PERF.DATA")
    parser.add_argument("--only", choices=["records", "bind", "c", "report", "scale"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        if given.only in (None, "records"):
            records(folder, given.gigabytes)
        if given.only in (None, "bind") and given.samples:
            binding(folder, given.samples)
        if given.only in (None, "c") and not missing():
            c_library(folder, 1_000_000)
        if given.capture and given.only in (None, "report"):
            report(folder, given.capture, given.symfs)
        if given.capture and given.scale and given.only in (None, "scale"):
            scale(folder, given.capture, given.symfs, given.scale, given.large)


if __name__ == "__main__":
    main()
