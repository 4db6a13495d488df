"""How fast are compressed trace buffers decoded, against dissect.util's decoder in the same run?

    python benchmarks/bench_xpress.py [FILE.etl ...] [--rounds 5]
    python benchmarks/bench_xpress.py FILE.etl ... --store tests/data/etl_xpress.json

The first form decodes the compressed buffers of each file, and synthetic ones, in interleaved rounds: dissect.util one
buffer after the other, lastbranch with its compiled library, and without it with one process and with two (worker
started before). All outputs must be equal. The benchmark prints medians; CPU time is this process's, which other load
on the machine disturbs less. The second form stores dissect.util's output for the buffers (SHA-256, the first 16 digits
of each) as the expected result of the tests. Needs lastbranch, compiled, and dissect.util in one environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from lastbranch.formats.etl import compress
from lastbranch.formats.etl.container.decompression import decompress_into, decompress_many
from measure import machine

Blocks = tuple[list[bytes], list[int]]


def compressed_buffers(path: Path) -> Blocks:
    """The payloads of the buffers with flag COMPRESSED, and their sizes after decompression."""
    data, at, blocks, sizes = path.read_bytes(), 0, [], []
    while at + 0x48 <= len(data):
        length, filled, flags = (
            struct.unpack_from(form, data, at + o)[0] for form, o in (("<I", 0), ("<I", 48), ("<H", 52))
        )
        if length < 0x48:
            break
        if flags & 0x40:
            blocks.append(data[at + 0x48 : at + length])
            sizes.append(filled - 0x48)
        at += length
    return blocks, sizes


def synthetic(count: int, size: int = 65464) -> Blocks:
    """Buffers of sample events: growing time stamps, few threads, some hot addresses and many cold ones."""
    rng = random.Random(1)
    hot = [0x7FF6_0000_0000 + rng.randrange(1 << 24) for _ in range(200)]
    blocks, tick = [], 1 << 40
    for _ in range(count):
        raw = bytearray()
        while len(raw) < size:
            tick += rng.randrange(100, 20_000)
            address = rng.choice(hot) if rng.random() < 0.6 else 0x7FF6_0000_0000 + rng.randrange(1 << 24)
            raw += struct.pack("<HBBHHqQII", 2, 17, 0xC0, 32, 0x0F2E, tick, address, rng.randrange(1000, 1016), 1)
        blocks.append(compress(raw[:size]))
    return blocks, [size] * count


def in_python(blocks: list[bytes], sizes: list[int], workers: int) -> Sequence[object]:
    os.environ["LASTBRANCH_NATIVE"] = "0"
    try:
        return decompress_many(blocks, sizes, workers=workers)
    finally:
        del os.environ["LASTBRANCH_NATIVE"]


def in_place(blocks: list[bytes], sizes: list[int]) -> Callable[[], Sequence[object]]:
    """The compiled library as the reader uses it: from memory to memory that is there already."""
    given = [memoryview(bytearray(block)) for block in blocks]
    taken = [memoryview(bytearray(size)) for size in sizes]

    def decode() -> Sequence[object]:
        return [into if decompress_into(block, into) else None for block, into in zip(given, taken, strict=True)]

    return decode


def measure(name: str, data: Blocks, rounds: int) -> None:
    """Prints a table with dissect.util, the compiled library, one process and two processes."""
    from dissect.util.compression import lzxpress

    blocks, sizes = data
    ways: list[tuple[str, Callable[[], Sequence[object]]]] = [
        ("dissect.util", lambda: [lzxpress.decompress(block) for block in blocks]),
        ("lastbranch, compiled", in_place(blocks, sizes)),
        ("lastbranch, 1 process", lambda: in_python(blocks, sizes, 1)),
        ("lastbranch, 2 processes", lambda: in_python(blocks, sizes, 2)),
    ]
    expected = ways[0][1]()
    for label, way in ways[1:]:
        if way() != expected:
            sys.exit(f"{name}: {label} differs from dissect.util")
    walls: dict[str, list[float]] = {label: [] for label, _ in ways}
    cpus: dict[str, list[float]] = {label: [] for label, _ in ways}
    for _ in range(rounds):
        for label, way in ways:
            wall, cpu = time.perf_counter(), time.process_time()
            way()
            walls[label].append(time.perf_counter() - wall)
            cpus[label].append(time.process_time() - cpu)
    total = sum(sizes) / 1e6
    print(f"{name}: {len(blocks)} buffers, {sum(map(len, blocks)) / 1e6:.1f} -> {total:.1f} MB, {rounds} rounds")
    print(f"{'':24}  median s  CPU s  MB/s out  MB/CPU s  ratio  ratio of CPU")
    base_wall, base_cpu = median(walls["dissect.util"]), median(cpus["dissect.util"])
    for label, _ in ways:
        wall, cpu = median(walls[label]), median(cpus[label])
        rates = f"{total / wall:9.1f} {total / cpu:9.1f} {base_wall / wall:6.2f} {base_cpu / cpu:6.2f}"
        print(f"{label:24}  {wall:8.3f} {cpu:6.3f} {rates}")


def store(paths: list[Path], target: Path) -> None:
    """Write the expected results."""
    from dissect.util.compression import lzxpress

    expected = {}
    for path in paths:
        outputs = [lzxpress.decompress(block) for block in compressed_buffers(path)[0]]
        expected[path.name] = [hashlib.sha256(output).hexdigest()[:16] for output in outputs]
    target.write_text(json.dumps(expected, indent=0, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", type=Path)
    options = parser.parse_args()
    if options.store:
        return store(options.files, options.store)
    os.environ.pop("LASTBRANCH_NATIVE", None)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    for path in options.files:
        measure(path.name, compressed_buffers(path), options.rounds)
    measure("synthetic samples", synthetic(64), options.rounds)
    print(f"load afterwards {os.getloadavg()[0]:.1f}")
    return None


if __name__ == "__main__":
    main()
