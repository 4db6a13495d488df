"""Damages TB5 files at random and reads them with everything that reads: only `FormatError` may come out.

    python tests/tools/fuzz_tb5.py [--seconds 20] [--seed 1]

Checksums are corrected in half of the cases, so that wrong values get past the checks.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import tempfile
import time
from pathlib import Path
from zlib import crc32

import numpy as np

from command_line import run_cli, time_limit
from lastbranch.errors import LastbranchError
from lastbranch.formats.tb5.commits import block_check
from lastbranch.formats.tb5.profile_writer import write_profile
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.formats.tb5.verification import verify
from lastbranch.formats.tb5.writer import Tb5Writer, compact
from lastbranch.opening import open_profile, open_source
from lastbranch.tbrw.binding import bind_stream


def originals(folder: Path) -> list[bytes]:
    """A file with branch stacks, bound; one with call chains and raw data; one of the guide's sections alone."""
    from lastbranch.bind import bind
    from lastbranch.demo import capture
    from lastbranch.formats.tb5.layout import NEVER
    from lastbranch.formats.tb5.profile_writer import ProfileWriter
    from lastbranch.model import COLUMNS, Event, Machine, Profile
    from tb5_profiles import KERNEL, every_column, write

    paths = [folder / f"{i}.tb5" for i in range(3)]
    write_profile(open_profile(capture()), paths[0])
    writer = ProfileWriter(paths[1], Machine(arch="x86_64", os="Linux"))
    writer.stream([c.name for c in COLUMNS], depth=5).write(every_column(50, 5))
    writer.finish(bind(Profile("x", "made", events=[Event(f"e{i}") for i in range(3)])))
    module = dict.fromkeys(("module_associated_pid", "module_flags", "module_event_when"), 0)
    module |= {"module_unload_tsc": NEVER, "module_length": 4096, "module_load_address": KERNEL}
    one = {"ip": KERNEL, "pid": 1, "tid": 1, "cs": 0, "mode": 0, "time": 5}
    write(paths[2], [module], [one] * 20)
    bind_stream(paths[0])
    bind_stream(paths[2])
    return [path.read_bytes() for path in paths]


def mend(data: bytearray) -> None:
    """Make all checks right that can be found."""
    for at in (512, 1024):
        directory, size = struct.unpack_from("<QQ", data, at + 8)
        if not directory or directory + size > len(data):
            continue
        for row in range(directory, directory + size - 47, 48):
            record, count, block, blocks, index = struct.unpack_from("<IQIIQ", data, row + 12)
            if index + 24 * blocks > len(data):
                continue
            for i in range(min(blocks, 64)):
                (offset,) = struct.unpack_from("<Q", data, index + 24 * i)
                length = min(block, record * count - block * i)
                if length > 0 and offset + length <= len(data):
                    check = block_check(np.frombuffer(bytes(data[offset : offset + length]), np.uint8))
                    struct.pack_into("<QQ", data, index + 24 * i + 8, *check)
            struct.pack_into("<I", data, row + 40, crc32(data[index : index + 24 * blocks]))
        struct.pack_into("<I", data, at + 36, crc32(data[directory : directory + size]))
        struct.pack_into("<I", data, at + 44, crc32(data[at : at + 44]))
    struct.pack_into("<I", data, 56, crc32(data[:56]))


def damaged(original: bytes, dice: random.Random) -> bytes:
    data = bytearray(original)
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        at = dice.choice(
            (dice.randrange(len(data)), dice.randrange(1100), dice.randrange(max(0, len(data) - 4000), len(data)))
        )
        kind = dice.randrange(4)
        if kind == 0:
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            data[at : at + 8] = dice.choice((b"\xff" * 8, b"\0" * 8, dice.randbytes(8)))[: len(data) - at]
        elif kind == 2:
            other = dice.randrange(len(data))
            data[at : at + 64] = data[other : other + 64].ljust(64, b"\0")[: len(data) - at]
        else:
            del data[max(60, at) :]
            break
    if len(data) > 1100 and dice.random() < 0.5:
        mend(data)
    return bytes(data)


def read_all(path: Path) -> None:
    with Tb5File(open_source(str(path))) as file:
        verify(file)
    profile = open_profile(path)
    for _ in profile.batches():
        pass
    for _ in profile.batches(ordered=True):
        pass


def add(path: Path) -> None:
    with Tb5Writer.append(path) as writer:
        writer.string("more")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of the damage")
    options = parser.parse_args()
    seed = options.seed
    dice, until, number, refused = random.Random(seed), time.monotonic() + options.seconds, 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = originals(folder)
        path = folder / "fuzzed.tb5"
        while time.monotonic() < until:
            data = damaged(dice.choice(files), dice)
            works = [read_all, add, bind_stream, compact]
            for work in works:
                path.write_bytes(data)
                try:
                    with time_limit(20):
                        work(path)
                except LastbranchError:
                    refused += 1
                except BaseException:
                    Path("fuzz-tb5-failure.tb5").write_bytes(data)
                    print(f"file {number} (seed {seed}): {work.__name__} failed; kept as fuzz-tb5-failure.tb5")
                    raise
            if number % 10 == 0:
                path.write_bytes(data)
                for verb in ("info", "verify", "report"):
                    run_cli(verb, path)
            number += 1
    print(f"{number} files, {refused} refusals, no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
