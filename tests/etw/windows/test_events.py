"""Windows' providers, consumers and merging against the recording fake: callbacks, their life, their exceptions."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from lastbranch import etw
from lastbranch.etw.consumer_api import Logfile
from lastbranch.etw.flags import EnableProvider, LogFileMode, ProcessTraceMode
from lastbranch.etw.interface import EnableParameters, EventDescriptor, Registration
from lastbranch.etw.properties import Filter, SessionRequest
from lastbranch.etw.status import EtwError, Status
from lastbranch.etw.windows import kernel as registrations
from lastbranch.etw.windows.kernel import WindowsKernel, WindowsTraces
from windows_fake import TOOLKIT, FakeWindows, api_on
from windows_memory import FakeEvent

GUID, OTHER = UUID(int=0x1111), UUID("11111111-2222-3333-4444-555566667777")
EVENT_RECORD, REAL_TIME = ProcessTraceMode.EVENT_RECORD, ProcessTraceMode.REAL_TIME
LIVE = SessionRequest("Live", mode=LogFileMode.REAL_TIME_MODE)
FILE = "C:\\traces\\one.etl"


@pytest.fixture
def windows() -> Iterator[FakeWindows]:
    made = FakeWindows()
    made.files[FILE] = [FakeEvent(OTHER, n, f"event {n}".encode(), 100 * n) for n in range(1, 8)]
    yield made
    assert made.failures == []
    for registration in tuple(registrations._LIVE):
        registration.close()


# -- providers


def test_a_provider_writes_what_sessions_take(windows: FakeWindows) -> None:
    kernel = WindowsKernel(windows)
    handle = kernel.start(LIVE).handle
    provider: Registration = kernel.register(OTHER, None)
    assert not provider.enabled
    assert provider.write(EventDescriptor(1), b"unseen") == 0
    assert "EventWriteTransfer" not in windows.names  # a disabled provider makes no call
    kernel.enable(handle, OTHER, EnableProvider.ENABLE, 4, 0b110, 0, 0, None)
    assert (provider.enabled, provider.level, provider.keywords) == (True, 4, 0b110)
    assert provider.takes(4, 2)
    assert not provider.takes(5, 2)
    assert provider.write(EventDescriptor(7, 2, 3, 4, 5, 6, 0b010), b"seen", GUID.bytes_le, OTHER.bytes_le) == 0
    call = windows.last("EventWriteTransfer")
    assert (call.memory[2], call.memory[3]) == (GUID.bytes_le, OTHER.bytes_le)
    assert call.arguments[4] == 1
    assert provider.write(EventDescriptor(8, level=5), b"too verbose") == 0
    assert provider.write(EventDescriptor(9)) == 0
    assert windows.last("EventWriteTransfer").arguments[2:] == (0, 0, 0, 0)
    events = windows.sessions[handle].events
    assert [(e.id, e.level, e.keyword, e.data) for e in events] == [(7, 4, 2, b"seen"), (9, 0, 0, b"")]
    assert provider.write(EventDescriptor(7), bytes(65536)) == Status.ARITHMETIC_OVERFLOW
    kernel.enable(handle, OTHER, EnableProvider.DISABLE, 0, 0, 0, 0, None)
    assert not provider.enabled
    assert not provider.takes(0, 0)
    provider.close()
    provider.close()
    assert windows.counts()["EventUnregister"] == 1


def test_the_callback_is_told(windows: FakeWindows) -> None:
    kernel = WindowsKernel(windows)
    handle = kernel.start(LIVE).handle
    told: list[Any] = []
    provider = kernel.register(OTHER, lambda *what: told.append(what))
    parameters = EnableParameters(source=GUID, filters=(Filter(0x80000000, b"abc"),))
    kernel.enable(handle, OTHER, EnableProvider.ENABLE, 3, 2**63 | 1, 0, 0, parameters)
    kernel.enable(handle, OTHER, EnableProvider.CAPTURE_STATE, 0, 0, 0, 0, None)
    assert told[0] == (GUID, EnableProvider.ENABLE, 3, 2**63 | 1, 0, (Filter(0x80000000, b"abc"),))
    assert told[1][:2] == (UUID(int=0), EnableProvider.CAPTURE_STATE)
    assert provider.enabled  # asking for the state changes nothing


def test_a_session_that_came_first_enables_at_registration(windows: FakeWindows) -> None:
    kernel = WindowsKernel(windows)
    handle = kernel.start(LIVE).handle
    kernel.enable(handle, OTHER, EnableProvider.ENABLE, 5, 0, 0, 0, None)
    provider = kernel.register(OTHER, None)
    assert (provider.enabled, provider.level) == (True, 5)


def test_an_exception_of_the_callback_stays_in_its_thread(
    windows: FakeWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda what: seen.append(str(what.exc_value)))
    kernel = WindowsKernel(windows)
    handle = kernel.start(LIVE).handle

    def broken(*_: Any) -> None:
        raise ValueError("broken")

    provider = kernel.register(OTHER, broken)
    kernel.enable(handle, OTHER, EnableProvider.ENABLE, 0, 0, 0, 0, None)
    assert seen == ["broken"]
    assert provider.enabled


def test_a_forgotten_registration_lives_until_it_is_closed(windows: FakeWindows) -> None:
    """Windows calls its callback; memory that was collected would end the process."""
    kernel = WindowsKernel(windows)
    handle = kernel.start(LIVE).handle
    told: list[Any] = []
    kernel.register(OTHER, lambda *what: told.append(what))
    gc.collect()
    kernel.enable(handle, OTHER, EnableProvider.ENABLE, 0, 0, 0, 0, None)
    assert len(told) == 1
    registrations._close_all()
    assert windows.counts()["EventUnregister"] == 1


def test_a_registration_that_failed_is_not_kept(windows: FakeWindows) -> None:
    windows.codes["EventRegister"] = 8
    with pytest.raises(EtwError) as failed:
        WindowsKernel(windows).register(OTHER, None)
    assert (failed.value.call, failed.value.status) == ("EventRegister", Status.NOT_ENOUGH_MEMORY)
    assert not registrations._LIVE


def test_traits(windows: FakeWindows) -> None:
    provider = WindowsKernel(windows).register(OTHER, None)
    provider.set_information(2, b"\x05\0ab\0")
    assert windows.last("EventSetInformation").memory[2] == b"\x05\0ab\0"
    with pytest.raises(EtwError):
        provider.set_information(9, b"")


# -- consumers


def read(record: Any) -> tuple[int, bytes, int]:
    header = record.EventHeader
    return header.EventDescriptor.Id, ctypes.string_at(record.UserData, record.UserDataLength), header.TimeStamp


def test_a_file_is_delivered(windows: FakeWindows) -> None:
    traces = WindowsTraces(windows)
    seen: list[Any] = []
    handle, logfile = traces.open(FILE, mode=EVENT_RECORD, on_event=lambda record: seen.append(read(record)))
    assert logfile.LogfileHeader.BufferSize == 65536
    gc.collect()  # callbacks and names are held
    traces.process([handle])
    assert seen == [(n, f"event {n}".encode(), 100 * n) for n in range(1, 8)]
    given = windows.last("OpenTraceW").memory[0]
    assert given is not None
    assert given[8:16] == bytes(8)
    assert int.from_bytes(given[28:32], "little") == EVENT_RECORD
    assert traces.close(handle) == Status.SUCCESS


def test_classic_callbacks(windows: FakeWindows) -> None:
    traces = WindowsTraces(windows)
    seen: list[Any] = []

    def came(event: Any) -> None:
        seen.append((event.Header.Version & 0xFF, ctypes.string_at(event.MofData, event.MofLength)))

    handle, _ = traces.open(FILE, mode=0, on_event=came)
    traces.process([handle])
    assert seen[0] == (1, b"event 1")
    assert len(seen) == 7


def test_a_time_window(windows: FakeWindows) -> None:
    traces = WindowsTraces(windows)
    seen: list[Any] = []
    handle, _ = traces.open(FILE, mode=EVENT_RECORD, on_event=lambda record: seen.append(read(record)[2]))
    traces.process([handle], 200, 500)
    assert seen == [200, 300, 400, 500]


def test_several_files_in_time_order(windows: FakeWindows) -> None:
    windows.files["two"] = [FakeEvent(GUID, n, b"", 100 * n - 50) for n in range(1, 4)]
    traces = WindowsTraces(windows)
    seen: list[int] = []
    handles = [
        traces.open(name, mode=EVENT_RECORD, on_event=lambda record: seen.append(read(record)[2]))[0]
        for name in (FILE, "two")
    ]
    traces.process(handles)
    assert seen == sorted(seen)
    assert len(seen) == 10


def test_a_session_in_real_time(windows: FakeWindows) -> None:
    kernel = WindowsKernel(windows)
    handle = kernel.start(LIVE).handle
    provider = kernel.register(OTHER, None)
    kernel.enable(handle, OTHER, EnableProvider.ENABLE, 0, 0, 0, 0, None)
    provider.write(EventDescriptor(3), b"live")
    traces = WindowsTraces(windows)
    seen: list[Any] = []
    reader, _ = traces.open(
        "Live",
        mode=REAL_TIME | EVENT_RECORD,
        on_event=lambda record: seen.append(read(record)[:2]),
    )
    traces.process([reader])
    assert seen == [(3, b"live")]


@pytest.mark.parametrize(("name", "mode", "status"), [("none.etl", 0, 2), ("none", REAL_TIME, 4201)])
def test_what_cannot_be_opened(windows: FakeWindows, name: str, mode: int, status: int) -> None:
    with pytest.raises(EtwError) as failed:
        WindowsTraces(windows).open(name, mode=mode, on_event=None)
    assert (failed.value.call, failed.value.status) == ("OpenTrace", status)


def test_the_32_bit_invalid_handle(windows: FakeWindows) -> None:
    windows.codes["OpenTraceW"] = 0xFFFFFFFF
    with pytest.raises(EtwError):
        WindowsTraces(windows).open(FILE, mode=0, on_event=None)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_comes_out_of_process(windows: FakeWindows, error: type[BaseException]) -> None:
    traces = WindowsTraces(windows)
    seen: list[int] = []

    def came(record: Any) -> None:
        seen.append(read(record)[0])
        if len(seen) == 3:
            raise error("third")

    handle, _ = traces.open(FILE, mode=EVENT_RECORD, on_event=came)
    with pytest.raises(error, match="third"):
        traces.process([handle])
    assert seen == [1, 2, 3]
    assert windows.delivered == 4  # Windows stopped at the end of the buffer
    traces.process([handle])
    assert seen == [1, 2, 3, *range(1, 8)]  # told once
    assert traces.close(handle) == Status.SUCCESS


def test_an_exception_of_the_buffer_callback(windows: FakeWindows) -> None:
    traces = WindowsTraces(windows)
    seen: list[int] = []

    def ended(logfile: Any) -> bool:
        raise ValueError("buffer")

    handle, _ = traces.open(
        FILE, mode=EVENT_RECORD, on_event=lambda record: seen.append(read(record)[0]), on_buffer=ended
    )
    with pytest.raises(ValueError, match="buffer"):
        traces.process([handle])
    assert seen == [1, 2]


@pytest.mark.parametrize(("answer", "delivered"), [(True, 7), (None, 7), (False, 2), (0, 2)])
def test_the_buffer_callback_may_end_it(windows: FakeWindows, answer: object, delivered: int) -> None:
    traces = WindowsTraces(windows)
    seen: list[int] = []
    handle, _ = traces.open(
        FILE,
        mode=EVENT_RECORD,
        on_event=lambda record: seen.append(1),
        on_buffer=lambda logfile: answer,
    )
    if delivered == 7:
        traces.process([handle])
    else:
        with pytest.raises(EtwError) as failed:
            traces.process([handle])
        assert failed.value.status == Status.CANCELLED
    assert len(seen) == delivered


def test_closing_from_the_callback(windows: FakeWindows) -> None:
    traces = WindowsTraces(windows)
    codes: list[int] = []

    def came(record: Any) -> None:
        if not codes:
            codes.append(traces.close(handle))

    handle, _ = traces.open(FILE, mode=EVENT_RECORD, on_event=came)
    traces.process([handle])
    assert codes == [Status.CTX_CLOSE_PENDING]
    with pytest.raises(EtwError) as failed:
        traces.close(handle)
    assert failed.value.status == Status.INVALID_HANDLE


def test_what_was_closed_is_freed(windows: FakeWindows) -> None:
    class Callback:
        def __call__(self, record: Any) -> None: ...

    traces, callback = WindowsTraces(windows), Callback()
    gone = weakref.ref(callback)
    handle, _ = traces.open(FILE, mode=EVENT_RECORD, on_event=callback)
    traces.process([handle])
    traces.close(handle)
    windows._open.clear()
    del callback
    gc.collect()
    assert gone() is None


def test_codes_of_process(windows: FakeWindows) -> None:
    for handles, code in (([], 87), ([1], 6)):
        with pytest.raises(EtwError) as failed:
            WindowsTraces(windows).process(handles)
        assert (failed.value.call, failed.value.status) == ("ProcessTrace", code)


# -- the functions of the API, with Windows behind them


@pytest.fixture
def on_windows(windows: FakeWindows, monkeypatch: pytest.MonkeyPatch) -> FakeWindows:
    api_on(monkeypatch, windows)
    return windows


def test_the_api_from_provider_to_consumer(on_windows: FakeWindows) -> None:
    told: list[Any] = []
    status, provider = etw.EventRegister(OTHER, lambda *what: told.append(what), "context")
    assert status == 0
    with etw.Session("Live", mode=LogFileMode.REAL_TIME_MODE) as session:
        session.enable(OTHER, level=4, event_ids=[7, 8])
        assert told[0][1] == EnableProvider.ENABLE
        assert told[0][5][0].kind == 0x80000200
        assert told[0][6] == "context"
        assert etw.EventEnabled(provider, etw.EventDescriptor(7, level=4))
        assert not etw.EventProviderEnabled(provider, 5, 0)
        data = ctypes.create_string_buffer(b"payload", 7)
        piece = etw.EVENT_DATA_DESCRIPTOR(ctypes.addressof(data), 7)
        descriptor = etw.EVENT_DESCRIPTOR(Id=7, Level=4, Keyword=2**63)
        assert etw.EventWriteTransfer(provider, descriptor, GUID, OTHER, 1, piece) == 0
        assert on_windows.last("EventWriteTransfer").memory[2:4] == (GUID.bytes_le, OTHER.bytes_le)
        header = etw.EVENT_TRACE_HEADER(Size=48, Version=9, Guid=etw.guid_of(GUID), ProcessorTime=0x20000 << 32)
        assert etw.TraceEvent(session.handle, header) == 0
        seen: list[Any] = []
        buffers: list[int] = []
        logfile = Logfile(LoggerName="Live", ProcessTraceMode=REAL_TIME | EVENT_RECORD)
        logfile.EventRecordCallback = lambda record: seen.append(read(record)[:2])
        logfile.BufferCallback = lambda given: buffers.append(given is logfile)
        status, handle = etw.OpenTrace(logfile)
        assert status == 0
        assert logfile.LogfileHeader.BufferSize == 65536
        assert etw.ProcessTrace([handle], None, None) == 0
        assert seen == [(7, b"payload"), (9, b"")]
        assert buffers == [True]
        assert etw.CloseTrace(handle) == 0
    assert etw.EventUnregister(provider) == 0
    assert on_windows.sessions == {}


def test_codes_of_the_api(on_windows: FakeWindows) -> None:
    status, _ = etw.OpenTrace(Logfile(LogFileName="none.etl"))
    assert status == Status.FILE_NOT_FOUND
    on_windows.codes["ProcessTrace"] = 31337
    _, handle = etw.OpenTrace(Logfile(LogFileName=FILE))
    assert etw.ProcessTrace([handle], None, None) == 31337


@pytest.mark.parametrize("tells", [True, False])
def test_what_open_trace_reports(on_windows: FakeWindows, tells: bool) -> None:
    """Windows' values; what it leaves at 0 follows from the header. UserContext of each event is the caller's."""
    on_windows.tells = tells
    seen: list[Any] = []
    mode = LogFileMode.REAL_TIME_MODE | LogFileMode.SYSTEM_LOGGER_MODE
    with etw.Session("Live", mode=mode) as session:
        on_windows.sessions[session.handle].events += [FakeEvent(OTHER, n, b"", n) for n in range(3)]
        logfile = Logfile(LoggerName="Live", ProcessTraceMode=REAL_TIME | EVENT_RECORD, Context=2**63 + 5)
        logfile.EventRecordCallback = lambda record: seen.append(record.UserContext)
        logfile.BufferCallback = lambda told: seen.append((told.BufferSize, told.EventsLost, told.IsKernelTrace))
        status, handle = etw.OpenTrace(logfile)
        assert status == 0
        reported = (131072, 4, 1) if tells else (65536, 3, 1)
        assert (logfile.BufferSize, logfile.EventsLost, logfile.IsKernelTrace) == reported
        assert etw.ProcessTrace([handle], None, None) == 0
        assert seen == [2**63 + 5, 2**63 + 5, reported, 2**63 + 5]
        assert etw.CloseTrace(handle) == 0


def test_a_log_of_no_system_logger(on_windows: FakeWindows) -> None:
    on_windows.tells = False
    logfile = Logfile(LogFileName=FILE)
    assert etw.OpenTrace(logfile)[0] == 0
    assert logfile.IsKernelTrace == 0


# -- merging


def test_merging(windows: FakeWindows) -> None:
    windows.toolkit = TOOLKIT
    windows.files["b.etl"] = []
    kernel = WindowsKernel(windows)
    kernel.merge("out.etl", [FILE, "b.etl"], 0x1)
    assert windows.merged == [("out.etl", [FILE, "b.etl"], 1)]
    with pytest.raises(EtwError) as failed:
        kernel.merge("out.etl", ["none.etl"], 1)
    assert failed.value.status == Status.FILE_NOT_FOUND
    with pytest.raises(EtwError) as failed:
        kernel.merge("out.etl", [], 1)
    assert failed.value.status == Status.INVALID_PARAMETER


def test_merging_without_the_toolkit(windows: FakeWindows) -> None:
    with pytest.raises(EtwError) as failed:
        WindowsKernel(windows).merge("out.etl", [FILE], 1)
    assert failed.value.status == Status.MOD_NOT_FOUND
