"""Samples and records in their rarer forms: classic headers, several in an event, counts, and whose the stacks are."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

import etl_builder as eb
from command_line import Ran
from etl_kernel_logs import (
    CSWITCH,
    KERNEL,
    PAIR,
    PMC,
    SAMPLE,
    WORLD,
    flow,
    interval,
    key_event,
    lbr,
    pmc,
    profile_of,
    sample,
    stack_event,
)
from lastbranch.analysis.checks.etl import check_log
from lastbranch.analysis.checks.profile import check_profile
from lastbranch.bind import bind
from lastbranch.formats.etl import Decoder, TraceLog, read_etl
from lastbranch.formats.etl.profile.reader import _LogReader
from lastbranch.model import BytesSource, Profile

PERF_INFO = UUID("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc").bytes_le
LAST_BRANCH = UUID("99134383-5248-43fc-834b-529454e75df3").bytes_le
STACK_WALK = UUID("def2fe46-7bd6-4b80-bd94-f57fe20d0ce3").bytes_le
CACHE = 0x0F37


def chains(profile: Profile) -> list[tuple[str, int, list[int]]]:
    """(event, address, call chain) of all samples."""
    return [
        (profile.events[int(b.event[i])].name, int(b.ip[i]), b.chain(i).tolist())
        for b in profile.batches()
        for i in range(len(b))
    ]


# -- classic headers


def classic(event: bytes, bits: int = 64) -> bytes:
    """A PERFINFO event as tools write it that merge logs: the same payload under the GUID of its group."""
    hook, time = struct.unpack_from("<Hq", event, 6)
    guid = {0x0F: PERF_INFO, 0x0C: LAST_BRANCH}[hook >> 8]
    return eb.full(guid, hook & 0xFF, time, event[16:], pid=4242, tid=4343, bits=bits)


def test_records_and_their_triggers_under_classic_headers() -> None:
    events = [
        (1, classic(pmc(200, 0x11, 420, 6))),
        (1, classic(lbr(200, 42, 420, 1, PAIR))),
        (1, pmc(210, 0x12, 420, 6)),
        (1, classic(lbr(210, 42, 420, 1, PAIR))),
        (1, classic(sample(220, 0x13, 420))),
        (1, lbr(220, 42, 420, 1, PAIR)),
        (1, classic(lbr(230, 42, 420, 1, PAIR))),
    ]
    trace = eb.Trace()
    for cpu, event in [*WORLD, *events]:
        trace.add(cpu, event)
    source = BytesSource(bytes(trace))
    profile, log = read_etl(source), TraceLog(source)
    assert flow(profile) == [
        (200, "BranchInstructions", 0x11, 2),
        (210, "BranchInstructions", 0x12, 2),
        (220, "Timer", 0x13, 2),
        (230, "LBR", 0, 2),
    ]
    (batch,) = profile.batches()
    assert batch.pid.tolist() == [42] * 4
    assert {event.branch_select for event in profile.events} == {1}
    names = [f.name for f in check_log(log)]
    assert "pmc without lbr" not in names
    assert names.count("lbr without trigger") == 1


def test_a_32_bit_record_under_a_classic_header() -> None:
    event = lbr(200, 42, 420, 0, [(0x401010, 0x401100, 3)], bits=32)
    (batch,) = profile_of([*WORLD, (1, classic(event, bits=32))]).batches()
    assert [part.tolist() for part in batch.stack(0)[:2]] == [[0x401010], [0x401100]]


def test_stacks_under_classic_headers() -> None:
    stack = eb.full(STACK_WALK, 0x20, 250, struct.pack("<QII2Q", 200, 42, 420, 0x11, 0x12))
    assert chains(profile_of([*WORLD, (0, sample(200, 1, 420)), (0, stack)])) == [("Timer", 1, [0x11, 0x12])]


def test_guids_of_others_are_not_taken_for_kernel_groups() -> None:
    other = UUID("ce1dbfb4-137e-4da6-87b0-3f59aa102cbd").bytes_le
    payload = pmc(200, 0x11, 420, 6)[16:]
    alike = [(1, eb.full(other, PMC & 0xFF, 200, payload)), (1, eb.manifest(PERF_INFO, 0, 200, payload, opcode=0x2F))]
    assert profile_of([*WORLD, *alike]).samples == 0


# -- several samples in an event


def cache(time: int, *samples: tuple[int, int, int], bits: int = 64, number: int | None = None) -> bytes:
    """PERFINFO_SAMPLED_PROFILE_CACHE: u32 Entries and, at their alignment, samples (address, thread, count)."""
    head = struct.pack("<II" if bits == 64 else "<I", *(len(samples) if number is None else number, 0)[: bits // 32])
    body = b"".join(struct.pack("<QIHBB" if bits == 64 else "<IIHBB", *s, 8, 0) for s in samples)
    return eb.perfinfo(CACHE, time, head + body, bits=bits)


@pytest.mark.parametrize("bits", [64, 32])
def test_each_sample_of_a_cache_is_a_row(bits: int) -> None:
    kernel = KERNEL if bits == 64 else 0x80000000
    events = [
        (1, cache(200, (0x11, 420, 1), (kernel + 5, 421, 1), bits=bits)),
        (1, cache(300, bits=bits)),
        (0, sample(250, 0x22, 420)),
        (1, cache(400, *[(0x33, 420, 1)] * 20, bits=bits)),
    ]
    profile = profile_of([*WORLD, *events])
    assert sorted(flow(profile)) == [
        (200, "Timer", 0x11, 0),
        (200, "Timer", kernel + 5, 0),
        (250, "Timer", 0x22, 0),
        *[(400, "Timer", 0x33, 0)] * 20,
    ]
    assert profile.samples == 23
    assert (profile.first_time, profile.last_time) == (200, 400)
    rows = {
        int(b.ip[i]): (int(b.pid[i]), int(b.tid[i]), int(b.cpu[i]), int(b.mode[i]))
        for b in profile.batches()
        for i in range(len(b))
    }
    assert rows[0x11] == (42, 420, 1, 2)
    assert rows[kernel + 5] == (-1, 421, 1, 1)
    assert not profile.lost


def test_a_cache_among_records_and_stacks() -> None:
    events = [
        (1, pmc(200, 0x11, 420, 6)),
        (1, lbr(200, 42, 420, 0, PAIR)),
        (1, cache(210, (0x22, 420, 1), (0x33, 421, 1))),
        (1, stack_event(210, 421, [0x33, 0x34])),
    ]
    found = chains(profile_of([*WORLD, *events]))
    assert found == [("BranchInstructions", 0x11, []), ("Timer", 0x22, []), ("Timer", 0x33, [0x33, 0x34])]


def test_a_cache_that_ends_before_its_samples_is_counted_and_not_read() -> None:
    made = [cache(200, (0x11, 420, 1), number=2), cache(210, number=1 << 31), eb.perfinfo(CACHE, 220, b"\1")]
    profile = profile_of([*WORLD, *((1, event) for event in made), (1, sample(230, 0x44, 420))])
    assert flow(profile) == [(230, "Timer", 0x44, 0)]
    assert profile.lost == {"Windows Kernel/PerfInfo/BatchedSample events too short": 3}


@pytest.mark.parametrize("bits", [64, 32])
def test_fields_of_a_cache(bits: int) -> None:
    event = cache(200, (0x11, 420, 1), (0x22, 421, 3), bits=bits)
    trace = eb.Trace()
    trace.add(0, event)
    (found,) = (e for e in TraceLog(BytesSource(bytes(trace))).events() if e.hook == CACHE)
    decoder = Decoder()
    fields = decoder.decode(found).fields
    assert (fields["Count"], "rest" in fields) == (2, False)
    assert [(s["InstructionPointer"], s["ThreadID"], s["SampleCount"]) for s in rows_of(fields)] == [
        (0x11, 420, 1),
        (0x22, 421, 3),
    ]
    assert decoder.encode(found, fields) == event[16:]


def rows_of(fields: dict[str, object]) -> list[dict[str, int]]:
    names = ("InstructionPointer", "ThreadID", "SampleCount")
    return [dict(zip(names, row, strict=True)) for row in zip(*(fields[n] for n in names), strict=True)]  # type: ignore[call-overload]


# -- a sample that stands for several


def periods(profile: Profile) -> list[tuple[int, int]]:
    return [(int(b.ip[i]), int(b.period[i])) for b in profile.batches() for i in range(len(b))]


def counted(time: int, ip: int, count: int) -> bytes:
    return eb.perfinfo(SAMPLE, time, struct.pack("<QIHBB", ip, 420, count, 0, 0))


def test_a_sample_that_stands_for_several_has_as_many_intervals() -> None:
    made = [(0, interval(100, 0, 10_000, "Timer")), (1, counted(200, 1, 1)), (1, counted(210, 2, 3))]
    profile = profile_of([*WORLD, *made, (1, cache(220, (3, 420, 2))), (1, pmc(230, 4, 420, 6))])
    assert periods(profile) == [(1, 10_000), (2, 30_000), (4, 0), (3, 20_000)]
    assert {e.name: (e.period, e.has_period) for e in profile.events} == {
        "Timer": (10_000, True),
        "BranchInstructions": (65536, False),
    }
    nothing_known = profile_of([*WORLD, (1, counted(200, 1, 1)), (1, counted(210, 2, 3))])
    assert periods(nothing_known) == [(1, 1), (2, 3)]
    plain = profile_of([*WORLD, *made[:2]])
    assert not any(event.has_period for event in plain.events)


# -- whose a stack is


def switch(time: int) -> bytes:
    return eb.system(CSWITCH, time, struct.pack("<II8BII", 420, 0, *[0] * 8, 0, 0))


def test_a_stack_is_that_of_one_event() -> None:
    """A record that stands by itself has the time and thread of what happened beside it, whose stack is not its own."""
    record = (1, lbr(200, 42, 420, 0, PAIR))
    stack = (1, stack_event(200, 420, [0x11, 0x12]))
    beside = profile_of([*WORLD, (0, sample(200, 1, 420)), record, stack])
    assert sorted(chains(beside)) == [("LBR", 0, []), ("Timer", 1, [0x11, 0x12])]
    other = profile_of([*WORLD, (0, sample(200, 1, 420)), (1, switch(200)), record, stack])
    assert sorted(chains(other)) == [("Timer", 1, [0x11, 0x12]), ("Windows Kernel/Thread/CSwitch", 0, [])]
    twice = profile_of([*WORLD, (1, switch(200)), record, record, stack])
    assert [found for _, _, found in chains(twice)] == [[0x11, 0x12], []]
    alone = profile_of([*WORLD, (1, switch(200)), record, stack])
    assert chains(alone) == [("Windows Kernel/Thread/CSwitch", 0, [0x11, 0x12])]
    nobody = profile_of([*WORLD, record, stack])
    assert chains(nobody) == [("LBR", 0, [])]


def test_stack_events_that_are_too_short_are_counted() -> None:
    made = [
        (0x1820, bytes(15)),
        (0x1825, bytes(23)),
        (0x1826, bytes(16)),
        (0x1822, bytes(7)),
        (0x1824, b""),
        (0x1820, struct.pack("<QIIQ", 200, 42, 420, 0x11)),
    ]
    profile = profile_of([*WORLD, (0, sample(200, 1, 420)), *((1, eb.system(hook, 250, data)) for hook, data in made)])
    kinds = ("Stack", "StackKeyKernel", "StackKeyUser", "KeyCreate", "KeyRundown")
    assert profile.lost == {f"Windows Kernel/StackWalk/{kind} events too short": 1 for kind in kinds}
    assert chains(profile) == [("Timer", 1, [0x11])]
    assert [f.name for f in check_profile(bind(profile))].count("damage") == 0


@pytest.mark.parametrize("window", [1024, 1 << 20])
def test_parts_of_a_stack_are_in_the_order_they_were_made_wherever_windows_end(window: int) -> None:
    """Their own time stamps decide; those of one time are in the order of the file."""

    def part(made: int, *frames: int) -> bytes:
        return eb.system(0x1820, made, struct.pack(f"<QII{len(frames)}Q", 200, 42, 420, *frames))

    trace = eb.Trace(size=1024)
    for cpu, event in [*WORLD, (0, sample(200, 1, 420))]:
        trace.add(cpu, event)
    for cpu, made, frames in ((1, 260, (0x31, 0x32)), (2, 250, (0x21,)), (3, 260, (0x41,)), (4, 255, (KERNEL,))):
        trace.add(cpu, part(made, *frames))
        trace.flush(cpu)
    trace.add(5, key_event(0x1826, 199, 1, 1))
    log = TraceLog(BytesSource(bytes(trace)))
    log._reader._window = window
    ((_, _, found),) = chains(_LogReader(log).profile(None))
    assert found == [KERNEL, 0x21, 0x31, 0x32, 0x41]


# -- what `info` counts


def test_types_of_events_have_their_names() -> None:
    """Classic events those of the kernel's tables, others what the log says of them, wherever it does."""
    mine, other = UUID(int=0x1234).bytes_le, UUID(int=0x9999).bytes_le
    text = (
        "<instrumentationManifest><instrumentation><events>"
        f'<provider name="Mine" guid="{{{UUID(int=0x1234)}}}"><events>'
        '<event value="7" version="0" task="Work" opcode="win:Start"/></events><tasks><task name="Work" value="3"/>'
        "</tasks></provider></events></instrumentation></instrumentationManifest>"
    )
    manifest = struct.pack("<BBBBHH", 1, 1, 0, 0x5B, 1, 0) + text.encode()
    events = [
        (1, classic(lbr(200, 42, 420, 1, PAIR))),
        (1, lbr(210, 42, 420, 1, PAIR)),
        (1, eb.manifest(mine, 7, 220, opcode=1, task=3)),
        (1, eb.manifest(other, 7, 230)),
        (1, eb.manifest(mine, 0xFFFE, 240, manifest)),
        (1, eb.manifest(mine, 7, 250, opcode=1, task=3)),
    ]
    records = profile_of([*WORLD, *events]).records
    assert {
        name: n
        for name, n in records.items()
        if not name.startswith(("Windows Kernel/Event", "Windows Kernel/P"))
        and "Thread" not in name
        and "Image" not in name
    } == {
        "Windows Kernel/LastBranchRecording/Sample": 2,
        "Mine/Work/Start": 2,
        "Mine/ManifestData": 1,
        f"{UUID(int=0x9999)}/EventID(7)": 1,
    }


def test_paths_in_notes_are_as_windows_writes_them(tmp_path: Path, run: Callable[..., Ran]) -> None:
    trace = eb.Trace()
    for cpu, event in [*WORLD, (1, pmc(200, 0x140001020, 420, 6)), (1, lbr(200, 42, 420, 0, PAIR))]:
        trace.add(cpu, event)
    (tmp_path / "made.etl").write_bytes(bytes(trace))
    for verb in (["branches"], ["report"], ["export", "--to", "counts", "-o", tmp_path / "counts"]):
        ran = run(*verb, tmp_path / "made.etl")
        assert ran.code == 0
        assert r"\x5c" not in ran.err
    assert r"note: \Device\HarddiskVolume1\app.exe: " in ran.err
