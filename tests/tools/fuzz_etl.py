"""Damaged trace logs by the thousand: ``python tests/tools/fuzz_etl.py --seconds 90 [--first SEED]``.

Each input is made from its seed, a number: a built file, or a file of $LASTBRANCH_DATA, with bytes changed, cut, moved
or repeated; every other seed is a stream for one of the decompressors. A worker process works through seeds; anything
but a result or a `LastbranchError` is reported with its seed, so is a case that takes too long or too much memory.
``--seed N`` runs only seed N, in this process; ``--store FILE`` keeps its input.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import resource
import struct
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import UUID

import numpy as np

import etl_builder as build
from command_line import time_limit
from etl_compressors import COMPRESSORS
from lastbranch.analysis.checks.etl import check_log
from lastbranch.analysis.checks.profile import check_profile
from lastbranch.bind import bind
from lastbranch.errors import LastbranchError
from lastbranch.export import exporter
from lastbranch.export.interface import ExportOptions
from lastbranch.formats.dump import JSON, TEXT, Wanted
from lastbranch.formats.etl import (
    LZNT1,
    XPRESS,
    XPRESS_HUFF,
    Decoder,
    TraceLog,
    convert,
    decompress,
    dump_etl,
    encode_record,
    read_etl,
    read_records,
    write_profile,
)
from lastbranch.formats.etl.container.decompression import DECODERS
from lastbranch.model import BytesSource

SECONDS_EACH = 10  # of the processor: others may be at work, too
HANGS = 20  # so many times that on the clock
PEAK = 1 << 20  # KiB that one worker may use
SEEDS_A_WORKER = 300
LARGEST = 1 << 16  # of a real file, so that many fit into a minute
PERF_INFO = UUID("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc").bytes_le
LAST_BRANCH = UUID("99134383-5248-43fc-834b-529454e75df3").bytes_le
NUMBERS = (0, 1, 7, 8, 0x47, 0x48, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1)


def examine(data: bytes, path: str) -> bool:
    """Everything the package does with a trace; False if the package refuses the trace. All results must fit
    together."""
    source = BytesSource(data, "fuzz.etl")
    try:
        log = TraceLog(source)
    except LastbranchError:
        return False
    number = sum(log.counts.values())
    assert all(str(d) and 0 <= d.offset <= len(data) and d.lost >= 0 for d in log.damage)
    assert sum(len(block) for block in log.blocks()) == number
    times = [event.time for event in log.events(ordered=True)]
    assert len(times) == number
    assert sum(1 for _ in dump_etl(source, Wanted()).cells(JSON if number % 2 else TEXT)) == number
    decoder = Decoder()
    for event in log.events():
        decoded = decoder.decode(event)
        if decoded.layout == "kernel":
            assert decoder.encode(event, decoded.fields) == event.payload
    for part in read_records(source):
        with suppress(LastbranchError):
            encode_record(part)
    with suppress(LastbranchError):
        profile = bind(read_etl(source))
        samples = 0
        for batch in profile.batches():
            samples += len(batch)
            assert all(len(values) == len(batch) for values in (batch.time, batch.ip, batch.pid, batch.event))
            assert not len(batch) or 0 <= int(batch.event.min()) <= int(batch.event.max()) < len(profile.events)
        assert samples == profile.samples
        ordered = [batch.time for batch in profile.batches((), ordered=True)]
        assert not ordered or bool((np.diff(np.concatenate(ordered)) >= 0).all())
        list(check_profile(profile))
        with suppress(LastbranchError):
            exporter("counts")(profile, io.BytesIO(), ExportOptions())
    with suppress(LastbranchError):
        list(check_log(log))
    with suppress(LastbranchError):
        convert([source], path, compress=number % 2 == 0)
    with suppress(LastbranchError):
        write_profile(read_etl(source), path, compress=number % 2 == 0)
    return True


def kernel_trace(chance: random.Random, codec: int | None) -> build.Trace:
    """Every kind of event and of header, in some kilobytes."""
    header = {"processors": 4, "frequency": chance.choice((10_000_000, 3_117_777, 0))}
    trace = build.Trace(size=chance.choice((1024, 4096)), bits=chance.choice((32, 64)), header=header)
    if codec is not None:
        trace.compress, trace.state = COMPRESSORS[codec], codec
    bits, word = trace.bits, "I" if trace.bits == 32 else "Q"
    process = struct.pack(f"<{word}IIIi{word}I", 1, 7, 4, 0, 0, 0, 0) + bytes(4) + b"a.exe\0" + b"\0\0" * 3
    image = struct.pack(f"<{word}{word}IIII{word}IIII", 0x400000, 0x10000, 7, 0, 9, 0, 0, 0, 0, 0, 0)
    masks = struct.pack("<9I", 7, 0x402, *[0] * 6, 0x55)
    at = trace.begin
    for stamp in range(at + 1, at + chance.choice((20, 200)), 3):
        cpu = chance.randrange(3)
        ip = struct.pack(f"<{word}IHH", 0x400000 + chance.randrange(64), 71, chance.choice((0, 6)), 0)
        entries = struct.pack(f"<{word * 6}", *(chance.randrange(1 << 24) for _ in range(6)))
        lbr = struct.pack("<QIIII", stamp, 7, 71, 0, 0) + entries
        stack = struct.pack(f"<QII{word * 3}", stamp, 7, 71, 1, 2, 3)
        several = struct.pack("<I", chance.choice((0, 1, 2, 20, 0xFFFFFFFF))) + bytes(bits // 8 - 4) + ip * 2
        schema = b"\x10\0\0N\0a\0\x08b\0\x01c\0\x58\x02"
        events = (
            build.system(0x0303, stamp, process, version=4, bits=bits),
            build.system(0x1403, stamp, image + "\\a\0".encode("utf-16-le"), version=3, bits=bits),
            build.system(0x0503, stamp, struct.pack("<II", 7, 71) + bytes(56), version=3, bits=bits),
            build.system(0x0005, stamp, masks, bits=bits),
            build.system(0x0F49, stamp, struct.pack("<III", 6, 65536, 65536) + b"B\0\0\0", version=3, bits=bits),
            build.perfinfo(0x0F2E, stamp, ip, bits=bits),
            build.perfinfo(0x0F2F, stamp, ip, bits=bits, counters=(1, 2)[: chance.randrange(3)]),
            build.perfinfo(0x0C20, stamp, lbr, bits=bits),
            build.perfinfo(0x0F37, stamp, several, bits=bits),
            build.system(0x0F48, stamp, struct.pack("<III", 6, chance.randrange(1 << 32), 5), bits=bits),
            build.full(PERF_INFO, 0x2F, stamp, ip, bits=bits),
            build.full(LAST_BRANCH, 0x20, stamp, lbr, bits=bits),
            build.perfinfo(0x1820, stamp, stack, bits=bits),
            build.perfinfo(0x1824, stamp, stack, bits=bits),
            build.perfinfo(0x1825, stamp, stack[:16] + stack[:8], bits=bits),
            build.full(bytes(range(16)), 36, stamp, image, bits=bits),
            build.manifest(bytes(range(16)), 0xFFFE, stamp, b"\1\1\0\x5b" + b"<xml/>", bits=bits),
            build.manifest(bytes(range(16)), 3, stamp, bytes(30), bits=bits, items=[(11, schema), (5, bytes(24))]),
            build.message(7, b"abc", sequence=1, time=stamp, ids=(7, 71)),
            build.error(b"x"),
        )
        for event in events if stamp == at + 1 else chance.sample(events, 4):
            trace.add(cpu, event)
    return trace


@cache
def real_files() -> tuple[bytes, ...]:
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        return ()
    return tuple(path.read_bytes()[:LARGEST] for path in sorted(Path(root, "etl").glob("*.etl")))


def whole(chance: random.Random) -> bytes:
    kind = chance.randrange(8)
    if kind < 3 and real_files():
        return chance.choice(real_files())
    return bytes(kernel_trace(chance, (None, None, None, None, XPRESS, LZNT1, XPRESS_HUFF, XPRESS)[kind]))


def buffers_of(data: bytes) -> list[int]:
    at, found = 0, []
    while at + 0x48 <= len(data) and len(found) < 1000:
        found.append(at)
        step = int.from_bytes(data[at : at + 4], "little")
        if step < 0x48:
            break
        at += step
    return found


def claiming(data: bytes, chance: random.Random) -> bytes:
    """``data`` whose buffers, or the log, claim to be larger than they are: in the file, and after decompression.

    Every other one is a compressed log of a few hundred bytes whose buffers do have what they claim, 16 MiB at most.
    """
    if chance.random() < 0.5:
        codec = chance.choice((XPRESS, LZNT1))
        size = chance.choice((1 << 16, 1 << 20, 1 << 24, (1 << 24) + 8, 1 << 30, 0xFFFFFFF8))
        trace = build.Trace(size=size, compress=COMPRESSORS[codec], state=codec)
        body = repeated(codec, min(size, 1 << 24) - 0x48)
        head = bytearray(build.buffer([], size=4096, sequence=1)[:0x48])
        struct.pack_into("<I", head, 0, len(head) + len(body))
        struct.pack_into("<I", head, 0x30, size)
        head[0x34] |= 0x40
        return trace.header_buffer() + (bytes(head) + body) * chance.randrange(1, 3)
    out = bytearray(data)
    places = [at + field for at in buffers_of(data) for field in (0, 0x30)] + [0x48 + 0x20]  # BufferSize of the log
    for place in chance.sample(places, min(len(places), chance.choice((1, 2, 30)))):
        struct.pack_into("<I", out, place, chance.choice((0xFFFFFFFF, 0xFFFFFFF8, 1 << 31, 1 << 30, 1 << 24, 1 << 20)))
    return bytes(out)


def repeated(codec: int, size: int) -> bytes:
    """``size`` zeros, 65 or more, as the shortest stream that stands for them (MS-XCA, 2.3 and 2.5)."""
    if codec == XPRESS:  # a literal, and a match of all the rest at distance 1
        length = struct.pack("<HBBHI", 7, 15, 255, 0, size - 4)
        return struct.pack("<IB", 1 << 30, 0) + length
    chunks = [min(4096, size - at) for at in range(0, size, 4096)]
    return b"".join(struct.pack("<HBBH", 0xB003, 2, 0, max(0, n - 4)) for n in chunks)


def spoiled(data: bytes, chance: random.Random) -> bytes:
    """``data`` with one to eight places spoiled: noise, flipped bits, telling numbers, cuts, moves, header fields."""
    out = bytearray(data)
    for _ in range(chance.randrange(1, 9)):
        if len(out) < 16:
            break
        at = min(chance.randrange(len(out)), chance.randrange(len(out))) if chance.random() < 0.5 else 0
        at = at or chance.randrange(len(out))
        match chance.randrange(8):
            case 0:
                out[at] ^= 1 << chance.randrange(8)
            case 1:
                width = chance.choice((1, 2, 4, 8))
                value = chance.choice(NUMBERS) & (1 << 8 * width) - 1
                out[at : at + width] = value.to_bytes(width, "little")
            case 2:
                out[at : at + chance.randrange(1, 64)] = chance.randbytes(chance.randrange(1, 64))
            case 3 if chance.random() < 0.3:
                del out[at:]
            case 4:
                end = at + chance.randrange(1, 300)
                part, to = bytes(out[at:end]), chance.randrange(len(out))
                out[to : to + len(part)] = part
            case 5 if chance.random() < 0.3:
                del out[at : at + chance.randrange(1, 100)]
            case 6:  # a field of a buffer header
                buffer = chance.choice(buffers_of(bytes(out)) or [0])
                place = buffer + chance.choice((0, 4, 8, 0x10, 0x18, 0x28, 0x2C, 0x30, 0x34, 0x36))
                value = chance.choice((*NUMBERS, len(out), len(out) - buffer)) & 0xFFFF
                out[place : place + 2] = value.to_bytes(2, "little")
            case 7:  # the first word of an event: size, kind, hook
                buffer = chance.choice(buffers_of(bytes(out)) or [0])
                place = min(buffer + 0x48 + 8 * chance.randrange(64), len(out) - 8)
                out[place + chance.choice((0, 2, 4, 6))] = chance.randrange(256)
    return bytes(out)


def examine_stream(chance: random.Random) -> None:
    """One compressed stream, intact or spoiled, through its decompressor: the same bytes again, or a refusal."""
    form = chance.choice(list(COMPRESSORS))
    size = chance.choice((0, 1, 100, 5000, 70_000))
    text = bytes(chance.choice(b"abc\0") for _ in range(min(size, 3000)))
    text = (text * (size // max(1, len(text)) + 1))[:size]
    stream = COMPRESSORS[form](text)
    if chance.random() < 0.1:
        assert decompress(stream, len(text), format=form) == text
        return
    stream = spoiled(stream, chance) if chance.random() < 0.8 else chance.randbytes(chance.randrange(400))
    size = chance.choice((len(text), len(text) + 1, 0, 1 << 16, 1 << 20))
    with suppress(LastbranchError):
        assert decompress(stream, size, format=form) == DECODERS[form](stream, size)


def run(seed: int, path: str, store: str = "") -> None:
    chance = random.Random(seed)
    if seed % 2:
        examine_stream(chance)
        return
    data = whole(chance)
    data = claiming(data, chance) if chance.random() < 0.05 else spoiled(data, chance)
    if store:
        Path(store).write_bytes(data)
    examine(data, path)
    with suppress(FileNotFoundError):
        os.unlink(path)


def work(first: int, path: str) -> None:
    """Seeds from ``first`` on; says the seed before each and what was wrong with it."""
    for seed in range(first, first + SEEDS_A_WORKER):
        print("seed", seed, flush=True)
        try:
            begin = time.process_time()
            with time_limit(HANGS * SECONDS_EACH):
                run(seed, path)
            if time.process_time() - begin > SECONDS_EACH:
                raise TimeoutError(f"took {time.process_time() - begin:.1f} s")
        except Exception:
            print("failed", seed, traceback.format_exc().replace("\n", "\n  "), flush=True)
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > PEAK:
        print("memory", first, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "KiB", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--store", default="", help="with --seed: where to store the input")
    parser.add_argument("--path", default=f"/tmp/fuzz-etl-{os.getpid()}.etl", help="a file to convert to")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seed is not None:
        run(options.seed, options.path, options.store)
        return 0
    if options.work is not None:
        work(options.work, options.path)
        return 0
    end, first, wrong, done = time.monotonic() + options.seconds, options.first, 0, 0
    while time.monotonic() < end:
        command = [sys.executable, __file__, "--work", str(first), "--path", options.path]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        seed = first
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("seed "):
                seed = int(line.split()[1])
                done += 1
                if time.monotonic() > end:
                    child.terminate()
                    break
            else:
                print(line, end="", flush=True)
                wrong += line.startswith(("failed", "memory"))
        if child.wait() not in (0, -15):
            print("died", seed, child.returncode, flush=True)
            wrong += 1
        first += SEEDS_A_WORKER
    print(f"{done} inputs up to seed {seed}, {wrong} findings", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
