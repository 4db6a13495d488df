"""Windows' kernel against the recording fake: which calls it makes, with which bytes, and what it makes of answers."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastbranch.etw.flags import PERFINFO_PROVIDER, Control, EnableProvider, Info, LogFileMode, V2Option
from lastbranch.etw.interface import ClassicHeader, EnableParameters, Kernel
from lastbranch.etw.properties import Filter, SessionRequest
from lastbranch.etw.status import EtwError, Status
from lastbranch.etw.windows.kernel import WindowsKernel
from windows_fake import FakeWindows
from windows_memory import FILE_AT, HISTORICAL, NAME_AT

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


def test_it_is_a_kernel(machine: Machine) -> None:
    kernel: Kernel = machine.kernel
    assert kernel.name == "windows"


# -- sessions


def test_start_is_a_start_and_a_query(machine: Machine) -> None:
    state = machine.kernel.start(LOG)
    assert machine.windows.names == ["StartTraceW", "ControlTraceW"]
    assert state.handle > 2**32  # all 64 bits came through
    assert (state.request.name, state.request.file) == ("Mine", "C:\\traces\\mine.etl")
    assert (state.request.buffer_size, state.request.minimum_buffers, state.number_of_buffers) == (64, 8, 8)
    assert state.logger_thread == 4242
    query = machine.windows.last("ControlTraceW")
    assert (query.arguments[0], query.arguments[1], query.arguments[3]) == (state.handle, 0, 0)


def test_the_bytes_of_start() -> None:
    """Every member where the vendor's page has it, names behind the structure, the session's first."""
    machine = Machine()
    request = SessionRequest(
        "Mine",
        guid=GUID,
        clock=2,
        buffer_size=128,
        minimum_buffers=20,
        maximum_buffers=40,
        maximum_file_size=100,
        mode=M.FILE_MODE_CIRCULAR,
        flush_timer=3,
        enable_flags=5,
        age_limit=9,
        file="C:\\traces\\ring.etl",
    )
    machine.kernel.start(request)
    _, name, data = machine.windows.calls[0].memory
    assert name == "Mine".encode("utf-16-le")
    assert data is not None
    assert struct.unpack_from("<I", data)[0] == len(data)
    assert UUID(bytes_le=data[24:40]) == GUID
    assert struct.unpack_from("<II", data, 40) == (2, 0x20000)
    assert struct.unpack_from("<8I", data, 48) == (128, 20, 40, 100, 2, 3, 5, 9)
    assert data[80:112] == bytes(32)
    file_at, name_at = struct.unpack_from("<II", data, FILE_AT)
    assert (FILE_AT, NAME_AT) == (112, 116)
    assert 144 == name_at < file_at
    assert data[120:144] == bytes(24)
    assert data[file_at : file_at + 40] == "C:\\traces\\ring.etl".encode("utf-16-le") + bytes(4)
    assert file_at - name_at >= 2 * 1025 <= len(data) - file_at


def test_a_session_without_a_file_has_no_offset_to_one(machine: Machine) -> None:
    state = machine.kernel.start(SessionRequest("Live", mode=M.REAL_TIME_MODE))
    data = machine.windows.calls[0].memory[2]
    assert data is not None
    assert struct.unpack_from("<I", data, FILE_AT) == (0,)
    assert state.request.file == ""


def test_options_and_filters_are_versioned(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    filters = (Filter(0x80000008, b"one.exe\0"), Filter(0x80000004, struct.pack("<I", 42)))
    seen: list[tuple[int, int, bytes]] = []
    start = machine.windows.StartTraceW

    def looked_at(handle_at: int, name_at: int, at: int) -> int:
        count, descriptors = struct.unpack("<IQ", ctypes.string_at(at + 124, 12))
        for i in range(count):
            pointer, size, kind = struct.unpack("<QII", ctypes.string_at(descriptors + 16 * i, 16))
            seen.append((kind, size, ctypes.string_at(pointer, size)))
        return start(handle_at, name_at, at)

    monkeypatch.setattr(machine.windows, "StartTraceW", looked_at)
    request = replace(LOG, options=V2Option.QPC_DELTA_TRACKING | V2Option.LARGE_MDL_PAGES, filters=filters)
    machine.kernel.start(request)
    data = machine.windows.calls[0].memory[2]
    assert data is not None
    assert struct.unpack_from("<I", data, 44) == (0x820000,)
    assert struct.unpack_from("<II", data, 120) == (2, 2)
    assert struct.unpack_from("<Q", data, 136) == (6,)
    assert seen == [(f.kind, len(f.data), f.data) for f in filters]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (replace(LOG, name=""), 123),
        (replace(LOG, name="n" * 1025), 123),
        (replace(LOG, name="\U0001f600" * 513), 123),
        (replace(LOG, name="a\0b"), 123),
        (replace(LOG, file="f" * 1025), 161),
        (replace(LOG, file="C:\\missing\\x.etl"), 161),
        (replace(LOG, file=""), 161),
        (replace(LOG, mode=M.FILE_MODE_CIRCULAR), 87),
        (replace(LOG, mode=M.FILE_MODE_NEWFILE, maximum_file_size=1), 123),
        (replace(LOG, name="NT Kernel Logger", guid=GUID), 87),
    ],
)
def test_windows_codes_come_through(machine: Machine, request_: SessionRequest, code: int) -> None:
    error = failed(machine, "start", request_)
    assert (error.call, error.status) == ("StartTrace", code)
    assert machine.windows.sessions == {}


def test_the_kernel_logger_has_its_guid(machine: Machine) -> None:
    state = machine.kernel.start(replace(LOG, name="nt kernel logger", enable_flags=1))
    assert state.request.guid == UUID("9e814aad-3204-11d2-9a82-006008a86939")
    assert machine.windows.calls[0].name == "GetCurrentProcess"  # it is a system logger


def test_one_of_a_name(machine: Machine) -> None:
    machine.kernel.start(LOG)
    assert failed(machine, "start", replace(LOG, name="MINE")).status == Status.ALREADY_EXISTS


def test_long_names_fit(machine: Machine) -> None:
    name, file = "n" * 1024, "C:\\traces\\" + "f" * 1014
    state = machine.kernel.start(replace(LOG, name=name, file=file))
    assert (state.request.name, state.request.file) == (name, file)
    stopped = machine.kernel.control(Control.STOP, name.upper(), None)
    assert (stopped.request.name, stopped.request.file) == (name, file)


def test_names_are_any_utf16(machine: Machine) -> None:
    request = replace(LOG, name="half \ud800", file="\U0001f40d.etl")
    assert machine.kernel.start(request).request.name == request.name
    assert machine.kernel.control(Control.STOP, request.name, None).request.file == request.file


def test_targets_cannot_be_named_later_either(machine: Machine) -> None:
    assert failed(machine, "set_information", 1, Info.SOFTWARE_BRANCH_TARGETS_INFO, [5]).status == 87
    assert machine.windows.calls == []


def test_targets_are_the_software_lbr_s(machine: Machine) -> None:
    assert failed(machine, "start", LOG, (1,)).status == Status.NOT_SUPPORTED
    assert machine.windows.calls == []


def test_control(machine: Machine) -> None:
    handle = machine.kernel.start(LOG).handle
    changed = replace(LOG, maximum_buffers=99, flush_timer=5, file="")
    state = machine.kernel.control(Control.UPDATE, handle, changed)
    assert (state.request.maximum_buffers, state.request.flush_timer) == (99, 5)
    sent = next(c for c in machine.windows.calls if c.name == "ControlTraceW" and c.arguments[3] == 2).memory[2]
    assert sent is not None
    assert struct.unpack_from("<I", sent, FILE_AT) == (0,)  # the file stays as it is
    assert (state.request.file, state.request.name) == (LOG.file, "Mine")  # and is told, by a query
    state = machine.kernel.control(Control.QUERY, "mine", None)
    assert (state.request.maximum_buffers, state.request.file, state.handle) == (99, LOG.file, handle)
    machine.kernel.control(Control.FLUSH, handle, LOG)
    state = machine.kernel.control(Control.STOP, handle, None)
    assert state.request.name == "Mine"
    assert machine.windows.sessions == {}
    assert [c.arguments[3] for c in machine.windows.calls if c.name == "ControlTraceW"] == [0, 2, 0, 0, 3, 1]
    assert failed(machine, "control", Control.QUERY, handle, None).status == Status.WMI_INSTANCE_NOT_FOUND


@pytest.mark.parametrize("by_name", [False, True])
def test_controls_of_private_sessions_have_guid_and_mode(machine: Machine, by_name: bool) -> None:
    """The page asks for both."""
    private = replace(LOG, guid=GUID, mode=LOG.mode | M.PRIVATE_LOGGER_MODE)
    handle = machine.kernel.start(private).handle
    machine.kernel.start(replace(LOG, name="Other"))
    machine.kernel.control(Control.STOP, "MINE" if by_name else handle, None)
    sent = machine.windows.last("ControlTraceW").memory[2]
    assert sent is not None
    assert UUID(bytes_le=sent[24:40]) == GUID
    assert struct.unpack_from("<I", sent, 64) == (0x801,)
    machine.kernel.control(Control.STOP, "other", None)
    sent = machine.windows.last("ControlTraceW").memory[2]
    assert sent is not None
    assert sent[24:40] == bytes(16)
    assert struct.unpack_from("<I", sent, 64) == (0,)


def test_a_stop_only_reads(machine: Machine) -> None:
    handle = machine.kernel.start(LOG).handle
    assert machine.kernel.control(Control.STOP, handle, replace(LOG, file="")).request.file == LOG.file


def test_all_sessions(machine: Machine) -> None:
    for n in range(3):
        machine.kernel.start(replace(LOG, name=f"s{n}"))
    found = machine.kernel.sessions()
    assert [s.request.name for s in found] == ["s0", "s1", "s2"]
    assert machine.windows.last("QueryAllTracesW").arguments[1] == 64


def test_more_than_64_sessions(machine: Machine) -> None:
    machine.windows.most_sessions = 80
    for n in range(70):
        machine.kernel.start(replace(LOG, name=f"s{n}"))
    assert len(machine.kernel.sessions()) == 70
    assert [c.arguments[1] for c in machine.windows.calls if c.name == "QueryAllTracesW"] == [64, 70]


def test_start_is_verified_against_false_success() -> None:
    """Wine says success with this handle and has no sessions; its query says success and writes nothing."""
    machine = Machine(wine=True)
    error = failed(machine, "start", LOG)
    assert error.status == Status.CALL_NOT_IMPLEMENTED
    assert "0xcafe4242" in str(error)
    assert error.hint is not None


def test_a_session_that_is_gone_at_once_is_no_success(machine: Machine) -> None:
    machine.windows.codes["ControlTraceW"] = 4201
    error = failed(machine, "start", LOG)
    assert error.status == Status.CALL_NOT_IMPLEMENTED
    assert "4201" in str(error)


def test_a_session_that_fails_its_query_is_stopped(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    control = machine.windows.ControlTraceW
    monkeypatch.setattr(machine.windows, "ControlTraceW", lambda *a: control(*a) if a[3] == 1 else 1450)
    assert "1450" in str(failed(machine, "start", LOG))
    assert machine.windows.sessions == {}


def test_a_session_that_may_not_be_queried_is_a_session(machine: Machine) -> None:
    machine.windows.codes["ControlTraceW"] = 5
    assert machine.kernel.start(LOG).handle in machine.windows.sessions


def test_the_handle_is_start_s(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a query leaves HistoricalContext as it was."""
    control = machine.windows.ControlTraceW

    def forgets(handle: int, name_at: int, at: int, code: int) -> int:
        done = control(handle, name_at, at, code)
        ctypes.memset(at + HISTORICAL, 0, 8)
        return done

    monkeypatch.setattr(machine.windows, "ControlTraceW", forgets)
    assert machine.kernel.start(LOG).handle in machine.windows.sessions


def test_private_sessions_are_not_queried(machine: Machine) -> None:
    machine.kernel.start(replace(LOG, mode=LOG.mode | M.PRIVATE_LOGGER_MODE))
    assert machine.windows.names == ["StartTraceW"]


def test_without_rights() -> None:
    machine = Machine(admin=False, has_privilege=False)
    error = failed(machine, "start", SYSTEM)
    assert error.status == Status.ACCESS_DENIED
    assert "SeSystemProfilePrivilege" in str(error)
    assert error.hint == "run from an elevated prompt"
    assert machine.windows.open_tokens == 0
    error = failed(machine, "start", LOG)
    assert "SeSystemProfilePrivilege" not in str(error)


# -- providers


def test_enable(machine: Machine) -> None:
    handle = machine.kernel.start(LOG).handle
    machine.kernel.enable(handle, GUID, EnableProvider.ENABLE, 4, 0xF0F0_0000_0000_0001, 2**63, 250, None)
    call = machine.windows.last("EnableTraceEx2")
    assert call.arguments[2:] == (1, 4, 0xF0F0_0000_0000_0001, 2**63, 250, 0)
    assert call.memory[1] == GUID.bytes_le
    machine.kernel.enable(handle, GUID, EnableProvider.DISABLE, 0, 0, 0, 0, None)
    assert machine.windows.sessions[handle].enabled == {}


def test_enable_parameters(machine: Machine) -> None:
    handle = machine.kernel.start(LOG).handle
    parameters = EnableParameters(property=4, source=GUID, filters=(Filter(0x80000200, b"\1\0\1\0\7\0"),))
    machine.kernel.enable(handle, GUID, EnableProvider.ENABLE, 0, 0, 0, 0, parameters)
    data = machine.windows.last("EnableTraceEx2").memory[7]
    assert data is not None
    assert struct.unpack_from("<III", data) == (2, 4, 0)
    assert UUID(bytes_le=data[12:28]) == GUID
    assert struct.unpack_from("<Q", data, 32)[0]
    assert struct.unpack_from("<I", data, 40) == (1,)


def test_a_disallowed_provider_stays_off(machine: Machine) -> None:
    handle = machine.kernel.start(LOG).handle
    machine.kernel.set_information(handle, Info.SET_DISALLOW_LIST, [GUID, PERFINFO_PROVIDER])
    assert machine.kernel.query_information(handle, Info.DISALLOW_LIST_QUERY, None) == [GUID, PERFINFO_PROVIDER]
    error = failed(machine, "enable", handle, GUID, EnableProvider.ENABLE, 0, 0, 0, 0, None)
    assert (error.call, error.status) == ("EnableTraceEx2", Status.ACCESS_DENIED)


def test_a_classic_event(machine: Machine) -> None:
    handle = machine.kernel.start(LOG).handle
    machine.kernel.trace_event(handle, ClassicHeader(GUID, type=7, level=3, version=2), b"hello")
    data = machine.windows.last("TraceEvent").memory[1]
    assert data is not None
    assert struct.unpack_from("<H", data)[0] == len(data) == 53
    assert struct.unpack_from("<BBH", data, 4) == (7, 3, 2)
    assert struct.unpack_from("<II", data, 40) == (0, 0x20000)
    assert (data[24:40], data[48:]) == (GUID.bytes_le, b"hello")
    assert machine.windows.sessions[handle].events[0].data == b"hello"
    error = failed(machine, "trace_event", handle, ClassicHeader(GUID), bytes(65536))
    assert error.status == Status.ARITHMETIC_OVERFLOW


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("start", (replace(LOG, buffer_size=2**32 + 64),)),
        ("start", (replace(LOG, flush_timer=-1),)),
        ("enable", (1, GUID, EnableProvider.ENABLE, 256, 0, 0, 0, None)),
        ("enable", (1, GUID, EnableProvider.ENABLE, 0, 2**64, 0, 0, None)),
        ("enable", (1, GUID, EnableProvider.ENABLE, 0, 0, 0, 2**32, None)),
        ("configure_lbr", (1, 2**32, [])),
    ],
)
def test_numbers_that_do_not_fit_are_refused(machine: Machine, call: str, arguments: tuple[Any, ...]) -> None:
    """ctypes would cut them."""
    error = failed(machine, call, *arguments)
    assert error.status == Status.INVALID_PARAMETER
    assert set(machine.windows.names) == set()


NUMBER = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(blacklist_characters="\0\\"), min_size=1, max_size=1024).filter(
    lambda text: len(text.encode("utf-16-le", "surrogatepass")) <= 2 * 1024
)


@given(
    request_=st.builds(
        SessionRequest,
        name=TEXT,
        guid=st.uuids(),
        clock=st.integers(1, 3),
        buffer_size=st.integers(4, 16384),
        minimum_buffers=st.integers(8, 2**20),
        maximum_buffers=st.integers(2**20, 2**32 - 1),
        maximum_file_size=NUMBER,
        mode=st.just(M.FILE_MODE_SEQUENTIAL),
        flush_timer=NUMBER,
        enable_flags=NUMBER,
        age_limit=st.integers(-(2**31), 2**31 - 1),
        file=TEXT,
    )
)
def test_any_request_goes_there_and_back(request_: SessionRequest) -> None:
    """Only values that the fake does not adjust."""
    machine = Machine()
    state = machine.kernel.start(request_)
    assert state.request == request_
    assert machine.kernel.control(Control.STOP, request_.name, None).request == request_
    assert machine.windows.failures == []
