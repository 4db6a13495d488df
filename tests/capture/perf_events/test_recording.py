"""Recordings: byte for byte on a fake kernel with branch records, and of real programs by the CPU clock."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_kernel as fake
import perfdata_writer
from capture_tools import build
from fake_kernel import FakeKernel, Machine
from lastbranch.capture import HardwareSummary, Request, RunError, Target, hardware, record_hardware
from lastbranch.capture.hardware import Recording
from lastbranch.capture.perf_events import event_set
from lastbranch.capture.perf_events.cpu_times import CpuTimes, Ran
from lastbranch.capture.perf_events.refusals import EventUnavailable
from lastbranch.capture.process_groups import ProcessGroup
from lastbranch.errors import UnavailableError
from lastbranch.formats.perfdata import writer
from lastbranch.formats.perfdata.writer import Described, PerfFile
from lastbranch.model import ModuleKind, Profile
from lastbranch.opening import open_profile
from lastbranch.symbols.symbol_lists import running_build_id

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="perf events are of Linux")
LAUNCH = Target(77, before_exec=True)


def sample(identifier: int, ip: int, tid: int, at: int, entries: list[tuple[int, int, int]], index: int = 5) -> bytes:
    """A sample as the kernel lays it out for IDENTIFIER, IP, TID, TIME, CPU, PERIOD and BRANCH_STACK with HW_INDEX."""
    body = struct.pack("=QQiiQIIQQQ", identifier, ip, 77, tid, at, 1, 0, 400_009, len(entries), index)
    body += b"".join(struct.pack("=QQQ", *e) for e in entries)
    return struct.pack("=IHH", 9, 2, 8 + len(body)) + body


def fork(parent: int, tid: int) -> bytes:
    now = time.monotonic_ns()
    body = struct.pack("=iiiiQ", 77, 77, tid, parent, now) + struct.pack("=iiQIIQ", 77, parent, now, 0, 0, 1003)
    return struct.pack("=IHH", 7, 0, 8 + len(body)) + body


class Times(CpuTimes):
    """CPU times as a test says: of each thread that ends, and 1 us more of each that runs."""

    def __init__(self) -> None:
        self.works, self.lost = True, 0
        self.over: list[Ran] = []
        self.attached: list[tuple[int, list[int]]] = []
        self.asked: list[tuple[int, int]] = []

    def attach(self, pid: int, tids: Iterable[int]) -> None:
        self.attached.append((pid, list(tids)))

    def ended(self) -> Iterator[Ran]:
        over, self.over = self.over, []
        yield from over

    def running(self, tasks: Iterable[tuple[int, int]]) -> Iterator[Ran]:
        self.asked = list(tasks)
        yield Ran(77, 77, 1000, time.monotonic_ns())


class TestOnAFakeKernel:
    def kernel(self, machine: Machine = fake.SKYLAKE, **more: int) -> FakeKernel:
        kernel = FakeKernel(machine, **more)
        kernel.contents |= {
            "/proc/77/status": "Name:\tapp\nPPid:\t1\n",
            "/proc/77/task/77/comm": "app\n",
            "/proc/77/maps": "00400000-00500000 r-xp 00001000 08:01 123      /bin/known\n"
            "00600000-00700000 rw-p 00000000 00:00 0        [heap]\n"
            "00800000-00801000 r-xp 00000000 00:00 0 \n",
        }
        kernel.folders["/proc/77/task"] = lambda: ["77"]
        return kernel

    def test_losses_are_in_the_file_while_it_grows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hardware, "_LOOK", 0)
        path, kernel = tmp_path / "x.data", self.kernel()
        with Recording(Request(LAUNCH), str(path), kernel=kernel) as recording:
            owner = next(fd for fd, (attr, _, _) in kernel.opened.items() if attr.stacks)
            for lost in (5, 5, 17):
                kernel.losses[owner] = lost
                recording.drain(0.1)
                assert open_profile(str(path)).lost == {"samples": lost}
            assert recording.finish().lost == 17
        assert open_profile(str(path)).lost == {"samples": 17}

    def test_what_the_rings_held_is_in_the_file_byte_for_byte(self, tmp_path: Path) -> None:
        path, kernel = tmp_path / "x.data", self.kernel()
        flags = 2 | 7 << 4 | 1 << 20  # predicted, 7 cycles, conditional
        with Recording(Request(LAUNCH, command_line=("lastbranch", "record")), str(path), kernel=kernel) as recording:
            identifier = next(1000 + fd for fd, (attr, _, cpu) in kernel.opened.items() if attr.stacks and cpu == 1)
            first = sample(identifier, 0x1000, 77, 100, [(0xA0, 0xB0, flags), (0xC0, 0xD0, 1)])
            second = sample(identifier, 0x2000, 78, 200, [])
            third = sample(identifier, 0x3000, 77, 300, [(i, i + 1, 0) for i in range(32)], index=31)
            kernel.rings[0].pending = [first]
            kernel.rings[1].pending = [second]
            assert recording.drain(0.1)
            kernel.gone.add(77)
            assert not recording.drain(0.1)
            kernel.rings[1].pending = [third]
            owner = next(fd for fd, (attr, _, _) in kernel.opened.items() if attr.stacks)
            kernel.losses[owner] = 17
            summary = recording.finish()
            assert not kernel.opened
            assert all(ring.closed for ring in kernel.rings.values())
        assert (summary.lost, summary.notes) == (17, ())
        data = path.read_bytes()
        round_ = struct.pack("=IHH", 68, 0, 8)
        assert first + second + round_ + third + round_ in data
        assert len(data) > summary.size

        capture = perfdata_writer.parse(data)  # a reader that shares nothing with the package
        assert [a["type"] for a in capture.attrs] == [4, 1]
        assert len(capture.named("SAMPLE")) == 3
        profile = open_profile(str(path))
        assert not profile.damage
        assert profile.lost == {"samples": 17}
        assert [e.name for e in profile.events] == ["r20c4", "dummy:u"]
        assert profile.machine.cpuid == "GenuineIntel,6,85,4"
        assert profile.header["command line"] == "lastbranch record"
        assert profile.machine.pmu_caps["cpu"]["branches"] == "32"
        (batch,) = profile.batches()
        assert batch.ip.tolist() == [0x1000, 0x2000, 0x3000]
        assert batch.tid.tolist() == [77, 78, 77]
        assert batch.depth.tolist() == [2, 0, 32]
        source, target, words = batch.stack(0)
        assert (source.tolist(), target.tolist(), words.tolist()) == ([0xA0, 0xC0], [0xB0, 0xD0], [flags, 1])
        assert batch["hw_idx"].tolist() == [5, 5, 31]

    @pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
    def test_perf_reads_the_branch_entries(self, tmp_path: Path) -> None:
        path, kernel = tmp_path / "x.data", self.kernel()
        with Recording(Request(LAUNCH), str(path), kernel=kernel) as recording:
            identifier = next(1000 + fd for fd, (attr, _, cpu) in kernel.opened.items() if attr.stacks and cpu == 0)
            kernel.rings[0].pending = [sample(identifier, 0x1000, 77, 100, [(0xA0, 0xB0, 2 | 7 << 4), (0xC0, 0xD0, 1)])]
            recording.finish()
        done = subprocess.run(
            ["perf", "script", "-F", "pid,tid,event,ip,brstack", "-i", path], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        words = done.stdout.split()
        assert words[:3] == ["77/77", "r20c4:", "1000"]
        assert [entry.split("/")[:6] for entry in words[3:] if entry.startswith("0x")] == [
            ["0xa0", "0xb0", "P", "-", "-", "7"],
            ["0xc0", "0xd0", "M", "-", "-", "0"],
        ]

    def test_a_recorder_that_dies_leaves_what_it_had_copied(self, tmp_path: Path) -> None:
        path, kernel = tmp_path / "x.data", self.kernel()
        recording = Recording(Request(LAUNCH), str(path), kernel=kernel)
        identifier = next(1000 + fd for fd, (attr, _, _) in kernel.opened.items() if attr.stacks)
        kernel.rings[0].pending = [sample(identifier, 1, 77, 1, [])]
        recording.drain(0)
        recording.close()
        profile = open_profile(str(path))
        assert profile.samples == 1
        assert "did not finish" in str(profile.damage[0])

    def test_a_command_records_from_its_exec_and_its_children_inherit(self, tmp_path: Path) -> None:
        kernel = self.kernel()
        with Recording(Request(LAUNCH), str(tmp_path / "x"), kernel=kernel):
            flags = {attr.flags & 0x1003 for attr, _, _ in kernel.opened.values()}
            assert flags == {1 << 0 | 1 << 1 | 1 << 12}  # disabled, inherit, enable_on_exec
            assert {(tid, cpu) for _, tid, cpu in kernel.opened.values()} == {(77, 0), (77, 1)}
        assert not kernel.opened

    def test_the_whole_system_is_opened_on_every_processor_and_not_inherited(self, tmp_path: Path) -> None:
        kernel = self.kernel(replace(fake.SKYLAKE, paranoid=0))
        with Recording(Request(Target()), str(tmp_path / "x"), kernel=kernel) as recording:
            assert {(tid, cpu) for _, tid, cpu in kernel.opened.values()} == {(-1, 0), (-1, 1)}
            assert not any(attr.flags & fake.INHERIT for attr, _, _ in kernel.opened.values())
            assert recording.drain(0)
            recording.finish()
        assert 77 in {p.pid for p in open_profile(str(tmp_path / "x")).processes}

    def test_hybrid_events_share_the_rings_of_their_processors(self, tmp_path: Path) -> None:
        kernel = self.kernel(fake.ALDER_LAKE)
        with Recording(Request(LAUNCH), str(tmp_path / "x"), kernel=kernel) as recording:
            assert {cpu: [kernel.opened[fd][0].type for fd in ring.shared] for cpu, ring in kernel.rings.items()} == {
                0: [4],
                1: [4],
                2: [4],
                3: [4],
                4: [10],
                5: [10],
            }
            recording.finish()
        assert [e.name for e in open_profile(str(tmp_path / "x")).events] == [
            "cpu_atom/rc0c4/",
            "cpu_core/r20c4/",
            "dummy:u",
        ]

    def test_what_was_mapped_before_is_told(self, tmp_path: Path) -> None:
        kernel = self.kernel()
        with Recording(Request(Target(77)), str(tmp_path / "x"), kernel=kernel) as recording:
            recording.finish()
        profile = open_profile(str(tmp_path / "x"))
        assert [(m.name, m.kind, m.build_id) for m in profile.modules] == [
            ("/bin/known", ModuleKind.FILE, bytes(range(20))),
            ("//anon", ModuleKind.ANONYMOUS, b""),
        ]
        maps = perfdata_writer.parse((tmp_path / "x").read_bytes()).named("MMAP2")
        assert [tuple(m.fields[n] for n in ("addr", "length", "pgoff", "prot")) for m in maps] == [
            (0x400000, 0x100000, 0x1000, 5),
            (0x800000, 0x1000, 0, 5),
        ]
        assert [p.name for p in profile.processes if p.pid == 77] == ["app"]

    def test_an_old_kernel_does_not_identify_what_it_maps_so_that_is_done_at_the_end(self, tmp_path: Path) -> None:
        kernel = self.kernel(replace(fake.SKYLAKE, build_id=False))
        body = struct.pack("=iiQQQIIQQII", 77, 77, 0x10000, 0x1000, 0, 8, 1, 5, 0, 5, 2) + b"/usr/bin/known\0\0"
        body += struct.pack("=iiQIIQ", 77, 77, 50, 0, 0, 1003)
        with Recording(Request(LAUNCH), str(tmp_path / "x"), kernel=kernel) as recording:
            kernel.rings[0].pending = [struct.pack("=IHH", 10, 2, 8 + len(body)) + body]
            assert "5.12" in recording.finish().notes[0]
        profile = open_profile(str(tmp_path / "x"))
        assert [(m.name, m.build_id) for m in profile.modules] == [("/usr/bin/known", bytes(range(20)))]
        assert not profile.damage

    def test_binaries_whose_build_id_the_kernel_did_not_find_are_identified_at_the_end(self, tmp_path: Path) -> None:
        """It looks into the first note segment alone, and that of Go's programs has another note."""
        kernel = self.kernel()

        def mapped(at: int, inode: int, name: bytes) -> bytes:
            body = struct.pack("=iiQQQIIQQII", 77, 77, at, 0x1000, 0, 8, 1, inode, 0, 5, 2) + name
            body += b"\0" * (8 - len(name) % 8) + struct.pack("=iiQIIQ", 77, 77, 50, 0, 0, 1003)
            return struct.pack("=IHH", 10, 2, 8 + len(body)) + body

        with Recording(Request(LAUNCH), str(tmp_path / "x"), kernel=kernel) as recording:
            kernel.rings[0].pending = [
                mapped(0x10000, 5, b"/usr/bin/known"),
                mapped(0x20000, 6, b"/old/bin/known"),
                mapped(0x30000, 7, b"/bin/go"),
            ]
            recording.finish()
        profile = open_profile(str(tmp_path / "x"))
        # The file that lies there now is another one than was mapped, in the second case.
        assert [(m.name, m.build_id) for m in profile.modules] == [
            ("/usr/bin/known", bytes(range(20))),
            ("/old/bin/known", b""),
            ("/bin/go", b""),
        ]
        assert not profile.damage

    def test_the_kernel_and_its_modules_are_told_where_they_are_recorded(self, tmp_path: Path) -> None:
        kernel = self.kernel(replace(fake.SKYLAKE, paranoid=1))
        kernel.contents |= {
            "/proc/kallsyms": "0000 A fixed\nffffffff81000000 T _text\nffffffff81e00000 T _etext\n",
            "/proc/modules": "ext4 1000000 1 - Live 0xffffffffc0100000\n",
        }
        everything = fake.ANY | fake.USER | fake.KERNEL
        with Recording(Request(LAUNCH, branches=everything), str(tmp_path / "x"), kernel=kernel) as recording:
            assert recording.finish().notes == ()
        profile = open_profile(str(tmp_path / "x"))
        assert [(m.name, m.kind) for m in profile.modules] == [
            ("[kernel.kallsyms]", ModuleKind.KERNEL),
            ("[ext4]", ModuleKind.KERNEL_MODULE),
        ]
        kernel.contents["/proc/kallsyms"] = "0000000000000000 T _text\n0000000000000000 T _etext\n"
        with Recording(Request(LAUNCH, branches=everything), str(tmp_path / "x"), kernel=kernel) as recording:
            assert "kptr_restrict" in recording.finish().notes[0]

    def test_attaching_opens_every_thread_until_none_is_new_and_no_inherited_one(self, tmp_path: Path) -> None:
        kernel = self.kernel()
        threads = [["77"], ["77", "80", "81"], ["77", "80", "81", "82", "83"], ["77", "80", "82", "83"]]
        started: set[int] = set()
        listed = iter([threads[0], *threads])  # the first one chooses a thread to try the events on

        def tasks() -> list[str]:
            now = next(listed, threads[-1])
            for tid, parent, cpu in ((80, 77, 0), (82, 81, 1)):  # started by those that had their events already
                if str(tid) in now and tid not in started:
                    started.add(tid)
                    kernel.rings[cpu].pending.append(fork(parent, tid))
            return now

        kernel.folders["/proc/77/task"] = tasks
        kernel.gone.add(83)
        with Recording(Request(Target(77)), str(tmp_path / "x"), kernel=kernel) as recording:
            assert sorted({tid for _, tid, _ in kernel.opened.values()}) == [77, 81]
            recording.finish()
        forks = perfdata_writer.parse((tmp_path / "x").read_bytes()).named("FORK")
        early = [(f.fields["ptid"], f.fields["tid"]) for f in forks if f.fields["time"]]
        assert set(early) == {(77, 80), (81, 82)}, "records that came while threads were opened are kept"

    def test_cpu_times_are_counts_of_a_clock_without_samples(self, tmp_path: Path) -> None:
        kernel, times = self.kernel(), Times()
        with Recording(Request(LAUNCH), str(tmp_path / "x"), kernel=kernel, times=times) as recording:
            kernel.rings[0].pending = [fork(77, 78), fork(77, 79)]
            times.over = [Ran(77, 78, 1_500_000, time.monotonic_ns()), Ran(4000, 4000, 5, time.monotonic_ns())]
            recording.drain(0)
            assert [t.cpu_ns for t in open_profile(str(tmp_path / "x")).threads if t.tid == 78] == [1_500_000]
            times.over = [Ran(77, 79, 7, time.monotonic_ns()), Ran(os.getpid(), 1, 5, time.monotonic_ns())]
            recording.finish()
        assert set(times.asked) == {(77, 77), (77, 78), (77, 79)}, "what the file names may still run"
        profile = open_profile(str(tmp_path / "x"))
        assert not profile.damage
        assert [e.name for e in profile.events] == ["r20c4", "dummy:u", "cpu-clock"]
        assert {t.tid: t.cpu_ns for t in profile.threads} == {77: 1000, 78: 1_500_000, 79: 7}
        assert {p.pid: p.cpu_ns for p in profile.processes} == {1: None, 77: 1_501_007}

    def test_cpu_times_of_what_is_attached_are_opened_and_where_there_are_none_there_is_no_clock(
        self, tmp_path: Path
    ) -> None:
        kernel, times = self.kernel(), Times()
        kernel.folders["/proc/77/task"] = lambda: ["77", "80"]
        with Recording(Request(Target(77)), str(tmp_path / "x"), kernel=kernel, times=times):
            assert times.attached == [(77, [77, 80])]
        times.works = False
        with Recording(Request(Target(77)), str(tmp_path / "x"), kernel=kernel, times=times) as recording:
            recording.finish()
        assert [e.name for e in open_profile(str(tmp_path / "x")).events] == ["r20c4", "dummy:u"]

    def test_a_process_that_has_ended_is_refused(self, tmp_path: Path) -> None:
        kernel = self.kernel()
        kernel.folders["/proc/77/task"] = list
        with pytest.raises(UnavailableError, match="process 77 does not exist"):
            Recording(Request(Target(77)), str(tmp_path / "x"), kernel=kernel)
        assert not kernel.opened

    def test_more_descriptors_are_asked_for_before_giving_up(self, tmp_path: Path) -> None:
        kernel = self.kernel(most_files=3)
        kernel.more = 100
        with Recording(Request(LAUNCH), str(tmp_path / "x"), kernel=kernel):
            assert len(kernel.opened) == 4
        kernel = self.kernel(most_files=3)
        with pytest.raises(UnavailableError, match="about 4 open files") as caught:
            Recording(Request(LAUNCH), str(tmp_path / "x"), kernel=kernel)
        assert "ulimit -n" in (caught.value.hint or "")
        assert not kernel.opened

    def test_rings_shrink_to_what_may_be_locked(self, tmp_path: Path) -> None:
        kernel = self.kernel(most_pages=16)
        with Recording(Request(LAUNCH), str(tmp_path / "x"), kernel=kernel):
            assert len(kernel.rings) == 2
        kernel = self.kernel(most_pages=2)
        with pytest.raises(UnavailableError, match="no memory"):
            Recording(Request(LAUNCH), str(tmp_path / "x"), kernel=kernel)
        assert not kernel.opened

    def test_an_old_kernel_does_not_count_losses_and_the_summary_says_so(self, tmp_path: Path) -> None:
        kernel = self.kernel(replace(fake.SKYLAKE, format_lost=False))
        with Recording(Request(LAUNCH), str(tmp_path / "x"), kernel=kernel) as recording:
            summary = recording.finish()
        assert summary.lost is None
        assert "Linux before 6.0" in summary.notes[0]


def test_the_attribute_in_the_file_is_as_short_as_its_contents_allow(tmp_path: Path) -> None:
    for config3, size in ((0, 128), (9, 136)):
        attr = bytearray(136)
        struct.pack_into("=II", attr, 0, 1, 136)
        struct.pack_into("=Q", attr, 128, config3)
        file = PerfFile(str(tmp_path / "x"), [Described("e", bytes(attr), [7])])
        file.write(writer.record("FINISHED_ROUND", b""))
        file.finish({})
        (parsed,) = perfdata_writer.parse((tmp_path / "x").read_bytes()).attrs
        assert parsed.fields["size"] == size
        assert parsed.fields.get("config3", 0) == config3


def test_the_build_id_of_the_running_kernel_is_among_its_notes() -> None:
    kernel = FakeKernel(fake.SKYLAKE)
    other = struct.pack("=III", 6, 5, 0x101) + b"Linux\0\0\0" + b"abcde\0\0\0"
    notes = other + struct.pack("=III", 4, 20, 3) + b"GNU\0" + bytes(range(20))
    kernel.data = {"/sys/kernel/notes": notes}.get  # type: ignore[method-assign]
    assert running_build_id(read=kernel.data) == bytes(range(20))
    kernel.data = {"/sys/kernel/notes": notes[:20]}.get  # type: ignore[method-assign]
    assert running_build_id(read=kernel.data) == b""


# -- real programs, by the CPU clock


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Callable[[Target], Recording]]:
    """Record by the CPU clock, 1000 times a second; skipped where perf events are not allowed."""
    made = []

    def start(target: Target, event: str = "cpu-clock:u") -> Recording:
        request = Request(target, event=event, branches=0, frequency=1000, command_line=("test",))
        try:
            made.append(Recording(request, str(tmp_path / "clock.data")))
        except UnavailableError as error:
            pytest.skip(f"perf events: {error}")
        return made[-1]

    yield start
    for recording in made:
        recording.close()


BUSY = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: sum(range(500))"
FEWEST = 80
"""Samples of 400 that must come, one each millisecond: a host that lends its processors to others takes their time."""


def recorded(recording: Recording, tmp_path: Path) -> Profile:
    while recording.drain(0.05):
        pass
    assert recording.finish().lost == 0
    profile = open_profile(str(tmp_path / "clock.data"))
    assert not profile.damage
    return profile


def launched(clock: Callable[[Target], Recording], *command: str) -> tuple[subprocess.Popen[bytes], Recording]:
    """``command``, started by a shell that waits until the events are open."""
    child = subprocess.Popen(["sh", "-c", 'read line; exec "$@"', "sh", *command], stdin=subprocess.PIPE)
    try:
        recording = clock(Target(child.pid, before_exec=True))
    finally:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
    return child, recording


def test_a_program_is_recorded_from_its_exec_to_its_end(clock: Callable[[Target], Recording], tmp_path: Path) -> None:
    child, recording = launched(clock, sys.executable, "-c", BUSY)
    profile = recorded(recording, tmp_path)
    assert child.wait() == 0
    used = profile.samples / 1000
    assert FEWEST / 1000 < used < 1.5, "a sample each millisecond of CPU time"
    (process,) = [p for p in profile.processes if p.pid == child.pid and p.name != "sh"]
    assert process.name.startswith("python")
    interpreter = os.path.realpath(sys.executable)
    assert interpreter in {m.binary for m in profile.modules}, "identified by the build id in its mapping"
    assert profile.header["command line"] == "test"
    assert abs(profile.clock.wall_ns(profile.first_time) / 1e9 - time.time()) < 60  # type: ignore[operator, arg-type]


def test_children_are_recorded_too(clock: Callable[[Target], Recording], tmp_path: Path) -> None:
    script = f"{sys.executable} -c '{BUSY}' & {sys.executable} -c '{BUSY}' & wait"
    child, recording = launched(clock, "sh", "-c", script)
    profile = recorded(recording, tmp_path)
    assert child.wait() == 0
    (counts,) = [np.unique(batch.pid, return_counts=True)[1] for batch in profile.batches()]
    assert sum(int(c) > FEWEST for c in counts) == 2


THREADS = """
import sys, threading, time
opened = threading.Event()
def work():
    opened.wait()
    end = time.thread_time() + 0.08
    while time.thread_time() < end: sum(range(500))
def spawn():
    for _ in range(4):
        threading.Thread(target=work).start(); time.sleep(0.002)
print(flush=True)
for _ in range(3): threading.Thread(target=spawn).start()
sys.stdin.read()
opened.set()
"""


@pytest.mark.parametrize("pause", [0, 0.003], ids=["", "slowly"])
def test_attaching_counts_each_thread_once(
    pause: float, clock: Callable[[Target], Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads start while events are opened, and inherit those that are: each has a sample per ms of CPU time."""
    open_event = event_set.open_event

    def opened(*event: Any) -> int:
        time.sleep(pause)
        return open_event(*event)

    monkeypatch.setattr(event_set, "open_event", opened)
    child = subprocess.Popen([sys.executable, "-c", THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    recording = clock(Target(child.pid))
    child.stdin.close()
    profile = recorded(recording, tmp_path)
    assert child.wait() == 0
    child.stdout.close()
    counts: dict[int, int] = {}
    for batch in profile.batches():
        for tid, count in zip(*(c.tolist() for c in np.unique(batch.tid, return_counts=True)), strict=True):
            counts[tid] = counts.get(tid, 0) + count
    busy = [n for n in counts.values() if n > 20]
    assert len(busy) == 12, counts
    assert max(busy) < 150, counts  # 80 ms each; twice would be 160


def test_the_whole_system_by_the_clock(clock: Callable[..., Recording], tmp_path: Path) -> None:
    recording = clock(Target(), "cpu-clock")
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    recording.drain(0)
    recording.finish()
    profile = open_profile(str(tmp_path / "clock.data"))
    assert profile.samples > FEWEST
    assert os.getpid() in {p.pid for p in profile.processes}
    names = {m.name for m in profile.modules if m.kind is ModuleKind.KERNEL}
    assert names in ({"[kernel.kallsyms]"}, set())


def test_losses_are_accounted(clock: Callable[..., Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings of four pages that nobody empties: what the kernel dropped is counted, what it kept is there."""
    monkeypatch.setattr(event_set, "PAGES", 4)
    on_one = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"  # each processor has a ring
    child, recording = launched(clock, sys.executable, "-c", on_one + BUSY.replace("0.4", "1.2"))
    child.wait()
    summary = recording.finish()
    profile = open_profile(str(tmp_path / "clock.data"))
    room = 4 * os.sysconf("SC_PAGESIZE") // 56  # bytes of one of these samples
    assert summary.lost
    assert profile.lost["samples"] == summary.lost
    assert 0 < profile.samples <= 2 * room
    assert 3 * FEWEST / 1000 < (profile.samples + summary.lost) / 1000 < 3, "kept and lost together are the CPU time"


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_perf_reads_the_same_samples(clock: Callable[[Target], Recording], tmp_path: Path) -> None:
    child, recording = launched(clock, sys.executable, "-c", BUSY)
    profile = recorded(recording, tmp_path)
    child.wait()
    fields = ["perf", "script", "--ns", "-F", "pid,tid,cpu,time,event,ip,period", "-i", str(tmp_path / "clock.data")]
    done = subprocess.run(fields, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    line = re.compile(r"\s*(\d+)/(\d+) +\[(\d+)\] +(\d+)\.(\d{9}): +(\d+) +cpu-clock: +([0-9a-f]+)")
    lines = [found for found in map(line.match, done.stdout.splitlines()) if found]
    theirs = sorted((*map(int, found.groups()[:-1]), int(found[7], 16)) for found in lines)
    ours = []
    for batch in profile.batches():
        columns = (batch.pid, batch.tid, batch.cpu, batch.time, batch["period"], batch.ip)
        for pid, tid, cpu, at, period, ip in zip(*(c.tolist() for c in columns), strict=True):
            ours.append((pid, tid, cpu, at // 10**9, at % 10**9, period, ip))
    assert theirs == sorted(ours)
    assert len(ours) > FEWEST
    header = subprocess.run([*fields[:1], "report", "--header-only", "-i", fields[-1]], capture_output=True, text=True)
    assert "cmdline : test" in header.stdout
    assert "unknown" not in header.stderr


@pytest.mark.skipif(os.path.isdir("/sys/bus/event_source/devices/cpu"), reason="this machine has counters")
def test_without_counters_the_refusal_has_its_errno_and_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"\(E[A-Z]+\)$") as caught:
        Recording(Request(Target(os.getpid(), before_exec=True)), str(tmp_path / "x"))
    assert caught.value.hint
    assert not (tmp_path / "x").exists()


# -- from end to end


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., tuple[HardwareSummary, Path]]:
    """``record(target, output name, duration=...)`` by the CPU clock."""
    wanted = Request(Target(), event="cpu-clock:u", branches=0, frequency=1000, command_line=("lastbranch",))

    def run(target: Sequence[str] | int | None, name: str = "out.data", **more: float) -> tuple[HardwareSummary, Path]:
        try:
            return record_hardware(target, wanted, str(tmp_path / name), **more), tmp_path / name
        except EventUnavailable as error:
            pytest.skip(f"perf events: {error}")

    return run


class TestEndToEnd:
    @pytest.mark.parametrize("name", ["out.data", "out.tb5"])
    def test_a_command_with_its_exit_code_in_the_form_of_the_name(self, record: Callable[..., Any], name: str) -> None:
        summary, path = record([sys.executable, "-c", BUSY + "\nimport sys; sys.exit(7)"], name)
        assert (summary.exit_code, summary.lost) == (7, 0)
        profile = open_profile(str(path))
        assert profile.format == ("perf.data" if name == "out.data" else "tb5")
        assert profile.samples > FEWEST
        assert not list(path.parent.glob(".lastbranch-*")), "the temporary file is gone"

    @pytest.mark.parametrize(("what", "many"), [("threads", 100), ("processes", 48)])
    def test_what_a_command_starts_has_its_cpu_time_however_short(
        self, record: Callable[..., Any], tmp_path: Path, what: str, many: int
    ) -> None:
        with CpuTimes() as times:
            if not times.works:
                pytest.skip("this kernel writes no record of threads that end")
        _, path = record([str(build(tmp_path, "brief")), what, str(many), "500000"])
        profile = open_profile(str(path))
        assert len(profile.threads) == many + 1
        assert not [thread for thread in profile.threads if thread.cpu_ns is None]

    def test_a_process_that_is_attached_has_its_cpu_time_when_it_runs_on(self, record: Callable[..., Any]) -> None:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
            try:
                _, path = record(child.pid, duration=0.4)
            finally:
                child.kill()
        (process,) = [p for p in open_profile(str(path)).processes if p.pid == child.pid]
        if process.cpu_ns is None:
            pytest.skip("this kernel writes no record of threads that end")
        assert 0.01 < process.cpu_ns / 1e9 < 10

    def test_a_command_that_a_signal_ends(self, record: Callable[..., Any]) -> None:
        assert record(["sh", "-c", "kill -9 $$"])[0].exit_code == 128 + 9

    def test_a_command_that_cannot_be_executed_leaves_no_file(self, tmp_path: Path, record: Callable[..., Any]) -> None:
        for command, code in ((["/no/such/program"], 127), (["/etc/passwd"], 126)):
            with pytest.raises(RunError, match=command[0]) as caught:
                record(command)
            assert caught.value.exit_code == code
        assert not list(tmp_path.iterdir())

    def test_what_is_refused_is_never_executed(self, tmp_path: Path) -> None:
        wanted = Request(Target(), event="cpu-clock:u", frequency=1000)  # the clock cannot carry branches
        children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
        before = set(children.read_text().split())  # of other tests, too
        with pytest.raises(UnavailableError):
            record_hardware(["touch", str(tmp_path / "ran")], wanted, str(tmp_path / "x.data"))
        assert not list(tmp_path.iterdir())
        assert set(children.read_text().split()) <= before

    def test_a_duration_ends_the_recording_and_lets_the_program_run_on(self, record: Callable[..., Any]) -> None:
        child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            summary, path = record(child.pid, duration=0.4)
            assert child.poll() is None
            assert (summary.exit_code, 0.4 <= summary.seconds < 60) == (None, True)
            assert {p.pid for p in open_profile(str(path)).processes} >= {child.pid}
        finally:
            child.kill()
            child.wait()

    def test_an_older_file_is_kept(self, record: Callable[..., Any], tmp_path: Path) -> None:
        (tmp_path / "out.data").write_text("older")
        record(["true"])
        assert (tmp_path / "out.data.old").read_text() == "older"

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 5)])
    def test_the_first_signal_is_the_programs(self, tmp_path: Path, number: signal.Signals, code: int) -> None:
        """Sent to the recorder alone, it is passed on; the program's own answer is the exit code."""
        program = "trap 'exit 5' INT; echo ready; while :; do sleep 0.05; done"
        script = (
            "import sys\nfrom lastbranch.capture import Request, Target, record_hardware\n"
            "wanted = Request(Target(), event='cpu-clock:u', branches=0)\n"
            f"sys.exit(record_hardware(['sh', '-c', {program!r}], wanted, {str(tmp_path / 'x.data')!r}).exit_code)"
        )
        recorder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert recorder.stdout is not None
        if recorder.stdout.readline() != b"ready\n":
            pytest.skip(f"perf events: {recorder.communicate()[1].decode()[-200:]}")
        recorder.send_signal(number)
        recorder.communicate(timeout=60)
        assert recorder.returncode == code
        assert open_profile(str(tmp_path / "x.data")).records["COMM"] >= 1


class Group(ProcessGroup):
    """Processes as a test says."""

    shown = "a group"

    def __init__(self, *pids: int) -> None:
        self.pids = set(pids)

    def members(self) -> set[int]:
        return set(self.pids)


def joined_sample(kernel: FakeKernel, tid: int, at: int) -> bytes:
    """A sample of the events that are open on ``tid``."""
    found = (1000 + fd for fd, (attr, of, cpu) in kernel.opened.items() if attr.stacks and of == tid and cpu == 0)
    return sample(next(found), 0x1000 + tid, tid, at, [(0xA0, 0xB0, 2)])


def test_processes_that_join_a_group_get_events_unless_they_inherited_them(tmp_path: Path) -> None:
    path, kernel, group = tmp_path / "x.data", TestOnAFakeKernel().kernel(), Group(77)
    for pid in (78, 79, 80):
        kernel.folders[f"/proc/{pid}/task"] = partial(list, [str(pid)])
        kernel.contents[f"/proc/{pid}/task/{pid}/comm"] = f"app{pid}\n"
    with Recording(Request(Target(0, group=group)), str(path), kernel=kernel) as recording:
        assert {tid for _, tid, _ in kernel.opened.values()} == {77}
        group.pids |= {78, 79}
        kernel.rings[0].pending = [forked_process(79, 77)]
        assert recording.drain(0)  # seen for the first time: a fork may not have been reported yet
        assert {tid for _, tid, _ in kernel.opened.values()} == {77}
        assert recording.drain(0)
        assert {tid for _, tid, _ in kernel.opened.values()} == {77, 78}
        kernel.rings[0].pending = [joined_sample(kernel, 77, 100), joined_sample(kernel, 78, 200)]
        group.pids = {80}
        assert recording.drain(0)
        assert recording.drain(0)
        kernel.rings[0].pending = [joined_sample(kernel, 80, 300)]
        assert recording.drain(0)
        group.pids = set()
        assert not recording.drain(0)
        recording.finish()
    profile = open_profile(str(path))
    assert [event.name for event in profile.events] == ["r20c4", "dummy:u"]
    (batch,) = profile.batches()
    assert list(zip(batch.tid.tolist(), batch.event.tolist(), strict=True)) == [(77, 0), (78, 0), (80, 0)]
    assert {"app78", "app80"} <= {process.name for process in profile.processes}


def forked_process(pid: int, parent: int) -> bytes:
    now = time.monotonic_ns()
    body = struct.pack("=iiiiQ", pid, parent, pid, parent, now) + struct.pack("=iiQIIQ", 77, parent, now, 0, 0, 1003)
    return struct.pack("=IHH", 7, 0, 8 + len(body)) + body
