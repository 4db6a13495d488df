"""Arm SPE traces: every packet against what was written, and what perf decodes of the same bytes."""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spe_writer as spe
from lastbranch.analysis import count_stacks
from lastbranch.bind import bind
from lastbranch.errors import FormatError
from lastbranch.formats.perfdata import auxtrace
from lastbranch.formats.perfdata import spe as spe_packets
from lastbranch.formats.perfdata.reader import read_perfdata
from lastbranch.formats.perfdata.spe import Operations, decode
from lastbranch.lbr import BRANCH_TYPES, branch_type, flag
from lastbranch.model import BytesSource, Profile, SampleBatch, concatenate
from spe_writer import BRANCH, CALL, CONDITIONAL, INDIRECT, MEMORY, MISPREDICTED, NOT_TAKEN, RETIRED, Area, Operation

CODE = 0xAAAAE0000000
MAPS = [(1234, CODE, 0x10000, "/bin/prog")]
KERNEL = 0xFFFF800080000000


def profile_of(*areas: Area, **options: object) -> Profile:
    options.setdefault("maps", MAPS)
    return bind(read_perfdata(BytesSource(spe.capture(*areas, **options).build(), "spe.data")))


def samples(*areas: Area, **options: object) -> SampleBatch:
    return concatenate([*profile_of(*areas, **options).batches()])


def trace(*operations: Operation) -> bytes:
    return b"".join(one.bytes() for one in operations)


def test_a_record_with_every_packet() -> None:
    one = Operation(
        CODE + 0x1234,
        detail=CONDITIONAL,
        events=RETIRED | MISPREDICTED,
        target=CODE + 0x1200,
        previous=CODE + 0x1220,
        tid=1234,
        issue=5,
        total=19,
        time=1_000_000,
    )
    assert one.bytes()[:43].hex() == (
        "b0341200e0aaaa008065d20400004a01528200990500981300b1001200e0aaaa0080b4201200e0aaaa0080"
    ), "the bytes of the architecture's example"
    load = Operation(
        CODE + 0x40,
        MEMORY,
        0,
        RETIRED | 1 << 17,
        addr=0xFFFF_1234_5678_9000,
        phys=0x8_1234_5000,
        source=13,
        total=4095,
        issue=7,
        translation=300,
        tid=1234,
        time=1_000_500,
        previous=CODE + 8,
    )
    found = samples(Area(trace(one, load)), period=512)
    assert found.ip.tolist() == [CODE + 0x1234, CODE + 0x40]
    assert found.time.tolist() == [5_001_000_000, 5_001_000_500]
    assert (found.pid.tolist(), found.tid.tolist(), found.cpu.tolist()) == ([1234] * 2, [1234] * 2, [0, 0])
    assert found.period.tolist() == [512, 512]
    assert [a.tolist() for a in found.stack(0)[:2]] == [[CODE + 0x1234], [CODE + 0x1200]]
    (word,) = found.stack(0)[2]
    assert word == 1 | BRANCH_TYPES.index("cond") << 20
    assert found.depth.tolist() == [1, 0], "a load is no branch"
    assert found["previous_target"].tolist() == [CODE + 0x1220, CODE + 8]
    assert found["weight"].tolist() == [19, 4095]
    assert found["issue_latency"].tolist() == [5, 7]
    assert found["translation_latency"].tolist() == [0, 300]
    assert found["operation"].tolist() == [0x201, 0x100]
    assert found["operation_events"].tolist() == [0x82, 0x20002]
    assert found["operation_source"].tolist() == [0, 13]
    assert found["addr"].tolist() == [0, 0xFFFF_1234_5678_9000]
    assert found["phys_addr"].tolist() == [0, 0x8_1234_5000]


@pytest.mark.parametrize(
    ("detail", "events", "kind", "passed"),
    [
        (CONDITIONAL, RETIRED, "cond", 0),
        (CONDITIONAL, RETIRED | NOT_TAKEN, "cond", 1),
        (CALL, RETIRED, "call", 0),
        (CALL | INDIRECT, RETIRED, "ind_call", 0),
        (spe.RETURN | INDIRECT, RETIRED, "ret", 0),
        (0, RETIRED, "unknown", 0),
        (3 << 3, RETIRED, "uncond", 0),
        (3 << 3 | INDIRECT, RETIRED, "ind", 0),
        (INDIRECT, RETIRED, "unknown", 0),
        (0, RETIRED | NOT_TAKEN, "unknown", 0),
    ],
)
def test_what_a_branch_is(detail: int, events: int, kind: str, passed: int) -> None:
    """An unconditional branch is taken, whatever its events say."""
    found = samples(Area(trace(Operation(CODE + 0x100, BRANCH, detail, events, target=CODE + 0x200))))
    (word,) = found["branch_flags"].tolist()
    words = np.array([word], np.uint64)
    assert BRANCH_TYPES[int(branch_type(words)[0])] == kind
    assert int(flag(words, "not_taken")[0]) == passed
    assert found["branch_to"].tolist() == [CODE + (0x104 if passed else 0x200)]
    assert int(flag(words, "predicted")[0]) == 1


def test_what_makes_no_branch() -> None:
    """Not retired: it never happened. Without target: nobody knows where it went; not taken: that is known."""
    wild = Operation(CODE, BRANCH, CONDITIONAL, 0, target=CODE + 8)
    lost = Operation(CODE + 4, BRANCH, 0, RETIRED)
    passed = Operation(CODE + 8, BRANCH, CONDITIONAL, RETIRED | NOT_TAKEN)
    found = samples(Area(trace(wild, lost, passed)))
    assert found.depth.tolist() == [0, 0, 1]
    assert found["branch_to"].tolist() == [CODE + 12]


def test_modes_and_addresses_of_levels() -> None:
    parts = [
        Operation(CODE, level=spe.EL0, target=CODE + 4),
        Operation(KERNEL, level=spe.EL2, target=KERNEL + 8),
        Operation(KERNEL, level=spe.EL1, target=CODE, target_level=spe.EL0, detail=INDIRECT),
        Operation(0x7F00_0000, level=spe.EL3, target=0x7F00_1000),
    ]
    found = samples(Area(trace(*parts)))
    assert found.mode.tolist() == [2, 1, 1, 3]
    assert found.ip.tolist() == [CODE, KERNEL, KERNEL, 0x7F00_0000]
    assert found["branch_to"].tolist() == [CODE + 4, KERNEL + 8, CODE, 0x7F00_1000]


def test_previous_targets_that_are_no_straight_line() -> None:
    parts = [
        Operation(CODE + 0x100, previous=CODE + 0x104),
        Operation(CODE + 0x100, previous=0),
        Operation(CODE + (1 << 21), previous=CODE),
        Operation(CODE + 0x100, events=0, previous=CODE),
        Operation(KERNEL + 0x100, level=spe.EL1, previous=KERNEL),
    ]
    other = parts[-1].bytes().replace(spe.address(4, KERNEL, spe.EL1), spe.address(4, KERNEL, spe.EL0))
    found = samples(Area(trace(*parts) + other))
    assert found["previous_target"].tolist() == [0, 0, 0, 0, KERNEL, 0]


# -- any record, against a second reading and against perf


def made_up(number: int, seed: int) -> list[Operation]:
    draw = random.Random(seed)

    def maybe(value: int) -> int | None:
        return value if draw.random() < 0.7 else None

    out = []
    for i in range(number):
        pc, kind = CODE + 4 * draw.randrange(1 << 12), draw.randrange(3)
        order = [*spe.ORDER]
        draw.shuffle(order)
        out.append(
            Operation(
                pc,
                maybe(kind),
                draw.choice((0, 1, 2, 3, 8, 9, 16, 18, 24)),
                maybe(draw.choice((2, 0x42, 0x82, 0xC2, 0x20002))),
                target=maybe(CODE + 4 * draw.randrange(1 << 12)) if kind == BRANCH else None,
                previous=maybe(pc - 4 * draw.randrange(9)),
                tid=maybe(1234 + draw.randrange(2)),
                addr=maybe(draw.randrange(1 << 47)) if kind == MEMORY else None,
                phys=maybe(draw.randrange(1 << 40)) if kind == MEMORY else None,
                source=maybe(draw.randrange(16)),
                total=maybe(draw.randrange(1 << 12)),
                issue=maybe(draw.randrange(1 << 12)),
                translation=maybe(draw.randrange(1 << 12)),
                time=maybe(1000 * i),
                order=order,
                pad=draw.choice((1, 8, 64)),
            )
        )
    return out


def same(found: Operations, one: Operation, i: int) -> None:
    columns, has = found.columns, found.has
    for name, value in {
        "events": one.events,
        "time": one.time,
        "total": one.total,
        "issue": one.issue,
        "el2": one.tid,
        "translation": one.translation,
        "source": one.source,
        "addr": one.addr,
        "phys_addr": one.phys,
        "operation": None if one.kind is None else one.kind << 8 | one.detail,
    }.items():
        assert (bool(has[name][i]), int(columns[name][i])) == (value is not None, value or 0), (name, i)
    for name, value in (("pc", one.pc), ("target", one.target), ("previous", one.previous)):
        assert int(columns[name][i]) & (1 << 56) - 1 == (value or 0), (name, i)


def test_any_packets_in_any_order() -> None:
    written = made_up(400, 1)
    found = decode(trace(*written), 0, last=True)
    assert (len(found.operations), found.damaged, found.fragments, found.first) == (400, 0, 0, -1)
    for i, one in enumerate(written):
        same(found.operations, one, i)


def test_extended_and_unknown_headers_and_alignment() -> None:
    """An alignment packet skips to a multiple that counts from the beginning of the AUX area."""
    start = 0x1005
    pc, target = spe.address(0, CODE), spe.address(1, CODE + 8, extended=True)
    unknown = b"\x9c\x01\x02" + spe.address(6, 5) + b"\x21\x98\x07\x00"  # indices that are not known here
    head = b"\x9c\x09\x00" + pc + unknown
    skipped = -(start + len(head) + 2) % 16
    data = head + b"\x23\x00" + b"\xff" * skipped + target + b"\x4a\x08\x42\x02\x01"
    found = decode(data, start, last=True)
    assert (len(found.operations), found.damaged, found.fragments) == (1, 0, 0)
    assert int(found.operations["target"][0]) & (1 << 56) - 1 == CODE + 8
    assert int(found.operations["total"][0]) == 0, "index 8 is not the total latency"


class Counted(list[int]):
    """A list that counts how often it is read."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        self.reads += 1
        return super().__getitem__(at)


def test_after_damage_each_byte_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each payload looks like a closing packet, behind which packets lead on and on."""
    lengths = Counted(spe_packets._LENGTHS)
    monkeypatch.setattr(spe_packets, "_LENGTHS", lengths)
    data = b"\xff" + b"\x42\x01" * 5000
    found = decode(data, 0, last=True)
    assert (len(found.operations), found.damaged, found.first) == (0, len(data), 0)
    assert lengths.reads < 5 * len(data)


def perf(*arguments: str | Path) -> str:
    path = shutil.which("perf")
    if path is None:
        pytest.skip("perf is not installed")
    done = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout


def test_perf_decodes_the_same(tmp_path: Path) -> None:
    """Instruction, thread and the names of packets; perf 6.1 takes what has no time for 0 ns, and does not know
    previous targets."""
    written = [replace(one, time=1000 * i, tid=1234, previous=None) for i, one in enumerate(made_up(120, 2))]
    path = spe.write(tmp_path / "spe.data", Area(trace(*written)), maps=MAPS)
    found = concatenate([*bind(read_perfdata(BytesSource(path.read_bytes(), "spe.data"))).batches()])
    shown = perf("report", "-D", "-i", path)
    if "ARM SPE" not in shown.upper():
        pytest.skip("this perf was built without Arm SPE: it shows the trace as nothing but bytes")
    text = perf("script", "-i", path, "--itrace=i1i", "-F", "tid,time,ip", "--ns")
    rows = [
        (int(t), int(s) * 10**9 + int(ns), int(ip, 16))
        for t, s, ns, ip in re.findall(r"^ *(\d+) +(\d+)\.(\d{9}): +([0-9a-f]+)", text, re.M)
    ]
    ours = list(zip(found.tid.tolist(), found.time.tolist(), found.ip.tolist(), strict=True))
    assert rows == ours
    for name, count in (
        ("B COND", sum(one.kind == BRANCH and one.detail & 1 for one in written)),
        ("MISPRED", sum(bool((one.events or 0) & MISPREDICTED) for one in written)),
        (r"LAT \d+ TOT", sum(one.total is not None for one in written)),
        (r"VA 0x", sum(one.addr is not None for one in written)),
    ):
        assert len(re.findall(name, shown)) == count, name


# -- whose operations, and when


def test_times() -> None:
    ticks = [Operation(CODE, time=t) for t in (1_000_000, 1_000_146)]
    scale = {"shift": 24, "mult": 40 << 24, "cycles": 900_000, "has_short": 1}
    assert samples(Area(trace(*ticks)), conversion=scale).time.tolist() == [5_040_000_000, 5_040_005_840]
    wrapped = samples(Area(trace(Operation(CODE, time=5))), conversion={**scale, "cycles": (1 << 56) - 5})
    assert wrapped.time.tolist() == [(5_000_000_000 + ((1 << 56) + 5) * 40 + (1 << 63)) % (1 << 64) - (1 << 63)]
    none = [Operation(CODE), Operation(CODE, time=100), Operation(CODE)]
    assert samples(Area(trace(*none))).time.tolist() == [5_000_000_100] * 3, "the nearest that has one"
    assert samples(Area(trace(none[0]), time=77)).time.tolist() == [77], "the time of the AUX record"


def test_threads() -> None:
    """The context packet, the host's before the guest's; the thread of the area; what the kernel said ran there."""
    said = [Operation(CODE, tid=1235, guest_tid=9), Operation(CODE, guest_tid=1234)]
    of_thread = Area(trace(Operation(CODE)), cpu=-1, tid=1235, index=7)
    b = spe.capture(Area(trace(*said)), of_thread, Area(trace(Operation(CODE, time=50)), cpu=3), maps=MAPS)
    b.comm(pid=1234, tid=1235, name="worker", time=1)
    b.record("ITRACE_START", pid=1234, tid=1236, time=5_000_000_000, cpu=3)
    b.record("ITRACE_START", pid=1234, tid=1237, time=5_000_000_100, cpu=3)
    found = concatenate([*bind(read_perfdata(BytesSource(b.build(), "x"))).batches()])
    assert found.tid.tolist() == [1235, 1234, 1235, 1236]
    assert found.pid.tolist() == [1234] * 4


def test_a_thread_id_that_is_used_again() -> None:
    parts = Area(trace(Operation(CODE, tid=50, time=100), Operation(CODE, tid=50, time=900)))
    b = spe.capture(parts, maps=MAPS)
    b.fork(pid=7, ppid=7, tid=50, ptid=7, time=5_000_000_050)
    b.exit(pid=7, tid=50, time=5_000_000_500)
    b.fork(pid=8, ppid=8, tid=50, ptid=8, time=5_000_000_800)
    found = concatenate([*read_perfdata(BytesSource(b.build(), "x")).batches()])
    assert found.pid.tolist() == [7, 8]


def test_switches_tell_the_thread() -> None:
    b = spe.capture(Area(trace(*(Operation(CODE, time=t) for t in (100, 300))), cpu=2), maps=MAPS)
    for time, tid in ((50, 61), (200, 62)):
        b.record(
            "SWITCH_CPU_WIDE", 0, next_prev_pid=0, next_prev_tid=0, pid=1234, tid=tid, time=5_000_000_000 + time, cpu=2
        )
        b.record(
            "SWITCH_CPU_WIDE", 1 << 13, next_prev_pid=0, next_prev_tid=0, pid=9, tid=9, time=5_000_000_000 + time, cpu=2
        )
    found = concatenate([*read_perfdata(BytesSource(b.build(), "x")).batches()])
    assert found.tid.tolist() == [61, 62]


def test_streams_in_time_order_and_again() -> None:
    areas = [Area(trace(*(Operation(CODE + 4 * cpu, time=10 * i + cpu) for i in range(50))), cpu=cpu) for cpu in (1, 0)]
    profile = profile_of(*areas)
    times = [t for batch in profile.batches(ordered=True) for t in batch.time.tolist()]
    assert times == sorted(times)
    assert len(times) == profile.samples == 100
    assert [b.time.tolist() for b in profile.batches()] == [b.time.tolist() for b in profile.batches()]


@pytest.mark.parametrize("piece", [64, 100, 1 << 20])
def test_blocks_of_one_area_go_on(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records straddle pieces and blocks whose offsets follow each other."""
    monkeypatch.setattr(auxtrace, "_PIECE", piece)
    written = made_up(60, 3)
    data = trace(*written)
    data += bytes(-len(data) % 8)
    cut = len(data) // 2 & ~7
    found = profile_of(Area(data[:cut]), Area(data[cut:], offset=cut))
    assert found.samples == 60
    assert not found.damage
    batch = concatenate([*found.batches()])
    assert batch.ip.tolist() == [one.pc for one in written]


def test_a_block_larger_than_a_record_can_be() -> None:
    found = profile_of(
        Area(trace(*[Operation(CODE, target=CODE + 8, time=1)] * 1100)), Area(trace(Operation(CODE)), cpu=1)
    )
    assert (found.samples, found.entries, found.damage) == (1101, 1100, [])


# -- damage


def ips(profile: Profile) -> list[int]:
    return [ip - CODE for batch in profile.batches() for ip in batch.ip.tolist()]


def test_blocks_that_begin_or_end_in_the_middle() -> None:
    data = trace(*(Operation(CODE + 4 * i, target=CODE) for i in range(4)))
    profile = profile_of(Area(data[9 : 4 * 64 - 20]))
    assert ips(profile) == [4, 8]
    assert [d.reason for d in profile.damage] == ["SPE records that begin or end in the middle"]
    assert profile.damage[0].value == 2
    torn = profile_of(Area(data[3:]))
    assert ips(torn) == [4, 8, 12]
    assert "bytes skipped" in torn.damage[0].reason


def test_bytes_that_are_no_packets() -> None:
    one = [Operation(CODE + 4 * i, target=CODE).bytes() for i in range(3)]
    bad = one[1][:9] + b"\xff" + one[1][10:]
    profile = profile_of(Area(one[0] + bad + one[2]))
    assert ips(profile) == [0, 8]
    (damage,) = profile.damage
    assert damage.reason == "SPE packets are damaged: 64 bytes skipped"
    assert damage.offset == spe.capture(Area(one[0] + bad + one[2]), maps=MAPS).build().index(bad)


def test_nothing_but_zeros() -> None:
    profile = profile_of(Area(bytes(5000)))
    assert (profile.samples, profile.damage) == (0, [])


def test_a_stretch_that_was_cut_short() -> None:
    """Its last record is not finished by the first one of the next stretch."""
    torn = Operation(CODE, target=CODE + 0x800, pad=1).bytes()[:-1].ljust(64, b"\0")
    good = Operation(CODE + 4, BRANCH, CONDITIONAL, RETIRED | NOT_TAKEN).bytes()
    b = spe.capture(Area(torn + good, said=False), maps=MAPS)
    b.record("AUX", aux_offset=0, aux_size=64, flags=1 | 4, cpu=0, time=5)
    b.record("AUX", aux_offset=64, aux_size=64, flags=8, cpu=0, time=6)
    profile = bind(read_perfdata(BytesSource(b.build(), "x")))
    assert ips(profile) == [4]
    assert profile.lost == {
        "stretches of the AUX area that were cut short": 1,
        "stretches of the AUX area with gaps": 1,
        "stretches of the AUX area with dropped operations": 1,
    }
    without = spe.capture(Area(torn + good), maps=MAPS)
    assert not read_perfdata(BytesSource(without.build(), "x")).samples, "two records in one are none"


def test_numbers_that_no_file_can_hold() -> None:
    b = spe.capture(Area(trace(Operation(CODE))), maps=MAPS)
    b.record("AUX", aux_offset=1 << 63, aux_size=1 << 63, flags=0, cpu=0, time=5)
    b.record(
        "TIME_CONV",
        shift=1 << 40,
        mult=(1 << 64) - 1,
        zero=(1 << 64) - 1,
        cycles=(1 << 64) - 1,
        mask=0,
        has_zero=1,
        has_short=1,
        pad=bytes(6),
    )
    b.record(
        "AUXTRACE", size=8, aux_offset=(1 << 64) - 8, reference=0, idx=0, tid=0, cpu=0, reserved=0, payload=bytes(8)
    )
    profile = bind(read_perfdata(BytesSource(b.build(), "x")))
    assert [d.reason for d in profile.damage] == [
        "record cannot be read: bytes 0x8000000000000000 and 0x8000000000000000 more of an AUX area",
        "record cannot be read: offset 0xfffffffffffffff8 in an AUX area",
    ]
    assert profile.samples == 1
    b.capture.records[-2].body = b.capture.records[-2].body[:16]
    assert "16 bytes of time conversion" in str(read_perfdata(BytesSource(b.build(), "x")).damage[1])


def test_an_old_time_conversion() -> None:
    b = spe.capture(Area(trace(Operation(CODE, time=10))), maps=MAPS)
    b.capture.records[0].body = b.capture.records[0].body[:24]
    assert next(iter(read_perfdata(BytesSource(b.build(), "x")).batches())).time.tolist() == [5_000_000_010]


@pytest.mark.parametrize(
    "priv", [(9, 1), (2, 4, 9, 1, 0x1010101010101010, 0, 3, 0x410FD490, 9, 1024), (), (1 << 63,) * 9]
)
def test_whatever_auxtrace_info_says(priv: tuple[int, ...]) -> None:
    profile = profile_of(Area(trace(Operation(CODE))), priv=priv)
    assert (profile.samples, next(iter(profile.batches())).event.tolist()) == (1, [0])


def test_any_damage() -> None:
    """Whatever bytes are changed, the rest comes, and no address is made up."""
    b = spe.capture(Area(trace(*made_up(40, 5))), Area(trace(*made_up(10, 6)), cpu=1), maps=MAPS)
    whole, draw = b.build(), random.Random(7)
    payload = whole.index(b.capture.records[-1].payload) - 4000
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 5)):
            data[draw.randrange(max(payload, 0), len(data))] = draw.randrange(256)
        if draw.random() < 0.3:
            del data[draw.randrange(payload, len(data)) :]
        try:
            profile = bind(read_perfdata(BytesSource(bytes(data), "x")))
        except FormatError:
            continue
        assert sum(map(len, profile.batches())) == profile.samples
        assert all((batch.ip != 0).all() for batch in profile.batches()) or b"\xb0" + bytes(7) in bytes(data)


def test_garbage_takes_no_time() -> None:
    """Every other byte closes something."""
    data = struct.pack("<Q", 0x01FF_71FF_01FF_71FF) * 20_000
    found = decode(data, 0, last=True)
    assert (len(found.operations), found.used) == (0, len(data))
    assert found.damaged


# -- what is counted of it


def test_branches_and_straight_lines_that_are_counted() -> None:
    """A branch that was not taken is no edge, and only what a taken branch ended is a straight line."""
    edge = Operation(CODE + 0x40, BRANCH, CONDITIONAL, RETIRED | MISPREDICTED, target=CODE + 0x10, previous=CODE + 0x20)
    passed = Operation(CODE + 0x30, BRANCH, CONDITIONAL, RETIRED | NOT_TAKEN | MISPREDICTED, previous=CODE + 0x20)
    load = Operation(CODE + 0x24, MEMORY, 0, previous=CODE + 0x20)
    operations = [replace(one, tid=1234) for one in (edge, edge, passed, load)]
    counted = count_stacks(profile_of(Area(trace(*operations))), ranges=True, details=False)
    found, lines, others = counted.branches, counted.ranges, counted.not_taken
    assert lines is not None
    assert others is not None
    columns = ("a", "b", "count", "mispredicted")
    assert [[int(v) & 0xFFFF for v in getattr(found, n)] for n in columns] == [[0x40], [0x10], [2], [2]]
    assert [[int(v) & 0xFFFF for v in getattr(lines, n)] for n in columns[:3]] == [[0x20], [0x40], [2]]
    assert [[int(v) & 0xFFFF for v in getattr(others, n)] for n in columns] == [[0x30], [0x34], [1], [1]]
