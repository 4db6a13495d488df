"""Programs that take many signals, or begin many tasks: they are let go between bursts, which are drawn."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest

from capture_tools import Recorded, build, needs_ptrace, needs_walk, record
from command_line import run_cli
from lastbranch.capture import ptrace
from lastbranch.capture.options import Options, Summary
from lastbranch.capture.perf_events import syscall
from lastbranch.capture.procfs import stat_of
from lastbranch.capture.software.burst_runner import BurstRunner, Processors
from lastbranch.capture.software.bursts import BurstLimits
from lastbranch.capture.software.drawn_bursts import DrawnBursts
from lastbranch.capture.software.draws import DrawIntervals, Draws
from lastbranch.capture.software.losses import Losses
from lastbranch.capture.software.record_writer import RecordWriter, Sideband
from lastbranch.capture.software.schedule import PollTrigger
from lastbranch.capture.software.state import RecordingListener, RecordingSettings, RecordingState
from lastbranch.capture.software.tasks import TaskEvents
from lastbranch.capture.software.tree import Tree
from lastbranch.closing import on_failure
from waiting import until

pytestmark = needs_ptrace
SOFTWARE = ("--engine", "software")
AT_ONCE = """
from lastbranch.capture.ptrace import EVENT_EXEC, event_of
from lastbranch.capture.software.collector import Collector as C; handle = C.handle
def begin(self, tid, status): event_of(status) == EVENT_EXEC and self.drawn.begin(); handle(self, tid, status)
C.handle = begin
from lastbranch.cli import main; main()
"""
"""``python -c`` this: lastbranch that lets a program go as soon as that has been executed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


def drawn(output: Path, *words: str | Path, how: str = AT_ONCE) -> Recorded:
    """Record with ``python -c how``."""
    command = [sys.executable, "-c", how, "record", "--no-progress", *SOFTWARE, "-o", str(output), *map(str, words)]
    done = subprocess.run(command, capture_output=True, timeout=120)
    return Recorded(done.returncode, done.stdout, done.stderr.decode(), output)


def other_stops(path: Path) -> int:
    """How often the program was stopped for something other than a burst."""
    found = re.search(r"^other stops +(\d+),", run_cli("info", path).out, re.M)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("kind", ["trap", "barrier", "divide"])
def test_a_program_that_takes_signals_is_not_stopped_at_each(kind: str, folder: Path, tmp_path: Path) -> None:
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--", build(folder, "takes"), kind, "60000")
    assert (done.code, done.out) == (0, b"60000\n"), done.err
    assert other_stops(done.path) < 60000 / 4


@pytest.mark.parametrize("kind", ["trap", "barrier", "divide"])
def test_a_program_that_is_traced_all_the_time_takes_its_signals(kind: str, folder: Path, tmp_path: Path) -> None:
    """With --no-follow it cannot be let go."""
    words = ("--no-follow", "none", "--frequency", "100", "--", build(folder, "takes"), kind, "5000", "50000")
    done = record(tmp_path / "it.tb5", *SOFTWARE, *words)
    assert (done.code, done.out) == (0, b"5000\n"), done.err
    assert other_stops(done.path) >= 5000


@pytest.mark.parametrize("kind", ["trap", "barrier", "divide", "timer"])
def test_bursts_are_drawn_from_a_program_that_takes_signals(kind: str, folder: Path, tmp_path: Path) -> None:
    program = build(folder, "takes")
    done = drawn(tmp_path / "it.tb5", "--", program, kind, "100000", "200000")
    assert (done.code, done.out) == (0, b"1\n" if kind == "timer" else b"100000\n"), done.err
    assert "it is traced during bursts only" in done.err
    profile = done.profile()
    sampled = {int(pid) for batch in profile.streams[-1].batches() for pid in batch.pid}
    assert len(sampled) == 1
    assert "compute" in run_cli("report", done.path, "--by", "function", "--format", "csv").out


def test_weights_of_drawn_bursts_add_up_to_the_time_of_the_program(folder: Path, tmp_path: Path) -> None:
    done = drawn(tmp_path / "it.tb5", "--", build(folder, "takes"), "trap", "1", "1000000")
    bursts = sum(int(batch.period.sum()) for batch in done.profile().streams[-1].batches())
    samples = sum(int(batch.period.sum()) for batch in done.profile().streams[0].batches())
    assert bursts == pytest.approx(samples, rel=0.25)


def test_bursts_are_drawn_from_processes_that_soon_end(folder: Path, tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 700 ]; do /bin/true; i=$((i+1)); done"
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--", "sh", "-c", script)
    assert done.code == 0, done.err
    processes = [int(pid) for batch in done.profile().streams[-1].batches() for pid in batch.pid]
    assert len(set(processes)) > 2
    assert other_stops(done.path) < 2000


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("traps", ()),
        ("signals", ("urg", "winch", "chld", "30")),
        ("signals", ("block", "30")),
        ("signals", ("cont", "30")),
        ("threads", ()),
        ("storm", ()),
        ("timer", ()),
        ("blocked", ()),
    ],
)
def test_a_program_that_is_let_go_does_as_it_does_alone(
    program: str, words: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    command = [build(folder, program), *words]
    alone = subprocess.run(command, capture_output=True, timeout=60)
    done = drawn(tmp_path / "it.tb5", "--frequency", "200", "--duty", "30", "--", *command)
    assert (done.code, done.out) == (alone.returncode, alone.stdout), done.err


def test_a_program_that_is_executed_between_two_bursts_is_known(folder: Path, tmp_path: Path) -> None:
    first, second = build(folder, "takes"), build(folder, "timer")
    script = f"{first} trap 1 200000; exec {second}"
    done = drawn(tmp_path / "it.tb5", "--", "sh", "-c", script)
    assert done.code == 0, done.err
    listed = run_cli("report", done.path, "--by", "module", "--format", "csv").out
    assert "takes" in listed
    assert "timer" in listed


def test_a_process_that_was_attached_to_is_let_go_and_recorded_to_the_end_of_its_children(
    folder: Path, tmp_path: Path
) -> None:
    program, ready = build(folder, "takes"), tmp_path / "go"
    child = f"{program} trap 200000 1000000 & echo $! > {tmp_path}/child"
    script = f"while ! [ -e {ready} ]; do /bin/true; done; {child}; exit 3"
    command = [sys.executable, "-c", AT_ONCE, "record", "--no-progress", *SOFTWARE, "-o", str(tmp_path / "it.tb5")]
    with subprocess.Popen(["sh", "-c", script]) as shell:
        with subprocess.Popen([*command, "-p", str(shell.pid)], stderr=subprocess.PIPE) as recorder:
            until(lambda: is_traced(shell.pid))
            until(lambda: not is_traced(shell.pid))
            ready.touch()
            assert recorder.stderr is not None
            said = recorder.stderr.read().decode()
            assert recorder.wait() == 0, said
        assert shell.wait() == 3
    pid = int((tmp_path / "child").read_text())
    assert pid in {
        int(one)
        for batch in Recorded(0, b"", "", tmp_path / "it.tb5").profile().streams[-1].batches()
        for one in batch.pid
    }


CHILD_FIRST = """
from lastbranch.capture import ptrace as P
wait, held, seen = P.PassingSignals.wait, [], set()
def child_first(self, passes):
    if held:
        return held.pop()
    tid, status = wait(self, passes)
    seen.add(tid)
    if P.stopped(status) and P.event_of(status) in P.NEW_TASK and P.event_message(tid) not in seen:
        held.append((tid, status))
        while True:
            try:
                return P.wait(P.event_message(tid))
            except P.Interrupted:
                pass
    return tid, status
P.PassingSignals.wait = child_first
from lastbranch.capture.software.collector import Collector as C; handle = C.handle
def begin(self, tid, status): tid in self.state.tree.threads or self.drawn.begin(); handle(self, tid, status)
C.handle = begin
from lastbranch.cli import main; main()
"""
"""A program is let go, and the first stop of each new task comes before the event of the task that created it."""


def test_a_task_that_stops_before_the_event_of_its_parent_has_bursts(folder: Path, tmp_path: Path) -> None:
    script = f"{build(folder, 'takes')} trap 1 1000000; exit 0"
    done = drawn(tmp_path / "it.tb5", "--", "sh", "-c", script, how=CHILD_FIRST)
    assert done.code == 0, done.err
    assert "it is traced during bursts only" in done.err
    rows = run_cli("report", done.path, "--by", "function", "--format", "csv").out.splitlines()
    assert [row for row in rows if "compute" in row and "software-lbr" in row]


STOPPED = """
from lastbranch.capture.software.draws import Draws as D; cover = D.cover
def checked(self, tid):
    state = open(f"/proc/{tid}/stat").read().rpartition(")")[2].split()[0]
    print("covered in state", state, file=__import__("sys").stderr)
    cover(self, tid)
D.cover = checked
"""


def test_a_task_creates_nothing_while_it_is_covered(folder: Path, tmp_path: Path) -> None:
    """Otherwise bursts could never be drawn from what it creates then, and all that descends from this."""
    end = tmp_path / "end"
    script = f"(while ! [ -e {end} ]; do /bin/true; done) & /bin/true; touch {end}; wait"
    done = drawn(tmp_path / "it.tb5", "--", "sh", "-c", script, how=STOPPED + AT_SECOND)
    assert done.code == 0, done.err
    states = re.findall("covered in state (.)", done.err)
    assert len(states) > 1
    assert set(states) == {"t"}


AT_SECOND = """
from lastbranch.capture.ptrace import EVENT_EXEC, event_of
from lastbranch.capture.software.collector import Collector as C; handle = C.handle
def begin(self, tid, status):
    event_of(status) == EVENT_EXEC and len(self.state.tree.processes) > 2 and self.drawn.begin()
    handle(self, tid, status)
C.handle = begin
from lastbranch.cli import main; main()
"""
FAILING = """
from lastbranch.capture.software.sampler import Sampler as S; take = S.take
def fails(self, thread):
    if thread.process.name == "takes":
        raise ValueError("something odd")
    return take(self, thread)
S.take = fails
from lastbranch.cli import main; main()
"""


def test_what_fails_of_one_thread_ends_its_tracing_and_not_the_recording(folder: Path, tmp_path: Path) -> None:
    takes, timer = build(folder, "takes"), build(folder, "timer")
    script = f"{takes} trap 100 1000000; {timer}"
    done = drawn(tmp_path / "it.tb5", "--", "sh", "-c", script, how=FAILING)
    alone = subprocess.run(["sh", "-c", script], capture_output=True, timeout=60)
    assert (done.code, done.out) == (0, alone.stdout), done.err
    assert re.search(r"1 thread not recorded \(something odd\): \d+ of takes \(\d+\)", done.err), done.err
    assert "timer" in run_cli("report", done.path, "--by", "module", "--format", "csv").out


FAILING_AFTER = """
from lastbranch.capture.software.call_chains import CallChains as C
def fails(self, thread, burst):
    raise ValueError("something odd")
C.end = fails
from lastbranch.cli import main; main()
"""


def test_a_failure_after_a_burst_that_was_followed_harms_no_program(folder: Path, tmp_path: Path) -> None:
    """The thread has moved on: the signal of the trigger, which has stopped it before, is not its own."""
    command = [build(folder, "takes"), "trap", "100", "1000000"]
    done = drawn(tmp_path / "it.tb5", "--run-ahead", "never", "--", *command, how=FAILING_AFTER)
    assert (done.code, done.out) == (0, b"100\n"), done.err
    assert "1 thread not recorded (something odd)" in done.err


def test_a_thread_that_has_got_the_number_of_a_drawn_one_is_not_traced() -> None:
    state = recording_state()
    bursts = DrawnBursts(state, TaskEvents(state, RecordingListener(), None), searches=False)
    bursts.began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    time.sleep(0.05)  # longer than a clock tick: start times are in ticks
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child, on_failure(child.kill):
        bursts.trace(child.pid, child.pid, 7)
        (thread,) = state.tree.threads.values()
        assert (thread.leaves, thread.period, thread.first_weight, state.owed) == (True, 0, 0, 7)
        ptrace.wait(child.pid)
        ptrace.detach(child.pid)
        child.kill()


def test_a_process_that_somebody_else_traces_is_left_alone(folder: Path, tmp_path: Path) -> None:
    program, go = build(folder, "takes"), tmp_path / "go"
    script = f"{program} trap 1 800000 & while ! [ -e {go} ]; do :; done; wait"
    command = [
        sys.executable,
        "-c",
        AT_ONCE,
        "record",
        "--no-progress",
        *SOFTWARE,
        "-o",
        str(tmp_path / "it.tb5"),
        "--",
    ]
    with subprocess.Popen([*command, "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as recorder:
        with on_failure(go.touch):  # else the shell, and with it the recorder, would never end
            pid = int(until(lambda: running(program)))
            until(lambda: is_seized(pid))
        go.touch()
        status = 0x7F
        while ptrace.stopped(status):
            with suppress(ptrace.Interrupted):
                _, status = ptrace.wait(pid)
                if ptrace.stopped(status):
                    ptrace.cont(pid, 0 if ptrace.event_of(status) else ptrace.signal_of(status))
        out, err = recorder.communicate(timeout=60)
    assert (recorder.returncode, out, status) == (0, b"1\n", 0), err


def running(program: Path) -> str:
    """The number of a process of ``program``, if there is one."""
    return subprocess.run(["pgrep", "-f", f"^{program}"], capture_output=True, text=True).stdout.strip()


def is_seized(pid: int) -> bool:
    """Whether we trace it from now on: not while a burst runs."""
    try:
        ptrace.seize(pid, 0)
    except PermissionError:
        return False
    return True


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a namespace of process ids")
def test_bursts_are_drawn_from_processes_in_a_namespace_of_their_own(folder: Path, tmp_path: Path) -> None:
    script = f"{build(folder, 'takes')} trap 1 1000000; true"
    done = drawn(tmp_path / "it.tb5", "--", "unshare", "-pf", "sh", "-c", script)
    assert (done.code, done.out) == (0, b"1\n"), done.err
    rows = run_cli("report", done.path, "--by", "function", "--format", "csv").out.splitlines()
    assert [row for row in rows if "compute" in row and "software-lbr" in row]


def test_a_program_that_was_let_go_outlives_a_killed_recorder(folder: Path, tmp_path: Path) -> None:
    end, program = tmp_path / "end", build(folder, "takes")
    words = ("--period", "1000000000", "-o", str(tmp_path / "it.tb5"), "--")
    script = f"{program} trap 1 600000; touch {end}"
    command = [sys.executable, "-c", AT_ONCE, "record", "--no-progress", *SOFTWARE, *words, "sh", "-c", script]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as recorder:
        pid = int(until(lambda: running(program)))
        shell = parent_of(pid)
        until(lambda: not is_traced(pid) and not is_traced(shell))
        os.kill(parent_of(shell), signal.SIGKILL)
        recorder.wait()
    until(end.exists)


def parent_of(pid: int) -> int:
    found = stat_of(pid)
    assert found is not None
    return found.parent


def test_a_stopped_program_stays_stopped_while_bursts_are_drawn(folder: Path, tmp_path: Path) -> None:
    program = build(folder, "takes")
    command = [
        sys.executable,
        "-c",
        AT_ONCE,
        "record",
        "--no-progress",
        *SOFTWARE,
        "--frequency",
        "500",
        "--duty",
        "30",
    ]
    words = ("-o", str(tmp_path / "it.tb5"), "--", program, "trap", "1", "800000")
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE) as recorder:
        pid = int(until(lambda: running(program)))
        with on_failure(os.kill, pid, signal.SIGKILL):  # else nothing would end it, and we would wait for the recorder
            for _ in range(5):
                os.kill(pid, signal.SIGSTOP)
                until(lambda: is_still(pid))  # a burst stops it, too: then it has not got the signal yet
                assert is_still(pid)
                os.kill(pid, signal.SIGCONT)
            out, _ = recorder.communicate(timeout=60)
    assert (recorder.returncode, out) == (0, b"1\n")


def is_still(pid: int) -> bool:
    """Whether a process is stopped, and has not run for a moment."""
    before, state = Path(f"/proc/{pid}/schedstat").read_text().split()[0], stat_of(pid)
    time.sleep(0.05)
    stopped = state is not None and state.state in "Tt"
    return stopped and Path(f"/proc/{pid}/schedstat").read_text().split()[0] == before


MANY_KINDS = """
import os, subprocess, threading
for _ in range(30):
    assert subprocess.run(["/bin/true"]).returncode == 0  # by vfork
for uid in (0, 65534):
    if os.fork() == 0:
        os.geteuid() == 0 and os.setuid(uid)
        sum(range(3000000))
        os._exit(0)
    print(os.wait()[1])
threading.Thread(target=os.execv, args=("/bin/echo", ["echo", "executed by another thread"])).start()
sum(range(10**9))
"""


def test_vfork_other_users_and_an_exec_by_another_thread_are_as_without_a_recorder(tmp_path: Path) -> None:
    words = ("--frequency", "200", "--duty", "30", "--", sys.executable, "-u", "-c", MANY_KINDS)
    done = drawn(tmp_path / "it.tb5", *words)
    assert (done.code, done.out) == (0, b"0\n0\nexecuted by another thread\n"), done.err


@pytest.mark.parametrize("how", [AT_ONCE, "from lastbranch.cli import main; main()"], ids=["let go", "traced"])
def test_a_program_that_waits_for_its_child_outlives_the_recording(how: str, tmp_path: Path) -> None:
    """Between vfork and the end of the child it cannot be stopped."""
    source, program, go = tmp_path / "waits.c", tmp_path / "waits", tmp_path / "go"
    source.write_text(VFORK)
    subprocess.run(["cc", "-O1", "-o", program, source], check=True)
    with subprocess.Popen(["sleep", "1000"]) as other:  # which nothing but us ends
        words = ("--duration", "1", "-o", tmp_path / "it.tb5", "--", program, go, str(other.pid))
        command = [sys.executable, "-c", how, "record", "--no-progress", *SOFTWARE, *words]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
        assert not go.exists()
        other.kill()
        other.wait()
    until(go.exists)


VFORK = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words)
{
    if (!vfork()) {
        while (!kill(atoi(words[2]), 0)) usleep(1000);
        _exit(0);
    }
    return close(creat(words[1], 0600));
}
"""
"""waits FILE PID: makes FILE when the process has ended."""


def is_traced(pid: int) -> bool:
    with open(f"/proc/{pid}/status") as lines:
        return any(line.startswith("TracerPid") and line.split()[1] != "0" for line in lines)


def test_bursts_that_were_due_and_did_not_happen_are_said_in_one_line() -> None:
    def notes(summary: Summary) -> tuple[str, ...]:
        losses = Losses(Tree(), RecordWriter(BytesIO(), 0, 1, 1), summary)
        losses.skipped["the thread ended first"] += 5
        losses.note_bursts()
        return summary.notes

    said = "89 bursts that were due did not happen (84: the duty limit, 5: the thread ended first)"
    assert notes(Summary(bursts=30, throttled=84)) == (said,)
    assert notes(Summary(bursts=1000, throttled=84)) == (), "few: others have their weight"


def recording_state(*, root: int = 0, kills: bool = False) -> RecordingState:
    runner = BurstRunner(None, BurstLimits(1), Processors())
    settings = RecordingSettings(Options(), 0, root, kills, report_time=0.0)
    return RecordingState(
        settings, Tree(), runner, PollTrigger(), Sideband(), RecordWriter(BytesIO(), 0, 1, 1), Summary()
    )


@pytest.mark.parametrize(("kills", "drawn", "ends"), [(False, True, False), (False, False, True), (True, True, True)])
def test_the_end_of_an_attached_process_in_a_drawn_burst_is_not_that_of_its_children(
    kills: bool, drawn: bool, ends: bool
) -> None:
    state = recording_state(root=5, kills=kills)
    state.draws = drawn
    state.tree.add(5, 5).drawn = True
    tasks = TaskEvents(state, RecordingListener(), None)
    tasks.handle_end(5, 0)
    assert (tasks.root_status is not None) == ends


def test_a_draw_finds_what_runs_and_what_that_creates() -> None:
    draws, forks = Draws(), "input()\nimport os\nif os.fork() == 0: [None for _ in iter(int, 1)]\nos.wait()"
    with subprocess.Popen([sys.executable, "-c", forks], stdin=subprocess.PIPE) as parent:
        draws.cover(parent.pid)
        assert draws.any_left()
        before = draws.cpu()
        assert parent.stdin is not None
        parent.stdin.write(b"\n")
        parent.stdin.close()
        (child,) = until(lambda: [pid for pid, _ in found_by(draws) if pid != parent.pid])
        assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1] == str(parent.pid)
        until(lambda: draws.cpu() - before > 20_000_000)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert draws.any_left()
        os.kill(child, signal.SIGKILL)
        until(lambda: not draws.any_left())
    assert found_by(draws) == []
    draws.close()


def test_what_was_reported_after_a_draw_is_not_in_the_next_one() -> None:
    draws = Draws()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child, on_failure(child.kill):
        draws.cover(child.pid)
        until(lambda: found_by(draws))
        events = [fd for _, reporting in draws._covered.values() for fd in reporting]
        for fd in events:
            syscall.enable(fd)
        until(lambda: any(poll_now(draws)))
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: " T " in Path(f"/proc/{child.pid}/stat").read_text())
        for fd in events:
            syscall.disable(fd)
        found = found_by(draws)
        child.kill()
    draws.close()
    assert found == [], "it did not run"


def found_by(draws: Draws) -> list[tuple[int, int]]:
    with draws.running() as found:
        return found


def poll_now(draws: Draws) -> list[int]:
    """The heads of its rings that have records."""
    return [1 for ring in draws._rings.values() if ring._map[1024:1032] != ring._map[1032:1040]]


@needs_walk
def test_signals_at_whose_stops_there_is_nothing_to_do_are_passed_on_without_python() -> None:
    sends = (
        "import os, signal; signal.signal(10, lambda *_: None); input()\nfor _ in range(700): os.kill(os.getpid(), 10)"
    )
    waiting, passes, seen = ptrace.PassingSignals(), 1 << signal.SIGUSR1 - 1, []
    with subprocess.Popen([sys.executable, "-c", sends], stdin=subprocess.PIPE) as child:
        ptrace.seize(child.pid, 0)
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
        while not seen or ptrace.stopped(seen[-1][1]):
            with suppress(ptrace.Interrupted):
                seen.append(waiting.wait(passes))
        child.returncode = 0
    assert seen == [(child.pid, 0)]
    assert waiting.passed() == 700
    assert waiting.passed() == 0


def test_draws_come_as_often_as_one_burst_for_each_period_takes() -> None:
    """However few of a program's moments are in user code, and however long it sleeps."""
    period, share, busy, chance = 10_000_000, 0.2, 0.5, random.Random(1)
    intervals, cpu, found = DrawIntervals(), 0, 0
    for _ in range(20_000):
        passed = intervals.next(period)
        ran = int(passed * busy)
        hit = chance.random() < busy * share
        intervals.add(hit, ran, passed)
        cpu, found = cpu + ran, found + hit
    assert found * period / cpu == pytest.approx(1, rel=0.1)


def test_the_time_to_the_next_draw_hardly_depends_on_what_the_last_one_has_found() -> None:
    """Otherwise the code after system calls would be found too often."""

    def mean_after(found: int) -> float:
        intervals = DrawIntervals()
        for n in range(1000):
            intervals.add(n % 2, 1_000_000, 1_000_000)
        intervals.add(found, 1_000_000, 1_000_000)
        return sum(intervals.next(10_000_000) for _ in range(4000)) / 4000

    assert mean_after(0) == pytest.approx(mean_after(1), rel=0.15)


def test_a_draw_without_any_cpu_time_says_nothing_of_the_program() -> None:
    intervals = DrawIntervals()
    for _ in range(1000):
        intervals.add(0, 0, 1_000_000)
    assert intervals._found == intervals._ran


def test_a_thread_that_waits_longer_than_a_period_leaves_its_weight_to_others() -> None:
    state = recording_state()
    bursts = DrawnBursts(state, TaskEvents(state, RecordingListener(), None), searches=False)
    bursts.cpu, state.owed = 30_000_000, 5
    waits, runs = state.tree.add(7, 7), state.tree.add(8, 8)
    for thread, at in ((waits, 1_000_000), (runs, 25_000_000)):
        thread.drawn, thread.first_weight, thread.drawn_at = True, 4_000, at
    bursts.lapse(10_000_000)
    assert (waits.first_weight, waits.leaves, runs.first_weight, runs.leaves) == (0, True, 4_000, False)
    assert (state.owed, state.losses.skipped) == (4_005, {"the thread waited": 1})


def test_time_for_which_a_burst_found_no_branch_is_in_the_next_one(folder: Path, tmp_path: Path) -> None:
    """A burst ends before a system call: of three calls in a row, only the last one is followed by a branch."""
    source, program = tmp_path / "calls.c", tmp_path / "calls"
    calls = '__asm__ volatile(".rept 3\\n mov $39, %%eax\\n syscall\\n .endr" ::: "rax", "rcx", "r11", "memory");'
    source.write_text(f"int main(void) {{ for (int n = 0; n < 1000000; n++) {calls} return 0; }}")
    subprocess.run(["cc", "-O1", "-o", program, source], check=True)
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--period", "2000000", "--duty", "50", "--", program)
    assert done.code == 0, done.err
    bursts = sum(int(batch.period.sum()) for batch in done.profile().streams[-1].batches())
    used = sum(process.cpu_ns or 0 for process in done.profile().processes)
    assert bursts > used / 2
