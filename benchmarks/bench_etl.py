"""How fast is an .etl file read, against dissect.etl and etl-parser in the same run?

    python benchmarks/bench_etl.py [FILE.etl ...] [--size 1024] [--peer-size 100] [--values-size 4] [--rounds 3]
    python benchmarks/bench_etl.py --only lbr --only mixed

Generates uncompressed files of 64 KiB buffers and `--size` MB: `lbr` (a PMC interrupt and its 32 branches) and `mixed`
(samples, stacks, context switches, thread and manifest events; mean 130 bytes), and one of `--peer-size` MB: `tiny` (16
to 64 bytes). The measurements, from opening the cached file on:

    index    where every event is, its size, header kind and hook
    columns  these, and time, pid, tid, cpu
    values   all fields of all events as typed columns: numbers as arrays, strings, SIDs and GUIDs as bytes and where
             each begins; Python makes an object of one when it is asked for
    strings  values, with every string made a Python string
    objects  values, with every value made a Python object: what dissect.etl gives

Peers read the named files and generated ones of `--peer-size` MB (headers) and `--values-size` MB (values), once each
in a process of its own, without imports. Their CPU time is compared with the median of ours just before and just after;
for generated values per event, because ours are of a file of `--peer-size` MB. Rates are per CPU second, too: wall time
also depends on other work on the machine. A peer counts only if it sees as many events as we do (except events in the
header buffer); the row names the number of events whose values raise. dissect.etl 3.14 raises for the values of all
events, so values are measured with 3.9 (`make peers` sets up both environments).
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lastbranch import native
from lastbranch.formats.etl import Decoder, EventBlock, TraceLog, batches_of
from lastbranch.formats.etl.payload.payload_columns import Texts
from lastbranch.opening import open_source
from measure import machine

BUFFER = 1 << 16
DISTINCT = 64  # buffers; the file repeats them with sequence numbers and times of their own
LATER = 1 << 50  # ticks: what differs by so much is a time
CODE, BLOCKS = 0x7FF6_0000_0000, 4096  # basic blocks of 64 bytes each
PROCESSORS = 8
BEGIN = 1_000_000
GUID = bytes(range(16))
DECODER = Decoder()
Words = NDArray[np.int64]

PEERS = {
    "dissect.etl": """
from dissect.etl.etl import ETL
def walk(path):
    with open(path, "rb") as file:
        return sum(1 for _ in ETL(file)), 0
""",
    "etl-parser": """
from etl.etl import IEtlFileObserver, build_from_stream
class Count(IEtlFileObserver):
    n = 0
    def on_system_trace(self, event): self.n += 1
    on_perfinfo_trace = on_trace_record = on_event_record = on_win_trace = on_system_trace
def walk(path):
    with open(path, "rb") as file:
        count = Count()
        build_from_stream(file.read()).parse(count)
        return count.n, 0
""",
}
VALUES = {
    "dissect.etl": """
from dissect.etl.etl import ETL
def walk(path):
    count = raised = 0
    with open(path, "rb") as file:
        for record in ETL(file):
            count += 1
            try:
                record.event.event_values()
            except Exception:
                raised += 1
    return count, raised
""",
}
RUN_PEER = """
import sys, time
from importlib.metadata import version
begin = time.process_time()
count, raised = walk(sys.argv[1])
print(count, raised, time.process_time() - begin, version(sys.argv[2]))
"""
PEER_SECONDS = 120  # longest that is waited for a peer


def perfinfo(hook: int, tick: int, payload: bytes) -> bytes:
    return struct.pack("<HBBHHq", 2, 17, 0xC0, 16 + len(payload), hook, tick) + payload


def system(hook: int, tick: int, payload: bytes, *, compact: bool) -> bytes:
    size = (24 if compact else 32) + len(payload)
    head = struct.pack("<HBBHHIIq", 2, 4 if compact else 2, 0xC0, size, hook, 8, 4, tick)
    return head + (b"" if compact else bytes(8)) + payload


def lbr(rng: random.Random, tick: int) -> list[bytes]:
    block, entries = rng.randrange(BLOCKS), []
    for _ in range(32):  # newest first: the block that was left before ran to the branch of the one that it led to
        before = (block * 5 + rng.choice((1, 1, 1, 977))) % BLOCKS
        entries.append(struct.pack("<QQQ", CODE + before * 64 + 40, CODE + block * 64, rng.randrange(1, 64)))
        block = before
    return [
        perfinfo(0x0F2F, tick, struct.pack("<QIHH", CODE + 0x1000, 8, 6, 0)),
        perfinfo(0x0C20, tick, struct.pack("<QIIII", tick, 4, 8, 0, 0) + b"".join(entries)),
    ]


def mixed(rng: random.Random, tick: int) -> list[bytes]:
    kind = rng.randrange(7)
    if kind < 3:
        frames = struct.pack("<Q", CODE) * rng.randrange(8, 40)
        return [
            perfinfo(0x0F2E, tick, struct.pack("<QII", CODE + 0x1000, 8, 1)),
            perfinfo(0x1820, tick, struct.pack("<QII", tick, 4, 8) + frames),
        ]
    if kind == 3:
        return [system(0x0524, tick, bytes(24), compact=True)]
    if kind == 4:
        return [system(0x0501, tick, bytes(72), compact=False)]
    payload = bytes(rng.randrange(8, 120))
    head = struct.pack("<HBBHHIIq16s", 80 + len(payload), 19, 0xC0, 0, 0, 8, 4, tick, GUID)
    return [head + struct.pack("<HBBBBHQQ16s", 7, 1, 0, 4, 0, 0, 0, 0, bytes(16)) + payload]


def tiny(rng: random.Random, tick: int) -> list[bytes]:
    return [perfinfo(0x0F2E, tick, bytes(rng.choice((0, 16, 32, 48))))]


KINDS: dict[str, Callable[[random.Random, int], list[bytes]]] = {"lbr": lbr, "mixed": mixed, "tiny": tiny}


def wrap(events: bytes, *, sequence: int = 0, cpu: int = 0, kind: int = 0) -> bytes:
    """A buffer."""
    used = 72 + len(events)
    head = struct.pack("<IIIiqqQHHIIHH16s", BUFFER, used, used, 0, 0, sequence, 0, cpu, 1, 3, used, 0x20, kind, b"")
    return head + events + b"\xff" * (BUFFER - used)


def header_buffer(buffers: int) -> bytes:
    log = struct.pack(
        "<I4BIIqIIIIIIIIQQ",
        BUFFER,
        10,
        0,
        1,
        5,
        19045,
        PROCESSORS,
        133 * 10**15,
        156250,
        0,
        1,
        buffers,
        1,
        8,
        0,
        3000,
        6,
        7,
    )
    log += bytes(172) + struct.pack("<IqqqII", 0, 0, 10_000_000, 133 * 10**15, 1, 0) + bytes(4)
    return wrap(system(0, BEGIN, log, compact=False) + bytes(-len(log) % 8), kind=4)


def generate(path: Path, make: Callable[[random.Random, int], list[bytes]], size: int) -> None:
    """Write a file of about ``size`` bytes, unless a file of that size is there."""
    count = size // BUFFER - 1
    if path.exists() and path.stat().st_size == (count + 1) * BUFFER:
        return
    rng, tick, bodies, is_time = random.Random(1), BEGIN, [], []
    for _ in range(DISTINCT):
        state = rng.getstate()
        later, _ = fill(rng, make, tick + LATER)
        rng.setstate(state)
        body, tick = fill(rng, make, tick)
        bodies.append(body)
        is_time.append(later - body == LATER)
    with path.open("wb") as file:
        file.write(header_buffer(count + 1))
        for number in range(count):
            again, which = divmod(number, DISTINCT)
            body = bodies[which] + is_time[which] * again * (tick - BEGIN)
            file.write(wrap(body.tobytes(), sequence=number + 1, cpu=number % PROCESSORS))


def fill(rng: random.Random, make: Callable[[random.Random, int], list[bytes]], tick: int) -> tuple[Words, int]:
    """The events of a buffer after ``tick``, as words, and the time of the last one."""
    body = bytearray()
    while True:
        tick += rng.randrange(10, 1000)
        events = b"".join(event + bytes(-len(event) % 8) for event in make(rng, tick))
        if 72 + len(body) + len(events) > BUFFER:
            return np.frombuffer(bytes(body), np.int64), tick
        body += events


def index(block: EventBlock) -> None:
    _ = block.header, block.hook


def columns(block: EventBlock) -> None:
    _ = block.header, block.hook, block.time, block.pid, block.tid, block.cpu


def values(block: EventBlock) -> None:
    for _ in batches_of(block, DECODER):
        pass


def strings(block: EventBlock) -> None:
    for batch in batches_of(block, DECODER):
        for column in batch.columns.values():
            if isinstance(column, Texts):
                column.tolist()


def objects(block: EventBlock) -> None:
    for batch in batches_of(block, DECODER):
        batch.fields()


Look = Callable[[EventBlock], None]


class Seconds(NamedTuple):
    """The times of one round."""

    wall: float
    cpu: float


def cpu_seconds() -> float:
    """CPU seconds of this process and of workers that ended."""
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in of)


def walk(path: Path, look: Look, rounds: int) -> tuple[int, list[Seconds]]:
    """Number of events, and the seconds of each round."""
    seconds, count = [], 0
    for _ in range(rounds):
        begin, count = (time.perf_counter(), cpu_seconds()), 0
        for block in TraceLog(open_source(str(path)), workers=os.cpu_count() or 1).blocks():
            look(block)
            count += len(block)
        seconds.append(Seconds(time.perf_counter() - begin[0], cpu_seconds() - begin[1]))
    return count, seconds


def peer(python: Path, name: str, code: str, path: Path) -> tuple[int, int, float, str] | str:
    """A peer's number of events, number of events that raised, CPU seconds and version, or why there are none."""
    if not python.exists():
        return "not installed"
    argv = [str(python), "-c", code + RUN_PEER, str(path), name]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PEER_SECONDS)
    except subprocess.TimeoutExpired:
        return f"not done in {PEER_SECONDS} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        return lines[-1][:60]
    count, raised, seconds, version = done.stdout.split()[-4:]
    return int(count), int(raised), float(seconds), version


def middle(seconds: list[Seconds]) -> Seconds:
    return Seconds(median(one.wall for one in seconds), median(one.cpu for one in seconds))


def row(look: Look, path: Path, count: int, seconds: list[Seconds], beside: str = "") -> None:
    wall, cpu = middle(seconds)
    rates = f"{path.stat().st_size / cpu / 1e9:6.2f} {count / cpu / 1e6:6.1f}"
    print(f"{look.__name__:8} {path.stem[:24]:24} {count:9} {wall:9.4f} {cpu:8.4f} {rates}  {beside}", flush=True)


def against(looks: tuple[Look, ...], path: Path, python: Path, name: str, code: str, rounds: int, ours: Path) -> None:
    """Rows with a peer, which reads ``path``; we read ``ours``, for a comparison by the event if that is another."""
    walk(ours, looks[0], 1)
    counted = [walk(ours, look, rounds) for look in looks]
    result = peer(python, name, code, path)
    for look, (count, before) in zip(looks, counted, strict=True):
        seconds = before + walk(ours, look, rounds)[1]
        row(look, ours, count, seconds, beside(result, name, path, middle(seconds).cpu / count))


def beside(result: tuple[int, int, float, str] | str, name: str, path: Path, ours: float) -> str:
    """The cell of a row about a peer, if we take ``ours`` seconds an event."""
    if isinstance(result, str):
        return f"{name} fails: {result}"
    found, raised, took, version = result
    count = walk(path, index, 1)[0]
    first = next(TraceLog(open_source(str(path))).blocks())  # a peer may leave out the header buffer, 1 to 4 events
    if not 0 <= count - found <= int((first.window.buffers.offset.take(first.buffer) == 0).sum()):
        return f"{name} {version} void: {found} events of {count}"
    note = f", raises for {raised}" if raised else ""
    return f"{name} {version} {took:.3f} s for {found} events{note}: {took / count / ours:.1f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--size", type=int, default=1024, help="MB of the generated files, of `tiny` --peer-size")
    parser.add_argument("--peer-size", type=int, default=100, help="MB of the files whose headers dissect.etl walks")
    parser.add_argument("--values-size", type=int, default=4, help="MB of the file whose values it decodes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=KINDS, help="the rows of this generated file, without peers")
    parser.add_argument("--dir", type=Path, default=Path.home() / ".cache" / "lastbranch-bench")
    parser.add_argument("--peers", type=Path, default=Path(".venv-peers/bin/python"))
    parser.add_argument("--values-peers", type=Path, default=Path(".venv-peers-values/bin/python"))
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)

    def made(name: str, size: int) -> Path:
        path: Path = options.dir / f"{name}-{size}.etl"
        generate(path, KINDS[name], size << 20)
        return path

    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    head = f"{'what':8} {'file':24} {'events':>9} {'wall s':>9} {'CPU s':>8} {'GB/s':>6} {'M ev/s':>6}"
    print(f"kernels: {kernels.lb_compiler().decode() if (kernels := native.library()) else 'none'}")
    print(f"{head}  peer, its CPU seconds, how many times ours")
    for name in options.only or KINDS:
        path = made(name, options.size if name != "tiny" else options.peer_size)
        walk(path, index, 1)  # into the page cache
        for look in (index, columns):
            row(look, path, *walk(path, look, options.rounds))
    if options.only:
        return
    for path in options.files:
        for name, code in PEERS.items():
            against((columns,), path, options.peers, name, code, options.rounds, path)
    for kind in ("lbr", "mixed"):
        path, name = made(kind, options.peer_size), "dissect.etl"
        against((columns,), path, options.peers, name, PEERS[name], options.rounds, path)
    generated = made("mixed", options.values_size), made("mixed", options.peer_size)
    pairs = [generated, *((path, path) for path in options.files)]
    for name, code in VALUES.items():
        for path, ours in pairs:
            against((values, strings, objects), path, options.values_peers, name, code, options.rounds, ours)
    print(f"load afterwards {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
