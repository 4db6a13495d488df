"""Each kernel of the compiled library on mutated input: fuzz_kernels.c, built with ASan and UBSan.

    python tests/tools/fuzz_kernels.py [--seconds 60] [--seed N]

``--seconds`` are for each kernel. An input that fails is left in the present folder as KERNEL.failed; the printed
program runs it again.
"""

from __future__ import annotations

import argparse
import os
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from etl_compressors import COMPRESSORS
from lastbranch.native import build

SOURCE = Path(__file__).with_name("fuzz_kernels.c")


def build_driver(folder: Path) -> Path:
    """The driver with all kernels, in ``folder``. Raises `subprocess.CalledProcessError`."""
    path = folder / "fuzz_kernels"
    flags = [*(flag for flag in build.FLAGS if flag not in ("-shared", "-O3")), *build.SANITIZED, f"-I{build.HERE}"]
    subprocess.run([*build.compiler(), *flags, "-o", path, SOURCE, *build.sources()], check=True)
    return path


def run_driver(driver: Path, amount: str, seed: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Fuzz every kernel for ``amount`` (seconds, or minus the number of rounds) from the seeds in ``folder``."""
    write_seeds(seed, folder)
    return subprocess.run([driver, amount, str(seed), folder], text=True, capture_output=True)


def write_seeds(seed: int, folder: Path) -> None:
    """Inputs to begin from, as files of ``folder``."""
    for kernel, make in SEEDS.items():
        for number, content in enumerate(make(random.Random(seed))):
            (folder / f"{kernel}.{number}").write_bytes(content)


def _stacks(chance: random.Random) -> Iterator[bytes]:
    """Batches as the driver reads them: options, seed; number of samples, owner and length of each, entries."""
    for options in range(32):
        found = [struct.pack("<BQ", options, chance.getrandbits(64))]
        for _ in range(chance.randrange(1, 6)):
            lengths = [chance.choice((0, 1, 2, 8, 31)) for _ in range(chance.randrange(1, 12))]
            found.append(bytes([len(lengths), *(length << 3 | chance.randrange(8) for length in lengths)]))
            found += [
                struct.pack("<QQH", _address(chance), _address(chance), chance.getrandbits(16))
                for _ in range(sum(lengths))
            ]
        yield b"".join(found)


def _bound(chance: random.Random) -> Iterator[bytes]:
    """A seed, whether ranges are counted, and stacks: owner and length of each, then pages, offsets and flags."""
    for number in range(16):
        heads = [chance.randrange(16 if number % 2 else 256) for _ in range(chance.randrange(1, 40))]
        entries = sum(1025 if head == 254 else head >> 3 for head in heads)
        ends = bytes(chance.randrange(256) for _ in range(4 * entries))
        yield (
            struct.pack("<QBB", chance.getrandbits(64), number, len(heads))
            + bytes(heads)
            + b"".join(
                ends[4 * i : 4 * i + 4] + bytes([chance.randrange(4), chance.randrange(256), 0]) for i in range(entries)
            )
        )


def _address(chance: random.Random) -> int:
    return chance.choice((0, 0x55D0_0040_0000, 0x7F00_0000_1000, 0xFFFF_FFFF_8100_0000)) + chance.randrange(64)


def _compressed(chance: random.Random) -> Iterator[bytes]:
    """The format, the size of the output in two bytes, and a compressed block."""
    for form, compress in COMPRESSORS.items():
        for size in (1, 40, 700, 5000):
            yield bytes([form]) + size.to_bytes(2, "little") + compress(_text(chance, size))


def _text(chance: random.Random, size: int) -> bytes:
    words = [chance.randbytes(chance.choice((1, 2, 3, 9, 40))) for _ in range(8)]
    return b"".join(chance.choice(words) * chance.choice((1, 1, 1, 20)) for _ in range(size))[:size]


def _deflated(chance: random.Random) -> Iterator[bytes]:
    """Bytes of a piece less 1, bytes of the data, bytes less of room; data; length of each stream; streams."""
    for size, step in ((1, 4), (90, 40), (700, 1 << 16), (5000, 1 << 11)):
        text, packed = _text(chance, size), []
        for begin in range(0, size, step):
            deflate = zlib.compressobj(3, zlib.DEFLATED, -13, 9, zlib.Z_FIXED, text[:begin] or b"\0")
            packed.append(deflate.compress(text[begin : begin + step]) + deflate.flush())
        lengths = struct.pack(f"<{len(packed)}H", *map(len, packed))
        yield struct.pack("<HHB", step - 1, size, 0) + text + lengths + b"".join(packed)


_SKIP, _COUNTED, _RAW, _REGISTERS, _SIZED, _BRANCHES = range(6)


def _records(chance: random.Random) -> Iterator[bytes]:
    """Byte order, room less 1, fixed words, words of time and thread, steps; samples and other records."""
    for order in "<>":
        steps = [(_BRANCHES, 3, 0), (_COUNTED, 1, 0), (_REGISTERS, 2, 0), (_SIZED, 1, 0), (_SKIP, 1, 0), (_RAW, 0, 0)]
        head = [order == ">", 5, 2, 1, 2, len(steps), *(word for step in steps for word in step)]
        found = [bytes(head)]
        for _ in range(12):
            size, lengths = 8 * chance.randrange(3), [chance.randrange(4) for _ in range(2)]
            fields = [chance.getrandbits(40), chance.randrange(5)]  # time, thread
            fields += [lengths[0], *[chance.getrandbits(48)] * (3 * lengths[0]), lengths[1], *[7] * lengths[1]]
            fields += [0] if chance.random() < 0.5 else [2, 5, 6]
            fields += [size, *[8] * (size // 8), *[0] * (size > 0), 9]
            body = struct.pack(f"{order}{len(fields)}QI4x", *fields, 4)
            found.append(struct.pack(f"{order}IHH", chance.choice((9, 9, 9, 3)), 2, 8 + len(body)) + body)
        yield b"".join(found)


def _mappings(chance: random.Random) -> Iterator[bytes]:
    """Numbers of slabs, bounds plus 1 (0: none) and rows, moment bits, runs, addresses; their values."""
    for bounds in (0, 0, 9):
        slabs, rows, runs, length = 8, 12, 4, 6
        head = bytes([slabs, bounds, rows, 3, runs, runs * length])
        steps = bytes(chance.randrange(1, 4) for _ in range(slabs + max(0, bounds - 1) + rows))
        lasts = bytes(chance.randrange(16) for _ in range(rows))
        asked = b"".join(
            struct.pack("<bQBbBbB", length, 1 << 16, chance.randrange(3), 0, 2, -(k & 1), 1) for k in range(runs)
        )
        yield (
            head
            + steps
            + lasts
            + asked
            + b"".join(chance.randrange(1 << 12).to_bytes(3, "little") for _ in range(runs * length))
        )


def _runs(chance: random.Random) -> Iterator[bytes]:
    """Bytes of a value less 1, number of ranges, room; (0, first, length) of each range; values."""
    for size in (1, 8, 24):
        ranges = [(chance.randrange(60), chance.randrange(40)) for _ in range(20)]
        head = struct.pack("<BBH", size - 1, len(ranges), sum(length for _, length in ranges))
        yield head + b"".join(bytes([0, *one]) for one in ranges) + chance.randbytes(100 * size)


def _branch_records(chance: random.Random) -> Iterator[bytes]:
    """Number of records, room; size of a word, first byte, a shift of it, and entries of each; the records."""
    for sizes in (8,), (4,), (8, 4):
        heads, room, begin = b"", 0, 0
        for _ in range(12):
            size, count = chance.choice(sizes), chance.randrange(6)
            heads += struct.pack("<BHBB", size, begin, 0, count)
            room, begin = room + count, begin + 3 * size * count
        yield struct.pack("<BH", 12, room) + heads + chance.randbytes(begin)


def _lists(chance: random.Random) -> Iterator[bytes]:
    """Whether to quote, number of lists, room; how much further each begins; values."""
    for quote in (0, 1):
        lengths = [chance.randrange(9) for _ in range(12)]
        values = struct.pack(
            f"<{sum(lengths)}Q", *(chance.getrandbits(chance.randrange(65)) for _ in range(sum(lengths)))
        )
        yield struct.pack("<BBH", quote, len(lengths), 4096) + bytes([0, *lengths]) + values


def _events(chance: random.Random) -> Iterator[bytes]:
    """Number of buffers, 16ths of the scratch, first and last word of each buffer; words of events."""
    for buffers in (1, 3, 16, 30):
        words, bounds = b"", b""
        for _ in range(buffers):
            begin = len(words) // 8
            for _ in range(chance.randrange(12)):
                kind, size = chance.randrange(3), 8 * chance.randrange(1, 6)
                low, high = (0, size) if kind == 1 else (size, 0)
                words += struct.pack("<HHHH", low, 0xC000 | kind, high, 0) + bytes(size - 8)
            bounds += struct.pack("<hh", begin, len(words) // 8)
        yield bytes([buffers, chance.choice((4, 8, 255))]) + bounds + words + bytes(16)


def _call_stacks(chance: random.Random) -> Iterator[bytes]:
    """The seed; batches: number of samples, owner and length of each; source, length and type of each entry."""
    for _ in range(6):
        found = [chance.randbytes(8)]
        for _ in range(chance.randrange(1, 4)):
            lengths = [chance.randrange(32) for _ in range(chance.randrange(1, 12))]
            found.append(bytes([len(lengths), *(length << 3 | chance.randrange(7) for length in lengths)]))
            found += [
                bytes([chance.randrange(40), chance.choice((5, 6)), chance.choice((0, chance.randrange(16)))])
                for _ in range(sum(lengths))
            ]
        yield b"".join(found)


def _distinct_stacks(chance: random.Random) -> Iterator[bytes]:
    """Bytes of a value, number of keys, number of stacks, seed; keys; length of each stack; values."""
    for size in (4, 8):
        for keys in range(3):
            head = bytes([size, keys, 40]) + chance.randbytes(8 + 40 * keys)
            yield head + bytes(chance.randrange(3) for _ in range(40)) + chance.randbytes(size * 60)


def _summed_stacks(chance: random.Random) -> Iterator[bytes]:
    """Number of keys, number of stacks, seed; keys; where the first begins, length of each stack; frames; values."""
    for keys in range(3):
        head = bytes([keys, 60]) + chance.randbytes(8 + 60 * keys) + bytes([1])
        yield head + b"".join(bytes([chance.randrange(3), 0]) for _ in range(60)) + chance.randbytes(240)


def _rows(chance: random.Random) -> Iterator[bytes]:
    """Number of columns, number of rows, seed; values."""
    for columns in range(4):
        yield bytes([columns, 90]) + chance.randbytes(8 + 90 * columns)


def _chained(chance: random.Random) -> Iterator[bytes]:
    """Number of samples, seed; length of each chain and number of its steps; frames; the steps; those of samples."""
    for samples in (3, 20, 60):
        heads = b"".join(bytes([chance.randrange(200), 0, chance.randrange(32)]) for _ in range(samples))
        steps = b"".join(bytes([chance.choice((0, 1, 4, 5, 8, 9, 6)), *chance.randbytes(2)]) for _ in range(16))
        yield (
            bytes([samples])
            + chance.randbytes(8)
            + heads
            + chance.randbytes(4 * samples)
            + steps
            + chance.randbytes(600)
        )


def _code(chance: random.Random) -> Iterator[bytes]:
    """Number of pieces, bytes of a unit less 1, instructions less of room; size, span and address of each; code."""
    for unit in (1, 4):
        sizes = [chance.randrange(60) for _ in range(12)]
        spans = [chance.choice((1, size)) for size in sizes]
        heads = [bytes([size, span]) + chance.randbytes(8) for size, span in zip(sizes, spans, strict=True)]
        yield bytes([len(sizes), unit - 1, 0]) + b"".join(heads) + chance.randbytes(sum(sizes))


def _near(chance: random.Random) -> Iterator[bytes]:
    """Bounds, number of stacks; distances of bounds; length of each stack; source and target."""
    for bounds in (2, 6, 24):
        lengths = [chance.randrange(20) for _ in range(10)]
        yield (
            bytes([bounds, len(lengths)])
            + chance.randbytes(bounds)
            + bytes(lengths)
            + chance.randbytes(2 * sum(lengths))
        )


def _sample_sums(chance: random.Random) -> Iterator[bytes]:
    """Number of stacks, seed; scope and length of each; source, target and flags."""
    for samples in (3, 20, 60):
        heads = b"".join(bytes([chance.randrange(2), chance.randrange(16)]) for _ in range(samples))
        yield bytes([samples]) + chance.randbytes(8) + heads + chance.randbytes(3 * 16 * samples)


def _chains(chance: random.Random) -> Iterator[bytes]:
    """Number of states, the most words of a plan; number, targets and weights of the transitions of each state."""
    for states in (3, 9, 23):
        yield bytes([states, 255, 255]) + chance.randbytes(16 * states)


SEEDS: dict[str, Callable[[random.Random], Iterator[bytes]]] = {
    "branch_entries": _branch_records, "call_stacks": _call_stacks, "count_bound": _bound, "count_stacks": _stacks,
    "compress": _deflated,
    "decode": _code, "decompress": _compressed, "distinct_stacks": _distinct_stacks, "find_mappings": _mappings,
    "format_lists": _lists, "near_entries": _near, "perf_records": _records, "row_numbers": _rows, "runs": _runs,
    "sample_sums": _sample_sums, "stationary": _chains, "sum_stacks": _summed_stacks, "virtual_unwinding": _chained,
    "walk_events": _events,
}  # fmt: skip
"""Kernel -> the function that makes its inputs; an entry for each row of the driver's table."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Each kernel on mutated input, with ASan and UBSan.")
    parser.add_argument("--seconds", type=float, default=60, help="for each kernel")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    folder = Path(os.environ.get("TMPDIR", "/tmp"), f"lastbranch-fuzz-{os.getpid()}")
    folder.mkdir()
    driver = build_driver(folder)
    print(f"{driver} {arguments.seconds} {arguments.seed} {folder}", flush=True)
    done = run_driver(driver, str(arguments.seconds), arguments.seed, folder)
    print(done.stdout, done.stderr, sep="", end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
