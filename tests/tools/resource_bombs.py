"""Small files that ask for much, one generator for each way: ``python tests/tools/resource_bombs.py [NAME...]``.

Every file is under 5 MB, and `VERBS` read it within `MEMORY` of resident memory and `SECONDS` of the processor, each as
a process of its own with the default budgets. Other tests check the verbs' results; this script checks that the verbs
end, without a traceback. ``--quick`` makes each file much smaller: the tests run with this option.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import zstandard

import etl_builder as eb
import perfdata_writer as pw
from lastbranch.demo import capture
from lastbranch.formats.etl import compress
from lastbranch.formats.tb5.commits import encode_directory, encode_slot
from lastbranch.formats.tb5.layout import DIRECTORY_ENTRY, SLOT_OFFSETS, Scope, Table, TableEntry
from lastbranch.formats.tb5.profile_writer import write_profile
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.opening import open_profile, open_source
from perfdata_writer import Builder

MEMORY = 1 << 30
SECONDS = 20
LARGEST = 5_000_000
VERBS = (("info",), ("report",), ("check",), ("verify",))

Bomb = Callable[[float], bytes]
"""How large a file may be, as a share of `LARGEST` (less in a quick run) -> its bytes."""
BOMBS: dict[str, Bomb] = {}


def bomb(make: Bomb) -> Bomb:
    BOMBS[make.__name__] = make
    return make


# -- perf.data: one zstd stream of records


def packed(records: Iterator[bytes], scale: float, builder: Builder | None = None, kind: int = 81) -> bytes:
    """A capture whose records are compressed until the file has its size, or 600 MB went in."""
    head = pw.encode((builder or Builder()).capture, pipe=True)
    room, fed = int(LARGEST * scale) - len(head) - 200_000 * scale, 0
    packer = zstandard.ZstdCompressor(level=3).compressobj()
    out = bytearray()
    for piece in records:
        out += packer.compress(piece)
        fed += len(piece)
        if len(out) * 1.01 > room or fed > 6e8 * scale:
            break
    out += packer.flush()
    size = 65_520
    body = b"".join(
        struct.pack("<IHH", kind, 0, 8 + len(p)) + p for p in (out[i : i + size] for i in range(0, len(out), size))
    )
    return head + body


def record(kind: int, body: bytes, misc: int = 0) -> bytes:
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


def trailer(time: int, pid: int = 0) -> bytes:
    return struct.pack("<iiQ", pid, pid, time)


def fork(pid: int, parent: int, time: int, tid: int | None = None) -> bytes:
    tid = pid if tid is None else tid
    return record(7, struct.pack("<iiiiQ", pid, parent, tid, parent, time) + trailer(time))


def comm(pid: int, name: bytes, time: int) -> bytes:
    return record(3, struct.pack("<ii", pid, pid) + name.ljust(8, b"\0") + trailer(time, pid))


def mmap2(pid: int, start: int, length: int, name: bytes, time: int) -> bytes:
    body = struct.pack("<iiQQQIIQQII", pid, pid, start, length, 0, 0, 0, 0, 0, 5, 2) + name.ljust(16, b"\0")
    return record(10, body + trailer(time, pid))


def chunks(one: Callable[[int], bytes], number: int = 50_000_000) -> Iterator[bytes]:
    for lo in range(0, number, 4096):
        yield b"".join(one(i) for i in range(lo, lo + 4096))


def again(data: bytes) -> Iterator[bytes]:
    piece = data * (1 + (1 << 22) // len(data))
    while True:
        yield piece


@bomb
def fork_the_same(scale: float) -> bytes:
    return packed(again(fork(1, 0, 5)), scale)


@bomb
def fork_each_changes(scale: float) -> bytes:
    """The 5.9 KB file of 2.9 GB was of these: nothing but one number differs."""
    return packed(chunks(lambda i: fork(i & 0x3FFFFF, 1, i)), scale)


@bomb
def fork_two_in_turn(scale: float) -> bytes:
    """No time stamps: the place in the file is the time of each."""
    plain = Builder(sample_type=pw.IP | pw.TID, sample_id_all=False)
    two = b"".join(record(7, struct.pack("<iiiiQ", i, 1, i, 1, 0)) for i in (5, 6))
    return packed(again(two), scale, plain)


@bomb
def fork_threads(scale: float) -> bytes:
    return packed(chunks(lambda i: fork(7, 7, i, tid=i)), scale)


@bomb
def comm_the_same(scale: float) -> bytes:
    return packed(again(comm(1, b"name", 5)), scale)


@bomb
def comm_each_changes(scale: float) -> bytes:
    return packed(chunks(lambda i: comm(7, b"%x" % (i & 0xFFFFFF), i)), scale)


@bomb
def comm_of_many(scale: float) -> bytes:
    return packed(chunks(lambda i: comm(i & 0x3FFFFF, b"same", 5)), scale)


@bomb
def exit_of_many(scale: float) -> bytes:
    return packed(chunks(lambda i: record(4, struct.pack("<iiiiQ", i, 1, i, 1, 9) + trailer(9))), scale)


@bomb
def mmap2_upwards(scale: float) -> bytes:
    return packed(chunks(lambda i: mmap2(7, 0x10000 + (i << 13), 0x1000, b"/bin/a", i)), scale)


@bomb
def mmap2_downwards(scale: float) -> bytes:
    """Each mapping in front of all others."""
    return packed(chunks(lambda i: mmap2(7, (1 << 46) - (i << 13), 0x1000, b"/bin/a", i)), scale)


@bomb
def mmap2_all_over(scale: float) -> bytes:
    """Many small mappings, then mappings over all of them: each large mapping fills every gap between the small
    ones."""

    def pieces() -> Iterator[bytes]:
        for lo in range(0, 60_000, 4096):
            yield b"".join(mmap2(7, 0x10000 + (i << 13), 0x1000, b"/bin/a", i) for i in range(lo, lo + 4096))
        for lo in range(100_000, 50_000_000, 4096):
            yield b"".join(mmap2(7, 0, 1 << 40, b"/bin/%c" % (97 + i % 2), i) for i in range(lo, lo + 4096))

    return packed(pieces(), scale)


@bomb
def mmap2_names(scale: float) -> bytes:
    return packed(chunks(lambda i: mmap2(7, 0x10000, 0x1000, b"/bin/%x" % i, i)), scale)


@bomb
def mmap2_in_every_child(scale: float) -> bytes:
    """Each child has its own copy of what the parent maps as soon as it maps something itself."""

    def pieces() -> Iterator[bytes]:
        for lo in range(0, 60_000, 4096):
            yield b"".join(mmap2(7, 0x10000 + (i << 13), 0x1000, b"/bin/a", i) for i in range(lo, lo + 4096))
        for lo in range(100_000, 50_000_000, 4096):
            yield b"".join(fork(i, 7, i) + mmap2(i, 0x1000, 0x1000, b"/bin/a", i) for i in range(lo, lo + 4096))

    return packed(pieces(), scale)


@bomb
def lost_the_same(scale: float) -> bytes:
    return packed(again(record(2, struct.pack("<QQ", 1, 1) + trailer(5))), scale)


@bomb
def lost_in_turn(scale: float) -> bytes:
    several = b"".join(record(2, struct.pack("<QQ", 1, i) + trailer(i)) for i in range(30_000))
    return packed(again(several), scale)


@bomb
def zeros(scale: float) -> bytes:
    return packed(again(bytes(4096)), scale)


@bomb
def empty_records(scale: float) -> bytes:
    """Two sizes in turn, as short as records can be."""
    return packed(again(record(68, b"") + record(68, bytes(8))), scale)


@bomb
def samples_of_many_threads(scale: float) -> bytes:
    small = Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    return packed(chunks(lambda i: record(9, struct.pack("<QiiQ", 1, i, i, i))), scale, small)


@bomb
def samples_the_same(scale: float) -> bytes:
    small = Builder(sample_type=pw.IP)
    return packed(again(record(9, struct.pack("<Q", 1))), scale, small)


@bomb
def attributes(scale: float) -> bytes:
    """Each with a layout of its own: that many streams."""
    attr = Builder().capture.attrs[0].raw

    def one(i: int) -> bytes:
        bits = 1 << 16 | pw.IP | (i & 0xFF) << 4 | (i >> 8 & 0x1F) << 17
        ident = struct.pack("<Q", 1000 + i)
        return record(64, attr[:24] + struct.pack("<Q", bits) + attr[32:] + ident) + record(9, ident + bytes(256))

    return packed(chunks(one, 1 << 13), scale, Builder(sample_type=1 << 16 | pw.IP))


@bomb
def tiny_compressed(scale: float) -> bytes:
    """Each compressed record makes a block."""
    head = pw.encode(Builder().capture, pipe=True)
    frame = zstandard.ZstdCompressor().compress(fork(1, 0, 5))
    one = record(81, frame)
    return head + one * int(LARGEST * scale / len(one))


@bomb
def numa_lists(scale: float) -> bytes:
    """33 KB were 2.66 GB: each node names all processors."""
    b = Builder()
    b.feature("NUMA_TOPOLOGY", nodes=[(i, 1, 1, "0-65535") for i in range(max(10, int(900 * scale)))])
    return pw.encode(b.capture)


@bomb
def numa_records(scale: float) -> bytes:
    """The feature again and again, as a pipe may have it."""
    text = b"0-60000\0\0\0\0\0"
    return packed(
        chunks(lambda i: record(80, struct.pack("<QI", 14, 1) + struct.pack("<IQQI", i, 1, 1, 12) + text)), scale
    )


@bomb
def topology_records(scale: float) -> bytes:
    cpus = 7_000
    head = record(80, struct.pack("<QII", 7, cpus, cpus))

    def one(i: int) -> bytes:
        return record(80, struct.pack("<QII", 13, 0, 0) + struct.pack("<II", i, 0) * cpus)

    return packed(iter([head, *(one(i) for i in range(int(30_000 * scale)))]), scale)


# -- .etl: compressed buffers


def etl(events: Callable[[int], list[bytes]], scale: float, *, size: int = 1 << 20) -> bytes:
    """A log of buffers of ``size`` bytes, each full of what ``events`` gives for its number, as far as it fits."""
    trace = eb.Trace(size=size, compress=cache(compress))
    parts = [trace.header_buffer()]
    for number in range(1, 1 << 16):
        body = b"".join(map(eb.aligned, events(number)))
        parts.append(
            trace.data_buffer((body * (1 + size // len(body)))[: (size - 72) // len(body) * len(body)], 0, number)
        )
        if sum(map(len, parts)) + len(parts[-1]) > LARGEST * scale:
            return b"".join(parts[:-1]) if len(parts) > 2 else b"".join(parts)
        if number * size > 6e8 * scale:
            break
    return b"".join(parts)


def process(number: int, time: int, kind: int = 1) -> bytes:
    fixed = struct.pack("<QIIIiQII", 0xFFFF, number, 4, 0, 0, 0, 0, 0) + b"a.exe\0" + bytes(6)
    return eb.system(0x0300 | kind, time, fixed, version=4)


@bomb
def etl_processes(scale: float) -> bytes:
    return etl(lambda i: [process(i << 8 | n & 0xFF, i << 12 | n) for n in range(4000)], scale)


@bomb
def etl_processes_again(scale: float) -> bytes:
    """A process in the rundown at the end, known since the beginning: the event changes nothing."""
    return etl(lambda i: [process(8, 1 << 20, kind=4)], scale)


@bomb
def etl_images(scale: float) -> bytes:
    def image(number: int) -> bytes:
        fixed = struct.pack("<QQIIIIQ4I", number << 16, 0x1000, 7, 1, 2, 0, 0, 0, 0, 0, 0)
        return eb.system(0x140A, number, fixed + "\\a.dll\0".encode("utf-16-le"), version=3)

    return etl(lambda i: [image(i << 13 | n) for n in range(6000)], scale)


@bomb
def etl_threads(scale: float) -> bytes:
    def thread(number: int) -> bytes:
        body = struct.pack("<II6QI4B", 7, number, *[0] * 6, 0, 0, 0, 0, 0)
        return eb.system(0x0501, number, body, version=3)

    return etl(lambda i: [thread(i << 13 | n) for n in range(6000)], scale)


@bomb
def etl_types(scale: float) -> bytes:
    """Each event of a type of its own."""
    return etl(
        lambda i: [eb.manifest((i << 13 | n).to_bytes(16, "little"), n, 1 << 20, b"") for n in range(6000)], scale
    )


@bomb
def etl_claims(scale: float) -> bytes:
    """Some bytes that claim to be 16 MB each."""
    one = eb.buffer(b"", size=16 << 20, filled=16 << 20, flags=0x60)[:72]
    one = struct.pack("<I", 72 + 16) + one[4:] + bytes(16)
    return eb.Trace(size=16 << 20, compress=compress).header_buffer() + one * int(LARGEST * scale / len(one) - 30)


# -- .tb5: tables that are all the same bytes


def tb5(more: Callable[[dict[Table, TableEntry], int], dict[Table, TableEntry]], scale: float) -> bytes:
    """The packaged capture's .tb5 with a directory of more tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.tb5"
        write_profile(open_profile(capture()), path)
        data = bytearray(path.read_bytes())
        with Tb5File(open_source(str(path))) as file:
            tables = dict(file.tables)
    tables = more(tables, int((LARGEST * scale - len(data)) / DIRECTORY_ENTRY.itemsize))
    at = len(data)
    data += encode_directory(tables)
    slot = encode_slot(1 << 40, at, bytes(data[at:]), len(data), True)
    data[SLOT_OFFSETS[0] : SLOT_OFFSETS[0] + len(slot)] = slot
    return bytes(data)


@bomb
def tb5_streams(scale: float) -> bytes:
    """As many streams as fit, all of the same bytes."""

    def more(tables: dict[Table, TableEntry], room: int) -> dict[Table, TableEntry]:
        own = {key: entry for key, entry in tables.items() if key.scope is Scope.STREAM and key.stream == 0}
        copies = {
            key._replace(stream=i): entry
            for i in range(1, max(2, (room - len(tables)) // len(own)))
            for key, entry in own.items()
        }
        return tables | copies

    return tb5(more, scale)


@bomb
def tb5_number_of_streams(scale: float) -> bytes:
    def more(tables: dict[Table, TableEntry], room: int) -> dict[Table, TableEntry]:
        key, entry = next((k, e) for k, e in tables.items() if k.scope is Scope.STREAM)
        return tables | {key._replace(stream=0xFFFF_FFFE): replace(entry, count=0, blocks=0)}

    return tb5(more, scale)


# -- perf script


def lines(one: Callable[[int], str], scale: float) -> bytes:
    out, size = [], 0
    for i in range(1 << 24):
        out.append(one(i).encode())
        size += len(out[-1])
        if size > LARGEST * scale - 400:
            break
    return b"".join(out)


@bomb
def text_tasks(scale: float) -> bytes:
    sample = "a 1/1 [000] 1.000000: 100 cycles:u: 400000 0x400000/0x400010/P/-/-/0\n"
    return sample.encode() + lines(lambda i: f"a 1/1 [000] 1.{i:06}: PERF_RECORD_FORK({i}:{i}):(1:1)\n", scale)


@bomb
def text_maps(scale: float) -> bytes:
    def one(i: int) -> str:
        return f"a 1/1 [000] 1.{i:06}: PERF_RECORD_MMAP2 1/1: [{i << 12:#x}(0x1000) @ 0 08:01 1 1]: r-xp /b/{i:x}\n"

    return lines(one, scale)


@bomb
def text_samples(scale: float) -> bytes:
    return lines(
        lambda i: f"c{i:x}  {i}/{i}  [000]  1.{i:06}:  100 cycles:u:  400000 0x400000/0x400010/P/-/-/0\n", scale
    )


@bomb
def text_events(scale: float) -> bytes:
    return lines(lambda i: f"c  1/1  [000]  1.000000:  100 e{i:x}:  400000 0x400000/0x400010/P/-/-/0\n", scale)


# -- how they are run


def run(data: bytes, verb: tuple[str, ...], folder: Path) -> tuple[float, int, int, str]:
    """(seconds of the processor, bytes of memory, exit code, what stands on standard error) of reading ``data``."""
    path, told = folder / "bomb", folder / "told"
    path.write_bytes(data)
    out = os.open(os.devnull, os.O_WRONLY)
    error = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    argv = [sys.executable, __file__, "--limited", *verb, str(path)]
    pid = os.posix_spawn(
        sys.executable, argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, error, 2)]
    )
    os.close(out)
    os.close(error)
    _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime, used.ru_maxrss << 10, code, told.read_text(errors="replace")


def limited(argv: list[str]) -> None:
    """Run the command line with hard limits, so that what they are for does not take the machine."""
    import resource

    from lastbranch.cli import main

    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (4 * SECONDS, 4 * SECONDS))
    sys.argv = ["lastbranch", *argv]
    main()


def judge(seconds: float, memory: int, code: int, told: str) -> str:
    """The faults of a run; empty if there are none."""
    wrong = []
    if seconds > SECONDS:
        wrong.append(f"{seconds:.0f} s")
    if memory > MEMORY:
        wrong.append(f"{memory >> 20} MB")
    if code < 0 or code not in (0, 1, 3, 4) or "Traceback" in told:
        wrong.append(f"exit code {code}: {told[-500:]}")
    return ", ".join(wrong)


def made(name: str, scale: float) -> bytes:
    """The bomb, made by a process of its own: a child's `ru_maxrss` begins with what its parent ever had."""
    with ProcessPoolExecutor(1, get_context("spawn")) as maker:
        return maker.submit(BOMBS[name], scale).result()


def main() -> int:
    if sys.argv[1:2] == ["--limited"]:
        limited(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="only these")
    parser.add_argument("--quick", action="store_true", help="files of a fiftieth of the size")
    options = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        for bomb_name in options.name or BOMBS:
            data = made(bomb_name, 0.02 if options.quick else 0.98)
            assert len(data) <= LARGEST, f"{bomb_name}: {len(data)} bytes"
            for verb in VERBS:
                seconds, memory, code, told = run(data, verb, Path(name))
                wrong = judge(seconds, memory, code, told)
                failures += bool(wrong)
                said = f"FAILED: {wrong}" if wrong else "".join(told.splitlines()[:1])[:150]
                print(f"{bomb_name:24} {len(data):9,} bytes  {verb[0]:7} {seconds:5.1f} s {memory >> 20:5} MB  {said}")
                sys.stdout.flush()
    print(f"{failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
