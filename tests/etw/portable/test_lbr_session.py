"""A session whose branches the software LBR records: a target that is named, and TraceConfigureLastBranchRecord."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from capture_tools import FREESTANDING, build, children, needs_ptrace
from command_line import run_cli
from lastbranch.analysis.checks import check
from lastbranch.etw.flags import PERFINFO_PROVIDER, Control, EnableFlag, Info, LogFileMode
from lastbranch.etw.portable import lbr_configuration as lbr
from lastbranch.etw.portable.kernel import PortableKernel
from lastbranch.etw.portable.sources import check as check_sources
from lastbranch.etw.properties import SessionRequest, SessionState
from lastbranch.etw.status import EtwError, Status
from lastbranch.formats.etl import TraceLog
from lastbranch.formats.etl.events.columns import events_of
from lastbranch.formats.etl.single_event import Event
from lastbranch.model import BytesSource
from lastbranch.opening import open_profile
from private_registry import registry_at
from waiting import until

pytestmark = needs_ptrace
PMC = (PERFINFO_PROVIDER, 0x2F)
RECORD = 0x0C20
ON = [0, 0x400, 0, 0, 0, 0, 0, 0]
PATIENCE = 90
kernel = PortableKernel()


@pytest.fixture(autouse=True)
def registry(tmp_path: Path) -> Iterator[None]:
    if not lbr.software_source():
        pytest.skip("the processor records branches itself")
    with registry_at(tmp_path / "etw"):
        yield
        for state in kernel.sessions():
            kernel.control(Control.STOP, state.handle, None)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("programs"), "branches", *FREESTANDING)


@pytest.fixture
def target(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([program, "1000000000"]) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def session(path: Path, *targets: int) -> Iterator[SessionState]:
    mode = LogFileMode.SYSTEM_LOGGER_MODE | LogFileMode.FILE_MODE_SEQUENTIAL
    state = kernel.start(SessionRequest("branches", mode=mode, file=str(path)), targets)
    try:
        yield state
    finally:
        kernel.control(Control.STOP, state.handle, None)


def records(path: Path) -> list[Event]:
    """The branch records in a log."""
    blocks = TraceLog(BytesSource(path.read_bytes())).blocks()
    return [one for block in blocks for one in events_of(block.take(np.flatnonzero(block.hook == RECORD)))]


def flags_of(record: Event) -> int:
    return int.from_bytes(record.payload[16:20], "little")


def pid_of(record: Event) -> int:
    return int.from_bytes(record.payload[8:12], "little")


def wait_for_records(
    path: Path, handle: int, value: Callable[[Event], int] = flags_of, wanted: Set[int] = frozenset({0})
) -> None:
    """Until there are records with each of these values in the file."""

    def found() -> bool:
        kernel.control(Control.FLUSH, handle, None)
        if wanted <= {value(record) for record in records(path)}:
            return True
        time.sleep(0.1)  # each look flushes the session: without a pause it would do nothing else
        return False

    until(found, PATIENCE)


def test_the_source_is_listed() -> None:
    sources = {s.name: s for s in kernel.query_information(0, Info.PROFILE_SOURCE_LIST_INFO, None)}
    assert sources["SoftwareBranches"].source >= 25
    assert sources["SoftwareBranches"].minimum <= sources["SoftwareBranches"].default


def test_branches_of_a_target(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    """They come when trigger and group are on, change with the flags, and end with the session; the target lives on."""
    path = tmp_path / "it.etl"
    kernel.set_information(0, Info.PROFILE_SOURCE_CONFIG_INFO, [lbr.SOFTWARE_BRANCHES])
    kernel.set_information(0, Info.SAMPLED_PROFILE_INTERVAL_INFO, (lbr.SOFTWARE_BRANCHES, 5_000_000))
    with session(path, target.pid) as state:
        kernel.configure_lbr(state.handle, 0, [PMC])
        kernel.set_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, ON)
        wait_for_records(path, state.handle)
        kernel.configure_lbr(state.handle, 0xC, [PMC])
        wait_for_records(path, state.handle, wanted={0xC})
        kernel.configure_lbr(state.handle, 0, [])
    assert target.poll() is None
    assert "TracerPid:\t0" in Path(f"/proc/{target.pid}/status").read_text()
    profile = open_profile(path)
    assert [event.name for event in profile.events] == ["SoftwareBranches"]
    assert {int(pid) for batch in profile.batches() for pid in batch.pid} == {target.pid}
    lengths: dict[int, list[int]] = {0: [], 0xC: []}
    for record in records(path):
        lengths[flags_of(record)].append((len(record.payload) - 24) // 24)
    for found in lengths.values():
        assert max(found) == 32, "filtered branches leave no room empty"
        assert sum(length == 32 for length in found) > len(found) / 2
    short = sum(length < 32 for found in lengths.values() for length in found)
    said = [int(f.seen.split()[2]) - int(f.seen.split()[0]) for f in check(str(path)) if f.name == "short records"]
    assert sum(said) == short
    words = [int(w) for batch in profile.batches() for w in batch["branch_flags"]]
    assert words
    assert not any(w & 3 for w in words)
    assert not {f.name for f in check(str(path))} & {
        "trigger off",
        "lbr without trigger",
        "lost events",
        "pmc without lbr",
    }
    assert run_cli("branches", path).code == 0


def name_targets(handle: int, *targets: int) -> None:
    kernel.set_information(handle, Info.SOFTWARE_BRANCH_TARGETS_INFO, list(targets))


def pids_of(path: Path) -> set[int]:
    return {int(pid) for batch in open_profile(path).batches() for pid in batch.pid}


def test_targets_are_named_at_any_time(tmp_path: Path, program: Path, target: subprocess.Popen[bytes]) -> None:
    """All of them are recorded, and what descends from a process, before it is named and later. The session goes on
    when one ends."""
    path = tmp_path / "it.etl"
    forks = f"import subprocess, sys\nfor line in sys.stdin: subprocess.Popen([{str(program)!r}, '1000000000'])"
    with (
        session(path) as state,
        subprocess.Popen([program, "1000000000"]) as second,
        subprocess.Popen([sys.executable, "-S", "-c", forks], stdin=subprocess.PIPE, bufsize=0) as parent,
    ):
        assert parent.stdin is not None
        children: set[int] = set()
        try:
            parent.stdin.write(b"first\n")
            kernel.configure_lbr(state.handle, 0, [PMC])
            kernel.set_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, ON)
            children = children_of(parent.pid, 1)
            name_targets(state.handle, target.pid, second.pid, -parent.pid)
            wait_for_records(path, state.handle, pid_of, {target.pid, second.pid, *children})
            second.kill()
            second.wait()
            parent.stdin.write(b"second\n")
            children |= children_of(parent.pid, 2)
            wait_for_records(path, state.handle, pid_of, children)
            name_targets(state.handle)
            assert [s.request.name for s in kernel.sessions()] == ["branches"]
        finally:
            second.kill()
            for child in children:
                os.kill(child, signal.SIGKILL)
            parent.kill()
    assert pids_of(path) == {target.pid, second.pid, *children}
    assert "no targets" not in {finding.name for finding in check(str(path))}


def children_of(pid: int, least: int) -> set[int]:
    return set(until(lambda: len(found := children(pid)) >= least and found, PATIENCE))


def test_time_samples_as_triggers(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    """A burst is a time sample, which its record follows with the same time stamp; other samples have none."""
    path = tmp_path / "it.etl"
    with session(path, target.pid) as state:
        kernel.configure_lbr(state.handle, 0, [(PERFINFO_PROVIDER, 0x2E)])
        try:
            kernel.set_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, [0, 0x2, 0, 0, 0, 0, 0, 0])
        except EtwError as error:
            if error.status == Status.PRIVILEGE_NOT_HELD:
                pytest.skip(error.reason)
            raise
        wait_for_records(path, state.handle)
    assert not {f.name for f in check(str(path))} & {"trigger off", "lbr without trigger", "no targets"}
    hooks = {0x0F2E: 0, 0x0F2F: 0, 0x0C20: 0}
    before = {}
    for event in TraceLog(BytesSource(path.read_bytes())).events():
        if event.hook == 0x0C20:
            trigger = before[event.cpu]
            assert (trigger.hook, trigger.time) == (0x0F2E, event.time)
            assert trigger.payload[8:12] == event.payload[12:16], "the thread"
        if event.hook in hooks:
            hooks[event.hook] += 1
            before[event.cpu] = event
    assert hooks[0x0F2E] >= hooks[0x0C20] > 0 == hooks[0x0F2F]


def test_what_cannot_be_named_and_configured(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    def refused(handle: int, flags: int, events: int = 1) -> Status | int:
        with pytest.raises(EtwError) as caught:
            kernel.configure_lbr(handle, flags, [PMC] * events)
        return caught.value.status

    with subprocess.Popen(["true"]) as gone:
        pass
    with session(tmp_path / "it.etl") as state:
        for wrong in ([gone.pid], [target.pid, 0], [-gone.pid]):
            with pytest.raises(EtwError) as caught:
                name_targets(state.handle, *wrong)
            assert caught.value.status == Status.INVALID_PARAMETER
        kernel.configure_lbr(state.handle, 0, [PMC])
        kernel.set_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, ON)
        assert refused(state.handle, 0x2) == Status.NOT_SUPPORTED
        assert refused(state.handle, 0x200) == Status.INVALID_PARAMETER
        assert refused(state.handle, 0x400) == Status.NOT_SUPPORTED
        assert refused(state.handle, 0x3) == Status.INVALID_PARAMETER
        assert refused(state.handle, 0, 5) == Status.IMPLEMENTATION_LIMIT
    assert "no targets" in {finding.name for finding in check(str(tmp_path / "it.etl"))}


def test_a_target_that_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    with session(tmp_path / "it.etl", gone.pid) as state:
        kernel.configure_lbr(state.handle, 0, [PMC])
        kernel.set_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, ON)
    assert not open_profile(tmp_path / "it.etl").damage


CALLS, WAITS = (PERFINFO_PROVIDER, 0x33), (UUID("3d6fa8d1-fe05-11d0-9dda-00c04fd7ba7c"), 0x24)
ENTER, SWITCH = 0x0F33, 0x0524
GETPPID, NANOSLEEP = 110, 35


def tracepoints_are_permitted() -> bool:
    """Whether a session may have events of system calls, without branch records."""
    try:
        check_sources(SessionRequest("NT Kernel Logger"), [EnableFlag.SYSTEMCALL])
    except EtwError:
        return False
    return True


def test_system_calls_and_waits_as_triggers(tmp_path: Path) -> None:
    """The record of a call has the branches that led to it, and follows the kernel's own event of it. A wait has those
    of the call that waited, and a call that does not wait is never taken for one."""
    program, path = build(tmp_path, "calls", *FREESTANDING), tmp_path / "it.etl"
    listed = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout
    at = {words[2]: int(words[0], 16) for words in map(str.split, listed.splitlines())}
    before = {GETPPID: range(at["ask"], at["ask_call"] + 1), NANOSLEEP: range(at["rest"], at["rest_call"] + 1)}
    kernel.set_information(0, Info.SAMPLED_PROFILE_INTERVAL_INFO, (lbr.SOFTWARE_BRANCHES, 1_000_000))
    with session(path) as state, subprocess.Popen([program]) as process:
        try:
            try:
                kernel.configure_lbr(state.handle, 0, [CALLS, WAITS])
                kernel.set_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, [0, 4, 0x40, 0, 0, 0, 0, 0])
            except EtwError as error:
                if not tracepoints_are_permitted():
                    pytest.skip(error.reason)
                raise
            name_targets(state.handle, process.pid)
            until(lambda: {GETPPID, NANOSLEEP, SWITCH} <= reasons(triggered(path, state.handle)), 4 * PATIENCE)
            assert process.poll() is None
        finally:
            process.kill()
    found = triggered(path, 0)
    assert {trigger.hook for trigger, _ in found} == {ENTER, SWITCH}
    calls = set()
    for trigger, record in found:
        pid, tid = struct.unpack_from("<II", record.payload, 8)
        newest = struct.unpack_from("<Q", record.payload, 32)[0]
        assert (trigger.time, pid, tid) == (record.time, process.pid, process.pid)
        if trigger.hook == SWITCH:
            assert struct.unpack_from("<I", trigger.payload, 4)[0] == tid
            assert newest in before[NANOSLEEP]
        else:
            number = int.from_bytes(trigger.payload[:8], "little")
            assert trigger.tid == tid
            assert newest in before[number]
            calls.add(number)
    assert calls == {GETPPID, NANOSLEEP}
    assert not {f.name for f in check(str(path))} & {"trigger off", "lbr without trigger", "no targets"}
    assert {event.name for event in open_profile(path).events} == {"PerfInfo/SysClEnter", "Thread/CSwitch"}


def reasons(found: list[tuple[Event, Event]]) -> set[int]:
    """The numbers of the system calls that have records, and `SWITCH` if a wait has one."""
    triggers = [trigger for trigger, _ in found]
    return {int.from_bytes(t.payload[:8], "little") if t.hook == ENTER else t.hook for t in triggers}


def triggered(path: Path, handle: int) -> list[tuple[Event, Event]]:
    """Each branch record, and the event of the same processor before it."""
    if handle:
        time.sleep(0.2)  # as long as it takes the session to join records to their events
        kernel.control(Control.FLUSH, handle, None)
    found: list[tuple[Event, Event]] = []
    last: dict[int, Event] = {}
    for block in TraceLog(BytesSource(path.read_bytes())).blocks():
        for row in np.flatnonzero(block.hook == RECORD).tolist():
            cpu = int(block.cpu[row])
            earlier = np.flatnonzero(block.cpu[:row] == cpu)
            before = events_of(block.take(earlier[-1:]))[0] if len(earlier) else last[cpu]
            found.append((before, events_of(block.take(np.array([row])))[0]))
        for cpu in set(block.cpu.tolist()):
            last[cpu] = events_of(block.take(np.flatnonzero(block.cpu == cpu)[-1:]))[0]
    return found
