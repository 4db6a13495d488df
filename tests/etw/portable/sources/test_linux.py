"""This machine's kernel: what programs did, by their own account, /proc and getrusage, is what the trace says."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lastbranch.bind import Binder
from lastbranch.capture.perf_events.linux_kernel import Kernel
from lastbranch.etw.portable import profile_sources
from lastbranch.etw.portable.enable_map import normalised_masks
from lastbranch.etw.portable.sources import check
from lastbranch.etw.portable.sources.configuration import SourceConfiguration
from lastbranch.etw.portable.sources.kinds import has_tracefs
from lastbranch.etw.portable.sources.recorder import Recorder
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.status import EtwError, Status
from lastbranch.formats.etl import Decoder, Event, TraceLog, events_of
from lastbranch.model import Change, Profile
from lastbranch.opening import FileSource, open_profile
from source_tools import Kept, record_log

SYSTEM = SessionRequest("NT Kernel Logger")
CSWITCH, FAULTS, SYSCALLS, TIMER = 0x10, 0x3000, 0x80, 0x1000000
LIVES = 7


def refusal(*masks: int) -> str:
    if sys.platform != "linux":
        return "perf events are of Linux"
    try:
        check(SYSTEM, masks)
    except EtwError as error:
        return str(error)
    return ""


needs_system = pytest.mark.skipif(bool(refusal(LIVES)), reason=f"events of the whole system: {refusal(LIVES)}")
needs_tracepoints = pytest.mark.skipif(bool(refusal(SYSCALLS)), reason=f"tracepoints: {refusal(SYSCALLS)}")


def configuration(*masks: int, **more: Any) -> SourceConfiguration:
    return SourceConfiguration(masks=tuple(normalised_masks(masks)), **more)


class Recorded:
    """A log, and the process that ran while it was recorded."""

    def __init__(self, path: Path, wanted: SourceConfiguration, program: str) -> None:
        def action(recorder: Recorder) -> None:
            child = subprocess.Popen(
                [sys.executable, "-B", "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
            )
            self.pid = child.pid
            assert child.stdout is not None
            reader = threading.Thread(target=lambda: self.lines.extend(child.stdout or []))
            reader.start()
            while True:
                pid, status, self.usage = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    break
                recorder.round()
                time.sleep(0.02)
            reader.join()
            child.returncode = os.waitstatus_to_exitcode(status)
            assert child.returncode == 0

        self.path = path
        for _ in range(5):  # on a machine so busy that the rings overflow, again
            self.lines: list[str] = []
            if record_log(path, wanted, action).lost_events == 0:
                break
        else:
            pytest.skip("this machine is too busy to record everything on it")
        self.profile: Profile = open_profile(str(path))
        assert not self.profile.damage

    @property
    def said(self) -> list[list[int]]:
        """The numbers of each line that the program printed."""
        return [[int(word, 0) for word in line.split()] for line in self.lines]

    def events(self, *hooks: int) -> Iterator[tuple[Event, dict[str, Any]]]:
        """Events of kernel hooks with their fields."""
        source, decoder = FileSource(str(self.path)), Decoder()
        try:
            for block in TraceLog(source).blocks():
                for event in events_of(block):
                    if event.hook in hooks:
                        yield event, decoder.decode(event).fields
        finally:
            source.close()


def load_segments(path: str) -> list[tuple[int, int, int]]:
    """(link address, file offset, bytes in the file) of the PT_LOAD headers of a 64-bit little-endian ELF file."""
    data = Path(path).read_bytes()
    (table,), (size, count) = struct.unpack_from("<Q", data, 0x20), struct.unpack_from("<HH", data, 0x36)
    found = []
    for i in range(count):
        kind, _, offset, address, _, file_size = struct.unpack_from("<IIQQQQ", data, table + i * size)
        found += [(address, offset, file_size)] if kind == 1 else []
    return found


Record = Callable[[SourceConfiguration, str], Recorded]


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Profile sources that every machine can count: numbers of the processor's that stand for software events here."""
    table = {2: "page-faults", 6: "context-switches", 10: "cpu-clock"}
    for number, event in table.items():
        monkeypatch.setitem(profile_sources._GENERIC, number, (event, event))
    return {event: number for number, event in table.items()}


@pytest.fixture
def recorded(tmp_path: Path) -> Record:
    return lambda wanted, program: Recorded(tmp_path / "x.etl", wanted, program)


@needs_system
class TestLives:
    def test_processes_and_threads(self, recorded: Record) -> None:
        made = recorded(
            configuration(LIVES),
            """
            import os, subprocess, threading
            for _ in range(5):
                child = subprocess.Popen(["sleep", "0"])
                child.wait()
                print(child.pid)
            threads = [threading.Thread(target=lambda: print(-threading.get_native_id())) for _ in range(5)]
            for thread in threads:
                thread.start()
                thread.join()
            """,
        )
        numbers = [number for (number,) in made.said]
        children, threads = [n for n in numbers if n > 0], [-n for n in numbers if n < 0]
        assert (len(children), len(threads)) == (5, 5)
        begun = {f["ProcessID"]: f["ParentID"] for _, f in made.events(0x0301)}
        assert dict.fromkeys(children, made.pid).items() <= begun.items()
        assert begun[made.pid] == os.getpid()
        assert {made.pid, *children} <= {f["ProcessID"] for _, f in made.events(0x0302)}
        names = {f["ThreadID"]: f["ThreadName"] for _, f in made.events(0x0548)}
        assert {names[pid] for pid in children} == {"sleep"}
        for hook in (0x0501, 0x0502):
            assert {(made.pid, tid) for tid in threads} <= {
                (f["ProcessID"], f["ThreadID"]) for _, f in made.events(hook)
            }
        assert {p.pid for p in made.profile.processes} >= {made.pid, os.getpid(), 1, *children}

    def test_what_ran_all_along_is_listed(self, recorded: Record) -> None:
        before = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        made = recorded(configuration(LIVES), "")
        after = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        ended = {f["ProcessID"] for _, f in made.events(0x0302)}  # one whose parent does not wait for it stays in /proc
        assert before & after <= {f["ProcessID"] for _, f in made.events(0x0303)}
        assert before & after - ended <= {f["ProcessID"] for _, f in made.events(0x0304)}
        mine = {f["ThreadID"] for _, f in made.events(0x0503) if f["ProcessID"] == os.getpid()}
        assert {int(name) for name in os.listdir("/proc/self/task")} <= mine

    def test_images_are_where_proc_has_them(self, recorded: Record) -> None:
        made = recorded(
            configuration(LIVES),
            """
            import _decimal, os
            for line in open("/proc/self/maps"):
                place, mode, offset, _, _, *path = line.split()
                if mode[2] == "x" and path and path[0].startswith("/"):
                    start, end = place.split("-")
                    print(f"0x{start} 0x{end} 0x{offset}")
            """,
        )
        mapped = {(s, e, o) for s, e, o in made.said}
        assert len(mapped) > 3
        columns = made.profile.timeline.columns()
        maps = (columns["kind"] == Change.MAP) & (columns["pid"] == made.pid)
        told = zip(*(columns[name][maps].tolist() for name in ("start", "end", "offset", "module")), strict=True)
        modules = {(start, end, offset): made.profile.modules[row] for start, end, offset, row in told}
        assert mapped <= modules.keys()
        libc = next(m for m in modules.values() if "libc.so" in m.name or "libc-" in m.name or "musl" in m.name)
        assert len(libc.build_id) in (16, 20)
        elsewhere = open_profile(str(made.path), symfs=str(made.path.parent))  # where no binary is
        told = next(m for m in elsewhere.modules if m.name == libc.name)
        assert [(s.address, s.offset, s.size) for s in told.segments] == load_segments(libc.name)


@needs_system
class TestSwitches:
    def test_as_many_as_getrusage_counts(self, recorded: Record) -> None:
        made = recorded(configuration(CSWITCH), "import time\nfor _ in range(200): time.sleep(0.0005)")
        left = [f for _, f in made.events(0x0524) if f["OldThreadID"] == made.pid]
        counted = made.usage.ru_nvcsw + made.usage.ru_nivcsw
        assert counted >= 200
        assert counted - 1 <= len(left) <= counted + 2  # its last one comes after it was counted
        if not refusal(SYSCALLS):
            waits = Counter(f["OldThreadState"] for f in left)
            assert abs(waits[5] + waits["Wait"] - made.usage.ru_nvcsw) <= 2

    def test_on_a_processor_it_leaves_where_it_came(self, recorded: Record) -> None:
        for _ in range(3):  # the kernel now and then leaves out records of switches, and many at once on a busy machine
            made = recorded(configuration(CSWITCH), "import time\nfor _ in range(50): time.sleep(0.001)")
            running: dict[int, int] = {}
            stays = missing = 0
            for event, fields in made.events(0x0524):
                before = running.get(event.cpu, -1)
                if made.pid in (before, fields["OldThreadID"]) and before >= 0:
                    stays += before == fields["OldThreadID"]
                    missing += before != fields["OldThreadID"]
                running[event.cpu] = fields["NewThreadID"]
            if stays >= 50 and missing <= 0.1 * stays:
                break
        assert stays >= 50
        assert missing <= 0.1 * stays


@needs_system
class TestFaults:
    def test_each_page_that_is_touched_faults_once(self, recorded: Record) -> None:
        made = recorded(
            configuration(0x1000),
            """
            import ctypes, mmap
            area = mmap.mmap(-1, 500 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            area.madvise(mmap.MADV_NOHUGEPAGE)
            for page in range(500):
                area[page * mmap.PAGESIZE] = 1
            print(ctypes.addressof(ctypes.c_char.from_buffer(area)), mmap.PAGESIZE)
            """,
        )
        ((begin, page),) = made.said
        hit = Counter(
            f["VirtualAddress"] // page * page
            for e, f in made.events(0x020A)
            if e.pid == made.pid and begin <= f["VirtualAddress"] < begin + 500 * page
        )
        assert hit == dict.fromkeys(range(begin, begin + 500 * page, page), 1)

    def test_about_as_many_as_getrusage_counts(self, recorded: Record) -> None:
        made = recorded(configuration(FAULTS), "x = bytearray(20_000_000)")
        soft = sum(e.pid == made.pid for e, _ in made.events(0x020A))
        assert abs(soft - made.usage.ru_minflt) <= 0.05 * made.usage.ru_minflt + 40  # exec faults without registers
        hard = sum(e.pid == made.pid for e, _ in made.events(0x020E))
        assert hard == sum(f["ThreadID"] == made.pid for _, f in made.events(0x0220))
        assert abs(hard - made.usage.ru_majflt) <= 5 + 0.05 * made.usage.ru_majflt


TOUCH = """
    import mmap, os, time
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    area = mmap.mmap(-1, 500 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(500):
        area[page * mmap.PAGESIZE] = 1
        if page % 25 == 0:
            time.sleep(0.001)
"""


@needs_system
class TestCounters:
    """Values in headers are those of software events, which count as those of a processor do."""

    def by_processor(self, made: Recorded, *hooks: int) -> dict[int, list[Event]]:
        found: dict[int, list[Event]] = {}
        for event, _ in made.events(*hooks):
            found.setdefault(event.cpu, []).append(event)
        return found

    def test_they_count_what_the_other_events_tell(self, recorded: Record, counters: dict[str, int]) -> None:
        asked = tuple(counters[name] for name in ("page-faults", "context-switches", "cpu-clock"))
        wanted = configuration(0x1000 | CSWITCH, stack_hooks=(0x020A,), pmc_hooks=(0x020A, 0x020E), pmc_counters=asked)
        made = recorded(wanted, TOUCH)
        assert [len(f["Names"]) for _, f in made.events(0x0F30)] == [3, 3]
        assert not any(event.counters for event, _ in made.events(0x0524, 0x1820))
        switched = self.by_processor(made, 0x0524)
        told = faults = 0
        for cpu, events in self.by_processor(made, 0x020A, 0x020E).items():
            assert {len(event.counters) for event in events} == {3}
            # What happened while the session began has the time of its begin.
            events = [event for event in events if event.time > events[0].time]
            if not events:
                continue
            for before, after in pairwise(events):
                assert all(a >= b for a, b in zip(after.counters, before.counters, strict=True))
            first, last = events[0], events[-1]
            rise = [a - b for a, b in zip(last.counters, first.counters, strict=True)]
            own = len(events) - 1
            # A fault that moves to another processor, or ends badly, is recorded elsewhere than counted, or nowhere.
            assert abs(rise[0] - own) <= 20 + 0.05 * own
            switches = sum(first.time < event.time <= last.time for event in switched.get(cpu, []))
            # Records of switches, which stand in where there is no tracefs, now and then leave out some.
            assert -2 <= rise[1] - switches <= 20 + 0.1 * switches
            assert abs(rise[2] - (last.time - first.time)) <= 2e7 + 0.02 * (last.time - first.time)
            told, faults = told + own, faults + rise[0]
        assert told >= 500
        assert made.usage.ru_minflt * 0.9 <= faults

    def test_interrupts_of_a_counter_have_its_count(self, recorded: Record, counters: dict[str, int]) -> None:
        number = counters["page-faults"]
        wanted = configuration(
            0, 0x400, pmc_sources=(number,), intervals={number: 50}, pmc_hooks=(0x0F2F,), pmc_counters=(number,)
        )
        made = recorded(wanted, TOUCH)
        steps = [
            after.counters[0] - before.counters[0]
            for events in self.by_processor(made, 0x0F2F).values()
            for before, after in pairwise(events)
        ]
        assert len(steps) >= 400
        assert set(steps) == {1}  # the kernel takes software events one by one where their periods are recorded

    @pytest.mark.skipif(bool(refusal(0, 0x400)), reason=f"counters: {refusal(0, 0x400)}")
    def test_those_of_the_processor_are_counted_beside_its_samples(self, recorded: Record) -> None:
        cycles, instructions, each = 19, 2, 10_000_000
        wanted = configuration(
            0,
            0x400,
            pmc_sources=(cycles,),
            intervals={cycles: each},
            pmc_hooks=(0x0F2F,),
            pmc_counters=(cycles, instructions),
        )
        try:
            made = recorded(wanted, BUSY)
        except EtwError as error:
            pytest.skip(f"fewer counters than three are free: {error}")
        steps = [
            [new - old for old, new in zip(before.counters, after.counters, strict=True)]
            for events in self.by_processor(made, 0x0F2F).values()
            for before, after in pairwise(events)
        ]
        assert len(steps) >= 10
        assert sum(0.9 * each <= step[0] <= 1.1 * each for step in steps) >= 0.9 * len(steps)
        assert all(step[1] > 0 for step in steps)
        (names, _) = (f["Names"] for _, f in made.events(0x0F30))
        assert names == ["TotalCycles", "TotalIssues"]

    def test_the_command_line_shows_them(self, recorded: Record, counters: dict[str, int], run: Any) -> None:
        wanted = configuration(
            LIVES | TIMER, intervals={0: 50_000}, pmc_hooks=(0x0F2E,), pmc_counters=(counters["context-switches"],)
        )
        made = recorded(wanted, TOUCH)
        for words in (("info",), ("report", "--by", "module")):  # the names of all that runs here would take long
            assert run(words[0], made.path, *words[1:]).code == 0
        assert "PMC counters are configured" not in run("check", made.path).out  # with a group off that they need not
        done = run("dump", made.path, "--event", "PerfInfo/Sample", "--format", "json")
        shown = sorted(row["fields"]["Counters"] for row in json.loads(done.out))
        assert shown == sorted(list(event.counters) for event, _ in made.events(0x0F2E))
        assert shown[-1] > [0]


@needs_tracepoints
class TestSystemCalls:
    def test_each_call_and_what_it_returned(self, recorded: Record) -> None:
        made = recorded(configuration(SYSCALLS), "import os\nfor _ in range(1000): os.getppid()")
        number = {"x86_64": 110, "aarch64": 173, "riscv64": 173}[os.uname().machine]
        entered = [e for e, f in made.events(0x0F33) if e.tid == made.pid and f["SysCallAddress"] == number]
        assert len(entered) == 1000
        returned = Counter(f["SysCallNtStatus"] for e, f in made.events(0x0F34) if e.tid == made.pid)
        assert returned[os.getpid()] >= 1000


class Counting(Kernel):
    """Keeps what each event counted: the kernel's own account of how often the event happened."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[int, int] = {}

    def read_count(self, fd: int) -> int:
        self._counts[fd] = super().read_count(fd)
        return self._counts[fd]

    @property
    def counted(self) -> int:
        return sum(self._counts.values())


@needs_tracepoints
class TestLosses:
    """What happened is delivered or counted as lost, whether or not the kernel wrote a record of the loss."""

    def test_where_nobody_reads_the_rings(self) -> None:
        """They overflow."""
        kernel, kept = Counting(), Kept()
        recorder = Recorder(configuration(SYSCALLS), kept, kernel)
        recorder.begin()
        subprocess.run([sys.executable, "-S", "-c", "import os\nfor _ in range(150_000): os.getppid()"], check=True)
        recorder.end()
        assert kernel.counted >= 300_000
        assert kept.lost_events > 0
        assert len(kept.of(0x0F33, 0x0F34)) + kept.lost_events == kernel.counted

    def test_of_threads_that_sleep_and_wake(self) -> None:
        """Processors are idle in between, where they have nothing else to do. Linux 6.18 drops some samples there."""
        kernel, kept = Counting(), Kept()
        recorder = Recorder(configuration(CSWITCH), kept, kernel)
        recorder.begin()
        subprocess.run([sys.executable, "-S", "-c", "import time\nfor _ in range(200): time.sleep(1e-3)"], check=True)
        recorder.end()
        assert kernel.counted >= 200
        assert len(kept.of(0x0524)) + kept.lost_events == kernel.counted


BUSY = """
    import os, time
    while sum(os.times()[:2]) < 0.4:
        sum(range(10_000))
"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A program that runs for 0.4 s of processor time, sampled each 0.8 ms."""
    wanted = configuration(LIVES | TIMER | CSWITCH, stack_hooks=(0x0F2E, 0x0524), intervals={0: 8_000})
    return Recorded(tmp_path_factory.mktemp("busy") / "x.etl", wanted, BUSY)


@needs_system
class TestTimer:
    def test_samples_weigh_what_the_program_ran(self, busy: Recorded) -> None:
        own = sum(int((batch.pid == busy.pid).sum()) for batch in busy.profile.batches())
        ran = busy.usage.ru_utime + busy.usage.ru_stime
        # Less where the host lends the processors to others meanwhile, which this machine takes for time it ran.
        assert 0.3 * ran <= own * 0.0008 <= 1.3 * ran
        (event,) = busy.profile.events
        assert (event.name, event.period) == ("Timer", 8_000)

    def test_stacks_begin_with_the_address_that_was_sampled(self, busy: Recorded) -> None:
        checked = 0
        for batch in busy.profile.batches():
            for i in (batch.pid == busy.pid).nonzero()[0].tolist():
                chain = batch.chain(i)
                if len(chain):
                    assert chain[0] == batch.ip[i]
                    checked += 1
        assert checked > 50

    def test_every_switch_has_a_stack_of_the_thread_that_leaves(self, busy: Recorded) -> None:
        """Where it comes from a tracepoint; the records that stand in for that have none."""
        stacks = {(f["EventTimeStamp"], f["ThreadID"]) for _, f in busy.events(0x1820)}
        left = {(e.time, f["OldThreadID"]) for e, f in busy.events(0x0524)}
        assert left
        if has_tracefs(Kernel()):
            assert left <= stacks
        else:
            sampled = {(e.time, f["ThreadID"]) for e, f in busy.events(0x0F2E)}
            assert not (left - sampled) & stacks

    def test_samples_bind_to_the_interpreter(self, busy: Recorded) -> None:
        binder, names = Binder(busy.profile), Counter[str]()
        for batch in busy.profile.batches():
            mine = batch.select((batch.pid == busy.pid) & (batch.mode == 2))
            if len(mine):
                mapping = binder.find(binder.scopes(mine), mine.ip)
                modules = [int(binder.mapping_module[row]) if row >= 0 else -1 for row in mapping.tolist()]
                names.update(busy.profile.modules[row].short if row >= 0 else "?" for row in modules)
        assert sum(names.values()) > 50
        assert names["?"] <= 2 + 0.02 * sum(names.values())
        assert any("python" in name for name, _ in names.most_common(2))

    @pytest.mark.parametrize(
        "words", [("info",), ("check",), ("stacks", "--symbol-backend", "tables", "--event", "Timer")]
    )
    def test_the_command_line_opens_it(self, busy: Recorded, run: Any, words: tuple[str, ...]) -> None:
        one = ("--pid", str(busy.pid)) if words[0] == "stacks" else ()  # others may be large
        done = run(words[0], busy.path, *words[1:], *one)
        elsewhere = words == ("check",) and "outside:" in done.out  # other programs here may run code of their making
        assert done.code == 0 or elsewhere, done.err
        assert done.out


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to stop being it")
@needs_system
def test_without_rights_1314_and_the_reason() -> None:
    if int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) <= 0:
        pytest.skip("kernel.perf_event_paranoid lets everybody see the whole system")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                check(SYSTEM, [LIVES])
                told = "0 it was permitted"
            except EtwError as error:
                told = f"{int(error.status)} {error.reason}"
            os.write(write, told.encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:
        status, _, reason = pipe.read().partition(" ")
    os.waitpid(child, 0)
    assert int(status) == Status.PRIVILEGE_NOT_HELD
    assert "perf_event_paranoid is" in reason
    assert "CAP_PERFMON" in reason
