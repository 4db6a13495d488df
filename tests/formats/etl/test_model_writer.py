"""Profiles written as trace logs: what the reader says of them is what the profile said."""

import io
import os
import struct
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl_builder as build
import perfdata_writer as pw
from captures import REAL, SYNTHETIC, Data
from lastbranch.bind import bind
from lastbranch.errors import FormatError
from lastbranch.export import exporter
from lastbranch.export.interface import ExportOptions
from lastbranch.formats.etl import Decoder, TraceLog, write_profile
from lastbranch.formats.etl.profile.lbr_information import flags_of, information_of, is_extended
from lastbranch.formats.etl.profile.sample_events import MOST_FRAMES
from lastbranch.lbr import FLAG_FIELDS, flags_from_info
from lastbranch.model import (
    BRANCH,
    FRAME,
    REQUIRED,
    BytesSource,
    Change,
    Clock,
    Event,
    Machine,
    Module,
    ModuleKind,
    Profile,
    SampleBatch,
    SampleStream,
    concatenate,
)
from lastbranch.opening import read_profile
from perfdata_writer import Builder

CONTEXT = (1 << 64) - 4095
KNOWN = 1 << FLAG_FIELDS["reserved"][0]  # flag words below it have no bits without a name


def written(profile, tmp_path, **options):
    """(the profile read back, what the writer said)."""
    path = tmp_path / "out.etl"
    done = write_profile(profile, path, **options)
    return read_profile(BytesSource(path.read_bytes(), "out.etl")), done


def said(profile, *, times=True, cpus=True):
    """Every sample as a tuple, sorted: what must come back of it."""
    names = [event.name for event in profile.events]
    out = []
    for batch in profile.batches():
        stacks, frames = batch.offsets.get(BRANCH), batch.offsets.get(FRAME)
        for i in range(len(batch)):
            entries = () if stacks is None else tuple(map(tuple, np.stack(batch.stack(i), axis=1).tolist()))
            chain = () if frames is None else tuple(f for f in batch.chain(i).tolist() if f < CONTEXT)[:MOST_FRAMES]
            head = (int(batch.time[i]) * times, names[batch.event[i]], int(batch.ip[i]), int(batch.pid[i]))
            cpu = max(int(batch.cpu[i]), 0) * cpus
            out.append((*head, int(batch.tid[i]), cpu, entries, chain))
    return sorted(out)


def counts(profile):
    out = io.BytesIO()
    exporter("counts")(profile, out, ExportOptions())
    return out.getvalue()


def bound(profile):
    """Module, address in it and process of every sample."""
    binder, out = bind(profile).binder, []
    for batch in profile.batches(()):
        scope = binder.scopes(batch)
        module, address = binder.locate(scope, batch.ip)
        process = binder.process_of(scope)
        for i in range(len(batch)):
            name = profile.modules[module[i]].name if module[i] >= 0 else "-"
            pid = binder.processes[process[i]].pid if process[i] >= 0 else -1
            out.append((int(batch.time[i]), int(batch.ip[i]), name, int(address[i]), pid))
    return sorted(out)


# -- captures


SLOW = {"arm_etm_inject_hwindex", "arm_etm_inject_kernel_64deep"}  # thousands of kernel symbols as mappings


@pytest.mark.parametrize("name", [n for n in (*REAL, *SYNTHETIC) if n not in SLOW])
def test_branches_of_a_perf_capture_are_the_same(data: Data, tmp_path, name):
    profile = read_profile(BytesSource(data.path(name).read_bytes(), name))
    back, _ = written(profile, tmp_path, compress=name == "snb_callchain_and_branch-3.4")
    assert not back.damage
    assert (back.samples, back.entries, back.deepest) == (profile.samples, profile.entries, profile.deepest)
    assert counts(back) == counts(profile)
    assert bound(back) == bound(profile)
    used = {e.name for e in profile.events if any(profile.events[i] is e for b in profile.batches(()) for i in b.event)}
    assert {e.name for e in back.events} == used


@pytest.mark.parametrize("name", ["demo_2proc", "demo_pie", "snb_raw_callchain_branch-3.4", "skx_6154_32deep_pie"])
def test_samples_of_a_perf_capture_are_the_same(data: Data, tmp_path, name):
    profile = read_profile(BytesSource(data.path(name).read_bytes(), name))
    back, done = written(profile, tmp_path)
    moved = any("moved" in note for note in done.notes)
    assert said(back, times=not moved) == said(profile, times=not moved)
    modules = {(m.name, m.kind, m.build_id) for m in profile.modules}
    assert {(m.name, m.kind, m.build_id) for m in back.modules} <= modules
    assert asdict(back.machine)["arch"] == profile.machine.arch


def real_etl(name):
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not part of the project")
    return read_profile(BytesSource(Path(root, "etl", name).read_bytes(), name))


def located(profile):
    """`bound` as sorted columns."""
    binder = bind(profile).binder
    names = np.array([*(m.name for m in profile.modules), "-"])
    batch = concatenate(list(profile.batches(())))
    module, address = binder.locate(binder.scopes(batch), batch.ip)
    order = np.lexsort((batch.ip, batch.tid, batch.cpu, batch.time))
    return batch.time[order], batch.ip[order], names[module][order], address[order]


@pytest.mark.thorough
def test_a_real_trace_comes_back(tmp_path):
    profile = real_etl("net.4.5.2.x64.etl")
    back, done = written(profile, tmp_path, compress=False)
    assert done.samples == profile.samples == 79_528
    assert back.samples == profile.samples
    assert not done.notes
    theirs, ours = (concatenate(list(p.batches())) for p in (profile, back))
    order = [np.lexsort((b.ip, b.tid, b.cpu, b.time)) for b in (theirs, ours)]
    for name in ("time", "ip", "tid", "cpu", "pid"):
        assert (theirs[name][order[0]] == ours[name][order[1]]).all(), name
    for name in ("frame",):
        assert sorted(theirs[name].tolist()) == sorted(ours[name].tolist())
    for theirs, ours in zip(located(profile), located(back), strict=True):
        assert (theirs == ours).all()
    assert {e.name: e.period for e in back.events} == {e.name: e.period for e in profile.events}
    identity = {(m.name, m.pdb_guid, m.pdb_age, m.pdb_name, m.timestamp, m.size) for m in profile.modules}
    assert {(m.name, m.pdb_guid, m.pdb_age, m.pdb_name, m.timestamp, m.size) for m in back.modules} == identity
    assert back.clock == profile.clock or abs(back.clock.wall_ns(0) - profile.clock.wall_ns(0)) < 100


# -- profiles made here


def batch_of(rows, *, stacks=True, frames=True):
    """Rows (time, ip, pid, tid, cpu, event, entries, frames)."""
    columns = {c.name: np.zeros(len(rows), c.dtype) for c in REQUIRED}
    for i, name in enumerate(("time", "ip", "pid", "tid", "cpu", "event")):
        columns[name][:] = [row[i] for row in rows]
    columns["mode"][:] = [1 if row[1] >> 63 else 2 for row in rows]
    offsets = {}
    if stacks:
        entries = np.array([e for row in rows for e in row[6]], np.uint64).reshape(-1, 3)
        columns |= {name: entries[:, i].copy() for i, name in enumerate(("branch_from", "branch_to", "branch_flags"))}
        offsets[BRANCH] = np.cumsum([0, *(len(row[6]) for row in rows)])
    if frames:
        columns["frame"] = np.array([f for row in rows for f in row[7]], np.uint64)
        offsets[FRAME] = np.cumsum([0, *(len(row[7]) for row in rows)])
    return SampleBatch(columns, offsets)


def profile_of(rows, *, events=None, bits=64, stacks=True, frames=True, clock=None, periods=None):
    """A profile of these samples, in time order, in batches of three. ``periods``: by address."""
    rows = sorted(rows, key=lambda row: row[0])
    profile = Profile("made", "test", machine=Machine(bits=bits), clock=clock or Clock())
    profile.events = events or [Event("cycles", 1000, branch_select=0 if stacks else None, branch_select_kind="etw")]
    names = ["frame"] * frames + ["branch_from", "branch_to", "branch_flags"] * stacks

    def batches(wanted):
        for i in range(0, len(rows), 3):
            part = batch_of(rows[i : i + 3], stacks=stacks, frames=frames)
            if periods:
                part.columns["period"] = np.array([periods[ip] for ip in part.ip.tolist()], np.uint64)
            yield part, int(part.time[-1])

    entries, deepest = sum(len(r[6]) for r in rows), max((len(r[6]) for r in rows), default=0)
    profile.streams = [SampleStream(0, tuple(names), (0,), len(rows), entries, deepest, batches)] if rows else []
    profile.first_time, profile.last_time = (rows[0][0], rows[-1][0]) if rows else (None, None)
    return profile


ADDRESS = st.one_of(st.integers(0, (1 << 47) - 1), st.integers(1 << 63, CONTEXT - 1))
FLAGS = st.builds(
    lambda wrong, cycles, kind, tx: (1 if wrong else 2) | cycles << 4 | kind << 20 | tx << 2,
    st.booleans(),
    st.integers(0, 0xFFFF),
    st.integers(0, 6),
    st.integers(0, 3),
)
ENTRIES = st.lists(st.tuples(ADDRESS, ADDRESS, FLAGS), max_size=5)
ROW = st.tuples(
    st.integers(1, 300),
    ADDRESS,
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(0, 2),
    ENTRIES,
    st.lists(ADDRESS, max_size=4),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(ROW, max_size=20, unique_by=lambda r: (r[0], r[3])), st.booleans(), st.sampled_from([32, 64]))
def test_random_profiles_come_back(tmp_path_factory, rows, compress, bits):
    rows = [(t, ip, pid, 10 * pid + tid, *rest) for t, ip, pid, tid, *rest in rows]
    events = [
        Event(name, 7, branch_select=0, branch_select_kind="etw", programming=p)
        for name, p in (("Timer", {"source": 0}), ("a", {}), ("b/c:u", {"source": 6}))
    ]
    profile = profile_of(rows, events=events, bits=bits)
    path = tmp_path_factory.mktemp("p") / "out.etl"
    done = write_profile(profile, path, compress=compress, buffer_size=2048 if not compress else 1 << 16)
    back = read_profile(BytesSource(path.read_bytes()))
    assert said(back) == said(profile)
    assert not back.damage
    assert not done.notes
    assert back.machine.bits == bits


def test_the_forms_follow_the_machine(tmp_path):
    row = (5, 0x1000, 7, 71, 0, 0, [(1, 2, 0)], [0x1000])
    for bits, headers in ((64, {17}), (32, {16})):
        profile = profile_of([row], bits=bits)
        path = tmp_path / f"{bits}.etl"
        write_profile(profile, path)
        log = TraceLog(BytesSource(path.read_bytes()))
        kinds = {event.header for event in log.events() if event.hook in (0x0F2F, 0x0C20, 0x1820)}
        assert kinds == headers
        assert log.header.pointer_size == bits // 8
    for flags in (1, 2, 1 << 4 | 2):  # mispredicted is bit 63, which 32 bits can neither tell nor deny
        wide = profile_of([(5, 0x1000, 7, 71, 0, 0, [(1, 2, flags)], [])], bits=32)
        back, _ = written(wide, tmp_path)
        assert said(back) == said(wide)


WORDS = st.lists(st.integers(0, KNOWN - 1) | st.integers(0, 3) | FLAGS, max_size=50)


@given(WORDS)
def test_every_flag_word_comes_back(words):
    """In a log that declares extended words; without them what LBR_INFO can say, and a bit that processors keep 0."""
    flags = np.array(words, np.uint64)
    info = information_of(flags)
    narrow = np.zeros(len(flags), bool)
    assert flags_of(info, narrow, extended=True).tolist() == flags.tolist()
    assert flags_of(info, narrow, extended=False).tolist() == flags_from_info(info).tolist()
    plain = ~is_extended(info)
    assert flags_from_info(info)[plain].tolist() == flags[plain].tolist()
    others = flags_from_info(info)  # as any other reader takes them
    assert ((others ^ flags) & np.uint64(0xFFFF << 4 | 3 << 2 | 1))[info != 0].max(initial=0) == 0
    types = (flags >> np.uint64(20)) & np.uint64(15)
    sayable = (types >= 1) & (types <= 6)
    assert ((others >> np.uint64(20)) & np.uint64(15))[sayable].tolist() == types[sayable].tolist()


def test_two_samples_of_a_thread_at_one_time(tmp_path):
    """A stack says by time and thread whose it is: the second sample moves, and a note says so."""
    rows = [(5, 0x10, 7, 71, 0, 0, [], [1, 2]), (5, 0x20, 7, 71, 0, 0, [], [3]), (6, 0x30, 7, 71, 0, 0, [], [])]
    back, done = written(profile_of(rows), tmp_path)
    assert [row[0] for row in said(back)] == [5, 6, 7]
    assert said(back, times=False) == said(profile_of(rows), times=False)
    assert done.notes == (
        "samples moved to a later tick, because their thread has another sample with a stack at that tick (2)",
    )


def test_samples_of_equal_time_keep_their_order(tmp_path):
    """Of different processors, across the profile's batches: a reader orders them by their buffers."""
    cpus = [3, 1, 2, 1, 0, 2, 3, 0]
    rows = [(5 + i // 8, 0x100 + i, 7, 70 + i, cpus[i * 5 % 8], 0, [], []) for i in range(160)]
    profile = profile_of(rows, stacks=False, frames=False)
    write_profile(profile, tmp_path / "a.etl", buffer_size=1024)
    log = TraceLog(BytesSource((tmp_path / "a.etl").read_bytes()))
    decoder = Decoder()
    samples = [decoder.decode(e).fields for e in log.events(ordered=True) if e.hook == 0x0F2F]
    assert [int(s["InstructionPointer"]) for s in samples] == [row[1] for row in rows]


def test_other_triggers_and_none(tmp_path):
    events = [
        Event("Thread/CSwitch", branch_select=0, branch_select_kind="etw", programming={"hook": 0x0524}),
        Event("LBR", branch_select=0, branch_select_kind="etw", programming={"hook": 0}),
    ]
    rows = [(5, 0, 7, 71, 0, 0, [(1, 2, 2)], []), (9, 0, 7, 71, 1, 1, [(3, 4, 1)], [])]
    profile = profile_of(rows, events=events)
    back, _ = written(profile, tmp_path)
    assert [row[2:] for row in said(back)] == [row[2:] for row in said(profile)]
    assert {tuple(e.programming.values()) for e in back.events} == {(0x0524,), (0,)}


def test_lives_of_processes_and_images(tmp_path):
    """A fork inherits, an exec drops, an exit ends, a process id comes again: what binds at each time is the same."""
    rows = [
        (t, 0x400010, pid, pid, 0, 0, [(0x400000, 0x500000, 2)], [])
        for pid in (7, 8)
        for t in range(10 * pid - 55, 100, 10)
    ]
    rows += [(t + 1, (1 << 63) + 0x20, 7, 7, 1, 0, [], []) for t in range(15, 100, 10)]
    profile = profile_of(rows)
    profile.modules = [
        Module("/bin/a", build_id=bytes(20)),
        Module("/bin/b"),
        Module("[kernel.kallsyms]", ModuleKind.KERNEL),
        Module("[vdso]", ModuleKind.VDSO),
        Module("//anon", ModuleKind.ANONYMOUS),
        Module("C:\\ä.dll", timestamp=9, checksum=3, image_base=1 << 32, size=0x9000),
    ]
    t = profile.timeline
    t.add(Change.MAP, 0, -1, module=2, start=1 << 63, end=(1 << 64) - 1, offset=(1 << 63) + 0x10)
    t.add(Change.MAP, 0, 7, module=0, start=0x400000, end=0x410000, offset=0x1000)
    t.add(Change.MAP, 0, 7, module=3, start=0x500000, end=0x501000)
    t.name(0, 7, 7, "first")
    t.add(Change.FORK, 20, 8, tid=8, parent=7)
    t.name(21, 8, 8, "named")
    t.add(Change.UNMAP, 30, 8, start=0x400000, end=0x401000)
    t.add(Change.MAP, 40, 8, module=4, start=0x400000, end=0x401000)
    t.add(Change.EXEC, 50, 8)
    t.add(Change.MAP, 51, 8, module=5, start=0x400000, end=0x409000)
    t.add(Change.EXIT, 60, 8, tid=8)
    t.add(Change.FORK, 70, 8, tid=8, parent=7)
    t.add(Change.MAP, 80, 8, module=1, start=0x400000, end=0x410000)
    t.add(Change.FORK, 85, 7, tid=72, parent=7)
    back, done = written(profile, tmp_path)
    assert bound(back) == bound(profile)
    assert counts(back) == counts(profile)
    assert said(back) == said(profile)
    assert not done.notes
    lives = [(p.pid, p.name, p.parent, p.start, p.end) for p in bind(profile).binder.processes]
    assert [(p.pid, p.name, p.parent, p.start, p.end) for p in bind(back).binder.processes] == lives
    named = {m.name: m for m in back.modules}
    assert named["/bin/a"].build_id == bytes(20)
    assert (named["C:\\ä.dll"].timestamp, named["C:\\ä.dll"].checksum, named["C:\\ä.dll"].image_base) == (9, 3, 1 << 32)


def test_a_log_is_complete(tmp_path):
    """Group masks, configuration, intervals and lists at begin and end, as a session of the kernel has them."""
    profile = profile_of([(50, 0x400010, 7, 71, 3, 0, [(1, 2, 2)], [0x400010])])
    profile.modules = [Module("/bin/a")]
    profile.timeline.add(Change.MAP, 10, 7, module=0, start=0x400000, end=0x410000)
    profile.machine.host = "host"
    path = tmp_path / "out.etl"
    write_profile(profile, path)
    log = TraceLog(BytesSource(path.read_bytes()))
    hooks = {event.hook for event in log.events()}
    assert hooks >= {0x0005, 0x0020, 0x0B0A, 0x0F49, 0x0F4A, 0x030A, 0x0303, 0x0304, 0x0503, 0x0504, 0x1404}
    assert log.header.processors == 4
    from lastbranch.analysis.checks import check

    found = {f.name for f in check(str(path))}
    assert found == {"few samples", "no names"}  # one sample, of a binary that is not here; of the log itself nothing


def test_wall_time_and_clocks(tmp_path):
    clocks = (
        Clock("QPC", 10_000_000, (40, 1_700_000_000_000_000_000)),
        Clock("system time", 10_000_000),
        Clock("TSC", 2_500_000_000),
        Clock("file order", 0),
    )
    for clock in clocks:
        profile = profile_of([(50, 1, 7, 71, 0, 0, [], [])], clock=clock)
        back, _ = written(profile, tmp_path)
        assert back.clock.frequency == clock.frequency
        assert back.clock.wall_ns(50) == clock.wall_ns(50)
    assert back.machine.os == profile.machine.os


def periods(profile):
    """(time, event, address, period) of all samples, by time."""
    found = []
    for batch in profile.batches():
        for i in range(len(batch)):
            event = profile.events[batch.event[i]]
            own = int(batch.period[i]) if event.has_period else event.period
            found.append((int(batch.time[i]), event.name, int(batch.ip[i]), own))
    return sorted(found)


def with_periods(rows, bits=64):
    """A profile of samples (time, event, period) of the timer, whose interval is 10, and of a counter."""
    events = [
        Event("Timer", 10, has_period=True, programming={"source": 0, "interval": 10}),
        Event("LLCMisses", 0, has_period=True, programming={"source": 29}),
    ]
    made = [(time, i + 1, 7, 71, i % 3, event, (), ()) for i, (time, event, _) in enumerate(rows)]
    own = {i + 1: period for i, (_, _, period) in enumerate(rows)}
    return profile_of(made, events=events, bits=bits, stacks=False, frames=False, periods=own)


PERIODS = st.lists(
    st.tuples(st.integers(1, 400), st.integers(0, 1), st.sampled_from([1, 10, 11, 30, 655350, 655360, 0xFFFFFFFF])),
    min_size=1,
    max_size=30,
    unique_by=lambda row: row[:2],
)


@settings(deadline=None, max_examples=40)
@given(PERIODS, st.sampled_from([32, 64]))
def test_the_period_of_each_sample_comes_back(tmp_path_factory, rows, bits):
    """By Count where a sample of the timer stands for several, else by an event that changes the interval."""
    folder = tmp_path_factory.mktemp("p")
    profile = with_periods(rows, bits)
    back, done = written(profile, folder)
    assert periods(back) == periods(profile)
    assert not done.notes
    again, _ = written(back, folder)
    assert periods(again) == periods(profile)


def test_periods_that_cannot_be_told_are(tmp_path):
    """One interval of a source holds at a time, and it is a u32; a period of 0 is not known."""
    rows = [(5, 1, 100), (5, 1, 200), (6, 1, 1 << 32), (7, 1, 0), (8, 1, 300)]
    back, done = written(with_periods(rows), tmp_path)
    assert done.notes == ("samples whose own period is left out (2)",)
    assert [p for *_, p in periods(back)] == [200, 200, 200, 200, 300]


def test_changed_intervals_of_a_log_come_back(tmp_path):
    """As they do in a log that is written from one."""
    profile = with_periods([(time, 1, 1000 if time < 50 else 2000) for time in range(10, 90, 5)])
    back, _ = written(profile, tmp_path)
    log = TraceLog(BytesSource((tmp_path / "out.etl").read_bytes()))
    assert sum(event.hook == 0x0F48 for event in log.events()) == 2
    assert [(e.name, e.period, e.has_period) for e in back.events if e.name == "LLCMisses"] == [
        ("LLCMisses", 1000, True)
    ]


def test_32_bit_records_stay_as_they_were(tmp_path):
    """In a 64-bit session too: 64 bits of Information would claim that nothing was mispredicted."""
    entries = struct.pack("<QIIII6I", 200, 7, 71, 0, 0, 0x401010, 0x401100, 1 << 31, 0x401050, 0x401000, 5)
    trace = build.Trace(begin=100)
    trace.add(0, build.perfinfo(0x0F2F, 200, struct.pack("<QIHH", 0x401000, 71, 6, 0)))
    trace.add(0, build.perfinfo(0x0C20, 200, entries, bits=32))
    profile = read_profile(BytesSource(bytes(trace)))
    back, _ = written(profile, tmp_path)
    log = TraceLog(BytesSource((tmp_path / "out.etl").read_bytes()))
    assert [e.header for e in log.events() if e.hook in (0x0F2F, 0x0C20)] == [17, 16]
    assert said(back) == said(profile)
    (ours,), (theirs,) = back.batches(), profile.batches()
    assert ours["branch_info"].tolist() == theirs["branch_info"].tolist()


def test_a_process_starts_under_its_own_name(tmp_path):
    """Not under that of its parent, where it has one of its own from the begin."""
    profile = profile_of([(50, 1, 8, 8, 0, 0, [], [])])
    t = profile.timeline
    t.name(0, 7, 7, "cmd.exe")
    for pid, name in ((8, "test.exe"), (9, None)):
        t.add(Change.FORK, 20, pid, tid=pid, parent=7, offset=1)
        if name:
            t.name(20, pid, pid, name)
    back, _ = written(profile, tmp_path)
    log, decoder = TraceLog(BytesSource((tmp_path / "out.etl").read_bytes())), Decoder()
    fields = [decoder.decode(e).fields for e in log.events() if e.hook == 0x0301]
    assert [(f["ProcessID"], f["ImageFileName"]) for f in fields] == [(8, "test.exe"), (9, "cmd.exe")]
    assert {process.pid: process.name for process in bind(back).binder.processes}[8] == "test.exe"


def test_losses_stay_known(tmp_path):
    """As those of a log, or of a perf.data, which counts by other names."""
    profile = profile_of([(5, 1, 7, 71, 0, 0, [], [])])
    profile.lost = {"events": 3, "buffers": 2}
    assert written(profile, tmp_path)[0].lost == {"events": 3, "buffers": 2}
    profile.lost = {"records": 4, "samples": 1, "throttles": 9}
    assert written(profile, tmp_path)[0].lost == {"events": 5, "throttles": 9}


def test_what_32_bits_cannot_hold_is_told_in_64(tmp_path):
    """A 32-bit session with an image of a 64-bit process."""
    profile = profile_of([(5, 1, 7, 71, 0, 0, [], [])], bits=32)
    profile.modules.append(Module("C:\\a.dll", size=0x1000))
    profile.timeline.add(Change.MAP, 0, 7, module=0, start=0x7FF800000000, end=0x7FF800001000)
    back, _ = written(profile, tmp_path)
    assert back.machine.bits == 32
    maps = back.timeline.columns()
    assert 0x7FF800000000 in maps["start"][maps["kind"] == Change.MAP].tolist()


def test_nothing_but_tables(tmp_path):
    back, _ = written(Profile("empty", "test"), tmp_path)
    assert back.samples == 0


def test_what_is_left_out_is_said(tmp_path):
    profile = profile_of([(5, 1, 7, 71, -1, 0, [(1, 2, 1 << 24 | 2), (1, 2, 1 << 4)], [1] * (MOST_FRAMES + 3))])
    back, done = written(profile, tmp_path, buffer_size=1 << 17)
    assert back.samples == 1
    assert done.notes == (
        f"frames left out, after the first {MOST_FRAMES} of a stack (3)",
        "samples without a known processor are written for processor 0 (1)",
    )


def test_what_would_be_taken_for_something_else_is_refused(tmp_path):
    path = tmp_path / "out.etl"
    in_tx = [Event("cycles", branch_select=8 | 1 << 8)]
    with pytest.raises(FormatError, match=r"event cycles: no \.etl flag expresses that branches were filtered"):
        write_profile(profile_of([], events=in_tx), path)
    deep = profile_of([(5, 1, 7, 71, 0, 0, [(1, 2, 2)] * 2800, [])])
    with pytest.raises(FormatError, match="at most 2728 entries"):
        write_profile(deep, path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("select", "options"), [(8 | 1, 1), (8 | 2, 2), (1 << 11 | 1, 0x3C5), (1 << 4 | 3, 0xE4)])
def test_selections_of_perf(select, options, tmp_path):
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK, branch_sample_type=select)
    b.sample(ip=1, pid=7, time=1000, branches=[(0x400000, 0x400004, 1)])
    profile = read_profile(BytesSource(b.build(), "perf.data"))
    back, _ = written(profile, tmp_path)
    assert [(e.branch_select, e.branch_select_kind) for e in back.events] == [(select, "perf")]
    payload = next(
        e.payload for e in TraceLog(BytesSource((tmp_path / "out.etl").read_bytes())).events() if e.hook == 0x0C20
    )
    assert struct.unpack_from("<I", payload, 16) == (options,)
