"""Sessions with kernel events from end to end: daemon, source process, file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

import hostile_calls
from lastbranch.etw.flags import Control, Info, LogFileMode
from lastbranch.etw.portable.kernel import PortableKernel
from lastbranch.etw.portable.profile_sources import profile_sources
from lastbranch.etw.portable.session.source_processes import SOURCE_TIMEOUT
from lastbranch.etw.portable.sources import check
from lastbranch.etw.properties import SessionRequest, SessionState
from lastbranch.etw.status import EtwError, Status
from lastbranch.opening import open_profile
from private_registry import private_kernel

PERFINFO, THREAD = UUID("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc"), UUID("3d6fa8d1-fe05-11d0-9dda-00c04fd7ba7c")
PROCESS, LIVES, CSWITCH, REGISTRY, PROFILE = 1, 7, 0x10, 0x20000, 0x1000000
FILES_AND_SOCKETS = 0x2000000 | 0x4000000 | 0x10000


def permitted() -> bool:
    try:
        check(SessionRequest("NT Kernel Logger"), [LIVES])
    except EtwError:
        return False
    return sys.platform == "linux"


pytestmark = pytest.mark.skipif(not permitted(), reason="events of the whole system are not permitted")


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[PortableKernel]:
    with private_kernel(tmp_path / "etw") as made:
        yield made


def request(path: Path, flags: int, **more: int) -> SessionRequest:
    mode = LogFileMode.SYSTEM_LOGGER_MODE | LogFileMode.FILE_MODE_SEQUENTIAL
    return SessionRequest("kernel events", mode=mode, file=str(path), enable_flags=flags, **more)


def stop(kernel: PortableKernel, state: SessionState) -> SessionState:
    return kernel.control(Control.STOP, state.handle, None)


def records(path: Path) -> dict[str, int]:
    profile = open_profile(str(path))
    assert not profile.damage
    return {name.removeprefix("Windows Kernel/"): n for name, n in profile.records.items()}


def work() -> int:
    """The process id of a program that ran."""
    with subprocess.Popen([sys.executable, "-S", "-c", "sum(range(3_000_000))"]) as child:
        child.wait()
    return child.pid


@pytest.mark.thorough
def test_a_small_pool_loses_no_lists(kernel: PortableKernel, tmp_path: Path) -> None:
    path = tmp_path / "x.etl"
    state = kernel.start(replace(request(path, LIVES | CSWITCH), maximum_buffers=1), ())
    pid = work()
    ended = stop(kernel, state)
    assert ended.events_lost == 0
    counts = records(path)
    assert counts["Process/DCStart"] >= 2
    assert counts["Process/DCStop"] >= 2
    assert counts["Thread/CSwitch"] > 0
    profile = open_profile(str(path))
    assert pid in {p.pid for p in profile.processes}
    assert profile.header["group masks 0 (start)"].startswith("7 4 ")
    assert profile.header["group masks 1 (end)"].startswith("7 4 ")


def test_stacks_and_intervals_are_set_while_it_runs(kernel: PortableKernel, tmp_path: Path) -> None:
    path = tmp_path / "x.etl"
    state = kernel.start(request(path, LIVES | PROFILE), ())
    work()
    kernel.set_information(state.handle, Info.STACK_TRACING_INFO, [(PERFINFO, 0x2E)])
    kernel.set_information(0, Info.SAMPLED_PROFILE_INTERVAL_INFO, (0, 5_000))
    assert kernel.query_information(0, Info.SAMPLED_PROFILE_INTERVAL_INFO, 0) == 5_000
    work()
    ended = stop(kernel, state)
    assert ended.events_lost == 0
    counts = records(path)
    assert counts["PerfInfo/SetInterval"] == 1
    assert 0 < counts["StackWalk/Stack"] < counts["PerfInfo/Sample"]


def test_counter_values_are_asked_for_while_it_runs(kernel: PortableKernel, tmp_path: Path) -> None:
    path = tmp_path / "x.etl"
    state = kernel.start(request(path, LIVES | PROFILE), ())
    kernel.set_information(state.handle, Info.PMC_EVENT_LIST_INFO, [(PERFINFO, 0x2E)])
    counters = {source.source for source in profile_sources()} & {2, 19}
    for number, status in ((0, Status.INVALID_PARAMETER), (19, Status.NOT_SUPPORTED)):
        if number not in counters:
            with pytest.raises(EtwError) as refused:
                kernel.set_information(state.handle, Info.PMC_COUNTER_LIST_INFO, [number])
            assert (refused.value.status, bool(refused.value.reason)) == (status, True)
    if counters:
        kernel.set_information(state.handle, Info.PMC_COUNTER_LIST_INFO, sorted(counters))
    work()
    stop(kernel, state)
    counts = records(path)
    assert counts["PerfInfo/Sample"] > 0
    assert counts.get("PerfInfo/PMCConfig", 0) == 2 * bool(counters)


def test_groups_are_set_while_it_runs(kernel: PortableKernel, tmp_path: Path) -> None:
    path = tmp_path / "x.etl"
    state = kernel.start(request(path, LIVES), ())
    kernel.set_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, [7, 4])
    assert kernel.query_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, None)[:2] == [7, 4]
    work()
    with pytest.raises(EtwError) as refused:
        kernel.set_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, [7 | REGISTRY, 4])
    assert refused.value.status == Status.NOT_SUPPORTED
    assert kernel.query_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, None)[:2] == [7, 4]
    stop(kernel, state)
    assert records(path)["Thread/CSwitch"] > 0
    headers = open_profile(str(path)).header
    assert [words for name, words in headers.items() if "masks" in name][-1].startswith("7 4 ")


def test_what_linux_does_not_have_starts_no_session(kernel: PortableKernel, tmp_path: Path) -> None:
    with pytest.raises(EtwError, match="REGISTRY is not available") as refused:
        kernel.start(request(tmp_path / "x.etl", LIVES | REGISTRY), ())
    assert refused.value.status == Status.NOT_SUPPORTED
    assert kernel.sessions() == []
    assert not (tmp_path / "x.etl").exists()


def test_system_time_and_one_stream(kernel: PortableKernel, tmp_path: Path) -> None:
    path = tmp_path / "x.etl"
    wanted = request(path, LIVES | CSWITCH | PROFILE, clock=2)
    before = time.time_ns()
    state = kernel.start(
        SessionRequest(**{**vars_of(wanted), "mode": wanted.mode | LogFileMode.NO_PER_PROCESSOR_BUFFERING}), ()
    )
    pid = work()
    stop(kernel, state)
    profile = open_profile(str(path))
    assert pid in {p.pid for p in profile.processes}
    assert profile.first_time is not None
    wall = profile.clock.wall_ns(profile.first_time)
    assert wall is not None
    assert before <= wall <= time.time_ns()


def vars_of(wanted: SessionRequest) -> dict[str, object]:
    return {name: getattr(wanted, name) for name in SessionRequest.__slots__}


def test_a_killed_source_does_not_keep_a_session_from_stopping(kernel: PortableKernel, tmp_path: Path) -> None:
    path = tmp_path / "x.etl"
    state = kernel.start(request(path, LIVES | CSWITCH), ())
    work()
    (source,) = _sources(tmp_path)
    os.kill(source, signal.SIGKILL)
    stop(kernel, state)
    assert records(path)["Process/DCStart"] >= 2  # the end is missing, what was before is there


def test_no_call_of_any_program_ends_a_session(kernel: PortableKernel, tmp_path: Path) -> None:
    """An offset of -4096 ended the source of a session, and so did a socket that became one of IPv4."""
    path = tmp_path / "x.etl"
    try:
        state = kernel.start(request(path, PROCESS | FILES_AND_SOCKETS), ())
    except EtwError as refused:
        pytest.skip(str(refused))
    (source,) = _sources(tmp_path)
    done = subprocess.run([sys.executable, hostile_calls.__file__, "--seconds", "0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert _sources(tmp_path) == [source]
    began = time.monotonic()
    stop(kernel, state)
    if time.monotonic() - began > SOURCE_TIMEOUT:
        pytest.skip("this machine is too busy: a source that takes so long is killed")
    profile = open_profile(str(path))
    assert not profile.damage
    assert "Windows Kernel/Process/DCStop" in profile.records, "the source was there to list them"
    assert not [name for name in profile.lost if "written" in name], profile.lost


def test_a_source_does_not_outlive_its_daemon(kernel: PortableKernel, tmp_path: Path) -> None:
    kernel.start(request(tmp_path / "x.etl", LIVES | CSWITCH), ())
    (source,) = _sources(tmp_path)
    daemon = int(Path(f"/proc/{source}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(daemon, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while _sources(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert kernel.sessions() == []


def _sources(root: Path) -> list[int]:
    """The source processes of sessions below ``root``."""
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal() and _is_source(p, str(root))]


def _is_source(process: Path, root: str) -> bool:
    try:
        command = (process / "cmdline").read_bytes().split(b"\0")
        environment = (process / "environ").read_bytes()
    except OSError:
        return False
    return b"lastbranch.etw.portable.sources" in command and root.encode() in environment
