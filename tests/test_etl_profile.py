"""From .etl events to a profile: samples with call stacks and branch records, modules, processes, threads."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl_builder as eb
import lastbranch
from lastbranch.bind import binder_of
from lastbranch.errors import NotRecordedError
from lastbranch.formats.etl import TraceLog
from lastbranch.formats.etl.profile import _Reader, read_etl
from lastbranch.formats.etl.stacks import _search_pairs
from lastbranch.model import BytesSource, Profile

SAMPLE, PMC, LBR, CSWITCH = 0x0F2E, 0x0F2F, 0x0C20, 0x0524
KERNEL = 0xFFFFF80000000000


def lbr(time: int, pid: int, tid: int, options: int, entries: list[tuple[int, int, int]], bits: int = 64) -> bytes:
    """The documented LBR_TRACE_EVENT_DATA: u64 time, u32 pid, tid, options, unused, then from, to, information."""
    head = struct.pack("<QIIII", time, pid, tid, options, 0)
    head = head if bits == 64 else head[:-4]
    body = b"".join(struct.pack("<3Q" if bits == 64 else "<3I", *e) for e in entries)
    return eb.perfinfo(LBR, time, head + body, bits=bits)


def sample(time: int, ip: int, tid: int) -> bytes:
    return eb.perfinfo(SAMPLE, time, struct.pack("<QIHBB", ip, tid, 1, 0, 0))


def pmc(time: int, ip: int, tid: int, source: int) -> bytes:
    return eb.perfinfo(PMC, time, struct.pack("<QIHH", ip, tid, source, 0))


def wide(text: str) -> bytes:
    return (text + "\0").encode("utf-16-le")


def thread(kind: int, time: int, pid: int, tid: int) -> bytes:
    return eb.system(0x0500 | kind, time, struct.pack("<II6QI4B", pid, tid, *[0] * 6, 0, 0, 0, 0, 0), version=3)


def process(kind: int, time: int, pid: int, name: str) -> bytes:
    fixed = struct.pack("<QIIIiQI", 0xFFFF, pid, 4, 0, 0, 0, 0) + struct.pack("<I", 0)
    return eb.system(0x0300 | kind, time, fixed + name.encode() + b"\0" + wide("") * 3, version=4)


def image(hook: int, time: int, pid: int, base: int, size: int, name: str) -> bytes:
    fixed = struct.pack("<QQIIIIQ4I", base, size, pid, 1, 2, 0, base, 0, 0, 0, 0)
    return eb.system(hook, time, fixed + wide(name), version=2)


def interval(time: int, source: int, period: int, name: str) -> bytes:
    return eb.system(0x0F49, time, struct.pack("<III", source, period, period) + wide(name), version=3)


def profile_of(events: list[tuple[int, bytes]]) -> Profile:
    trace = eb.Trace()
    for cpu, event in events:
        trace.add(cpu, event)
    return read_etl(BytesSource(bytes(trace), "made.etl"))


WORLD = [
    (0, process(3, 100, 42, "app.exe")),
    (0, thread(3, 100, 42, 420)),
    (0, image(0x1403, 100, 42, 0x140000000, 0x10000, "\\Device\\HarddiskVolume1\\app.exe")),
    (0, image(0x1403, 100, 0, KERNEL, 0x100000, "\\SystemRoot\\ntoskrnl.exe")),
    (0, interval(100, 6, 65536, "BranchInstructions")),
]
PAIR = [(0x140001010, 0x140001100, 1 << 63 | 7), (0x140001050, 0x140001000, 5)]


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
        ("BranchInstructions", 0x140001020, 0), ("LBR", 0, 2), ("Windows Kernel/Thread/CSwitch", 0, 2),
        ("Timer", 0x140001030, 0),
    }  # fmt: skip
    assert profile.samples == 5
    assert profile.entries == 6


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
    binder = binder_of(profile)
    (batch,) = profile.batches()
    module, address = binder.locate(binder.scopes(batch), batch.ip)
    names = [profile.modules[m].short if m >= 0 else None for m in module]
    assert names == ["plug.dll", None, "ntoskrnl.exe"]
    assert address.tolist() == [0x10, 0x180000010, 0x20]
    assert [binder.processes[p].name for p in binder.process_of(binder.scopes(batch))] == ["app.exe"] * 3


def test_a_thread_id_that_is_used_again() -> None:
    profile = profile_of(
        [
            *WORLD, (0, sample(150, 0x1000, 420)), (0, thread(2, 200, 42, 420)), (0, process(1, 300, 43, "b.exe")),
            (0, thread(1, 310, 43, 420)), (0, sample(320, 0x1000, 420)), (0, sample(330, 0x1000, 0)),
            (0, sample(340, 0x1000, 999)),
        ]
    )  # fmt: skip
    (batch,) = profile.batches()
    assert batch.pid.tolist() == [42, 43, 0, -1]


def stack_event(time: int, tid: int, frames: list[int]) -> bytes:
    return eb.system(0x1820, time + 50, struct.pack(f"<QII{len(frames)}Q", time, 42, tid, *frames))


def key_event(hook: int, time: int, tid: int, key: int) -> bytes:
    return eb.system(hook, time + 60, struct.pack("<QIIQ", time, 42, tid, key))


def definition(hook: int, time: int, key: int, frames: list[int]) -> bytes:
    return eb.system(hook, time, struct.pack(f"<Q{len(frames)}Q", key, *frames))


def test_stacks_are_joined_by_time_and_thread_kernel_part_first() -> None:
    profile = profile_of(
        [
            *WORLD,
            (0, sample(200, 0x10, 420)), (0, sample(210, 0x20, 420)), (0, sample(220, 0x30, 420)),
            (1, key_event(0x1826, 200, 420, 7)), (1, key_event(0x1825, 200, 420, 8)),
            (1, stack_event(210, 420, [0x20, 0x21])), (1, stack_event(210, 421, [0x99])),
            (1, definition(0x1824, 900, 7, [0x11, 0x12])), (1, definition(0x1824, 901, 8, [KERNEL])),
        ]
    )  # fmt: skip
    batches = list(profile.batches(ordered=True))
    chains = [b.chain(i).tolist() for b in batches for i in range(len(b))]
    assert chains == [[KERNEL, 0x11, 0x12], [0x20, 0x21], []]


def test_a_key_that_is_used_again_after_its_eviction() -> None:
    profile = profile_of(
        [
            *WORLD,
            (0, sample(200, 0x10, 420)), (0, sample(400, 0x20, 420)), (0, sample(990, 0x30, 420)),
            (1, key_event(0x1826, 200, 420, 7)),
            (1, definition(0x1823, 300, 7, [0x11])),
            (1, key_event(0x1826, 400, 420, 7)),
            (1, definition(0x1824, 900, 7, [0x22])),
            (1, key_event(0x1826, 990, 420, 7)),
            (1, key_event(0x1826, 990, 420, 555)),
        ]
    )  # fmt: skip
    chains = [b.chain(i).tolist() for b in profile.batches(ordered=True) for i in range(len(b))]
    assert chains == [[0x11], [0x22], [0x22]]
    assert profile.lost["stack keys without a definition"] == 1


def test_search_of_pairs() -> None:
    rng = np.random.default_rng(5)
    pairs = sorted(zip(rng.integers(0, 5, 40).tolist(), rng.integers(0, 9, 40).tolist(), strict=True))
    wanted = [(a, b) for a in range(6) for b in range(10)]
    found = _search_pairs(
        *(np.array(c) for c in zip(*pairs, strict=True)), *(np.array(c) for c in zip(*wanted, strict=True))
    )
    assert found.tolist() == [sum(p < w for p in pairs) for w in wanted]


@pytest.fixture(scope="module")
def net() -> Profile:
    folder = os.environ.get("LASTBRANCH_DATA")
    if not folder:
        pytest.skip("LASTBRANCH_DATA is not set: no real captures")
    return lastbranch.open(Path(folder) / "etl" / "net.4.5.2.x64.etl")


def test_a_real_log_has_the_events_that_microsofts_reader_counts(net: Profile) -> None:
    counts = {name.removeprefix("Windows Kernel/"): n for name, n in net.records.items()}
    wanted = {
        "Process/DCStart": 32, "Process/DCStop": 32, "Process/Start": 1, "Process/Stop": 1, "Process/Defunct": 2,
        "Thread/Start": 9, "Thread/Stop": 15, "Image/DCStart": 1763, "Image/DCStop": 1766, "Image/Load": 35,
        "Image/Unload": 32, "PerfInfo/Sample": 79528,
    }  # fmt: skip
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
    profile = _Reader(log).profile(None)
    rows: list[tuple[object, ...]] = []
    for batch in profile.batches():
        for i in range(len(batch)):
            name = profile.events[int(batch.event[i])].name
            branches = tuple(tuple(part.tolist()) for part in batch.stack(i))
            head = (batch["position"][i], batch.time[i], batch.cpu[i], batch.tid[i])
            rows.append((*map(int, head), name, branches))
    assert len(rows) == profile.samples
    return sorted(rows)


@settings(max_examples=8, deadline=None)
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
        for _ in range(rng.choice((0, 1, 1, 2))):
            entries = [(i, rng.randrange(1 << 30), 1) for _ in range(rng.randrange(1, 30))]
            trace.add(cpu, lbr(now, 42, 420, 0, entries))
    data = bytes(trace)
    whole = rows_by_window(data, 1 << 20)
    for window in (1024, 3 * 1024):
        assert rows_by_window(data, window) == whole
