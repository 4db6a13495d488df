"""Counter values in the headers of events: the groups that are opened, and the events byte for byte."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import etl_builder
import fake_kernel as fake
from lastbranch.etw.portable.enable_map import normalised_masks
from lastbranch.etw.portable.sources.configuration import SourceConfiguration
from lastbranch.etw.portable.sources.recorder import Recorder
from lastbranch.etw.status import EtwError, Status
from lastbranch.formats.etl import Decoder, TraceLog, events_of
from lastbranch.opening import FileSource, open_profile
from source_tools import Kept, Log, SourceKernel, hook_of, sample, switched

INTEL = replace(fake.SKYLAKE, paranoid=-1)
HYBRID = replace(fake.ALDER_LAKE, paranoid=-1)
SAMPLED, PMC, CSWITCH, ENTER = 0x0F2E, 0x0F2F, 0x0524, 0x0F33
PROFILE, SWITCHES, SYSTEM_CALLS = 0x1000000, 0x10, 0x80
TIMER, ENTERS = (1, 0), (2, 21)
CYCLES, MISSES, ISSUES = 19, 10, 2
"""Numbers of Windows; those of Linux (type 0) are 0, 3 and 1."""
DISABLED, PINNED, EXCLUDE_IDLE, USE_CLOCKID = 1, 1 << 2, 1 << 7, 1 << 25
SAMPLE_READ, FORMAT_GROUP = 1 << 4, 1 << 3


def configuration(*masks: int, **more: Any) -> SourceConfiguration:
    return SourceConfiguration(masks=tuple(normalised_masks(masks)), sysconfig=False, **more)


def counting(*masks: int, hooks: tuple[int, ...], counters: tuple[int, ...], **more: Any) -> SourceConfiguration:
    return configuration(*masks, pmc_hooks=hooks, pmc_counters=counters, **more)


class Session:
    """A recorder on a kernel of the tests."""

    def __init__(self, wanted: SourceConfiguration, kernel: SourceKernel) -> None:
        self.output, self.kernel = Kept(), kernel
        self.recorder = Recorder(wanted, self.output, kernel)
        self.recorder.begin()
        self.now = time.monotonic_ns()

    def attributes(self) -> set[tuple[int, int, int, int]]:
        """(type, config, processor, config of the leader) of each event that is open."""
        opened, leaders = self.kernel.opened, self.kernel.leaders
        return {(a.type, a.config, cpu, opened[leaders[fd]][0].config) for fd, (a, _, cpu) in opened.items()}


@contextmanager
def session(wanted: SourceConfiguration, kernel: SourceKernel | None = None) -> Iterator[Session]:
    made = Session(wanted, kernel or SourceKernel(INTEL))
    try:
        yield made
    finally:
        made.recorder.close()
        assert not made.kernel.opened


def refused(wanted: SourceConfiguration, kernel: SourceKernel) -> EtwError:
    with pytest.raises(EtwError) as error:
        Recorder(wanted, Kept(), kernel).begin()
    assert not kernel.opened
    return error.value


class TestGroups:
    def test_of_each_processor_all_are_one(self) -> None:
        wanted = counting(PROFILE | SYSTEM_CALLS, hooks=(SAMPLED, ENTER), counters=(CYCLES, MISSES))
        with session(wanted) as s:
            exits = (2, 20)
            assert s.attributes() == {
                row
                for cpu in (0, 1)
                for row in ((0, 0, cpu, 0), (0, 3, cpu, 0), (*TIMER, cpu, 0), (*ENTERS, cpu, 0), (*exits, cpu, 20))
            }
            for attr, tid, _ in s.kernel.opened.values():
                what = (tid, attr.period, attr.sample_type, attr.read_format, attr.flags)
                if attr.type == 0:
                    assert what == (-1, 0, 0, 0, USE_CLOCKID | (PINNED | DISABLED if attr.config == 0 else 0))
                    assert struct.unpack_from("=i", attr.raw, 92) == (1,)  # CLOCK_MONOTONIC, as the samples
                else:
                    counted = (attr.type, attr.config) != exits
                    assert (bool(attr.sample_type & SAMPLE_READ), attr.flags & PINNED) == (counted, 0)
                    assert attr.read_format == (FORMAT_GROUP if counted else 1 << 4)
                    assert bool(attr.flags & EXCLUDE_IDLE) == ((attr.type, attr.config) == TIMER)

    def test_cores_of_two_kinds_count_by_their_own_events(self) -> None:
        wanted = counting(PROFILE, hooks=(SAMPLED,), counters=(CYCLES, ISSUES))
        with session(wanted, SourceKernel(HYBRID)) as s:
            opened = {
                (attr.config >> 32, attr.config & 0xFF, cpu)
                for attr, _, cpu in s.kernel.opened.values()
                if attr.type == 0
            }
            assert opened == {(4 if cpu < 4 else 10, event, cpu) for cpu in range(6) for event in (0, 1)}

    @pytest.mark.parametrize(("hooks", "counters"), [((), (CYCLES,)), ((SAMPLED,), ()), ((0x0301, CSWITCH), (CYCLES,))])
    def test_nothing_is_opened_where_no_event_carries_any(
        self, hooks: tuple[int, ...], counters: tuple[int, ...]
    ) -> None:
        with session(counting(PROFILE, hooks=hooks, counters=counters)) as s:
            assert s.attributes() == {(*TIMER, 0, 0), (*TIMER, 1, 0)}
            s.recorder.end()
            assert s.output.of(0x0F30) == []


class TestEvents:
    def test_values_stand_between_header_and_payload(self) -> None:
        wanted = counting(
            PROFILE | SYSTEM_CALLS, hooks=(SAMPLED, ENTER), counters=(CYCLES, MISSES), stack_hooks=(SAMPLED,)
        )
        with session(wanted) as s:
            t, big = s.now, (1 << 64) - 3
            # What a sample gives further are the counts of the events that have joined.
            chain = [(1 << 64) - 512, 5, 6]
            s.kernel.give(
                *TIMER,
                0,
                sample(t, 0, ip=5, counts=[big, 7, 1, 1], chain=chain),
                sample(t + 2, 0, ip=6, counts=[big + 1, 8, 2, 2], chain=[]),
            )
            raw = bytes(8) + struct.pack("=q6Q", 110, *range(6))
            s.kernel.give(*ENTERS, 0, sample(t + 1, 0, tid=78, counts=[big, 7, 1, 2], raw=raw))
            s.kernel.give(2, 20, 0, sample(t + 1, 0, tid=78, raw=bytes(8) + struct.pack("=qq", 110, 3)))
            s.recorder.round(t + 9)
            stack = etl_builder.perfinfo(0x1820, t, struct.pack("<QIIQQ", t, 77, 77, 5, 6))
            enter = struct.pack("<HBBHHIIqQQQ", 2 | 2 << 8, 4, 0xC0, 48, ENTER, 78, 77, t + 1, big, 7, 110)
            leave = struct.pack("<HBBHHIIqi4x", 2, 4, 0xC0, 28, 0x0F34, 78, 77, t + 1, 3)
            assert s.output.of(SAMPLED, ENTER, 0x0F34, 0x1820) == [
                etl_builder.perfinfo(SAMPLED, t, struct.pack("<QII", 5, 77, 1), counters=(big, 7)),
                stack,
                enter,
                leave,
                etl_builder.perfinfo(SAMPLED, t + 2, struct.pack("<QII", 6, 77, 1), counters=(big + 1, 8)),
            ]

    def test_interrupts_of_counters_keep_their_branch_records(self) -> None:
        wanted = counting(0, 0x400, hooks=(PMC,), counters=(MISSES,), pmc_sources=(CYCLES,), lbr_hooks=(PMC,))
        with session(wanted) as s:
            t = s.now
            entry = (0xA0, 0xB0, 2)
            s.kernel.give(
                0,
                0,
                1,
                sample(t, 1, ip=9, counts=[4, 100], branches=[entry]),
                sample(t + 1, 1, ip=10, counts=[5, 200], branches=[]),
            )
            s.recorder.round(t + 9)
            pmc, lbr, later = s.output.of(PMC, 0x0C20)
            assert pmc == etl_builder.perfinfo(PMC, t, struct.pack("<QIHH", 9, 77, CYCLES, 0), counters=(4,))
            assert struct.unpack_from("<HBBHHqQIIIIQQ", lbr) == (
                2,
                17,
                0xC0,
                64,
                0x0C20,
                t,
                t,
                77,
                77,
                0,
                0,
                0xA0,
                0xB0,
            )
            assert later == etl_builder.perfinfo(PMC, t + 1, struct.pack("<QIHH", 10, 77, CYCLES, 0), counters=(5,))

    def test_seven_values_and_none_where_a_sample_is_too_short(self) -> None:
        wanted = counting(SWITCHES, hooks=(CSWITCH,), counters=(CYCLES,) * 7)
        with session(wanted) as s:
            raw = switched((77, 120, 1), (9, 120))
            s.kernel.give(
                2,
                317,
                0,
                sample(s.now, 0, counts=list(range(1, 9)), raw=raw),
                sample(s.now + 1, 0, counts=[1, 2], raw=raw),
            )
            s.recorder.round(s.now + 9)
            events = s.output.of(CSWITCH)
            assert [struct.unpack_from("<H2xH", e) for e in events] == [(2 | 7 << 8, 16 + 56 + 24)] * 2
            assert [struct.unpack_from("<7Q", e, 16) for e in events] == [(1, 2, 3, 4, 5, 6, 7), (1, 2, 0, 0, 0, 0, 0)]
            assert [struct.unpack_from("<II", e, 72) for e in events] == [(9, 77)] * 2

    def test_where_the_kernel_holds_a_group_back_something_is_lost(self) -> None:
        with session(counting(PROFILE, hooks=(SAMPLED,), counters=(CYCLES, MISSES))) as s:
            rings = [s.kernel.own[fd] for fd in s.kernel.opened if s.kernel.leaders[fd] == fd]
            throttled, again = (struct.pack("=IHHQQQ", kind, 0, 32, s.now, 1, 1) for kind in (5, 6))
            rings[0].pending += [throttled + again, throttled]
            rings[1].pending += [again]
            s.recorder.round(s.now + 9)
            assert s.output.lost_events == 2
            rings[1].pending += [throttled]
            s.recorder.end()
            assert s.output.lost_events == 3

    def test_they_are_named_at_begin_and_end(self) -> None:
        with session(counting(PROFILE, hooks=(SAMPLED,), counters=(CYCLES, MISSES))) as s:
            (event,) = s.output.of(0x0F30)
            payload = struct.pack("<I", 2) + "TotalCycles\0CacheMisses\0".encode("utf-16-le")
            head = struct.pack("<HBBHH", 2, 2, 0xC0, 32 + len(payload), 0x0F30)
            assert (event[:8], event[32 : 32 + len(payload)]) == (head, payload)
            s.recorder.configure(counting(PROFILE | SWITCHES, hooks=(SAMPLED,), counters=(CYCLES, MISSES)))
            assert len(s.output.of(0x0F30)) == 1
            s.recorder.end()
            first, last = s.output.of(0x0F30)
            assert last[24:] == first[24:]

    def test_the_reader_finds_them(self, tmp_path: Path, run: Any) -> None:
        log, kernel = Log(tmp_path / "x.etl"), SourceKernel(INTEL)
        recorder = Recorder(counting(PROFILE, hooks=(SAMPLED,), counters=(CYCLES, MISSES)), log, kernel)
        recorder.begin()
        t = time.monotonic_ns()
        kernel.give(*TIMER, 1, *(sample(t + n, 1, ip=n, counts=[10 * n, 3, n]) for n in range(5)))
        recorder.round()
        recorder.end()
        log.close()
        source, decoder = FileSource(str(log.file.path)), Decoder()
        events = [event for block in TraceLog(source).blocks() for event in events_of(block)]
        sampled = [
            (e.time, e.counters, decoder.decode(e).fields["InstructionPointer"]) for e in events if e.hook == SAMPLED
        ]
        assert sampled == [(t + n, (10 * n, 3), n) for n in range(5)]
        names = [decoder.decode(e).fields["Names"] for e in events if e.hook == 0x0F30]
        assert names == [["TotalCycles", "CacheMisses"]] * 2
        source.close()
        profile = open_profile(str(log.file.path))
        assert [ip for batch in profile.batches() for ip in batch.ip.tolist()] == list(range(5))
        assert not profile.damage
        assert (
            "PMC counters are configured" not in run("check", log.file.path).out
        )  # with a group off that they need not


class TestChanges:
    def test_a_running_session_begins_to_count(self) -> None:
        with session(configuration(PROFILE)) as s:
            s.kernel.give(*TIMER, 0, sample(time.monotonic_ns(), 0, ip=1))
            s.recorder.configure(counting(PROFILE, hooks=(SAMPLED,), counters=(CYCLES,)))
            s.kernel.give(*TIMER, 0, sample(time.monotonic_ns(), 0, ip=2, counts=[50, 1]))
            s.recorder.round()
            kept = [
                (hook_of(e), struct.unpack_from("<H", e)[0] >> 8)
                for e in s.output.events[0]
                if hook_of(e) in (SAMPLED, 0x0F30)
            ]
            assert kept == [(SAMPLED, 0), (0x0F30, 0), (SAMPLED, 1)]

    def test_the_counts_go_on_when_other_events_join_and_leave(self) -> None:
        with session(counting(PROFILE, hooks=(SAMPLED, ENTER), counters=(CYCLES,))) as s:
            counters = {fd for fd, (attr, _, _) in s.kernel.opened.items() if attr.type == 0}
            s.recorder.configure(counting(PROFILE | SYSTEM_CALLS, hooks=(SAMPLED, ENTER), counters=(CYCLES,)))
            assert (*ENTERS, 1, 0) in s.attributes()
            s.recorder.configure(counting(SYSTEM_CALLS, hooks=(SAMPLED, ENTER), counters=(CYCLES,)))
            assert counters <= s.kernel.opened.keys()
            s.recorder.configure(counting(SWITCHES, hooks=(SAMPLED, ENTER), counters=(CYCLES,)))
            assert s.attributes() == {(2, 317, 0, 317), (2, 317, 1, 317)}

    @pytest.mark.parametrize(("counters", "taken", "status"), [(1, 0, Status.NOT_SUPPORTED), (2, 1, Status.BUSY)])
    def test_what_has_no_room_leaves_the_others_counting(self, counters: int, taken: int, status: Status) -> None:
        kernel = SourceKernel(INTEL)
        kernel.counters, kernel.taken = counters, taken
        wanted = counting(PROFILE, hooks=(SAMPLED, PMC), counters=(CYCLES,), pmc_sources=(MISSES,))
        with session(wanted, kernel) as s:
            opened = set(kernel.opened)
            with pytest.raises(EtwError) as error:
                s.recorder.configure(replace(wanted, masks=tuple(normalised_masks((PROFILE, 0x400)))))
            assert error.value.status == status
            assert (set(kernel.opened), kernel.stalled) == (opened, set())
            s.kernel.give(*TIMER, 0, sample(time.monotonic_ns(), 0, counts=[50, 1]))
            s.recorder.round()
            assert len(s.output.of(SAMPLED)) == 1


class TestRefusals:
    def test_without_counters_50_and_why(self) -> None:
        error = refused(
            counting(PROFILE, hooks=(SAMPLED,), counters=(CYCLES,)), SourceKernel(replace(fake.VM, paranoid=-1))
        )
        assert error.status == Status.NOT_SUPPORTED
        assert "no performance counters" in error.reason

    @pytest.mark.parametrize(
        ("counters", "why"), [((CYCLES,) * 8, "room for 7"), ((0,), "not a counter"), ((CYCLES, 4711), "source 4711")]
    )
    def test_87_for_what_a_header_cannot_hold_and_for_what_is_no_counter(
        self, counters: tuple[int, ...], why: str
    ) -> None:
        error = refused(counting(PROFILE, hooks=(SAMPLED,), counters=counters), SourceKernel(INTEL))
        assert error.status == Status.INVALID_PARAMETER
        assert why in error.reason

    @pytest.mark.parametrize(
        ("counters", "taken", "status", "why"),
        [(1, 0, Status.NOT_SUPPORTED, "cache-misses: .*together"), (2, 1, Status.BUSY, "processor 0 are taken")],
    )
    def test_more_than_the_processor_has(self, counters: int, taken: int, status: Status, why: str) -> None:
        kernel = SourceKernel(INTEL)
        kernel.counters, kernel.taken = counters, taken
        error = refused(counting(PROFILE, hooks=(SAMPLED,), counters=(CYCLES, MISSES)), kernel)
        assert error.status == status
        assert re.search(why, error.reason)

    def test_an_event_of_one_kind_of_core(self) -> None:
        error = refused(counting(PROFILE, hooks=(SAMPLED,), counters=(256,)), SourceKernel(HYBRID))
        assert error.status == Status.NOT_SUPPORTED
        assert "does not count it" in error.reason

    def test_switches_without_tracefs_carry_none(self) -> None:
        kernel = SourceKernel(INTEL, tracefs=False)
        error = refused(counting(SWITCHES, hooks=(CSWITCH,), counters=(CYCLES,)), kernel)
        assert error.status == Status.NOT_SUPPORTED
        assert "sched:sched_switch" in error.reason
        kernel.folders["/sys/kernel"] = lambda: ["tracing"]
        error = refused(counting(SWITCHES, hooks=(CSWITCH,), counters=(CYCLES,)), kernel)
        assert error.status == Status.PRIVILEGE_NOT_HELD
