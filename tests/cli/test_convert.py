"""`lastbranch convert`: what comes out is what went in, less what was cut, on one time line."""

import errno
import os
import random
import stat
import struct
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

import etl_builder as build
from command_line import Ran
from etl_oracle import COUNTS, GUID, largest_thorough, real, slow
from lastbranch import cli
from lastbranch.formats.etl import Decoder, Event, LogHeader, TraceLog, TraceWriter, convert, read_header
from lastbranch.model import BytesSource

START = build.START_TIME
BEGIN = 1_000_000
HZ = 10_000_000


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    if "convert" not in cli.VERBS:
        monkeypatch.setattr(cli, "VERBS", (*cli.VERBS, "convert"))


def log_of(path):
    return TraceLog(BytesSource(path if isinstance(path, bytes) else Path(path).read_bytes(), "test.etl"))


def key(e):
    return (
        e.header,
        e.time,
        e.pid,
        e.tid,
        e.cpu,
        e.hook,
        e.provider,
        e.id,
        e.version,
        e.opcode,
        e.flags,
        e.counters,
        e.activity,
        tuple(e.extended),
        e.payload,
    )


def content(log):
    return Counter(key(e) for e in log.events() if e.hook != 0)


def well_formed(path):
    """The rules of a file that we wrote; its log."""
    log = log_of(path)
    before = {}
    for event in log.events(ordered=True):
        assert event.time >= before.get(event.cpu, event.time)
        before[event.cpu] = event.time
    assert not log.damage
    assert log.header.buffers_written == len(log.index().buffers)
    assert sorted(map(int, log.index().buffers.sequence)) == list(range(log.header.buffers_written))
    return log


# -- whole files


@pytest.mark.parametrize("name", largest_thorough(COUNTS))
def test_every_real_file_uncompressed(tmp_path, run, name):
    (tmp_path / "in.etl").write_bytes(real(name))
    ran = run("convert", tmp_path / "in.etl", tmp_path / "out.etl", "--no-compress")
    assert ran.code == 0, ran.err
    assert f"{COUNTS[name] - 1} of {COUNTS[name] - 1} events" in ran.err
    log = well_formed(tmp_path / "out.etl")
    assert not log.header.compressed
    assert content(log) == content(log_of(tmp_path / "in.etl"))
    assert len(slow((tmp_path / "out.etl").read_bytes())) == COUNTS[name]


@pytest.mark.parametrize("name", [name for name in COUNTS if not name.startswith(("net", "diaghub", "Shutdown"))])
def test_real_files_compressed(tmp_path, run, name):
    (tmp_path / "in.etl").write_bytes(real(name))
    assert run("convert", tmp_path / "in.etl", tmp_path / "out.etl", "--compress").code == 0
    log = well_formed(tmp_path / "out.etl")
    assert log.header.compressed
    assert content(log) == content(log_of(tmp_path / "in.etl"))
    again = tmp_path / "again.etl"
    assert run("convert", tmp_path / "out.etl", again, "--no-compress").code == 0
    assert content(log_of(again)) == content(log)


def test_headers_keep_clock_losses_and_names(tmp_path):
    data = real("AMSITrace.etl")
    convert([BytesSource(data)], tmp_path / "out.etl")
    old, new = log_of(data).header, log_of(tmp_path / "out.etl").header
    names = "timestamp start_time end_time boot_time perf_freq clock_type events_lost session_name file_name time_zone"
    for name in (*names.split(), "pointer_size", "processors", "provider_version"):
        assert getattr(new, name) == getattr(old, name), name
    assert new.events_lost == 3


# -- cuts


def kernel_trace():
    """Two processes with threads, samples, stacks, branch records, disk reads, configuration."""
    trace = build.Trace(header={"frequency": HZ})
    process = "<QIIIi"

    def add(cpu, hook, ms, payload, **more):
        make = build.perfinfo if hook >> 8 in (0x0F, 0x0C) and hook != 0x0F49 else build.system
        trace.add(cpu, make(hook, BEGIN + ms * 10_000, payload, **more))

    add(0, 0x0B0A, 1, bytes(300), version=3)
    add(0, 0x0F49, 1, struct.pack("<III", 0, 10_000, 10_000), version=3)
    for pid, tids in ((4, (5,)), (100, (101, 102)), (200, (201,))):
        add(0, 0x0303, 2, struct.pack(process, pid, pid, 4, 0, 0) + bytes(8) + b"name\0\0\0", version=3)
        for tid in tids:
            add(0, 0x0503, 2, struct.pack("<II", pid, tid) + bytes(60), version=3)
        add(0, 0x1403, 3, struct.pack("<QQI", pid << 20, 4096, pid) + bytes(50), version=2)
    for i in range(200):
        ms, tid = 10 + i, (101, 102, 201, 5, 0)[i % 5]
        pid = {101: 100, 102: 100, 201: 200, 5: 4, 0: 0}[tid]
        add(i % 3, 0x0F2E, ms, struct.pack("<QII", 0x1000 + i, tid, 1))
        stamp = BEGIN + ms * 10_000
        add(i % 3, 0x0C20, ms, struct.pack("<QIIII3Q", stamp, pid, tid, 0, 0, 1, 2, 3))
        add((i + 1) % 3, 0x1820, ms, struct.pack("<QIIQ", stamp, pid, tid, 0x1000 + i), pid=pid, tid=tid)
    # Thread 201 ends, and its id is used again by process 100.
    add(0, 0x0502, 211, struct.pack("<II", 200, 201) + bytes(60), version=3)
    add(0, 0x0501, 212, struct.pack("<II", 100, 201) + bytes(60), version=3)
    add(0, 0x0F2E, 213, struct.pack("<QII", 0x9999, 201, 1))
    add(0, 0x0F2E, 214, struct.pack("<QII", 0x8888, 103, 1))  # of a thread without events
    add(0, 0x1820, 400, struct.pack("<QIIQ", BEGIN + 20 * 10_000, 100, 101, 0xAAAA), pid=100, tid=101)
    trace.add(1, build.manifest(GUID, 7, BEGIN + 5_000_000, b"mine", pid=100))
    trace.add(1, build.manifest(GUID, 7, BEGIN + 5_000_000, b"theirs", pid=200))
    trace.add(1, build.perfinfo(0x0F43, BEGIN + 5_000_000, bytes(24)))
    add(2, 0x1404, 600, struct.pack("<QQI", 200 << 20, 4096, 200) + bytes(50), version=2)
    return trace


STATE = {0x0B0A, 0x0F49, 0x0303, 0x0501, 0x0502, 0x0503, 0x1403, 0x1404}


def test_a_cut_by_time(tmp_path, run):
    data = bytes(kernel_trace())
    (tmp_path / "in.etl").write_bytes(data)
    ran = run("convert", tmp_path / "in.etl", tmp_path / "out.etl", "--time", "0.020..0.04")
    assert ran.code == 0, ran.err
    first, last = BEGIN + 200_000, BEGIN + 400_000

    def inside(e):
        if e.hook in (0x1820, 0x0C20):  # they go where their event goes
            return first <= struct.unpack_from("<q", e.payload)[0] < last
        return first <= e.time < last

    expected = Counter(key(e) for e in log_of(data).events() if e.hook and (e.hook in STATE or inside(e)))
    got = content(well_formed(tmp_path / "out.etl"))
    assert got == expected
    assert sum(k[5] == 0x0F2E for k in got.elements()) == 20
    assert sum(k[5] == 0x1820 for k in got.elements()) == 21
    for half in ("..0.04", "0.02.."):
        run("convert", tmp_path / "in.etl", tmp_path / "half.etl", "--time", half, "--force")
        assert sum(expected.values()) < sum(content(log_of(tmp_path / "half.etl")).values())


def test_a_cut_by_process(tmp_path, run):
    (tmp_path / "in.etl").write_bytes(bytes(kernel_trace()))
    ran = run("convert", tmp_path / "in.etl", tmp_path / "out.etl", "--pid", "100")
    assert ran.code == 0, ran.err
    events = [e for e in well_formed(tmp_path / "out.etl").events(ordered=True) if e.hook]
    counts = Counter(e.hook for e in events)
    decoder = Decoder()
    samples = [decoder.decode(e).fields for e in events if e.hook == 0x0F2E]
    assert Counter(int(s["ThreadID"]) for s in samples) == {101: 40, 102: 40, 201: 1}
    assert [s["InstructionPointer"] for s in samples if s["ThreadID"] == 201] == [0x9999]
    assert (counts[0x0C20], counts[0x1820]) == (80, 81)
    assert (counts[0x0303], counts[0x1403], counts[0x1404]) == (2, 2, 0)  # the kernel's and its own
    assert (counts[0x0B0A], counts[0x0F49], counts[0x0F43]) == (1, 1, 0)
    assert [e.payload for e in events if e.hook < 0] == [b"mine"]


@pytest.mark.thorough
def test_cuts_of_a_real_file(tmp_path):
    data = real("net.4.5.2.x64.etl")
    log, decoder = log_of(data), Decoder()
    per_pid = Counter(e.pid for e in log.events() if e.header in (18, 19))
    pid, count = per_pid.most_common(1)[0]
    convert([BytesSource(data)], tmp_path / "pid.etl", pids=frozenset([pid]), compress=False)
    cut = well_formed(tmp_path / "pid.etl")
    events = list(cut.events())
    assert sum(e.header in (18, 19) for e in events if e.pid == pid) == count
    images = {int(decoder.decode(e).fields["ProcessID"]) for e in events if e.hook in (0x1403, 0x030A, 0x1404)}
    assert images <= {0, 4, pid}
    tids = {int(f["ThreadID"]) for f in (decoder.decode(e).fields for e in events if e.hook == 0x0F2E)}
    lives = [decoder.decode(e).fields for e in log.events() if e.hook in (0x0501, 0x0502, 0x0503, 0x0504)]
    assert tids <= {int(f["ThreadID"]) for f in lives if int(f["ProcessID"]) == pid}
    assert tids


def tied(step, cpus=5, count=900, size=1024):
    """Events of which ``step`` have one time, on processors in an order that changes."""
    trace, order = build.Trace(size=size), random.Random(step)
    for i in range(count):
        trace.add(order.randrange(cpus), build.system(0x0F33, BEGIN + i // step, struct.pack("<Q", i)))
    return trace


def in_time_order(log):
    return [(e.time, e.cpu, e.payload) for e in log.events(ordered=True) if e.hook]


@pytest.mark.parametrize("step", [2, 3, 40])
@pytest.mark.parametrize("size", [1024, 4096])
def test_events_of_equal_time_keep_their_order(tmp_path, step, size):
    data = bytes(tied(step, size=size))
    before = in_time_order(log_of(data))
    assert len({(time, cpu) for time, cpu, _ in before}) > len({time for time, _, _ in before})
    for number, compress in enumerate((False, True)):
        convert([BytesSource(data)], tmp_path / f"{number}.etl", compress=compress)
        assert in_time_order(well_formed(tmp_path / f"{number}.etl")) == before
    half = convert([BytesSource(data)], tmp_path / "half.etl", seconds=(0, Fraction(450 // step, 10_000_000)))
    assert in_time_order(well_formed(tmp_path / "half.etl")) == before[: half.kept]


def test_the_buffer_that_is_full_first_is_not_the_first_one(tmp_path):
    """Processor 1 has the first event, processor 0 others, the first of them at the same time, and fills its buffer."""
    trace = build.Trace(size=4096)
    trace.add(1, build.system(0x0F33, BEGIN, b"first"))
    trace.flush(1)
    for i in range(300):
        trace.add(0, build.system(0x0F33, BEGIN + i, struct.pack("<Q", i)))
    before = in_time_order(log_of(bytes(trace)))
    assert before[0][2] == b"first"
    convert([BytesSource(bytes(trace))], tmp_path / "out.etl")
    assert in_time_order(well_formed(tmp_path / "out.etl")) == before


def test_two_logs_with_equal_times_keep_the_order_of_the_inputs(tmp_path):
    logs = [bytes(tied(step, cpus=3)) for step in (4, 7)]
    convert([BytesSource(data) for data in logs], tmp_path / "both.etl")
    merged = in_time_order(well_formed(tmp_path / "both.etl"))
    convert([BytesSource((tmp_path / "both.etl").read_bytes())], tmp_path / "again.etl", compress=True)
    assert in_time_order(well_formed(tmp_path / "again.etl")) == merged
    assert len(merged) == 1800


def test_events_of_equal_time_are_written_in_the_order_of_add(tmp_path):
    order, added = random.Random(1), []
    with TraceWriter(tmp_path / "a.etl", LogHeader(buffer_size=1024, processors=4, timestamp=BEGIN)) as writer:
        for i in range(900):
            event = Event(
                header=2,
                pointer_size=8,
                time=BEGIN + i // 3,
                pid=4,
                tid=8,
                cpu=order.randrange(4),
                hook=0x0F33,
                provider=bytes(16),
                id=0,
                version=2,
                opcode=0x33,
                payload=struct.pack("<Q", i),
            )
            writer.add(event)
            added.append((event.time, event.cpu, event.payload))
    assert in_time_order(well_formed(tmp_path / "a.etl")) == added


# -- merges


def session(cpu_events, **header):
    trace = build.Trace(header={"frequency": HZ, **header.pop("header", {})}, **header)
    for cpu, event in cpu_events:
        trace.add(cpu, event)
    return trace


def at(log, event):
    return (log.clock.wall_ns(event.time) - (START - 116_444_736_000_000_000) * 100) // 1000


def test_sessions_of_one_uptime_keep_their_ticks(tmp_path, run):
    mine = session(
        ((i % 2, build.system(0x0F33, BEGIN + 20 * i, struct.pack("<Q", i))) for i in range(400)),
        header_events=[build.system(5, BEGIN, bytes(36))],
    )
    theirs = session(
        ((i % 2, build.manifest(GUID, 1, BEGIN + 1001 + 20 * i, struct.pack("<Q", i))) for i in range(300)),
        begin=BEGIN + 1000,
        header={"start": START + 1003, "lost": 5},
        size=8192,
        header_events=[build.system(5, BEGIN + 1000, bytes(36))],
    )
    for name, trace in (("a", mine), ("b", theirs)):
        (tmp_path / f"{name}.etl").write_bytes(bytes(trace))
    ran = run("convert", tmp_path / "b.etl", tmp_path / "a.etl", tmp_path / "out.etl")
    assert ran.code == 0, ran.err
    assert "700 of 700" not in ran.err  # with the header events
    assert "702 of 702" in ran.err
    log = well_formed(tmp_path / "out.etl")
    assert log.header.timestamp == BEGIN
    assert log.header.buffer_size == 8192
    assert log.events_lost == 5
    expected = Counter()
    for name in "ab":
        expected += content(log_of(tmp_path / f"{name}.etl"))
    assert content(log) == expected
    times = [e.time for e in log.events(ordered=True)]
    assert times == sorted(times)


def test_other_clocks_are_converted_by_wall_time(tmp_path, run):
    stack = struct.pack("<QIIQ", 5_000_100, 1, 2, 3)
    one = session([(0, build.system(0x0F33, BEGIN + HZ * i // 10, b"one-")) for i in range(10)])
    other = session(
        [
            (0, build.perfinfo(0x0F2E, 5_000_100, struct.pack("<QII", 1, 2, 0))),
            (0, build.system(0x1820, 5_000_101, stack)),
            (1, build.manifest(GUID, 1, 5_000_200, b"other")),
            (1, build.message(3, b"text", guid=GUID, time=5_000_300, sequence=1)),
            (1, build.full(GUID, 3, 5_000_400, b"full")),
        ],
        begin=5_000_000,
        header={"frequency": 1000, "start": START + HZ // 2, "boot": START - 5},
    )
    (tmp_path / "a.etl").write_bytes(bytes(one))
    (tmp_path / "b.etl").write_bytes(bytes(other))
    ran = run("convert", tmp_path / "a.etl", tmp_path / "b.etl", tmp_path / "out.etl")
    assert ran.code == 0
    assert "different uptimes" in ran.err
    log = well_formed(tmp_path / "out.etl")
    got = [(at(log, e), e) for e in log.events(ordered=True) if e.hook != 0 and e.payload != b"one-"]
    assert [us for us, _ in got] == [600_000, 601_000, 700_000, 800_000, 900_000]
    assert struct.unpack_from("<q", got[1][1].payload)[0] == got[0][1].time  # the stack still names its sample
    assert [e.payload for _, e in got[2:]] == [b"other", b"text", b"full"]


@pytest.mark.parametrize("output", ["out.etl", "out.tb5"])
@pytest.mark.parametrize(
    ("mode", "umask", "expected"), [(0o600, 0o022, 0o600), (0o640, 0o002, 0o640), (0o644, 0o077, 0o600)]
)
def test_the_output_is_as_private_as_the_input(tmp_path, run, output, mode, umask, expected):
    """A session's log has mode 0600, and what is made of it must not be for all to read."""
    source = tmp_path / "x.etl"
    source.write_bytes(bytes(kernel_trace()))
    source.chmod(mode)
    before = os.umask(umask)
    try:
        assert run("convert", str(source), str(tmp_path / output)).code == 0
        assert os.umask(umask) == umask, "that of the process is as it was"
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / output).stat().st_mode) == expected


def test_a_merge_with_itself_has_everything_twice(tmp_path):
    data = real("ShutdownPerfDiagLogger.etl")
    convert([BytesSource(data), BytesSource(data)], tmp_path / "out.etl")
    once = content(log_of(data))
    assert content(well_formed(tmp_path / "out.etl")) == Counter({k: 2 * n for k, n in once.items()})


# -- what goes wrong


def test_damage_is_told_and_the_rest_carried_over(tmp_path, run):
    data = bytearray(bytes(kernel_trace()))
    data[4096 + 72 : 4096 + 76] = b"\x01\x02\x03\x04"
    (tmp_path / "in.etl").write_bytes(data)
    ran = run("convert", tmp_path / "in.etl", tmp_path / "out.etl")
    assert ran.code == 1
    assert "warning" in ran.err
    assert content(well_formed(tmp_path / "out.etl")) == content(log_of(bytes(data)))


def test_a_cut_of_a_damaged_file(tmp_path, run):
    data = bytearray(bytes(kernel_trace()))
    data[4096 + 72 : 4096 + 76] = b"\x01\x02\x03\x04"  # a buffer without an event
    (tmp_path / "in.etl").write_bytes(data)
    for option in (("--time", "0.02..0.04"), ("--pid", "100"), ("--pid", "100", "--time", "..0.04")):
        assert run("convert", tmp_path / "in.etl", tmp_path / "out.etl", "--force", *option).code == 1
        assert content(well_formed(tmp_path / "out.etl"))


def test_lost_buffers_stay_marked(tmp_path):
    data = bytearray(bytes(kernel_trace()))
    struct.pack_into("<H", data, 4096 + 0x34, 0x22)
    convert([BytesSource(data)], tmp_path / "out.etl")
    assert log_of(tmp_path / "out.etl").lossy == 1


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["in.etl"], 2, "at least one input"),
        (["in.etl", "in.etl"], 2, "--force"),
        (["in.etl", "-"], 2, "standard output"),
        (["in.etl", "out.etl", "--time", "1"], 2, "FROM..TO"),
        (["in.etl", "out.etl", "--time", "a.."], 2, "two numbers"),
        (["in.etl", "out.etl", "--time", "1/0.."], 2, "two numbers"),
        (["missing.etl", "out.etl"], 3, "missing.etl"),
        (["text", "out.etl"], 3, "not a capture"),
        (["text", "in.etl", "out.etl"], 3, "not an .etl file"),
        (["in.etl", "nowhere.etl", "out.etl"], 3, "time line"),
        (["in.etl", ""], 2, "empty"),
        (["in.etl", "no/such/folder.etl"], 5, "error: no/such/folder.etl: cannot be written: No such file"),
        (["in.etl", "no/such/folder.tb5"], 5, "error: no/such/folder.tb5: cannot be written: No such file"),
    ],
)
def test_what_cannot_be_done(tmp_path, run, monkeypatch, words, code, reason):
    monkeypatch.chdir(tmp_path)
    Path("in.etl").write_bytes(bytes(kernel_trace()))
    Path("text").write_text("nothing of a trace " * 20)
    Path("nowhere.etl").write_bytes(bytes(build.Trace(header={"start": 0})))
    ran = run("convert", *words)
    assert ran.code == code
    assert reason in ran.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.etl", "nowhere.etl", "text"]


@pytest.mark.parametrize("ending", [".etl", ".tb5"])
@pytest.mark.parametrize("what", ["a folder that nothing can be written to", "a full disk"])
def test_failures_of_writing_name_the_output(what, ending, tmp_path, run, monkeypatch):
    """The name is neither that of the incomplete file nor that of standard output."""
    source, out = tmp_path / "in.etl", tmp_path / "folder" / f"out{ending}"
    source.write_bytes(bytes(kernel_trace()))
    out.parent.mkdir()
    if what == "a full disk":

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        said = os.strerror(errno.ENOSPC)
    else:  # whoever runs the tests may be allowed everything
        plain = os.open

        def refused(name, flags, *rest, **more):
            if flags & os.O_CREAT:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
            return plain(name, flags, *rest, **more)

        monkeypatch.setattr(os, "open", refused)
        said = os.strerror(errno.EACCES)
    ran = run("convert", source, out)
    assert (ran.code, ran.out) == (5, "")
    assert f"error: {out}: cannot be written: {said}\n" in ran.err
    assert list(out.parent.iterdir()) == []


def test_the_output_may_be_an_input(tmp_path, run):
    path = tmp_path / "in.etl"
    path.write_bytes(bytes(kernel_trace()))
    before = content(log_of(path))
    assert run("convert", path, path, "--compress", "--force").code == 0
    assert content(log_of(path)) == before
    assert log_of(path).header.compressed


def test_standard_input(tmp_path, run):
    data = bytes(kernel_trace())
    assert run("convert", "-", tmp_path / "out.etl", stdin=data).code == 0
    assert content(log_of(tmp_path / "out.etl")) == content(log_of(data))


def test_a_perf_capture(data, tmp_path, run):
    """``export --to counts`` says the same of both; what a log has no place for is told."""
    out = tmp_path / "out.etl"
    ran = run("convert", data.path("demo_features"), out, "--compress")
    assert (ran.code, ran.raw) == (0, b"")
    assert ran.err.splitlines()[-1] == f"60 of 60 samples written to {out}"
    assert "note: not in the log: columns left out: branch_counters, hw_idx" in ran.err
    assert read_header(BytesSource(out.read_bytes())).compressed
    symfs = ("--symfs", tmp_path)  # no binaries: addresses are file offsets in both
    before = run("export", data.path("demo_features"), "--to", "counts", *symfs)
    after = run("export", out, "--to", "counts", *symfs)
    assert before.raw.count(b"\n") > 100
    assert after.raw == before.raw
    assert "branch entries" not in ran.err
    plain = tmp_path / "plain.etl"
    assert run("convert", data.path("demo_2proc"), plain).code == 0
    rows = [run("branches", path, "--format", "csv", *symfs).raw for path in (data.path("demo_2proc"), plain)]
    assert rows[0] == rows[1]
    again = run("convert", data.path("demo_features"), out)
    assert (again.code, "--force" in again.err) == (2, True)
    cut = run("convert", data.path("demo_features"), tmp_path / "cut.etl", "--pid", "7")
    assert (cut.code, "convert the whole capture first" in cut.err) == (2, True)
    assert not (tmp_path / "cut.etl").exists()


def test_a_damaged_perf_capture(data, tmp_path, run):
    whole = data.path("demo_pie").read_bytes()
    (tmp_path / "cut.data").write_bytes(whole[: len(whole) // 2])
    ran = run("convert", tmp_path / "cut.data", tmp_path / "out.etl")
    assert ran.code == 1
    assert "warning: " in ran.err
    assert (tmp_path / "out.etl").exists()


@pytest.mark.parametrize("ending", [".etl", ".tb5"])
def test_what_is_no_file_is_never_replaced(ending: str, tmp_path: Path, run: Callable[..., Ran]) -> None:
    """A complete file is renamed over the old one: that must not happen to a device, a pipe or a folder."""
    from lastbranch.demo import capture

    pipe, folder = tmp_path / f"pipe{ending}", tmp_path / f"folder{ending}"
    os.mkfifo(pipe)
    folder.mkdir()
    for out in (pipe, folder):
        ran = run("convert", "--force", capture(), out)
        assert (ran.code, ran.out) == (5, "")
        assert f"{out} is " in ran.err
        assert "cannot be replaced" in ran.err
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([pipe.name, folder.name])
