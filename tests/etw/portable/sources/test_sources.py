"""Records of perf to kernel events, byte for byte, on a kernel whose rings are filled by hand."""

from __future__ import annotations

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
from etl_builder import aligned
from lastbranch.etw.portable.enable_map import normalised_masks
from lastbranch.etw.portable.sources.configuration import SourceConfiguration
from lastbranch.etw.portable.sources.recorder import Recorder
from lastbranch.etw.status import EtwError
from lastbranch.model import ModuleKind
from lastbranch.opening import open_profile
from source_tools import Kept, Log, SourceKernel, hook_of, lost, sample, side_band, switched, time_of

ROOT = replace(fake.VM, paranoid=-1)
INTEL = replace(fake.SKYLAKE, paranoid=-1)
SOFTWARE, TRACEPOINT = 1, 2
TIMER, MINOR, MAJOR, DUMMY = (SOFTWARE, 0), (SOFTWARE, 5), (SOFTWARE, 6), (SOFTWARE, 9)
CSWITCH, ENTER, EXIT, WAKING = (TRACEPOINT, 317), (TRACEPOINT, 21), (TRACEPOINT, 20), (TRACEPOINT, 318)
STACK = 0x1820


def configuration(*masks: int, **more: Any) -> SourceConfiguration:
    return SourceConfiguration(masks=tuple(normalised_masks(masks)), sysconfig=False, **more)


class Session:
    """A recorder on a fake kernel, whose clock the test sets."""

    def __init__(self, wanted: SourceConfiguration, kernel: SourceKernel) -> None:
        self.output, self.kernel = Kept(), kernel
        self.recorder = Recorder(wanted, self.output, kernel)
        self.begin = time.monotonic_ns()
        self.recorder.begin()
        self.now = time.monotonic_ns()

    def events(self, *hooks: int) -> list[bytes]:
        return self.output.of(*hooks)


@contextmanager
def session(wanted: SourceConfiguration, kernel: SourceKernel | None = None) -> Iterator[Session]:
    made = Session(wanted, kernel or SourceKernel(ROOT))
    try:
        yield made
    finally:
        made.recorder.close()
        assert not made.kernel.opened


def stack(at: int, pid: int, tid: int, *frames: int) -> bytes:
    return etl_builder.perfinfo(STACK, at, struct.pack(f"<QII{len(frames)}Q", at, pid, tid, *frames))


class TestKinds:
    def test_samples_of_the_timer(self) -> None:
        with session(configuration(0x1000000)) as s:
            t = s.now
            s.kernel.give(
                *TIMER, 0, sample(t + 1, 0, ip=0x401000, tid=78), sample(t + 3, 0, ip=1 << 63 | 5, tid=0, pid=0)
            )
            s.kernel.give(*TIMER, 1, sample(t + 2, 1, ip=0x402000, tid=77))
            s.recorder.round(t + 10)
            sampled = {cpu: [e for e in kept if hook_of(e) == 0x0F2E] for cpu, kept in s.output.events.items()}
            assert sampled == {
                0: [
                    etl_builder.perfinfo(0x0F2E, t + 1, struct.pack("<QIHBB", 0x401000, 78, 1, 0, 0)),
                    etl_builder.perfinfo(0x0F2E, t + 3, struct.pack("<QIHBB", 1 << 63 | 5, 0, 1, 0, 0)),
                ],
                1: [etl_builder.perfinfo(0x0F2E, t + 2, struct.pack("<QIHBB", 0x402000, 77, 1, 0, 0))],
            }

    @pytest.mark.parametrize(
        ("state", "reason", "became"),
        [
            (0, 33, 1),
            (0x100, 32, 1),
            (1, 6, 5),
            (2, 0, 5),
            (4, 5, 5),
            (8, 5, 5),
            (0x10, 22, 4),
            (0x20, 22, 4),
            (0x80, 0, 5),
        ],
    )
    def test_context_switches(self, state: int, reason: int, became: int) -> None:
        with session(configuration(0x10)) as s:
            s.kernel.give(*CSWITCH, 1, sample(s.now, 1, raw=switched((77, 120, state), (9, 0))))
            s.recorder.round(s.now + 1)
            body = struct.pack("<IIbbBbBBBBII", 9, 77, 31, 8, 0, 0, reason, 0, became, 0, 0, 0)
            assert s.output.events[1] == [etl_builder.perfinfo(0x0524, s.now, body)]

    @pytest.mark.parametrize(("linux", "windows"), [(0, 31), (99, 16), (100, 15), (108, 12), (120, 8), (139, 1)])
    def test_priorities(self, linux: int, windows: int) -> None:
        with session(configuration(0x10)) as s:
            s.kernel.give(*CSWITCH, 0, sample(s.now, 0, raw=switched((77, linux, 1), (0, 120))))
            s.recorder.round(s.now + 1)
            (event,) = s.events(0x0524)
            assert struct.unpack_from("<IIbb", event, 16) == (0, 77, 0, windows)

    def test_counters_are_not_those_of_an_earlier_process_with_the_same_id(self) -> None:
        """Whose end was lost."""
        kernel = SourceKernel(ROOT)
        kernel.contents["/proc/77/status"] = "Name:\tapp\nVmPeak:\t 100 kB\nVmSize:\t 90 kB\n"
        with session(configuration(0x8), kernel) as s:
            kernel.contents["/proc/77/status"] = "Name:\tapp\n"
            t = s.now
            life = struct.pack("=iiii", 77, 1, 77, 1)
            for kind, time in ((7, t), (4, t + 1)):  # fork, exit
                s.kernel.give(*DUMMY, 0, side_band(kind, life + struct.pack("=Q", time), time, 0))
            s.recorder.round(t + 9)
            known = [struct.pack("<Q", 100 * 1024) in event for event in s.events(0x0320)]
            assert known == [False]
            s.recorder.end()

    def test_ready_threads_and_system_calls_name_who_did_it(self) -> None:
        with session(configuration(0x880)) as s:
            t = s.now
            waking = bytes(8) + b"x".ljust(16, b"\0") + struct.pack("=i", 4242)
            s.kernel.give(*WAKING, 0, sample(t, 0, pid=77, tid=78, raw=waking))
            s.kernel.give(
                *ENTER, 0, sample(t + 1, 0, pid=77, tid=78, raw=bytes(8) + struct.pack("=q6Q", 110, *range(6)))
            )
            s.kernel.give(*EXIT, 0, sample(t + 2, 0, pid=77, tid=78, raw=bytes(8) + struct.pack("=qq", 110, -2)))
            s.recorder.round(t + 3)

            def compact(hook: int, at: int, body: bytes) -> bytes:
                return aligned(etl_builder.system(hook, at, body, pid=77, tid=78, compact=True))

            assert s.output.events[0] == [
                compact(0x0532, t, struct.pack("<IbbBB", 4242, 0, 0, 0, 0)),
                compact(0x0F33, t + 1, struct.pack("<Q", 110)),
                compact(0x0F34, t + 2, struct.pack("<i", -2)),
            ]

    def test_page_faults(self) -> None:
        with session(configuration(0x3000)) as s:
            t = s.now
            s.kernel.give(*MINOR, 0, sample(t, 0, ip=5, address=0xABCDE000, tid=78))
            # Two events of the same kind are open: faults with a read, of MEMORY_PAGE_FAULTS and of MEMORY_HARD_FAULTS.
            for fd, (attr, _, cpu) in s.kernel.opened.items():
                if (attr.type, attr.config, cpu) == (*MAJOR, 0):
                    s.kernel.own[fd].pending.append(sample(t + 1, 0, ip=6, address=0x1000, tid=78))
            s.recorder.round(t + 9)
            pair = struct.Struct("<QQ")
            assert s.events(0x020A) == [
                etl_builder.system(0x020A, t, pair.pack(0xABCDE000, 5), pid=77, tid=78, compact=True)
            ]
            assert s.events(0x020E) == [
                etl_builder.system(0x020E, t + 1, pair.pack(0x1000, 6), pid=77, tid=78, compact=True)
            ]
            body = struct.pack("<qqQQII", t + 1, -1, 0x1000, 0, 78, 0)
            assert s.events(0x0220) == [etl_builder.perfinfo(0x0220, t + 1, body)]

    def test_stacks_follow_their_events(self) -> None:
        with session(configuration(0x1000010, stack_hooks=(0x0F2E, 0x0524))) as s:
            t, user, kernel = s.now, (1 << 64) - 512, (1 << 64) - 128
            s.kernel.give(
                *TIMER, 0, sample(t, 0, ip=1, chain=[kernel, 1 << 63 | 7, user, 1, 2, 3]), sample(t + 2, 0, chain=[])
            )
            ended = sample(t + 1, 0, tid=-1, chain=[user, 9], raw=switched((78, 120, 0x10), (0, 120)))
            s.kernel.give(*CSWITCH, 0, ended)
            s.recorder.round(t + 9)
            kept = [e for e in s.output.events[0] if hook_of(e) in (0x0F2E, 0x0524, STACK)]
            assert [hook_of(e) for e in kept] == [0x0F2E, STACK, 0x0524, STACK, 0x0F2E]
            assert kept[1] == stack(t, 77, 77, 1 << 63 | 7, 1, 2, 3)
            assert kept[3] == stack(t + 1, 77, 78, 9)

    def test_stacks_without_their_kernel_part_are_asked_for_like_that(self) -> None:
        with session(configuration(0x1000000, stack_hooks=(0x0F2E,), kernel_stacks=False)) as s:
            flags = {attr.flags >> 21 & 1 for attr, _, _ in s.kernel.opened.values()}  # exclude_callchain_kernel
            assert flags == {1}

    def test_raw_data_that_is_too_short_counts_as_zeros(self) -> None:
        with session(configuration(0x10)) as s:
            s.kernel.give(
                *CSWITCH, 0, sample(s.now + 1, 0, raw=switched((1, 120, 1), (2, 120))), sample(s.now, 0, raw=bytes(20))
            )
            s.recorder.round(s.now + 9)
            assert [struct.unpack_from("<II", e, 16) for e in s.events(0x0524)] == [(0, 0), (2, 1)]

    def test_switches_without_tracefs(self) -> None:
        with session(configuration(0x10), SourceKernel(ROOT, tracefs=False)) as s:
            t = s.now
            body = struct.pack("=ii", 5, 55)
            out, preempted = 1 << 13, 1 << 14
            s.kernel.give(
                *DUMMY,
                0,
                side_band(15, body, t, 0, out),
                side_band(15, body, t + 1, 0),
                side_band(15, body, t + 2, 0, out | preempted),
            )
            s.recorder.round(t + 9)
            assert s.events(0x0524) == [
                etl_builder.perfinfo(
                    0x0524, at, struct.pack("<IIbbBbBBBBII", new, old, 8, 8, 0, 0, reason, 0, state, 0, 0, 0)
                )
                for at, old, new, reason, state in ((t, 77, 55, 6, 5), (t + 1, 55, 77, 6, 5), (t + 2, 77, 55, 32, 1))
            ]

    def test_either_record_stands_for_a_switch(self) -> None:
        """Kernels leave out those of idle threads."""
        with session(configuration(0x10), SourceKernel(ROOT, tracefs=False)) as s:
            t, out = s.now, 1 << 13
            from_idle, to_idle = struct.pack("=ii", 0, 0), struct.pack("=ii", 0, 0)
            given = [(0, from_idle, 0), (1, to_idle, out), (2, from_idle, 0), (3, struct.pack("=ii", 9, 99), out)]
            s.kernel.give(*DUMMY, 0, *(side_band(15, body, t + at, 0, misc) for at, body, misc in given))
            s.recorder.round(t + 4)
            # the other record of the same switch, in the next round
            s.kernel.give(*DUMMY, 0, side_band(15, struct.pack("=ii", 7, 77), t + 5, 0, tid=99))
            s.recorder.round(t + 9)
            assert [struct.unpack_from("<II", e, 16)[::-1] for e in s.events(0x0524)] == [
                (0, 77),
                (77, 0),
                (0, 77),
                (77, 99),
            ]


class TestCounters:
    """The hardware is the fake's."""

    def test_their_interrupts_name_the_source(self) -> None:
        with session(configuration(0, 0x400, pmc_sources=(19, 10), intervals={19: 100_000}), SourceKernel(INTEL)) as s:
            t = s.now
            s.kernel.give(0, 0, 0, sample(t, 0, ip=0x401000, tid=78))
            s.kernel.give(0, 3, 1, sample(t, 1, ip=0x402000, tid=79))
            s.recorder.round(t + 9)
            pmc = [
                etl_builder.perfinfo(0x0F2F, t, struct.pack("<QIHH", ip, tid, source, 0))
                for ip, tid, source in ((0x401000, 78, 19), (0x402000, 79, 10))
            ]
            assert s.events(0x0F2F) == pmc
            periods = {(attr.config, attr.period) for attr, _, _ in s.kernel.opened.values()}
            assert periods == {(0, 100_000), (3, 65_536)}

    def test_branch_records_of_the_processor(self, tmp_path: Path) -> None:
        flags = 2 | 7 << 4 | 1 << 20  # predicted, 7 cycles, conditional
        wanted = configuration(7, 0x400, pmc_sources=(19,), lbr_hooks=(0x0F2F,), lbr_flags=0x1)
        with session(wanted, SourceKernel(INTEL)) as s:
            (branches,) = {attr.branches for attr, _, _ in s.kernel.opened.values() if attr.stacks}
            assert branches == 1 | 8  # user, any: without the kernel's
            t = s.now
            s.kernel.give(0, 0, 0, sample(t, 0, ip=0xA0, branches=[(0xA0, 0xB0, flags), (0xC0, 0xD0, 1)]))
            s.recorder.round(t + 9)
            kept = [e for e in s.output.events[0] if hook_of(e) in (0x0F2F, 0x0C20)]
            assert [hook_of(e) for e in kept] == [0x0F2F, 0x0C20]
            head = struct.unpack_from("<QIIII", kept[1], 16)
            assert head == (t, 77, 77, 1, 0)
            entries = struct.unpack_from("<6Q", kept[1], 40)
            assert entries[:2] + entries[3:5] == (0xA0, 0xB0, 0xC0, 0xD0)
            assert (entries[2] >> 63, entries[2] & 0xFFFF, entries[5] >> 63) == (0, 7, 1)

    def test_a_hybrid_processor_has_an_event_for_each_kind_of_core(self) -> None:
        with session(
            configuration(0, 0x400, pmc_sources=(19,)), SourceKernel(replace(fake.ALDER_LAKE, paranoid=-1))
        ) as s:
            opened = {(attr.config >> 32, cpu) for attr, _, cpu in s.kernel.opened.values()}
            assert opened == {(4, cpu) for cpu in range(4)} | {(10, 4), (10, 5)}


class TestOrder:
    def test_what_is_younger_than_the_round_waits_for_the_next(self) -> None:
        with session(configuration(0x1000010)) as s:
            t = s.now
            s.kernel.give(*TIMER, 0, sample(t, 0, ip=1), sample(t + 20, 0, ip=2))
            s.kernel.give(*CSWITCH, 0, sample(t + 5, 0, raw=switched((1, 120, 1), (2, 120))))
            assert s.recorder.round(t + 10) == 2
            s.kernel.give(*TIMER, 0, sample(t + 30, 0, ip=3))
            s.kernel.give(*CSWITCH, 0, sample(t + 25, 0, raw=switched((2, 120, 1), (1, 120))))
            s.recorder.round(t + 100)
            kept = [e for e in s.output.events[0] if hook_of(e) in (0x0F2E, 0x0524)]
            assert [time_of(e) - t for e in kept] == [0, 5, 20, 25, 30]
            assert [hook_of(e) for e in kept] == [0x0F2E, 0x0524, 0x0F2E, 0x0524, 0x0F2E]

    def test_a_late_record_moves_to_the_end_of_the_round_before(self) -> None:
        with session(configuration(0x1000000)) as s:
            t = s.now
            s.recorder.round(t + 10)
            s.kernel.give(*TIMER, 0, sample(t + 7, 0, ip=1))
            s.recorder.round(t + 20)
            assert [time_of(e) for e in s.events(0x0F2E)] == [t + 10]

    def test_records_out_of_order_in_a_ring_are_put_right(self) -> None:
        with session(configuration(0x1000000)) as s:
            t = s.now
            s.kernel.give(*TIMER, 0, sample(t + 2, 0, ip=2), sample(t + 1, 0, ip=1))
            s.recorder.round(t + 20)
            assert [time_of(e) - t for e in s.events(0x0F2E)] == [1, 2]

    def test_losses_are_counted_once(self) -> None:
        with session(configuration(0x1000000)) as s:
            s.kernel.give(*TIMER, 0, sample(s.now, 0), lost(17, s.now + 1, 0))
            s.recorder.round(s.now + 9)
            assert s.output.lost_events == 17
            s.kernel.losses[s.kernel.event(*TIMER, 0)] = 17
            s.kernel.losses[s.kernel.event(*TIMER, 1)] = 3  # no record named these any more
            s.recorder.end()
            assert s.output.lost_events == 20

    def test_samples_dropped_without_a_record_are_lost(self) -> None:
        """Each call makes a sample: there should be as many samples as the kernel counted calls."""
        with session(configuration(0x80)) as s:
            given = [sample(s.now + at, 0, raw=bytes(64)) for at in range(3)]
            s.kernel.give(*ENTER, 0, *given, lost(4, s.now + 5, 0))
            enter, leave = (s.kernel.event(*point, 0) for point in (ENTER, EXIT))
            s.kernel.counted |= {enter: 3 + 4 + 5, leave: 2, s.kernel.event(*ENTER, 1): 0}
            s.recorder.round(s.now + 9)
            assert s.output.lost_events == 4
            s.kernel.give(*EXIT, 0, sample(s.now + 20, 0, raw=bytes(24)))
            s.kernel.losses[enter] = 6  # that no record named, two of them
            s.recorder.end()
            assert s.output.lost_events == 4 + 5 + 1

    def test_no_sample_is_missing_of_a_timer(self) -> None:
        """Its count is a time."""
        with session(configuration(0x1000000)) as s:
            s.kernel.counted[s.kernel.event(*TIMER, 0)] = 10**9
            s.recorder.end()
            assert s.output.lost_events == 0

    def test_an_event_whose_samples_are_counted_begins_with_its_ring(self) -> None:
        with session(configuration(0x80)) as s:
            opened = [(fd, attr) for fd, (attr, _, _) in s.kernel.opened.items() if attr.type == ENTER[0]]
            assert len(opened) == 4
            assert all(attr.flags & 1 and fd not in s.kernel.disabled for fd, attr in opened)

    def test_the_end_takes_what_the_rings_have(self) -> None:
        with session(configuration(0x1000000)) as s:
            s.kernel.give(*TIMER, 1, sample(s.now, 1))
            s.recorder.end()
            assert len(s.events(0x0F2E)) == 1
            intervals = s.events(0x0F49, 0x0F4A)
            assert [struct.unpack_from("<III", e, 32) for e in intervals] == [(0, 10_000, 10_000)] * 2
            assert [hook_of(e) for e in intervals] == [0x0F49, 0x0F4A]
            assert intervals[0][44:].startswith("Timer\0".encode("utf-16-le"))


class TestChanges:
    def test_an_interval_changes_while_it_records(self) -> None:
        with session(configuration(0x1000000)) as s:
            opened = set(s.kernel.opened)
            s.recorder.configure(configuration(0x1000000, intervals={0: 20_000}))
            assert set(s.kernel.opened) == opened
            assert s.kernel.periods == dict.fromkeys(opened, 2_000_000)
            (changed,) = s.events(0x0F48)
            assert struct.unpack_from("<III", changed, 32) == (0, 20_000, 10_000)

    def test_masks_change_while_it_records(self) -> None:
        with session(configuration(0x1000000)) as s:
            old = s.kernel.identifier(*TIMER, 0)
            s.kernel.give(*TIMER, 0, sample(time.monotonic_ns(), 0, ip=1))
            s.recorder.configure(configuration(0x10))
            assert [hook_of(e) for e in s.output.events[0]].count(0x0F2E) == 1
            assert old - 1000 not in s.kernel.opened
            assert {(a.type, a.config) for a, _, _ in s.kernel.opened.values()} == {CSWITCH}
            s.recorder.end()
            masks = [(hook_of(e), struct.unpack_from("<8II", e, 32)) for e in s.events(0x0005, 0x0020)]
            assert masks == [(hook, (0, 4, *[0] * 6, 0x55)) for hook in (0x0005, 0x0020)]

    def test_what_is_refused_changes_nothing(self) -> None:
        with session(configuration(0x1000000), SourceKernel(ROOT, tracefs=False)) as s:
            opened = set(s.kernel.opened)
            with pytest.raises(EtwError, match="no tracepoints"):
                s.recorder.configure(configuration(0x1000090))
            assert set(s.kernel.opened) == opened
            s.kernel.give(*TIMER, 0, sample(time.monotonic_ns(), 0, ip=1))
            s.recorder.round()
            assert len(s.events(0x0F2E)) == 1

    def test_processes_that_are_wanted_later_are_listed_then(self) -> None:
        with session(configuration(0x1000000)) as s:
            assert not s.events(0x0303)
            s.recorder.configure(configuration(0x1000001))
            assert len(s.events(0x0303)) == 2  # 77 and the idle process


class TestLives:
    def test_the_lists_at_begin_and_end(self) -> None:
        with session(configuration(7)) as s:
            processes = [struct.unpack_from("<II", e, 40) for e in s.events(0x0303)]
            assert processes == [(0, 0), (77, 1)]
            assert {struct.unpack_from("<II", e, 32) for e in s.events(0x0503)} == {(0, 0), (77, 77), (77, 78)}
            (image,) = s.events(0x1403)
            assert struct.unpack_from("<QQI", image, 32) == (0x400000, 0x100000, 77)
            assert image[88:].decode("utf-16-le").rstrip("\0") == "/bin/known"
            s.recorder.end()
            assert (len(s.events(0x0304)), len(s.events(0x0504)), len(s.events(0x1404))) == (2, 3, 1)

    @pytest.mark.parametrize(("masks", "hooks"), [(1, {0x0303}), (2, {0x0503}), (4, {0x1403}), (3, {0x0303, 0x0503})])
    def test_only_what_is_enabled(self, masks: int, hooks: set[int]) -> None:
        with session(configuration(masks)) as s:
            assert {hook_of(e) for e in s.output.events[0]} - {-1} == hooks

    def test_a_process_begins_maps_and_ends(self) -> None:
        with session(configuration(7)) as s:
            t = s.now
            forked = struct.pack("=iiiiQ", 90, 77, 90, 77, t)
            mapped = struct.pack("=iiQQQIIQQII", 90, 90, 0x7000, 0x2000, 0x1000, 8, 1, 5, 0, 5, 2) + b"/lib/x.so\0"
            s.kernel.give(*DUMMY, 0, side_band(7, forked, t, 0))
            s.kernel.give(
                *DUMMY,
                1,
                side_band(10, mapped, t + 1, 1, 2),
                side_band(4, struct.pack("=iiiiQ", 90, 77, 90, 77, t + 2), t + 2, 1),
            )
            s.recorder.round(t + 9)
            (start,), (end,) = s.events(0x0301), s.events(0x0302)
            assert (struct.unpack_from("<II", start, 40), struct.unpack_from("<I", end, 40)) == ((90, 77), (90,))
            assert (time_of(start), time_of(end)) == (t, t + 2)
            loads = [(time_of(e), *struct.unpack_from("<QQI", e, 32)) for e in s.events(0x030A)]
            assert loads == [(t, 0x400000, 0x100000, 90), (t + 1, 0x7000, 0x2000, 90)]

    def test_images_that_are_no_longer_wanted(self) -> None:
        with session(configuration(7)) as s:
            s.recorder.configure(configuration(1))
            t = time.monotonic_ns()
            mapped = struct.pack("=iiQQQIIQQII", 77, 77, 0x7000, 0x2000, 0x1000, 8, 1, 5, 0, 5, 2) + b"/lib/x.so\0"
            forked = struct.pack("=iiiiQ", 90, 77, 90, 77, t)
            s.kernel.give(*DUMMY, 0, side_band(10, mapped, t, 0, 2), side_band(7, forked, t, 0))
            s.recorder.round(t + 9)
            assert (len(s.events(0x0301)), len(s.events(0x0501)), len(s.events(0x030A))) == (1, 0, 0)

    def test_the_kernel_is_an_image_with_a_build_id(self, tmp_path: Path) -> None:
        kernel = SourceKernel(ROOT)
        note = struct.pack("=III", 4, 20, 3) + b"GNU\0" + bytes(range(65, 85))
        kernel.contents |= {
            "/proc/kallsyms": "ffffffff81000000 T _text\nffffffff82000000 T _etext\n",
            "/sys/kernel/notes": note.decode("ascii"),
        }
        log = Log(tmp_path / "x.etl")
        recorder = Recorder(configuration(7), log, kernel)
        recorder.begin()
        recorder.end()
        log.close()
        found = next(m for m in open_profile(str(log.file.path)).modules if m.kind is ModuleKind.KERNEL)
        assert (found.name, found.build_id) == ("[kernel.kallsyms]", bytes(range(65, 85)))

    def test_what_began_while_the_lists_were_made_is_told_once(self) -> None:
        kernel = SourceKernel(ROOT)
        names = kernel.folders["/proc"]

        def listing() -> list[str]:
            t = time.monotonic_ns()
            forked = struct.pack("=iiiiQ", 77, 77, 78, 77, t)  # thread 78 of 77, which /proc lists, too
            mapped = (
                struct.pack("=iiQQQIIQQII", 77, 77, 0x400000, 0x100000, 0x1000, 8, 1, 123, 0, 5, 2) + b"/bin/known\0"
            )
            kernel.give(*DUMMY, 0, side_band(7, forked, t, 0), side_band(10, mapped, t, 0, 2))
            return names()

        kernel.folders["/proc"] = listing
        with session(configuration(7), kernel) as s:
            s.recorder.round()
            assert [struct.unpack_from("<II", e, 32) for e in s.events(0x0503)] == [(0, 0), (77, 77)]
            assert [struct.unpack_from("<II", e, 32) for e in s.events(0x0501)] == [(77, 78)]
            assert (len(s.events(0x1403)), len(s.events(0x030A))) == (0, 1)

    def test_damaged_records_do_no_harm(self) -> None:
        with session(configuration(7)) as s:
            short = (
                struct.pack("=IHH", 10, 0, 8 + 32 + 8)
                + bytes(8)
                + b"".join([struct.pack("=iiQIIQ", 1, 1, s.now, 0, 0, 1)])
            )
            s.kernel.give(*DUMMY, 0, short)
            s.recorder.round(s.now + 9)
            assert s.events(0x030A) == [], "it is too short for a mapping"
            mapped = struct.pack("=iiQQQIIQQII", 1, 1, 0x400000, 0x100000, 0x1000, 8, 1, 123, 0, 5, 2) + b"/bin/known\0"
            s.kernel.give(*DUMMY, 0, side_band(10, mapped, s.now + 10, 0, 2))
            s.recorder.round(s.now + 19)
            s.recorder.end()
            assert len(s.events(0x030A)) == 1, "what follows is read"


class TestClocks:
    def test_system_time_is_told_as_filetime(self) -> None:
        kernel, output = SourceKernel(ROOT), Kept()
        recorder = Recorder(configuration(0x1000000, clock=2), output, kernel)
        recorder.begin()
        clocks = {struct.unpack_from("=i", attr.raw, 92)[0] for attr, _, _ in kernel.opened.values()}
        assert clocks == {1}  # CLOCK_MONOTONIC: tracepoints and counters take no CLOCK_REALTIME
        before, now, wall = time.time_ns(), time.monotonic_ns(), time.time_ns()
        kernel.give(*TIMER, 0, sample(now, 0, ip=1))
        recorder.round()
        after = time.time_ns() - wall
        recorder.close()
        (event,) = output.of(0x0F2E)
        told = (time_of(event) - 116_444_736_000_000_000) * 100
        assert before - 1_000_000 - after <= told <= wall + 1_000_000 + after

    def test_a_clock_that_is_set_back_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kernel, output = SourceKernel(ROOT), Kept()
        recorder = Recorder(configuration(0x1000000, clock=2), output, kernel)
        recorder.begin()
        kernel.give(*TIMER, 0, sample(time.monotonic_ns(), 0, ip=1))
        recorder.round()
        earlier = time.time_ns() - 3600 * 10**9
        monkeypatch.setattr(time, "time_ns", lambda: earlier)
        kernel.give(*TIMER, 0, sample(time.monotonic_ns(), 0, ip=2))
        recorder.round()
        recorder.end()
        times = [time_of(e) for e in output.events[0]]
        assert len(output.of(0x0F2E)) == 2
        assert times == sorted(times)


def test_the_machine_is_described(tmp_path: Path) -> None:
    log = Log(tmp_path / "x.etl")
    recorder = Recorder(SourceConfiguration(masks=(0x7, 0x2)), log, SourceKernel(ROOT))
    recorder.begin()
    recorder.end()
    log.close()
    profile = open_profile(str(tmp_path / "x.etl"))
    machine = profile.machine
    assert (machine.host, machine.os, machine.memory) == ("box", "Linux", 1 << 20)
    assert machine.cpu_description == "Testing CPU"
    known = next(m for m in profile.modules if m.name == "/bin/known")
    assert known.build_id == bytes(range(20))
