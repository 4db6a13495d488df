"""How fast is an .etl file read, against dissect.etl and etl-parser in the same run?

    python benchmarks/bench_etl.py [FILE.etl ...] [--size 1024] [--peer-size 100] [--values-size 100] [--rounds 5]

Generates uncompressed files of 64 KiB buffers and `--size` MB: `lbr` (a PMC interrupt and its 32 branches), `mixed`
(samples, stacks, context switches, thread and manifest events; mean 130 bytes) and `tiny` (16 to 64 bytes). Of each it
measures "index" (where every event is, its size, header kind and hook) and "columns" (also time, pid, tid, cpu), from
opening the cached file on. "values" are all fields of all events as columns, with strings as Python strings; "objects"
have every value as a Python object, which is what the peers make.

Peers read the named files, and generated ones of `--peer-size` MB (headers) and `--values-size` MB (values), once each
in a process of its own, without imports; a peer counts only if it sees as many events as we do (but for those in the
header buffer). dissect.etl 3.14 cannot decode values, so those are of 3.9 (`make peers` sets up both environments).
"""

from __future__ import annotations

import argparse
import os
import random
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from lastbranch.formats.etl import EventBlock, TraceLog
from lastbranch.formats.etl.batches import batches_of
from lastbranch.formats.etl.decode import Decoder
from lastbranch.formats.etl.field_columns import Texts
from lastbranch.opening import open_source
from measure import machine

BUFFER = 1 << 16
DISTINCT = 64  # buffers; the file repeats them with sequence numbers of their own
PROCESSORS = 8
BEGIN = 1_000_000
GUID = bytes(range(16))
DECODER = Decoder()

PEERS = {
    "dissect.etl": """
from dissect.etl.etl import ETL
def walk(path):
    with open(path, "rb") as file:
        return sum(1 for _ in ETL(file))
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
        return count.n
""",
}
VALUES = {
    "dissect.etl": """
from dissect.etl.etl import ETL
def walk(path):
    count = 0
    with open(path, "rb") as file:
        for record in ETL(file):
            count += 1
            try:
                record.event_values()
            except Exception:
                pass
    return count
""",
}
RUN_PEER = """
import sys, time
from importlib.metadata import version
begin = time.perf_counter()
count = walk(sys.argv[1])
print(count, time.perf_counter() - begin, version(sys.argv[2]))
"""


def perfinfo(hook: int, tick: int, payload: bytes) -> bytes:
    return struct.pack("<HBBHHq", 2, 17, 0xC0, 16 + len(payload), hook, tick) + payload


def system(hook: int, tick: int, payload: bytes, *, compact: bool) -> bytes:
    size = (24 if compact else 32) + len(payload)
    head = struct.pack("<HBBHHIIq", 2, 4 if compact else 2, 0xC0, size, hook, 8, 4, tick)
    return head + (b"" if compact else bytes(8)) + payload


def lbr(rng: random.Random, tick: int) -> list[bytes]:
    entries = rng.randbytes(32 * 24)
    return [
        perfinfo(0x0F2F, tick, struct.pack("<QIHH", 0x7FF6_0000_1000, 8, 6, 0)),
        perfinfo(0x0C20, tick, struct.pack("<QIIII", tick, 4, 8, 0, 0) + entries),
    ]


def mixed(rng: random.Random, tick: int) -> list[bytes]:
    kind = rng.random()
    if kind < 0.3:
        return [perfinfo(0x0F2E, tick, struct.pack("<QII", 0x7FF6_0000_1000, 8, 1))]
    if kind < 0.6:
        return [perfinfo(0x1820, tick, struct.pack("<QII", tick, 4, 8) + bytes(8 * rng.randrange(8, 40)))]
    if kind < 0.7:
        return [system(0x0524, tick, bytes(24), compact=True)]
    if kind < 0.8:
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
    log = struct.pack("<I4BIIqIIIIIIIIQQ", BUFFER, 10, 0, 1, 5, 19045, PROCESSORS, 133 * 10**15, 156250, 0, 1, buffers,
                      1, 8, 0, 3000, 6, 7)  # fmt: skip
    log += bytes(172) + struct.pack("<IqqqII", 0, 0, 10_000_000, 133 * 10**15, 1, 0) + bytes(4)
    return wrap(system(0, BEGIN, log, compact=False) + bytes(-len(log) % 8), kind=4)


def generate(path: Path, make: Callable[[random.Random, int], list[bytes]], size: int) -> None:
    """Write a file of about ``size`` bytes, unless one of that size is there."""
    count = size // BUFFER - 1
    if path.exists() and path.stat().st_size == (count + 1) * BUFFER:
        return
    rng, tick, bodies = random.Random(1), BEGIN, []
    for _ in range(min(DISTINCT, count)):
        body = bytearray()
        while True:
            tick += rng.randrange(10, 1000)
            events = b"".join(event + bytes(-len(event) % 8) for event in make(rng, tick))
            if 72 + len(body) + len(events) > BUFFER:
                break
            body += events
        bodies.append(bytes(body))
    with path.open("wb") as file:
        file.write(header_buffer(count + 1))
        for number in range(count):
            file.write(wrap(bodies[number % len(bodies)], sequence=number + 1, cpu=number % PROCESSORS))


def index(block: EventBlock) -> None:
    _ = block.header, block.hook


def columns(block: EventBlock) -> None:
    _ = block.header, block.hook, block.time, block.pid, block.tid, block.cpu


def values(block: EventBlock) -> None:
    for batch in batches_of(block, DECODER):
        for column in batch.columns.values():
            if isinstance(column, Texts):
                column.tolist()


def objects(block: EventBlock) -> None:
    for batch in batches_of(block, DECODER):
        batch.fields()


def walk(path: Path, look: Callable[[EventBlock], None], rounds: int) -> tuple[int, float, float, float]:
    """Number of events, median and best seconds, and median seconds of CPU, which other load disturbs less."""
    seconds, busy, count = [], [], 0
    for _ in range(rounds):
        begin, before = time.perf_counter(), time.process_time()
        count = 0
        for block in TraceLog(open_source(str(path)), workers=os.cpu_count() or 1).blocks():
            look(block)
            count += len(block)
        seconds.append(time.perf_counter() - begin)
        busy.append(time.process_time() - before)
    return count, median(seconds), min(seconds), median(busy)


def peer(python: Path, name: str, code: str, path: Path) -> tuple[int, float, str] | str:
    """Events, seconds and version of a peer, or why there are none."""
    if not python.exists():
        return "not installed"
    argv = [str(python), "-c", code + RUN_PEER, str(path), name]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        return lines[-1][:80]
    count, seconds, version = done.stdout.split()[-3:]
    return int(count), float(seconds), version


def against_peers(
    python: Path, codes: dict[str, str], look: Callable[[EventBlock], None], paths: list[Path], rounds: int
) -> None:
    print(f"\n{look.__name__:42} {'events':>9} {'lastbranch':>13}  peers: seconds, ratio")
    for path in paths:
        count, ours, _, _ = walk(path, look, rounds)
        first = next(TraceLog(open_source(str(path))).blocks())  # a peer may leave out the header buffer, 1 to 4 events
        least = count - int((first.window.buffers.offset.take(first.buffer) == 0).sum())
        cells = []
        for name, code in codes.items():
            result = peer(python, name, code, path)
            if isinstance(result, str):
                cells.append(f"{name} fails: {result}")
            elif not least <= result[0] <= count:
                cells.append(f"{name} {result[2]} void: {result[0]} events")
            else:
                cells.append(f"{name} {result[2]} {result[1]:.3f} {result[1] / ours:.1f}x")
        print(f"{path.name:42} {count:9} {ours * 1e3:10.1f} ms  {'; '.join(cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--size", type=int, default=1024, help="MB of each generated file")
    parser.add_argument("--peer-size", type=int, default=100, help="MB of the files whose headers peers walk")
    parser.add_argument("--values-size", type=int, default=100, help="MB of the file whose values they decode")
    parser.add_argument("--rounds", type=int, default=5)
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
    print(f"{'':8} {'what':8} {'events':>10}  median s    min s    cpu s   GB/s  M events/s")
    for name in KINDS:
        path = made(name, options.size)
        walk(path, index, 1)  # into the page cache
        for look in (index, columns):
            count, middle, best, cpu = walk(path, look, options.rounds)
            rates = f"{path.stat().st_size / middle / 1e9:6.2f} {count / middle / 1e6:11.1f}"
            print(f"{name:8} {look.__name__:8} {count:10}  {middle:8.3f} {best:8.3f} {cpu:8.3f} {rates}", flush=True)
    small = [made(name, options.peer_size) for name in KINDS]
    against_peers(options.peers, PEERS, columns, [*options.files, *small], options.rounds)
    decoded = [*options.files, made("mixed", options.values_size)]
    for look in (values, objects):
        against_peers(options.values_peers, VALUES, look, decoded, options.rounds)
    print(f"load afterwards {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
