"""How fast do events of providers get into the file of a trace session, and are all of them counted?

    python benchmarks/bench_sessions.py [--seconds 5] [--json FILE]

The sessions run on the kernel of this machine (Linux: the portable kernel), in a registry of the benchmark's own.
Events have a payload of 24 bytes, buffers 64 KB.

- speed: four provider processes write as fast as they can into one sequential file. Target: 500,000 events a second, of
  the time from the first event to the stopped session, and none lost. Processor time is that of providers and daemon.
- overload: the same with the smallest pool. Every offered event must be in the file or in EventsLost.
- disabled: the cost of a call of a provider that no session has enabled. Target: under 0.2 microseconds.
- circular: a week of events by an injected clock into a circular file of 8 MB. The file must keep its size.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import timeit
from contextlib import closing
from pathlib import Path
from uuid import UUID

from measure import machine

PROVIDER = UUID("5f3a0c52-8b1e-4c39-9f5d-1c7be0a9d601")
PROCESSES = 4
PAYLOAD = bytes(range(24))
WEEK = 7 * 24 * 3600


def provide(seconds: float) -> None:
    """A provider process: says that it is ready, waits for a word, writes, says how many events were offered."""
    from lastbranch.etw.interface import EventDescriptor
    from lastbranch.etw.kernel_choice import kernel

    provider = kernel().register(PROVIDER, None)
    descriptor = EventDescriptor(1, level=4, keyword=1)
    print("ready", flush=True)
    sys.stdin.readline()
    assert provider.enabled
    offered = refused = 0
    before, end = time.process_time(), time.monotonic() + seconds
    write = provider.write
    while time.monotonic() < end:
        for _ in range(1000):
            refused += write(descriptor, PAYLOAD) != 0
        offered += 1000
    print(offered, refused, time.process_time() - before, flush=True)
    provider.close()


def cpu_of(process: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def events_in(path: Path) -> int:
    """Events of the provider in a file, by our reader."""
    from lastbranch.formats.etl import TraceLog
    from lastbranch.opening import open_source

    with closing(open_source(str(path))) as source:
        return sum(int((block.hook < 0).sum()) for block in TraceLog(source).blocks())


def session(folder: Path, name: str, seconds: float, buffers: int) -> dict[str, float]:
    """Run the providers into one session; return the results."""
    from lastbranch.etw.flags import Control, EnableProvider
    from lastbranch.etw.kernel_choice import kernel
    from lastbranch.etw.properties import SessionRequest

    file = folder / f"{name}.etl"
    on = kernel()
    handle = on.start(SessionRequest(name=name, file=str(file), buffer_size=64, maximum_buffers=buffers)).handle
    argv = [sys.executable, __file__, "--provide", str(seconds)]
    started = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    on.enable(handle, PROVIDER, EnableProvider.ENABLE, 5, 0, 0, 10_000, None)
    begin = time.monotonic()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate()[0].split() for process in started]
    daemon = on.control(Control.QUERY, handle, None).logger_thread
    cpu = sum(float(words[2]) for words in said) + cpu_of(daemon)
    state = on.control(Control.STOP, handle, None)
    elapsed = time.monotonic() - begin
    offered = sum(int(words[0]) for words in said)
    return {
        "offered": offered,
        "refused": sum(int(words[1]) for words in said),
        "lost": state.events_lost,
        "delivered": events_in(file),
        "seconds": elapsed,
        "rate": offered / elapsed,
        "MB": file.stat().st_size / 1e6,
        "buffers": state.number_of_buffers,
        "cpu_us": cpu / offered * 1e6,
    }


def disabled_call() -> float:
    """Microseconds of a write that nobody has enabled."""
    from lastbranch.etw.interface import EventDescriptor
    from lastbranch.etw.kernel_choice import kernel

    provider = kernel().register(UUID(int=1), None)
    write, descriptor = provider.write, EventDescriptor(1)
    count = 200_000
    best = min(timeit.repeat(lambda: write(descriptor, PAYLOAD), number=count, repeat=5))
    bare = min(timeit.repeat(lambda: None, number=count, repeat=5))
    provider.close()
    return (best - bare) / count * 1e6


class WeekClock:
    """A clock that is set by hand."""

    kind, frequency, time = 1, 1_000_000_000, 0

    def now(self) -> int:
        return self.time

    def filetime(self) -> int:
        return 133_000_000_000_000_000 + self.time // 100


def circular(folder: Path) -> dict[str, float]:
    """A week of events, ten a second: the largest size that the file ever had."""
    import struct

    import numpy as np

    from lastbranch.etw.flags import LogFileMode
    from lastbranch.etw.portable.provider.writer import Writer
    from lastbranch.etw.portable.request import Host, adjusted
    from lastbranch.etw.portable.session.logger import Logger
    from lastbranch.etw.properties import SessionRequest

    file = folder / "week.etl"
    mode = LogFileMode.FILE_MODE_CIRCULAR
    request = SessionRequest(name="week", file=str(file), mode=mode, maximum_file_size=8, flush_timer=60)
    clock = WeekClock()
    host = Host(os.cpu_count() or 1, 1 << 32)
    logger = Logger(adjusted(request, host), 1, clock=clock, monotonic=lambda: clock.time / clock.frequency)
    logger.poll()
    slot, answer, descriptors = logger.attach(os.getpid())
    writer = Writer.of_answer(answer, [os.dup(fd) for fd in descriptors])
    header = struct.Struct("<HBBHHIIq16s16sQ16s")
    largest = 0
    offered = 0
    sizes = np.full(600, 104, np.uint32)
    for minute in range(WEEK // 60):
        events = []
        for second in range(60):
            clock.time = (minute * 60 + second) * clock.frequency
            event = header.pack(104, 19, 0xC0, 0, 0, 1, 1, clock.time, bytes(16), bytes(16), 0, bytes(16)) + PAYLOAD
            events.append(event * 10)
        writer.write_many(b"".join(events), sizes)
        offered += len(sizes)
        logger.poll()
        largest = max(largest, file.stat().st_size)
    writer.close()
    logger.detach(slot)
    logger.stop()
    largest = max(largest, file.stat().st_size)
    return {"offered": offered, "lost": logger.state().events_lost, "MB": largest / 1e6, "kept": events_in(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--provide", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.provide is not None:
        provide(options.provide)
        return
    with tempfile.TemporaryDirectory(prefix="bench-sessions") as name:
        folder = Path(name)
        os.environ["LASTBRANCH_ETW_DIR"] = str(folder / "registry")
        speed = session(folder, "speed", options.seconds, 512)
        overload = session(folder, "overload", min(2.0, options.seconds), 4)
        call = disabled_call()
        week = circular(folder)
    whole = speed["lost"] == 0 and speed["delivered"] == speed["offered"]
    exact = overload["delivered"] + overload["lost"] == overload["offered"]
    rows = [
        (
            "speed",
            f"{speed['rate']:,.0f} events/s, {speed['offered']:,} offered, {speed['lost']:,} lost, "
            f"{speed['MB']:.0f} MB, {speed['buffers']} buffers, {speed['cpu_us']:.2f} us of processor time an event",
            speed["rate"] >= 500_000 and whole,
        ),
        (
            "overload",
            f"{overload['offered']:,} offered = {overload['delivered']:,} delivered + {overload['lost']:,} lost",
            exact,
        ),
        ("disabled", f"{call:.3f} us a call", call < 0.2),
        (
            "circular",
            f"{week['offered']:,} events, file at most {week['MB']:.2f} MB, {week['kept']:,} kept, {week['lost']} lost",
            week["MB"] <= 8 * 1.048577 and not week["lost"],
        ),
    ]
    print(" ".join(f"{key}={value}" for key, value in machine().items()))
    for label, text, reached in rows:
        print(f"{label:9} {'ok  ' if reached else 'MISS'} {text}")
    if options.json:
        figures = {"machine": machine(), "speed": speed, "overload": overload, "disabled_us": call, "circular": week}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(not all(reached for _, _, reached in rows))


if __name__ == "__main__":
    main()
