"""A session whose branches the software LBR records: a target that is named, and TraceConfigureLastBranchRecord."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capture_tools import FREESTANDING, build, needs_ptrace
from command_line import run_cli
from lastbranch.analysis.checks import check
from lastbranch.etw.flags import PERFINFO_PROVIDER, Control, Info, LogFileMode
from lastbranch.etw.portable import lbr_configuration as lbr
from lastbranch.etw.portable.kernel import PortableKernel
from lastbranch.etw.properties import SessionRequest, SessionState
from lastbranch.etw.status import EtwError, Status
from lastbranch.formats.etl import TraceLog
from lastbranch.model import BytesSource
from lastbranch.opening import open_profile
from private_registry import registry_at

pytestmark = needs_ptrace
PMC, SAMPLED = (PERFINFO_PROVIDER, 0x2F), (PERFINFO_PROVIDER, 0x2E)
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


@pytest.fixture
def target(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([build(tmp_path, "branches", *FREESTANDING), "1000000000"]) as process:
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


def wait_for_records(path: Path, handle: int, after: int = 0) -> int:
    """Until more records than ``after`` are in the file; gives how many."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        kernel.control(Control.FLUSH, handle, None)
        log = TraceLog(BytesSource(path.read_bytes()))
        found = sum(event.hook == 0x0C20 for event in log.events())
        if found > after:
            return found
        time.sleep(0.2)
    raise AssertionError("no more records came")


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
        seen = wait_for_records(path, state.handle)
        kernel.configure_lbr(state.handle, 0x4, [SAMPLED, PMC])
        wait_for_records(path, state.handle, seen)
        kernel.configure_lbr(state.handle, 0, [])
    assert target.poll() is None
    assert "TracerPid:\t0" in Path(f"/proc/{target.pid}/status").read_text()
    profile = open_profile(path)
    assert [event.name for event in profile.events] == ["SoftwareBranches"]
    assert {int(pid) for batch in profile.batches() for pid in batch.pid} == {target.pid}
    options = set()
    for event in TraceLog(BytesSource(path.read_bytes())).events():
        if event.hook == 0x0C20:
            options.add(int.from_bytes(event.payload[16:20], "little"))
    assert options == {0, 0x4}
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


def test_only_its_own_interrupts_trigger(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    """Other triggers succeed, and give no records; `check` says so."""
    path = tmp_path / "it.etl"
    with session(path, target.pid) as state:
        kernel.configure_lbr(state.handle, 0, [SAMPLED])
    profile = open_profile(path)
    assert not profile.entries
    assert [f.seen.split(";")[0] for f in check(str(path)) if f.name == "trigger off"] == [
        "no event Windows Kernel/PerfInfo/Sample (hook 0x0f2e)"
    ]


def test_what_cannot_be_recorded_is_refused(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    def refused(handle: int, flags: int, events: int = 1) -> Status | int:
        with pytest.raises(EtwError) as caught:
            kernel.configure_lbr(handle, flags, [PMC] * events)
        return caught.value.status

    with session(tmp_path / "it.etl") as state:
        assert refused(state.handle, 0) == Status.NOT_SUPPORTED
        kernel.configure_lbr(state.handle, 0, [])
    with session(tmp_path / "other.etl", target.pid) as state:
        assert refused(state.handle, 0x2) == Status.NOT_SUPPORTED
        assert refused(state.handle, 0x400) == Status.NOT_SUPPORTED
        assert refused(state.handle, 0x3) == Status.INVALID_PARAMETER
        assert refused(state.handle, 0, 5) == Status.IMPLEMENTATION_LIMIT


def test_a_target_that_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    with session(tmp_path / "it.etl", gone.pid) as state:
        kernel.configure_lbr(state.handle, 0, [PMC])
        with pytest.raises(EtwError) as caught:
            kernel.set_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, ON)
        assert caught.value.status == Status.INVALID_PARAMETER
        assert f"process {gone.pid}" in str(caught.value)
    assert not open_profile(tmp_path / "it.etl").damage


def test_a_target_that_ends_does_not_end_the_session(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    path = tmp_path / "it.etl"
    with session(path, target.pid) as state:
        kernel.configure_lbr(state.handle, 0, [PMC])
        kernel.set_information(state.handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, ON)
        wait_for_records(path, state.handle)
        target.kill()
        target.wait()
        kernel.configure_lbr(state.handle, 0, [])
        assert [s.request.name for s in kernel.sessions()] == ["branches"]
    assert open_profile(path).entries
