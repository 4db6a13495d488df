"""From .etl events to a profile: samples with call stacks and branch records, modules, processes, threads."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl_builder as eb
import lastbranch
from command_line import Ran
from etl_kernel_logs import (
    CSWITCH,
    KERNEL,
    LBR,
    PAIR,
    PMC,
    SAMPLE,
    WORLD,
    flow,
    image,
    key_event,
    lbr,
    pmc,
    process,
    profile_of,
    sample,
    stack_event,
    thread,
    wide,
)
from lastbranch.analysis.checks.etl import check_log
from lastbranch.arrays import insertion_points
from lastbranch.bind import bind
from lastbranch.errors import NotRecordedError
from lastbranch.formats.etl import TraceLog, read_etl
from lastbranch.formats.etl.profile.reader import _LogReader
from lastbranch.model import BytesSource, Profile


def test_a_record_is_attached_to_its_trigger() -> None:
    profile = profile_of([*WORLD, (1, pmc(200, 0x140001020, 420, 6)), (1, lbr(200, 42, 420, 0x1, PAIR))])
    (batch,) = profile.batches()
    assert len(batch) == profile.samples == 1
    assert (batch.pid.tolist(), batch.tid.tolist(), batch.cpu.tolist()) == ([42], [420], [1])
    assert batch.stack(0)[0].tolist() == [0x140001010, 0x140001050]
    assert batch["branch_info"].tolist() == [1 << 63 | 7, 5]
    assert [f & 3 for f in batch["branch_flags"].tolist()] == [1, 2]
    event = profile.events[batch.event[0]]
    assert (event.name, event.period, event.programming["source"]) == ("BranchInstructions", 65536, 6)
    assert (event.branch_select, event.branch_select_kind) == (1, "etw")


def test_branches_and_ranges_come_out_as_of_any_capture() -> None:
    profile = profile_of([*WORLD, (1, pmc(200, 0x140001020, 420, 6)), (1, lbr(200, 42, 420, 0x1, PAIR))])
    table = lastbranch.branches(profile)
    rows = zip(table.from_module.tolist(), table.from_address.tolist(), table.mispredicted.tolist(), strict=True)
    assert sorted(rows) == [(0, 0x1010, 1), (0, 0x1050, 0)]
    ranges = lastbranch.ranges(profile)
    assert [c.tolist() for c in (ranges.start, ranges.end, ranges.count)] == [[0x1000], [0x1010], [1]]


def test_filters_that_leave_branches_out_refuse_ranges() -> None:
    profile = profile_of([*WORLD, (1, lbr(200, 42, 420, 0x4, PAIR))])
    with pytest.raises(NotRecordedError, match="ETW LBR options 0x4"):
        lastbranch.ranges(profile)
    assert lastbranch.branches(profile).count.sum() == 2


def test_other_triggers_and_none_give_rows_of_their_own() -> None:
    switch = eb.system(CSWITCH, 300, struct.pack("<II8BII", 420, 0, *[0] * 8, 0, 0))
    profile = profile_of(
        [
            *WORLD,
            (0, pmc(200, 0x140001020, 420, 6)),  # same time, another processor: not the trigger
            (1, lbr(200, 42, 420, 0, PAIR)),
            (1, switch),
            (1, lbr(300, 42, 420, 0, PAIR)),
            (1, sample(400, 0x140001030, 420)),
            (1, lbr(401, 42, 420, 0, PAIR)),
        ]
    )
    (batch,) = profile.batches()
    found = {
        (profile.events[e].name, ip, n)
        for e, ip, n in zip(batch.event.tolist(), batch.ip.tolist(), batch.depth.tolist(), strict=True)
    }
    assert found == {
        ("BranchInstructions", 0x140001020, 0),
        ("LBR", 0, 2),
        ("Windows Kernel/Thread/CSwitch", 0, 2),
        ("Timer", 0x140001030, 0),
    }
    assert profile.samples == 5
    assert profile.entries == 6


@pytest.mark.parametrize("size", [1024, 4096])
@pytest.mark.parametrize("hook", [0x1820, 0x1825, 0x0F43])
def test_events_with_other_times_between_trigger_and_record(hook: int, size: int) -> None:
    """A stack's own time is that of its writing; an interrupt can come while the record is made."""
    between = eb.perfinfo(hook, 203, struct.pack("<QIIQ", 200, 42, 420, 5))
    events = [*WORLD, (1, pmc(200, 0x11, 420, 6)), (1, between), (1, lbr(200, 42, 420, 0, PAIR * 15))]
    trace = eb.Trace(size=size)  # in the smaller buffers, that of the record is another one
    for cpu, event in events:
        trace.add(cpu, event)
    data = bytes(trace)
    assert flow(read_etl(BytesSource(data))) == [(200, "BranchInstructions", 0x11, 30)]
    assert "lbr without trigger" not in {f.name for f in check_log(TraceLog(BytesSource(data)))}
    rows = rows_by_window(data, size)
    assert [(row[4], len(row[5][0])) for row in rows] == [("BranchInstructions", 30)]  # type: ignore[index]


def test_the_newest_of_several_triggers_with_one_time() -> None:
    events = [(1, sample(200, 0x11, 420)), (1, pmc(200, 0x22, 420, 6)), (1, stack_event(200, 420, [1]))]
    found = flow(profile_of([*WORLD, *events, (1, lbr(200, 42, 420, 0, PAIR))]))
    assert found == [(200, "Timer", 0x11, 0), (200, "BranchInstructions", 0x22, 2)]


def test_triggers_in_a_circular_log_that_wrapped() -> None:
    head = eb.Trace(size=1024, header={"mode": 2}).header_buffer()
    newer = eb.buffer([lbr(200, 42, 420, 0, PAIR), sample(300, 2, 420)], size=1024, sequence=3, cpu=1)
    older = eb.buffer([sample(150, 1, 420), pmc(200, 0x11, 420, 6)], size=1024, sequence=2, cpu=1)
    source = BytesSource(head + newer + older)
    assert sorted(row[:1] + row[3:] for row in flow(read_etl(source))) == [(150, 0), (200, 2), (300, 0)]
    assert "lbr without trigger" not in {f.name for f in check_log(TraceLog(source))}


def test_events_that_are_too_short_are_counted_and_not_read() -> None:
    short = [(1, eb.perfinfo(LBR, 210, b"")), (1, eb.perfinfo(PMC, 211, b"abc")), (1, eb.perfinfo(SAMPLE, 212, b""))]
    made = [*WORLD, (1, pmc(200, 0x11, 420, 6)), (1, lbr(200, 42, 420, 1, PAIR)), *short, (1, sample(220, 1 << 60, 0))]
    profile = profile_of(made)
    assert flow(profile) == [(200, "BranchInstructions", 0x11, 2), (220, "Timer", 1 << 60, 0)]
    assert {event.branch_select for event in profile.events} == {1}
    kinds = ("LastBranchRecording/Sample", "PerfInfo/Sample", "PerfInfo/PMCSample")
    assert profile.lost == {f"Windows Kernel/{kind} events too short": 1 for kind in kinds}
    narrow = [(1, eb.perfinfo(PMC, 210, bytes(size), bits=32)) for size in (11, 12)]
    assert [row[0] for row in flow(profile_of([*WORLD, *narrow]))] == [210]


def test_a_trigger_at_the_end_of_a_buffer() -> None:
    trace = eb.Trace()
    for cpu, event in [*WORLD, (1, pmc(200, 0x140001020, 420, 6))]:
        trace.add(cpu, event)
    trace.flush(1)
    trace.add(0, sample(250, 0x140001030, 420))
    trace.flush(0)
    trace.add(1, lbr(200, 42, 420, 0, PAIR))
    (batch,) = read_etl(BytesSource(bytes(trace))).batches()
    assert sorted(batch.depth.tolist()) == [0, 2]
    assert batch.ip[batch.depth == 2].tolist() == [0x140001020]


@pytest.mark.parametrize("unused", [False, True])
def test_both_32_bit_forms(unused: bool) -> None:
    entries = [(0x401010, 0x401100, 1 << 31), (0x401050, 0x401000, 5)]
    event = lbr(200, 42, 420, 0, entries, bits=32)
    if unused:
        head = struct.pack("<QIIII", 200, 42, 420, 0, 0)
        event = eb.perfinfo(LBR, 200, head + b"".join(struct.pack("<3I", *e) for e in entries), bits=32)
    (batch,) = profile_of([*WORLD, (1, event)]).batches()
    assert batch.stack(0)[0].tolist() == [0x401010, 0x401050]
    assert batch.stack(0)[1].tolist() == [0x401100, 0x401000]
    # "Mispredicted" is bit 63 of Information: 32 bits cannot hold it, and so cannot deny it.
    assert [flags & 3 for flags in batch["branch_flags"].tolist()] == [0, 0]
    assert [flags >> 4 for flags in batch["branch_flags"].tolist()] == [0, 5]  # cycles


def test_images_that_load_and_unload_are_bound_at_their_time() -> None:
    name = "\\Device\\HarddiskVolume1\\plug.dll"
    profile = profile_of(
        [
            *WORLD,
            (0, image(0x030A, 200, 42, 0x180000000, 0x1000, name)),
            (0, sample(250, 0x180000010, 420)),
            (0, image(0x1402, 300, 42, 0x180000000, 0x1000, name)),
            (0, sample(350, 0x180000010, 420)),
            (0, sample(360, KERNEL + 0x20, 420)),
        ]
    )
    binder = bind(profile).binder
    (batch,) = profile.batches()
    module, address = binder.locate(binder.scopes(batch), batch.ip)
    names = [profile.modules[m].short if m >= 0 else None for m in module]
    assert names == ["plug.dll", None, "ntoskrnl.exe"]
    assert address.tolist() == [0x10, 0x180000010, 0x20]
    assert [binder.processes[p].name for p in binder.process_of(binder.scopes(batch))] == ["app.exe"] * 3


IMAGE_ID = UUID("b3e675d7-2554-4f18-830b-2762732560de").bytes_le
SYS_CONFIG_EX = UUID("9b79ee91-b5fd-41c0-a243-4248e266e9d0").bytes_le


def pdb(time: int, pid: int, base: int, number: int, name: str) -> bytes:
    payload = struct.pack("<QI16sI", base, pid, bytes([number]) * 16, number) + name.encode() + b"\0"
    return eb.full(IMAGE_ID, 36, time, payload)


def test_images_at_one_base_one_after_the_other_have_their_own_pdb() -> None:
    base, size = 0x180000000, 0x1000
    profile = profile_of(
        [
            *WORLD,
            (0, pdb(200, 42, base, 1, "one.pdb")),
            (0, image(0x030A, 200, 42, base, size, "\\one.dll")),
            (0, image(0x1402, 300, 42, base, size, "\\one.dll")),
            (0, pdb(400, 42, base, 2, "two.pdb")),
            (0, image(0x030A, 400, 42, base, size, "\\two.dll")),
            (0, image(0x1402, 500, 42, base, size, "\\two.dll")),
            (0, image(0x030A, 600, 42, base, size, "\\none.dll")),
        ]
    )
    pdbs = {m.short: (m.pdb_name, m.pdb_age) for m in profile.modules}
    assert [pdbs[name] for name in ("one.dll", "two.dll", "none.dll")] == [("one.pdb", 1), ("two.pdb", 2), ("", 0)]


def test_a_file_is_one_module_also_where_windows_leaves_out_its_stamp(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """Of a file whose checksum is not known, or that two builds had the path of, nothing is assumed."""

    def load(n: int, name: str, checksum: int, stamp: int) -> tuple[int, bytes]:
        base = 0x180000000 + n * 0x10000
        return 0, image(0x030A, 200 + n, 42, base, 0x1000, name, checksum=checksum, stamp=stamp)

    one, volume = (
        "\\Device\\HarddiskVolume1\\One.dll",
        eb.full(SYS_CONFIG_EX, 35, 100, wide("\\Device\\HarddiskVolume1") + wide("C:"), version=0),
    )
    events = [
        (0, volume),
        *WORLD,
        load(0, one, 77, 0),
        load(1, one, 77, 5),
        load(2, "C:\\ONE.DLL", 77, 5),
        load(2, one, 77, 0),
        load(3, "\\two.dll", 0, 0),
        load(4, "\\two.dll", 0, 5),
        load(5, "\\three.dll", 77, 0),
        load(6, "\\three.dll", 77, 5),
        load(7, "\\three.dll", 77, 6),
        *((0, pdb(200 + n, 42, 0x180000000 + n * 0x10000, 1, "one.pdb")) for n in (0, 2)),
    ]
    modules = [(m.name, m.timestamp, m.pdb_name) for m in profile_of(events).modules if m.checksum != 1]
    assert modules == [
        ("C:\\One.dll", 5, "one.pdb"),
        ("\\two.dll", 0, ""),
        ("\\two.dll", 5, ""),
        ("\\three.dll", 0, ""),
        ("\\three.dll", 5, ""),
        ("\\three.dll", 6, ""),
    ]
    trace = eb.Trace()
    for cpu, event in events:
        trace.add(cpu, event)
    (tmp_path / "images.etl").write_bytes(bytes(trace))
    facts = json.loads(run("info", tmp_path / "images.etl", "--format", "json").out)["modules"]
    (found,) = (m for m in facts if m["name"] == "C:\\One.dll")
    assert (found["mappings"], found["addresses"]) == (3, ["0x180000000", "0x180021000"])


@pytest.mark.parametrize("end", ["", "\\"])
def test_volume_1_is_not_volume_10(end: str) -> None:
    volumes = [
        (0, eb.full(SYS_CONFIG_EX, 35, 100, wide(f"\\Device\\HarddiskVolume{n}{end}") + wide(dos + end), version=0))
        for n, dos in ((1, "C:"), (10, "D:"))
    ]
    other = image(0x030A, 200, 42, 0x180000000, 0x1000, "\\Device\\HarddiskVolume10\\x.dll")
    profile = profile_of([*volumes, *WORLD, (0, other)])
    assert [m.name for m in profile.modules] == ["C:\\app.exe", "\\SystemRoot\\ntoskrnl.exe", "D:\\x.dll"]


def set_interval(time: int, source: int, new: int, old: int) -> bytes:
    return eb.system(0x0F48, time, struct.pack("<III", source, new, old), version=2)


def test_an_interval_holds_from_its_event_on() -> None:
    samples = [(1, pmc(time, 0x11, 420, source)) for time in (200, 299, 300, 400) for source in (6, 10, 19, 25)]
    changes = [(0, set_interval(150, 10, 4000, 9)), (0, set_interval(300, 6, 1000, 65536))]
    early = [(0, set_interval(350, 19, 500, 700))]
    profile = profile_of([*WORLD, *changes, *samples, *early])
    (batch,) = profile.batches()
    periods = {
        profile.events[event].name: (
            profile.events[event].period,
            profile.events[event].has_period,
            batch.period[batch.event == event].tolist(),
        )
        for event in np.unique(batch.event).tolist()
    }
    assert periods == {
        "BranchInstructions": (65536, True, [65536, 65536, 1000, 1000]),
        "CacheMisses": (4000, False, [0, 0, 0, 0]),  # by number: the log does not name it
        "TotalCycles": (700, True, [700, 700, 700, 500]),  # until the first change, what that says was before
        "profile source 25": (0, False, [0, 0, 0, 0]),  # another one on each machine
    }
    weights = lastbranch.weights(profile, "process")
    by_event = dict(zip(weights.event.tolist(), weights.period.tolist(), strict=True))
    names = [profile.events[event].name for event in by_event]
    assert dict(zip(names, by_event.values(), strict=True)) == {
        "BranchInstructions": 133072,
        "CacheMisses": 16000,
        "TotalCycles": 2600,
        "profile source 25": 0,
    }


def test_a_thread_id_that_is_used_again() -> None:
    profile = profile_of(
        [
            *WORLD,
            (0, sample(150, 0x1000, 420)),
            (0, thread(2, 200, 42, 420)),
            (0, process(1, 300, 43, "b.exe")),
            (0, thread(1, 310, 43, 420)),
            (0, sample(320, 0x1000, 420)),
            (0, sample(330, 0x1000, 0)),
            (0, sample(340, 0x1000, 999)),
        ]
    )
    (batch,) = profile.batches()
    assert batch.pid.tolist() == [42, 43, 0, -1]


def definition(hook: int, time: int, key: int, frames: list[int]) -> bytes:
    return eb.system(hook, time, struct.pack(f"<Q{len(frames)}Q", key, *frames))


def test_stacks_are_joined_by_time_and_thread_kernel_part_first() -> None:
    profile = profile_of(
        [
            *WORLD,
            (0, sample(200, 0x10, 420)),
            (0, sample(210, 0x20, 420)),
            (0, sample(220, 0x30, 420)),
            (1, key_event(0x1826, 200, 420, 7)),
            (1, key_event(0x1825, 200, 420, 8)),
            (1, stack_event(210, 420, [0x20, 0x21])),
            (1, stack_event(210, 421, [0x99])),
            (1, definition(0x1824, 900, 7, [0x11, 0x12])),
            (1, definition(0x1824, 901, 8, [KERNEL])),
        ]
    )
    batches = list(profile.batches(ordered=True))
    chains = [b.chain(i).tolist() for b in batches for i in range(len(b))]
    assert chains == [[KERNEL, 0x11, 0x12], [0x20, 0x21], []]


def test_the_kernel_of_32_bit_windows_is_in_every_process() -> None:
    """Its images are of process 0 and lie from 2 GiB on."""

    def image32(time: int, pid: int, base: int, name: str) -> bytes:
        fixed = struct.pack("<IIIIIIIIIII", base, 0x10000, pid, 1, 2, 0, base, 0, 0, 0, 0)
        return eb.system(0x1403, time, fixed + wide(name), version=2, bits=32)

    def sample32(time: int, ip: int) -> bytes:
        return eb.perfinfo(SAMPLE, time, struct.pack("<IIHBB", ip, 420, 1, 0, 0), bits=32)

    profile = profile_of(
        [
            *WORLD,
            (0, image32(101, 0, 0x80800000, "ntkrnlpa.exe")),
            (0, image32(102, 42, 0x7F000000, "shop32.dll")),
            (0, sample32(200, 0x80800010)),
            (0, sample32(210, 0x7F000010)),
            (0, sample32(220, 0x80900010)),
        ]
    )
    binder, found = bind(profile).binder, []
    for batch in profile.batches():
        found += binder.locate(binder.scopes(batch), batch.ip)[0].tolist()
    assert [profile.modules[m].name if m >= 0 else None for m in found] == ["ntkrnlpa.exe", "shop32.dll", None]


@pytest.mark.parametrize("bits", [64, 32])
def test_the_kernel_part_is_first_whichever_is_written_first(bits: int) -> None:
    word, kernel = ("Q", KERNEL) if bits == 64 else ("I", 0x80000000)

    def stack(time: int, *frames: int) -> bytes:
        return eb.system(0x1820, time, struct.pack(f"<QII{len(frames)}{word}", 200, 42, 420, *frames), bits=bits)

    user = key_event(0x1826, 200, 421, 7)
    profile = profile_of(
        [
            *WORLD,
            (0, sample(200, 1, 420)),
            (0, stack(260, 0x11, 0x12)),
            (0, sample(200, 2, 421)),
            (0, user),
            (1, stack(250, kernel + 1, kernel)),
            (1, stack_event(200, 421, [KERNEL])),
            (1, definition(0x1824, 900, 7, [0x21])),
            (2, stack(255)),
        ]
    )
    chains = {int(b.ip[i]): b.chain(i).tolist() for b in profile.batches() for i in range(len(b))}
    assert chains == {1: [kernel + 1, kernel, 0x11, 0x12], 2: [KERNEL, 0x21]}


def test_a_key_that_is_used_again_after_its_eviction() -> None:
    profile = profile_of(
        [
            *WORLD,
            (0, sample(200, 0x10, 420)),
            (0, sample(400, 0x20, 420)),
            (0, sample(990, 0x30, 420)),
            (1, key_event(0x1826, 200, 420, 7)),
            (1, definition(0x1823, 300, 7, [0x11])),
            (1, key_event(0x1826, 400, 420, 7)),
            (1, definition(0x1824, 900, 7, [0x22])),
            (1, key_event(0x1826, 990, 420, 7)),
            (1, key_event(0x1826, 990, 420, 555)),
        ]
    )
    chains = [b.chain(i).tolist() for b in profile.batches(ordered=True) for i in range(len(b))]
    assert chains == [[0x11], [0x22], [0x22]]
    assert profile.lost["stack keys without a definition"] == 1


def test_search_of_pairs() -> None:
    rng = np.random.default_rng(5)
    pairs = sorted(zip(rng.integers(0, 5, 40).tolist(), rng.integers(0, 9, 40).tolist(), strict=True))
    wanted = [(a, b) for a in range(6) for b in range(10)]
    both = *(np.array(c) for c in zip(*pairs, strict=True)), *(np.array(c) for c in zip(*wanted, strict=True))
    assert insertion_points(*both).tolist() == [sum(p < w for p in pairs) for w in wanted]
    assert insertion_points(*both, right=True).tolist() == [sum(p <= w for p in pairs) for w in wanted]


@pytest.fixture(scope="module")
def net() -> Profile:
    folder = os.environ.get("LASTBRANCH_DATA")
    if not folder:
        pytest.skip("LASTBRANCH_DATA is not set: no real captures")
    return lastbranch.open(Path(folder) / "etl" / "net.4.5.2.x64.etl")


def test_a_real_log_has_the_events_that_microsofts_reader_counts(net: Profile) -> None:
    counts = {name.removeprefix("Windows Kernel/"): n for name, n in net.records.items()}
    wanted = {
        "Process/DCStart": 32,
        "Process/DCStop": 32,
        "Process/Start": 1,
        "Process/Stop": 1,
        "Process/Defunct": 2,
        "Thread/Start": 9,
        "Thread/Stop": 15,
        "Image/DCStart": 1763,
        "Image/DCStop": 1766,
        "Image/Load": 35,
        "Image/Unload": 32,
        "PerfInfo/Sample": 79528,
    }
    assert {name: counts.get(name) for name in wanted} == wanted
    assert net.samples == 79528
    assert (net.damage, net.lost) == ([], {})


def test_a_real_log_joins_its_stacks(net: Profile) -> None:
    """249 direct stacks and 6,527 key references belong to samples: counted by an independent walk."""
    stacks = net.streams[0].reader.__self__.stacks  # type: ignore[attr-defined]
    before = stacks.joined
    chains = sum(int((np.diff(b.offsets["frame"]) > 0).sum()) for b in net.batches())
    assert stacks.joined - before == 249 + 6527
    assert chains > 6000


def test_a_real_log_binds(net: Profile) -> None:
    names = {m.short: m for m in net.modules}
    assert names["ntoskrnl.exe"].name == "C:\\Windows\\system32\\ntoskrnl.exe"
    assert names["ntdll.dll"].pdb_name in ("ntdll.pdb", "wntdll.pdb")
    rows = lastbranch.weights(net, "process")
    by_name = {
        net.processes[k].name: n for k, n in zip(rows.key.tolist(), rows.samples.tolist(), strict=True) if k >= 0
    }
    assert by_name["Test.x64.exe"] == 5129
    assert sum(rows.samples.tolist()) == 79528
    event = net.events[0]
    assert (event.name, event.period) == ("Timer", 10000)


def rows_by_window(data: bytes, window: int) -> list[tuple[object, ...]]:
    """(position, time, cpu, tid, event, branches) of all rows of a file that is read in windows of so many bytes."""
    log = TraceLog(BytesSource(data, "t.etl"))
    log._reader._window = window
    profile = _LogReader(log).profile(None)
    rows: list[tuple[object, ...]] = []
    for batch in profile.batches():
        for i in range(len(batch)):
            name = profile.events[int(batch.event[i])].name
            branches = tuple(tuple(part.tolist()) for part in batch.stack(i))
            head = (batch["position"][i], batch.time[i], batch.cpu[i], batch.tid[i])
            rows.append((*map(int, head), name, branches))
    assert len(rows) == profile.samples
    return sorted(rows)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32))
def test_rows_do_not_depend_on_where_windows_end(seed: int) -> None:
    """A trigger can be the last event of a window, and its record the first of its processor in another one."""
    rng = random.Random(seed)
    trace, clock = eb.Trace(size=1024), [200, 200, 200]
    for i in range(120):
        cpu = rng.randrange(3)
        clock[cpu] += rng.randrange(3)
        now = clock[cpu]
        trigger = rng.choice((pmc(now, i, 420, 6), sample(now, i, 420), None, eb.system(CSWITCH, now, bytes(24))))
        if trigger is not None:
            trace.add(cpu, trigger)
            for _ in range(rng.choice((0, 0, 1, 3))):
                trace.add(cpu, eb.perfinfo(rng.choice((0x1820, 0x0F43)), now + 10_000, bytes(24)))
        for _ in range(rng.choice((0, 1, 1, 2))):
            entries = [(i, rng.randrange(1 << 30), 1) for _ in range(rng.randrange(1, 30))]
            trace.add(cpu, lbr(now, 42, 420, 0, entries))
    data = bytes(trace)
    whole = rows_by_window(data, 1 << 20)
    for window in (1024, 3 * 1024):
        assert rows_by_window(data, window) == whole
