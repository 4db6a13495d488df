"""The cost of `lastbranch top`, which watches while the samples of a capture are written again and again at a rate.

    python benchmarks/bench_top.py [CAPTURE] [--rate 10000] [--seconds 30] [--plain]
    python benchmarks/bench_top.py [CAPTURE] [--rate 10000] --replay 3600
    python benchmarks/bench_top.py --many [--rate 10000] [--seconds 30] [--plain]

CAPTURE is a perf.data; ``--many`` makes a capture with samples in each of 100,000 functions (many_functions.py). The
figures are the CPU time of the watching process, from five seconds after its start on, and its memory at the beginning
and at the end.

``--replay`` counts as many seconds of recording at full speed, without a screen, with at most 64 MiB of samples kept
for writing. The figures are memory and disk space over an hour.
"""

from __future__ import annotations

import argparse
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from lastbranch import demo
from lastbranch.formats.perfdata.layout import RECORD
from lastbranch.formats.perfdata.reader import Reader
from lastbranch.model import OpenFile
from lastbranch.opening import FileSource, open_profile
from lastbranch.recording.live import LiveCapture
from lastbranch.symbols import SymbolOptions

WARM = 5.0
STEP = 0.05
"""Seconds from one write to the next: a recorder writes what a ring collected, not each sample."""


def parts_of(path: str) -> tuple[bytes, bytes, list[bytes]]:
    """(header without its features and its size, records other than samples, samples)."""
    reader, head, rest, samples = Reader(FileSource(path)), bytearray(), [], []
    whole = Path(path).read_bytes()
    head += whole[: reader.data[0]]
    if reader.data[0] > 16:
        head[0x30:0x38], head[0x48:0x68] = bytes(8), bytes(32)
    for block in reader.blocks():
        for at, size, kind in zip(block.at.tolist(), block.sizes(block.at).tolist(), block.types.tolist(), strict=True):
            (samples if kind == RECORD["SAMPLE"] else rest).append(block.raw[at * 8 : at * 8 + size].tobytes())
    return bytes(head), b"".join(rest), samples


def replay(head: bytes, samples: list[bytes], symfs: str, rate: int, seconds: int) -> None:
    """Count so many seconds, one after the other, and print the cost so far."""
    parts = [b"".join(islice(cycle(samples), at, at + rate)) for at in range(0, min(len(samples), 20 * rate), rate)]
    del samples
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(head)
        source = OpenFile(os.fdopen(os.dup(file.fileno()), "rb", buffering=0), "replayed")
        with LiveCapture(source, SymbolOptions(cache=None), symfs=symfs, kept=64 << 20, ours=True) as live:
            began = time.process_time()
            for second in range(1, seconds + 1):
                file.write(parts[second % len(parts)])
                live.read()
                live.turn()
                if second in (1, 60) or second % (seconds // 6) == 0:
                    _, memory = figures(os.getpid())
                    disk = os.fstat(file.fileno()).st_blocks * 512
                    cpu = (time.process_time() - began) / second
                    said = (
                        f"{second} s: {memory / 1e6:.0f} MB of memory, {disk / 1e6:.1f} MB of disk, {cpu:.1%} of a CPU"
                    )
                    print(said, flush=True)


def figures(pid: int) -> tuple[float, int]:
    """(seconds of CPU, bytes in memory)."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"), int(words[21]) * os.sysconf("SC_PAGESIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", nargs="?", default=demo.capture())
    parser.add_argument("--rate", type=int, default=10_000, help="samples a second")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--plain", action="store_true", help="lines instead of the screen")
    parser.add_argument("--replay", type=int, metavar="SECONDS", help="count so many seconds as fast as that goes")
    parser.add_argument("--many", action="store_true", help="100,000 functions")
    given, symfs = parser.parse_args(), demo.symfs()
    if given.many:
        from many_functions import generate_many

        folder = Path(tempfile.gettempdir(), "lastbranch-bench")
        folder.mkdir(exist_ok=True)
        many = generate_many(folder, 64 << 20)
        given.capture, symfs = many.perf_data, many.symfs
    head, rest, samples = parts_of(given.capture)
    if given.replay:
        replay(head + rest, samples, symfs, given.rate, given.replay)
        return
    entries = open_profile(given.capture).entries / len(samples)
    main_side, side = pty.openpty()
    screen = bytearray()
    with tempfile.TemporaryDirectory() as folder, open(Path(folder, "growing.data"), "wb", buffering=0) as file:
        file.write(head + rest)
        words = [
            sys.executable,
            "-m",
            "lastbranch",
            "top",
            *["--plain"] * given.plain,
            "--symfs",
            symfs,
            "-i",
            file.name,
        ]
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "45"}
        top = subprocess.Popen(words, stdin=side, stdout=side, stderr=side, env=env, start_new_session=True)
        os.close(side)

        def read() -> None:
            while True:
                try:
                    screen.extend(os.read(main_side, 1 << 16))
                except OSError:
                    return

        threading.Thread(target=read, daemon=True).start()
        began, written, before = time.monotonic(), 0, None
        while (now := time.monotonic() - began) < WARM + given.seconds:
            due = int(now * given.rate)
            order = np.arange(written, due) % len(samples)
            file.write(b"".join(samples[i] for i in order.tolist()))
            written = due
            if before is None and now > WARM:
                before = now, *figures(top.pid)
            time.sleep(STEP)
        assert before is not None, "too short"
        cpu, memory = figures(top.pid)
        seconds = now - before[0]
        if given.plain:
            top.send_signal(signal.SIGINT)
        else:
            os.write(main_side, b"q")
        top.wait(60)
    print(
        f"{given.rate} samples/s of {entries:.0f} branches for {seconds:.0f} s: {(cpu - before[1]) / seconds:.1%} of a "
        f"CPU, memory {before[2] / 1e6:.0f} -> {memory / 1e6:.0f} MB, {len(screen)} bytes to the terminal"
    )


if __name__ == "__main__":
    main()
