"""The same capture as file and pipe, in both byte orders, compressed or not: one answer. perf is asked too.

What perf 6.1 cannot do is left out, and said where: see also test_perfdata_writer.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

import lastbranch
import perfdata_writer as pw
from captures import FORMS, SYNTHETIC, Data
from command_line import Ran
from lastbranch.formats.perfdata.reader import read_perfdata
from lastbranch.model import BytesSource, Change, ModuleKind
from perf_script_oracle import OLD_FLAGS, changed, needs_perf, perf_script
from perfdata_writer import Builder, Capture

SMALL = ("demo_2proc", "demo_hwidx", "demo_features")
CASES = [(name, form) for name in ("demo_2proc", "demo_features") for form in FORMS]
CASES += [(name, form) for name in SYNTHETIC if (name, "file") not in CASES for form in ("big file", "pipe zstd81")]


@lru_cache(maxsize=8)
def capture_of(path: Path) -> Capture:
    return pw.parse(path.read_bytes())


@pytest.mark.parametrize(("name", "form"), CASES)
def test_every_form_says_the_same(
    name: str, form: str, data: Data, run: Callable[..., Ran], symfs: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "capture.data"
    path.write_bytes(pw.encode(capture_of(data.path(name)), **FORMS[form]))
    where = ("--symfs", symfs(name), path)
    counts = run("export", "--to", "counts", *where)
    assert counts.code == 0
    assert Counter(counts.out.splitlines()) == Counter(data.golden(name, "truth.txt").splitlines())
    stacks = run("export", "--to", "brstack", *where)
    assert (stacks.code, stacks.err) == (0, "")
    assert stacks.raw == run("export", "--to", "brstack", data.path(name)).raw
    whole, original = lastbranch.open(path), lastbranch.open(data.path(name))
    assert whole.machine.byte_order == ("big" if "big" in form else "little")
    assert whole.format == ("perf.data (pipe)" if "pipe" in form else "perf.data")
    assert whole.damage == []
    assert [(e.name, e.period, e.frequency) for e in whole.events] == [
        (e.name, e.period, e.frequency) for e in original.events
    ]
    assert (whole.first_time, whole.last_time) == (original.first_time, original.last_time)
    assert (whole.recorder, whole.machine.host) == (original.recorder, original.machine.host)


def stacks_of(text: str) -> list[tuple[str, list[list[str]]]]:
    """(address, fields of each entry) of each line of brstack text; symbols between them do not count."""
    out = []
    for line in filter(str.strip, text.splitlines()):
        entries = [w.split("/") for w in line.split() if re.match(r"0x[0-9a-f]+/0x", w)]
        out.append((line.split()[0], entries))
    return out


# perf 6.1 does not know COMPRESSED2 (83, since 6.16), stops at compressed records in a big-endian pipe, turns no branch
# flag of a big-endian pipe around, and of a big-endian file only those up to `type` (it prints nothing behind that).
PERF_FORMS = [form for form in FORMS if "83" not in form and form != "big pipe zstd81"]


@needs_perf
@pytest.mark.parametrize("form", PERF_FORMS)
@pytest.mark.parametrize("name", SMALL)
def test_perf_prints_the_same_stacks_as_we_do(
    name: str, form: str, data: Data, run: Callable[..., Ran], tmp_path: Path
) -> None:
    capture = capture_of(data.path(name))
    if name == "demo_features":  # 6.1 refuses attributes of more than 128 bytes in files
        capture = changed(capture, 128, ~pw.BRANCH_COUNTERS, OLD_FLAGS if "big" in form else -1)
    raw = pw.encode(capture, **FORMS[form])
    theirs = stacks_of(perf_script(raw, tmp_path, "-F", "ip,brstack", pipe="pipe" in form))
    path = tmp_path / "ours.data"
    path.write_bytes(raw)
    ours = stacks_of(run("export", "--to", "brstack", path).out)
    known = 2 if "big pipe" in form else 99
    assert len(theirs) == len(ours) == len(capture.named("SAMPLE"))
    for (ip, entries), (our_ip, our_entries) in zip(theirs, ours, strict=True):
        assert ip == our_ip
        assert len(entries) == len(our_entries)
        for entry, our_entry in zip(entries, our_entries, strict=True):
            printed = min(len(entry), known)
            assert printed >= min(known, 6), "addresses, three flags and cycles at least"
            assert our_entry[:printed] == entry[:printed]


# -- where bytes can come from


def test_standard_input(data: Data, run: Callable[..., Ran]) -> None:
    path = data.path("demo_hwidx")
    expected = run("export", "--to", "brstack", path).raw
    assert run("export", "--to", "brstack", "-", stdin=path.read_bytes()).raw == expected
    assert run("export", "--to", "brstack", "-", stdin=path.read_bytes(), alone=True).raw == expected
    piped = pw.to_pipe(capture_of(path))
    assert run("export", "--to", "brstack", "-", stdin=piped).raw == expected
    assert "file,<stdin>" in run("info", "--format", "csv", "-", stdin=piped).out


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_a_fifo_is_read_to_its_end(data: Data, run: Callable[..., Ran], tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    piped = pw.to_pipe(capture_of(data.path("demo_hwidx")))
    writer = threading.Thread(target=fifo.write_bytes, args=(piped,), daemon=True)
    writer.start()
    ran = run("export", "--to", "brstack", fifo)
    writer.join(60)
    assert ran.raw == run("export", "--to", "brstack", data.path("demo_hwidx")).raw


WORK = (sys.executable, "-c", "sum(range(2_000_000))")


@needs_perf
@pytest.mark.parametrize("options", [("-z",), ("-o", "-"), ("-g", "-z", "-o", "-")], ids=" ".join)
def test_what_perf_records_here(options: tuple[str, ...], run: Callable[..., Ran], tmp_path: Path) -> None:
    """Real compressed and piped files, in which only the sampled addresses differ from run to run."""
    path, piped = tmp_path / "perf.data", "-" in options
    command = ["perf", "record", "-q", "-e", "cpu-clock", *options, *(() if piped else ("-o", path)), "--", *WORK]
    done = subprocess.run(command, capture_output=True, timeout=60, cwd=tmp_path)
    if done.returncode:
        pytest.skip(f"perf cannot record here: {done.stderr.decode(errors='replace').strip()[:200]}")
    raw = done.stdout if piped else path.read_bytes()
    path.write_bytes(raw)
    if subprocess.run(["perf", "script", "-i", path], capture_output=True, timeout=60).returncode < 0:
        pytest.skip("perf script crashes on what perf recorded here")
    text = perf_script(raw, tmp_path, "-F", "time", "-G", "--ns", pipe=piped, warnings=True)
    times = [int(line.strip().rstrip(":").replace(".", "")) for line in text.splitlines() if line.strip()]
    profile = lastbranch.open(path)
    assert profile.damage == []
    assert profile.samples == len(times) > 0
    assert [t for batch in profile.batches(ordered=True) for t in batch.time.tolist()] == times
    assert ("COMPRESSED" in profile.records) == ("-z" in options)
    assert run("verify", path).code == 0
    assert shutil.which(WORK[0])
    assert any(os.path.basename(os.path.realpath(sys.executable)) in m.name for m in profile.modules)


# -- records beside the samples


def sideband(trailers: bool) -> Builder:
    kernel, build_id = 0xFFFFFFFF81000000, bytes(range(1, 21))
    b = Builder(sample_id_all=trailers)
    b.kernel_map(kernel, 0x1000000, time=0)
    b.kernel_map(kernel + 0x2000000, 0x1000, name="[guest.kernel]", time=0)
    b.mmap(pid=7, tid=8, addr=0x300000, length=0x2000, pgoff=0x1000, name="/bin/old", time=10)
    b.comm(pid=7, name="started", time=11)
    b.comm(pid=7, name="program", time=12, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x1000, pgoff=0x2000, name="/bin/a b", maj=8, min=1, ino=77, time=13)
    b.mmap2(pid=7, addr=0x500000, length=0x1000, pgoff=0, name="/lib/b.so", build_id=build_id, time=14)
    b.mmap2(pid=7, addr=0x600000, length=0x1000, pgoff=0, name="/lib/short.so", build_id=build_id[:8], time=15)
    b.mmap2(pid=7, addr=0x700000, length=0x1000, pgoff=0, name="//anon", data=True, time=16)
    b.fork(pid=8, ppid=7, time=17)
    b.fork(pid=7, ppid=7, tid=9, time=18)
    b.record("FORK", pw.MISC_COMM_EXEC, pid=10, ppid=7, tid=10, ptid=7, time=19)
    b.record("LOST", id=101, lost=3, time=20)
    b.record("LOST", id=101, lost=4, time=21)
    b.record("LOST_SAMPLES", lost=5, time=22)
    b.record("THROTTLE", time=23, id=101, stream_id=9)
    b.record("UNTHROTTLE", time=24, id=101, stream_id=9)
    b.record("KSYMBOL", addr=kernel + 0x3000000, length=64, ksym_type=1, name="bpf_prog_1", time=25)
    b.record("KSYMBOL", addr=kernel + 0x3000000, length=64, ksym_type=1, flags=1, name="bpf_prog_1", time=26)
    b.exit(pid=8, time=27)
    for kind in (8, 11, 12, 14, 15, 16, 18, 19, 20, 21):
        values = {"links": [(3, 4)]} if kind == 16 else {"tag": bytes(8)} if kind == 18 else {}
        b.record(kind, time=28, pid=7, **values)
    b.append(99, 0, bytes(8))
    b.sample(ip=0x400000, pid=7, time=29, branches=[])
    b.record("FINISHED_ROUND")
    b.feature("HOSTNAME", value="host")
    b.build_id("/bin/old", bytes(range(21, 40)) + b"\0")
    b.build_id("/bin/a b", bytes(range(40, 48)) + bytes(12))  # as 8-byte ids come: padded, and said to have 20
    return b


@pytest.mark.parametrize("trailers", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_records_beside_the_samples(form: str, trailers: bool) -> None:
    builder = sideband(trailers)
    if FORMS[form]["big"]:  # the witness cannot turn a type around that it does not know
        builder.capture.records = [r for r in builder.capture.records if r.type != 99]
    profile = read_perfdata(BytesSource(builder.build(**FORMS[form])))
    assert profile.damage == []
    own = {"HEADER_ATTR", "HEADER_BUILD_ID", "HEADER_FEATURE", "EVENT_UPDATE", "COMPRESSED", "COMPRESSED2"}
    counts = Counter(r.name.replace("type ", "TYPE_") for r in builder.capture.records)
    assert {k: n for k, n in profile.records.items() if k not in own} == counts
    assert profile.lost == {"records": 7, "samples": 5, "throttles": 1}
    assert profile.machine.host == "host"
    assert (profile.first_time, profile.last_time) == (29, 29)

    c = profile.timeline.columns()
    rows = [dict(zip(c, values, strict=True)) for values in zip(*(v.tolist() for v in c.values()), strict=True)]
    # Without trailers a record has the time of the sample before it, and here is none; FORK and EXIT have their own.
    time = (lambda t: t) if trailers else (lambda t: 0)
    maps = [r for r in rows if r["kind"] == Change.MAP]
    assert [
        (r["time"], r["pid"], r["tid"], r["start"], r["end"], r["offset"], profile.modules[r["module"]].name)
        for r in maps
    ] == [
        (0, -1, 0, 0xFFFFFFFF81000000, 0xFFFFFFFF82000000, 0xFFFFFFFF81000000, "[kernel.kallsyms]"),
        (0, -1, 0, 0xFFFFFFFF83000000, 0xFFFFFFFF83001000, 0, "[guest.kernel]"),
        (time(10), 7, 8, 0x300000, 0x302000, 0x1000, "/bin/old"),
        (time(13), 7, 7, 0x400000, 0x401000, 0x2000, "/bin/a b"),
        (time(14), 7, 7, 0x500000, 0x501000, 0, "/lib/b.so"),
        (time(15), 7, 7, 0x600000, 0x601000, 0, "/lib/short.so"),
        (time(16), 7, 7, 0x700000, 0x701000, 0, "//anon"),
        (time(25), -1, -1, 0xFFFFFFFF84000000, 0xFFFFFFFF84000040, 0, "//anon:bpf_prog_1"),
    ]
    modules = {m.name: m for m in profile.modules}
    assert {n: m.build_id for n, m in modules.items() if m.build_id} == {
        "/bin/old": bytes(range(21, 40)) + b"\0",
        "/bin/a b": bytes(range(40, 48)),
        "/lib/b.so": bytes(range(1, 21)),
        "/lib/short.so": bytes(range(1, 9)),
    }
    assert modules["[kernel.kallsyms]"].kind is ModuleKind.KERNEL
    assert modules["//anon"].kind is modules["//anon:bpf_prog_1"].kind is ModuleKind.ANONYMOUS
    others = [(r["kind"], r["time"], r["pid"], r["tid"], r["parent"]) for r in rows if r["kind"] != Change.MAP]
    assert others == [
        (Change.NAME, time(11), 7, 7, -1),
        (Change.EXEC, time(12), 7, 7, -1),
        (Change.NAME, time(12), 7, 7, -1),
        (Change.FORK, 17, 8, 8, 7),
        (Change.FORK, 18, 7, 9, 7),
        (Change.FORK, 19, 10, 10, 7),
        (Change.UNMAP, time(26), -1, -1, -1),
        (Change.EXIT, 27, 8, 8, -1),
    ]
    assert [r["offset"] for r in rows if r["kind"] == Change.FORK] == [0, 0, 1], "1: starts with no mappings of its own"
    assert profile.timeline.names == ["started", "program"]


@pytest.mark.parametrize("kind", [pw.ID, pw.IDENTIFIER])
@pytest.mark.parametrize("form", FORMS)
def test_the_trailer_is_that_of_the_event_it_names(form: str, kind: int) -> None:
    """Two events; with IDENTIFIER their trailers may differ, and the last word says whose it is."""
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | kind, config=1)
    more = pw.CPU | pw.STREAM_ID if kind == pw.IDENTIFIER else 0
    b.attr(sample_type=pw.IP | pw.TID | pw.TIME | kind | more, config=2)
    for event, time in ((0, 10), (1, 20), (0, 30)):
        b.comm(event=event, pid=7, name=f"n{time}", time=time, cpu=77, stream_id=99)
        b.sample(event=event, ip=time, pid=7, time=time + 1)
    profile = read_perfdata(BytesSource(b.build(**FORMS[form])))
    assert profile.damage == []
    assert profile.timeline.columns()["time"].tolist() == [10, 20, 30]
    assert profile.timeline.names == ["n10", "n20", "n30"]
    samples = [
        (t, e)
        for batch in profile.batches(ordered=True)
        for t, e in zip(batch.time.tolist(), batch.event.tolist(), strict=True)
    ]
    assert samples == [(11, 0), (21, 1), (31, 0)]


def test_very_many_very_small_compressed_records() -> None:
    """An idle machine with many processors: perf compresses each buffer alone when it wakes, a sample or two."""
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    number = 2_000
    for time in range(number):
        b.sample(ip=0x400000 + time % 7, pid=7, time=time)
    raw = b.build(compress=81, chunk=32)
    profile = read_perfdata(BytesSource(raw))
    assert profile.damage == []
    assert profile.records["COMPRESSED"] == number
    assert profile.samples == sum(map(len, profile.batches())) == number


# -- what a pipe says in records that a file has no need of


def tracing_data(order: str, **systems: dict[str, int]) -> bytes:
    """The container of trace.dat with the formats of ``systems``: {system: {event: id}} (trace.dat(5))."""

    def block(data: bytes) -> bytes:
        return struct.pack(order + "Q", len(data)) + data

    def format_of(name: str, number: int) -> bytes:
        return block(f"name: {name}\nID: {number}\nformat:\n\tfield:int id;\toffset:8;\tsize:4;\n".encode())

    out = b"\x17\x08\x44tracing" + b"0.6\0" + bytes([order == ">", 8]) + struct.pack(order + "I", 4096)
    out += b"header_page\0" + block(b"page") + b"header_event\0" + block(b"event")
    out += struct.pack(order + "I", 1) + format_of("function", 1)
    out += struct.pack(order + "I", len(systems))
    for system, events in systems.items():
        out += system.encode() + b"\0" + struct.pack(order + "I", len(events))
        out += b"".join(format_of(name, number) for name, number in events.items())
    out += struct.pack(order + "I", 0) + struct.pack(order + "I", 0) + struct.pack(order + "Q", 0)
    return out + bytes(-len(out) % 8)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("header", [12, 16])  # the struct has 12 bytes; Debian's perf pads it
def test_tracepoints_of_a_pipe_have_names(order: str, header: int) -> None:
    """From the formats in its tracing data; what follows them is read, whatever size their record has."""
    b = Builder(type=2, config=1329)
    b.mmap2(pid=7, addr=0x1000, length=0x1000, pgoff=0, name="/bin/x", time=1)
    b.sample(ip=0x1234, pid=7, time=2, branches=[(0x1230, 0x1004, 1)])
    piped = b.build(pipe=True, big=order == ">")
    data = tracing_data(order, sched={"sched_switch": 316}, probe_app={"main": 1329, "other": 1330})
    record = struct.pack(order + "IHHI", 66, 0, header, len(data)).ljust(header, b"\0") + data
    first = 16 + struct.unpack_from(order + "IHH", piped, 16)[2]  # behind HEADER_ATTR
    profile = read_perfdata(BytesSource(piped[:first] + record + piped[first:], "x"))
    assert profile.damage == []
    assert profile.samples == 1
    assert [e.name for e in profile.events] == ["probe_app:main"]


@pytest.mark.parametrize("form", ["file", "pipe"])
def test_tracepoints_of_a_file_without_event_names(form: str) -> None:
    b = Builder(type=2, config=316)
    b.sample(ip=0x1234, pid=7, time=2, branches=[])
    b.capture.features[1] = tracing_data("<", sched={"sched_switch": 316})
    assert [e.name for e in read_perfdata(BytesSource(b.build(**FORMS[form]), "x")).events] == ["sched:sched_switch"]


def test_names_in_records_of_old_pipes_and_of_events_without_ids() -> None:
    b = Builder(type=2, config=17)
    b.append(65, 0, struct.pack("<Q", 17) + b"irq:entry".ljust(64, b"\0"))
    assert [e.name for e in read_perfdata(BytesSource(b.build(pipe=True), "x")).events] == ["irq:entry"]
    b.append(78, 0, struct.pack("<2Q", 2, 0) + b"app:main".ljust(16, b"\0"))  # newer: EVENT_UPDATE
    assert [e.name for e in read_perfdata(BytesSource(b.build(pipe=True), "x")).events] == ["app:main"]


def test_tracing_data_that_are_damaged() -> None:
    b = Builder(type=2, config=316)
    b.sample(ip=0x1234, pid=7, time=2, branches=[])
    whole = tracing_data("<", sched={"sched_switch": 316})
    for data in (b"no tracing data", whole[:60], whole[:20] + b"\xff" * 40):
        b.capture.features[1] = data
        profile = read_perfdata(BytesSource(b.build(), "x"))
        assert (profile.samples, profile.events[0].name) == (1, "tracepoint:316")
        assert [d.reason.partition(" is damaged")[0] for d in profile.damage] == ["header feature TRACING_DATA"]
