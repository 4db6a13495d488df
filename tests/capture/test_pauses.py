"""For how long a recording stops a thread, and what it says of that."""

from __future__ import annotations

import itertools
import os
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capture_tools import FREESTANDING, build, needs_ptrace, needs_walk, record
from lastbranch.capture import recording
from lastbranch.capture.options import Options
from lastbranch.capture.perf_events.linux_kernel import Kernel
from lastbranch.capture.procfs import open_regular
from lastbranch.capture.ptrace import ticking
from lastbranch.capture.software import burst_runner, collector
from lastbranch.capture.software.burst_runner import BurstRunner, SharedProcessor
from lastbranch.capture.software.bursts import BurstLimits
from lastbranch.capture.software.call_chains import CallChains
from lastbranch.capture.software.engines import BlockStep, DebugRegisters
from lastbranch.capture.software.run_ahead import Foreseen, RunAhead
from lastbranch.capture.software.schedule import Duty
from lastbranch.capture.software.tree import Process, Thread
from lastbranch.capture.software.unwinder import AddressSpace, Unwinder
from traced_program import in_main_loop
from waiting import until

_BUSY = "n = 0\nfor i in range(3_000_000): n += i & 3"
_PRIORITY = """
import os, time
end = time.monotonic() + 60
while os.sched_getscheduler(os.getppid()) != os.SCHED_FIFO and time.monotonic() < end: time.sleep(0.001)
print(os.sched_getscheduler(os.getppid()))
"""


@pytest.fixture
def realtime() -> int:
    """Our own scheduling policy, where it may be replaced by a real-time one."""
    ours = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, ours, os.sched_param(0))
    except PermissionError:
        pytest.skip("real-time priorities are not allowed here")
    return ours


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Thread]:
    """A traced thread in `branches`, stopped in its main loop."""
    with ticking(), in_main_loop(tmp_path_factory.getbasetemp()) as thread:
        yield thread


@needs_ptrace
def test_the_recorder_waits_for_stops_with_a_real_time_priority(realtime: int, tmp_path: Path) -> None:
    """Else a thread that stops would wait for the recorder while others run."""
    done = record(tmp_path / "it.tb5", "--engine", "software", "--", sys.executable, "-c", _PRIORITY)
    assert (done.code, done.out.split()) == (0, [b"%d" % os.SCHED_FIFO]), done.err


@needs_ptrace
def test_waits_of_the_thread_do_not_shorten_the_stated_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, run, took = itertools.count(), BurstRunner.run, tmp_path / "took"

    def timed(*words: Any) -> Any:
        begun = time.perf_counter()
        try:
            return run(*words)
        finally:
            if len(words) > 3:  # else it is one of the start-up test
                with took.open("ab") as file:  # the recorder is another process
                    file.write(struct.pack("d", time.perf_counter() - begun))

    monkeypatch.setattr(Thread, "ran_and_queued", lambda thread: (0, next(waits) * 10**9))
    monkeypatch.setattr(BurstRunner, "run", timed)
    command = [sys.executable, "-c", _BUSY]
    summary = recording.record(command, Options(), str(tmp_path / "it.data"), [], lambda sentence: None)
    assert summary.in_bursts >= sum(seconds for (seconds,) in struct.iter_unpack("d", took.read_bytes())) > 0
    assert 0 < summary.longest <= summary.in_bursts


@needs_ptrace
def test_a_thread_that_runs_within_a_burst_is_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may repeat an instruction for seconds between two stops."""
    runs = itertools.count()
    monkeypatch.setattr(Thread, "ran_and_queued", lambda thread: (next(runs) * 10**11, 0))
    command = [sys.executable, "-c", _BUSY]
    summary = recording.record(command, Options(), str(tmp_path / "it.data"), [], lambda sentence: None)
    assert summary.bursts > 0
    assert summary.in_bursts == 0


@needs_ptrace
@pytest.mark.parametrize("spare", [True, False])
def test_all_that_the_recorder_takes_from_the_program_is_stated(
    spare: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops without a burst, and its own work if no processor is spare for that."""
    for module in (burst_runner, collector):
        monkeypatch.setattr(module, "spare_processor", lambda: spare)
    monkeypatch.setattr(Duty, "allows", lambda duty: False)
    command = [sys.executable, "-c", _BUSY]
    summary = recording.record(command, Options(), str(tmp_path / "it.data"), [], lambda sentence: None)
    assert summary.stops >= summary.throttled > 0 < summary.in_stops
    assert (summary.beside > 0) is not spare
    assert summary.share == pytest.approx((summary.in_bursts + summary.in_stops + summary.beside) / summary.seconds)


@pytest.mark.parametrize("spare", [True, False])
def test_the_recorder_gives_way_if_a_processor_is_spare(
    spare: bool, realtime: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burst_runner, "spare_processor", lambda: spare)
    processor = SharedProcessor()
    with processor.realtime():
        with processor.giving_way() as found:
            assert found is spare
            assert os.sched_getscheduler(0) == (os.SCHED_OTHER if spare else os.SCHED_FIFO)
        assert os.sched_getscheduler(0) == os.SCHED_FIFO
    assert os.sched_getscheduler(0) == realtime


def test_what_the_end_needs_is_loaded_while_a_processor_is_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not while the program needs all processors."""
    loaded, first, looked = list[str](), list[bytes](), itertools.count()
    spare = False

    def look() -> bool:
        next(looked)
        return spare

    monkeypatch.setattr(recording, "import_module", lambda name, package: loaded.append(name))
    monkeypatch.setattr(recording, "spare_processor", look)
    reads, writes = os.pipe()
    loading = threading.Thread(target=recording._load, args=(reads, first))
    loading.start()
    try:
        os.write(writes, b" ")
        until(lambda: first)
        before = next(looked)
        until(lambda: next(looked) > before + 4)
        assert not loaded
        spare = True
        loading.join(60)
        assert len(loaded) == 4
    finally:
        os.close(writes)
        loading.join()
        os.close(reads)


@needs_ptrace
@needs_walk
def test_a_burst_that_is_followed_where_others_are_foreseen_ends_soon(running: Thread) -> None:
    """With a branch, however late it is. One that is followed by right lasts until it is full."""
    one = RunAhead.here()
    if one is None:
        pytest.skip("nothing can be foreseen here")
    engine, processor = BlockStep(DebugRegisters()), SharedProcessor()
    at_once = BurstLimits(300, stops=1 << 20, seconds=60, in_place=0.0)
    for _ in range(6):
        runner = BurstRunner(engine, at_once, processor, ahead=one)
        runner.compared.spent(100.0, compared=False)
        burst, _ = runner.run(running, lambda status: False)
        assert isinstance(burst, Foreseen)
        assert len(burst) == 300
        assert 1 < burst.stops < 8
        assert runner.compared.same == 1
    burst, _ = BurstRunner(engine, at_once, processor).run(running, lambda status: False)
    assert (burst.why, len(burst) >= 300) == ("full", True)


class Files(Unwinder):
    """Unwinds nothing, and takes long to get ready for each of ``names``."""

    def __init__(self, names: str) -> None:
        self.names, self.ready = names, ""

    def prepare(self, space: AddressSpace) -> Iterator[None]:
        for name in self.names:
            time.sleep(0.002)
            self.ready += name
            yield


def test_the_recorder_gets_ready_for_stacks_in_small_steps() -> None:
    """On a busy machine the program waits meanwhile."""
    files, process = Files("abc"), Process(os.getpid(), "it", {os.getpid()})
    chains = CallChains(files)
    chains.mapped(process)
    seen = []
    for _ in range(5):
        chains.prepare()
        seen.append(files.ready)
    assert seen == ["", "a", "ab", "abc", "abc"]


_LATE = (
    "import sys; from lastbranch.capture.software.collector import Collector as C; run = C.run\n"
    "def look(self):\n"
    "  before = set(sys.modules)\n"
    "  try: run(self)\n"
    "  finally: print('late:', *sorted(set(sys.modules) - before), file=sys.stderr)\n"
    "C.run = look\n"
    "from lastbranch.cli import main; main()"
)
"""``python -c`` this: lastbranch that says which modules it loads while a program runs."""


@needs_ptrace
@pytest.mark.parametrize("options", [(), ("--run-ahead", "never")], ids=["foreseen", "followed"])
def test_no_module_is_loaded_while_the_program_waits(options: tuple[str, ...], tmp_path: Path) -> None:
    """Also for a program whose build id the kernel does not know: NumPy alone takes a tenth of a second."""
    program = build(tmp_path, "branches", *FREESTANDING, "-Wl,--build-id=none")
    words = ["record", "--engine", "software", *options, "-o", str(tmp_path / "it.tb5"), "--", str(program), "300000"]
    done = subprocess.run([sys.executable, "-c", _LATE, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.findall("^late:(.*)$", done.stderr, re.M) == [""]


def test_a_pipe_in_place_of_a_binary_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(str(tmp_path / "pipe"))
    assert Kernel().build_id(str(tmp_path / "pipe")) == b""
