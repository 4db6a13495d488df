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
    for kernel, make in SEEDS.items():
        for number, content in enumerate(make(random.Random(seed))):
            (folder / f"{kernel}.{number}").write_bytes(content)
    return subprocess.run([driver, amount, str(seed), folder], text=True, capture_output=True)


def _stacks(chance: random.Random) -> Iterator[bytes]:
    """Batches as the driver reads them: options, seed; number of samples, owner and length of each, entries."""
    for options in range(16):
        found = [struct.pack("<BQ", options, chance.getrandbits(64))]
        for _ in range(chance.randrange(1, 6)):
            lengths = [chance.choice((0, 1, 2, 8, 31)) for _ in range(chance.randrange(1, 12))]
            found.append(bytes([len(lengths), *(length << 3 | chance.randrange(8) for length in lengths)]))
            found += [struct.pack("<QQH", _address(chance), _address(chance), chance.getrandbits(16))
                      for _ in range(sum(lengths))]  # fmt: skip
        yield b"".join(found)


def _address(chance: random.Random) -> int:
    return chance.choice((0, 0x55D0_0040_0000, 0x7F00_0000_1000, 0xFFFF_FFFF_8100_0000)) + chance.randrange(64)


def _compressed(chance: random.Random) -> Iterator[bytes]:
    """The format, the size of the output in two bytes, and a compressed block."""
    for form, compress in COMPRESSORS.items():
        for size in (1, 40, 700, 5000):
            words = [chance.randbytes(chance.choice((1, 2, 3, 9, 40))) for _ in range(8)]
            text = b"".join(chance.choice(words) * chance.choice((1, 1, 1, 20)) for _ in range(size))[:size]
            yield bytes([form]) + size.to_bytes(2, "little") + compress(text)


SEEDS: dict[str, Callable[[random.Random], Iterator[bytes]]] = {"count_stacks": _stacks, "decompress": _compressed}
"""Kernel -> what makes inputs that it takes; one for each row of the driver's table."""


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
