"""Information classes and branch records of Windows' kernel against the recording fake: calls, bytes, answers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from lastbranch import etw
from lastbranch.etw.flags import PERFINFO_PROVIDER, Info, LogFileMode, hook_ids
from lastbranch.etw.interface import ProfileSource
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.status import EtwError, Status
from lastbranch.etw.windows import kernel as module
from lastbranch.etw.windows.kernel import WindowsKernel
from windows_fake import LBR, PRIVILEGE, FakeWindows, api_on
from windows_memory import HANDLES

M = LogFileMode
GUID = UUID("11111111-2222-3333-4444-555566667777")
PMC = (PERFINFO_PROVIDER, 0x2F)
LOG = SessionRequest("Mine", file="C:\\traces\\mine.etl", mode=M.FILE_MODE_SEQUENTIAL)
SYSTEM = replace(LOG, name="LbrLogger", mode=M.FILE_MODE_SEQUENTIAL | M.SYSTEM_LOGGER_MODE, enable_flags=7)


class Machine:
    """A kernel and the fake under it."""

    def __init__(self, **how: Any) -> None:
        self.windows = FakeWindows(**how)
        self.kernel = WindowsKernel(self.windows)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    assert made.windows.failures == []
    assert made.windows.open_tokens == 0


def failed(machine: Machine, call: str, *arguments: Any) -> EtwError:
    with pytest.raises(EtwError) as error:
        getattr(machine.kernel, call)(*arguments)
    assert machine.windows.failures == []
    return error.value


def test_the_privilege_is_enabled_before_what_needs_it(machine: Machine) -> None:
    machine.kernel.set_information(0, Info.PROFILE_SOURCE_CONFIG_INFO, [6, 30])
    assert [c.name for c in machine.windows.calls] == [*PRIVILEGE, "TraceSetInformation"]
    token = machine.windows.last("AdjustTokenPrivileges")
    assert token.arguments[1] == 0
    assert machine.windows.last("OpenProcessToken").arguments[1] == 0x28
    assert machine.windows.last("LookupPrivilegeValueW").memory[1] == "SeSystemProfilePrivilege".encode("utf-16-le")
    assert machine.windows.configured == [6, 30]


def test_a_privilege_that_is_not_held_is_found_out() -> None:
    """AdjustTokenPrivileges succeeds then; only GetLastError (1300) shows that nothing was enabled."""
    machine = Machine(has_privilege=False)
    error = failed(machine, "set_information", 0, Info.PROFILE_SOURCE_CONFIG_INFO, [6])
    assert (error.call, error.status) == ("TraceSetInformation", Status.PRIVILEGE_NOT_HELD)
    assert "the account does not hold SeSystemProfilePrivilege" in str(error)
    assert error.hint == "run from an elevated prompt"
    assert machine.windows.open_tokens == 0


def test_a_refused_privilege_does_not_stop_what_windows_allows() -> None:
    machine = Machine(has_privilege=False)
    assert machine.kernel.query_information(0, Info.SAMPLED_PROFILE_INTERVAL_INFO, 6) == 65536


def test_a_token_that_cannot_be_opened(machine: Machine) -> None:
    machine.windows.codes["OpenProcessToken"] = 0  # FALSE
    machine.windows._error = 5
    error = failed(machine, "set_information", 0, Info.PROFILE_SOURCE_CONFIG_INFO, [6])
    assert "OpenProcessToken: access is denied" in str(error)


def test_other_failures_keep_their_reason() -> None:
    machine = Machine(has_privilege=False)
    error = failed(machine, "query_information", 0, Info.SAMPLED_PROFILE_INTERVAL_INFO, 99)
    assert error.status == Status.INVALID_PARAMETER
    assert "SeSystem" not in str(error)


def test_intervals(machine: Machine) -> None:
    machine.kernel.set_information(0, Info.SAMPLED_PROFILE_INTERVAL_INFO, (6, 10007))
    call = machine.windows.last("TraceSetInformation")
    assert (call.arguments[0], call.arguments[1], call.arguments[3]) == (0, 5, 8)
    assert call.memory[2] == struct.pack("<II", 6, 10007)
    assert machine.kernel.query_information(0, Info.SAMPLED_PROFILE_INTERVAL_INFO, 6) == 10007
    assert machine.windows.last("TraceQueryInformation").arguments[4] == 0  # ReturnLength may be NULL


@pytest.mark.parametrize("size_code", [0, 24, 122, 234])
def test_profile_sources(size_code: int) -> None:
    """The document leaves open what a size query returns: any of these will do."""
    machine = Machine(size_code=size_code)
    machine.windows.growth = [(31, "LbrInserts", 4096, 2**31 - 1)]
    found = machine.kernel.query_information(0, Info.PROFILE_SOURCE_LIST_INFO, None)
    assert found[0] == ProfileSource(0, "Timer", 1221, 1000000)
    assert [(s.source, s.name) for s in found] == [
        (0, "Timer"),
        (6, "BranchInstructions"),
        (30, "BranchInstructionRetired"),
        (31, "LbrInserts"),
    ]
    asked = [c.arguments[3] for c in machine.windows.calls if c.name == "TraceQueryInformation"]
    assert asked[0] == 0
    assert machine.windows.failures == []


def test_a_list_that_never_fits_is_an_error(machine: Machine) -> None:
    machine.windows.codes["TraceQueryInformation"] = 234
    error = failed(machine, "query_information", 0, Info.PROFILE_SOURCE_LIST_INFO, None)
    assert error.status == Status.MORE_DATA
    assert machine.windows.counts()["TraceQueryInformation"] == module._TRIES


def test_masks(machine: Machine) -> None:
    handle = machine.kernel.start(SYSTEM).handle
    assert machine.kernel.query_information(handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, None) == [7] + [0] * 7
    machine.kernel.set_information(handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, [7, 0x400, 0, 0, 0, 0, 0, 1])
    assert machine.windows.sessions[handle].masks == [7, 0x400, 0, 0, 0, 0, 0, 1]
    other = machine.kernel.start(LOG).handle
    error = failed(machine, "query_information", other, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, None)
    assert error.status == Status.INVALID_PARAMETER


def test_a_windows_without_the_function() -> None:
    machine = Machine(build=7601)
    error = failed(machine, "query_information", 0, Info.SAMPLED_PROFILE_INTERVAL_INFO, 0)
    assert error.status == Status.PROC_NOT_FOUND
    assert error.hint == "it needs Windows 8; this is build 7601"


def test_stacks(machine: Machine) -> None:
    handle = machine.kernel.start(SYSTEM).handle
    machine.kernel.set_information(handle, Info.STACK_TRACING_INFO, [PMC])
    assert machine.windows.sessions[handle].stacks == PERFINFO_PROVIDER.bytes_le + b"\x2f" + bytes(7)
    machine.kernel.set_information(handle, Info.STACK_TRACING_INFO, [])
    call = machine.windows.last("TraceSetInformation")
    assert call.arguments[2:] == (0, 0)


# -- branch records


def test_branches_by_the_function(machine: Machine) -> None:
    handle = machine.kernel.start(SYSTEM).handle
    machine.kernel.configure_lbr(handle, 0x201, [PMC, (GUID, 1)])
    call = machine.windows.last(LBR)
    assert call.arguments[:2] == (handle, 0x201)
    assert call.memory[2] == PERFINFO_PROVIDER.bytes_le + b"\x2f" + bytes(7) + GUID.bytes_le + b"\1" + bytes(7)
    session = machine.windows.sessions[handle]
    assert (session.lbr_flags, session.lbr_hooks) == (0x201, [0x0F2F])
    machine.kernel.configure_lbr(handle, 0, [])
    assert machine.windows.last(LBR).arguments == (handle, 0, 0, 0)
    assert session.lbr_hooks == []
    assert "TraceSetInformation" not in machine.windows.names


def test_branches_before_the_function() -> None:
    """Classes 21 (none), 20 (flags), 21 (hook ids): what the function does, in its order."""
    machine = Machine(build=19045)
    handle = machine.kernel.start(SYSTEM).handle
    machine.kernel.configure_lbr(handle, 0x201, [PMC, (GUID, 1), (UUID("3d6fa8d1-fe05-11d0-9dda-00c04fd7ba7c"), 0x24)])
    calls = [c for c in machine.windows.calls if c.name == "TraceSetInformation"]
    assert [c.arguments[:2] for c in calls] == [(handle, 21), (handle, 20), (handle, 21)]
    assert [c.memory[2] for c in calls] == [None, struct.pack("<I", 0x201), struct.pack("<II", 0x0F2F, 0x0524)]
    assert machine.windows.sessions[handle].lbr_hooks == [0x0F2F, 0x0524]
    machine.kernel.configure_lbr(handle, 0, [])
    assert machine.windows.sessions[handle].lbr_hooks == []
    assert machine.windows.failures == []


@pytest.mark.parametrize("build", [26100, 19045])
@pytest.mark.parametrize(
    ("flags", "count", "code"), [(3, 5, 1292), (3, 1, 87), (3, 0, 87), (7, 4, 87), (0, 4, 0), (0x7FC, 0, 0)]
)
def test_both_ways_have_the_same_checks(build: int, flags: int, count: int, code: int) -> None:
    machine = Machine(build=build)
    handle = machine.kernel.start(SYSTEM).handle
    if not code:
        machine.kernel.configure_lbr(handle, flags, [PMC] * count)
        assert machine.windows.sessions[handle].lbr_flags == flags
        return
    error = failed(machine, "configure_lbr", handle, flags, [PMC] * count)
    assert (error.call, error.status) == (LBR, code)


@pytest.mark.parametrize(("build", "status"), [(26100, 1314), (19045, 1314), (17763, 50)])
def test_why_branches_are_refused(build: int, status: int) -> None:
    machine = Machine(build=build)
    handle = machine.kernel.start(SYSTEM).handle
    machine.windows.has_privilege = machine.windows.privileged = False
    error = failed(machine, "configure_lbr", handle, 0, [PMC])
    assert (error.call, error.status) == (LBR, status)
    if status == 50:
        assert error.hint == "build 18362 or newer is needed, this is 17763"
    else:
        assert error.hint == "run from an elevated prompt"


def test_hook_ids_of_the_groups() -> None:
    """The 31 GUIDs of the hook id page; others are left out silently, as Windows does."""
    assert hook_ids([PMC, (GUID, 1), (UUID("68fdd900-4a3e-11d1-84f4-0000f80464e3"), 0x20)]) == [0x0F2F, 0x0020]
    assert hook_ids([(UUID("2ce9a149-effe-42f0-a635-a1d39e26c8f2"), 0xFF)]) == [0x1EFF]


def test_handles_of_the_fake_need_64_bits() -> None:
    assert HANDLES > 2**32


# -- classes that this package does not know


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWindows]:
    windows = FakeWindows()
    api_on(monkeypatch, windows)
    yield windows
    assert windows.failures == []


@pytest.mark.parametrize(("info", "answer"), [(19, b"\x40\0\0\0"), (22, b"\x08\0\0\0"), (99, bytes(range(12)))])
def test_other_classes_are_windows_to_answer(api: FakeWindows, info: int, answer: bytes) -> None:
    buffer = bytearray(b"\xee" * 16)
    assert etw.TraceQueryInformation(0, info, buffer, 16) == (0, len(answer))
    assert buffer == answer + b"\xee" * (16 - len(answer))
    call = api.last("TraceQueryInformation")
    assert call.arguments[:2] == (0, info)
    assert call.memory[2] == b"\xee" * 16
    assert etw.TraceQueryInformation(0, info, buffer, 1) == (24, len(answer))
    assert etw.TraceQueryInformation(0, info, None, 0) == (24, len(answer))
    assert api.last("TraceQueryInformation").arguments[2:4] == (0, 0)


def test_other_classes_are_windows_to_set(api: FakeWindows) -> None:
    assert etw.TraceSetInformation(7, etw.TraceStackCachingInfo, etw.TRACE_STACK_CACHING_INFO(Enabled=1), 12) == 0
    assert api.newer_settings == {(7, 24): b"\1" + bytes(11)}
    assert etw.TraceSetInformation(7, 18, None, 0) == 0
    assert api.newer_settings[7, 18] == b""


def test_windows_refuses_what_it_does_not_know(api: FakeWindows) -> None:
    assert etw.TraceQueryInformation(0, 25, bytearray(4), 4) == (50, 0)
    assert etw.TraceSetInformation(0, 15, bytearray(4), 4) == 50
    assert [c.arguments[1] for c in api.calls if c.name.startswith("Trace")] == [25, 15]


@pytest.mark.parametrize("info", [16, 19])
def test_a_buffer_is_never_left(api: FakeWindows, info: int) -> None:
    """More bytes than the caller's buffer has: Windows would write, or read, behind it."""
    assert etw.TraceQueryInformation(0, info, bytearray(4), 5) == (24, 0)
    assert etw.TraceSetInformation(1, info, bytearray(4), 5) == 24
    assert api.names == []


def test_our_own_class_is_not_windows(api: FakeWindows) -> None:
    assert etw.TraceQueryInformation(1, etw.TraceSoftwareBranchTargetsInfo, bytearray(4), 4) == (50, 0)
    assert etw.TraceSetInformation(1, etw.TraceSoftwareBranchTargetsInfo, bytearray(4), 4) == 87
    assert api.names == []


def test_a_class_that_no_argument_holds(api: FakeWindows) -> None:
    assert etw.TraceQueryInformation(0, -1, None, 0) == (87, 0)
    assert etw.TraceSetInformation(1, 2**32, None, 0) == 87
    assert api.names == []


def test_the_version_is_windows(api: FakeWindows) -> None:
    api.version = 3
    buffer = bytearray(8)
    assert etw.TraceQueryInformation(0, etw.TraceVersionInfo, buffer, 8) == (0, 8)
    assert buffer == struct.pack("<II", 3, 0)
    assert api.last("TraceQueryInformation").arguments[:2] == (0, 11)
    api.codes["TraceQueryInformation"] = 50
    assert etw.TraceQueryInformation(0, etw.TraceVersionInfo, buffer, 8)[0] == 50  # before Windows 10


def test_an_array_of_more_than_64_sessions(api: FakeWindows) -> None:
    api.most_sessions = 80
    for n in range(70):
        assert etw.Session(f"s{n}", LOG.file).start().handle
    array = [bytearray(struct.pack("<I", 1024).ljust(1024, b"\0")) for _ in range(100)]
    for buffer in array:
        etw.EVENT_TRACE_PROPERTIES.from_buffer(buffer).LoggerNameOffset = 120
    assert etw.QueryAllTraces(array, 100) == (0, 70)
    assert array[69][120:126].decode("utf-16-le") == "s69"
    assert etw.QueryAllTraces(array, 65) == (234, 70)
    assert etw.QueryAllTraces(array, 0) == (87, 0)
