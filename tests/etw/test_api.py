"""The functions of the API over a kernel in memory: checks before the kernel, structures in and out, status first."""

from __future__ import annotations

import ctypes
import inspect
from typing import Any
from uuid import UUID

import pytest

from etw_fake import FakeKernel
from etw_properties import properties
from lastbranch import etw
from lastbranch.etw import control_api, provider_api
from lastbranch.etw.flags import PERFINFO_PROVIDER, Control, EnableProvider, LogFileMode
from lastbranch.etw.interface import ClassicHeader, EventDescriptor
from lastbranch.etw.status import EtwError, Status
from lastbranch.etw.structures import guid_of, structure

GUID = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    made = FakeKernel()
    for module in (control_api, provider_api):
        monkeypatch.setattr(module, "kernel", lambda: made)
    return made


def head(buffer: Any) -> Any:
    return structure("EVENT_TRACE_PROPERTIES").from_buffer(buffer)


def name_in(buffer: Any) -> str:
    return bytes(buffer[head(buffer).LoggerNameOffset :]).decode("utf-16-le").partition("\0")[0]


class TestNames:
    def test_every_name_is_there(self) -> None:
        for name in etw.__all__:
            assert getattr(etw, name) is not None
        assert set(etw.__all__) <= set(dir(etw))
        with pytest.raises(AttributeError, match="NoSuchThing"):
            etw.NoSuchThing  # noqa: B018

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("EVENT_TRACE_CONTROL_STOP", 1),
            ("EVENT_TRACE_FILE_MODE_SEQUENTIAL", 1),
            ("WNODE_FLAG_TRACED_GUID", 0x20000),
            ("EVENT_TRACE_SYSTEM_LOGGER_MODE", 0x2000000),
            ("EVENT_TRACE_FLAG_IMAGE_LOAD", 4),
            ("TraceStackTracingInfo", 3),
            ("TraceSystemTraceEnableFlagsInfo", 4),
            ("TraceSampledProfileIntervalInfo", 5),
            ("TraceProfileSourceConfigInfo", 6),
            ("TraceProfileSourceListInfo", 7),
            ("TracePmcEventListInfo", 8),
            ("TracePmcCounterListInfo", 9),
            ("TraceSetDisallowList", 10),
            ("TraceVersionInfo", 11),
            ("TraceDisallowListQuery", 14),
            ("TraceLbrConfigurationInfo", 20),
            ("TraceLbrEventListInfo", 21),
            ("EVENT_CONTROL_CODE_ENABLE_PROVIDER", 1),
            ("EVNTRACE_LBR_SAMPLED", 0x400),
            ("EVNTRACE_MAX_LBR_EVENTS", 4),
            ("EVNTRACE_LBR_CALLSTACK_ENABLE", 0x200),
            ("EVNTRACE_LBR_FILTER_KERNEL", 1),
            ("PERF_PMC_PROFILE", (1, 0x400)),
        ],
    )
    def test_names_of_the_headers(self, name: str, value: object) -> None:
        assert getattr(etw, name) == value

    def test_signatures_tell_the_status(self) -> None:
        assert inspect.signature(etw.StartTrace).return_annotation == "tuple[int, int]"
        assert inspect.signature(etw.ControlTrace).return_annotation == "int"


class TestStartTrace:
    def test_in_and_out(self, kernel: FakeKernel) -> None:
        buffer = properties(file="x.etl", LogFileMode=1)
        assert etw.StartTrace("Session", buffer) == (0, 1)
        assert (head(buffer).Wnode.HistoricalContext, head(buffer).BufferSize, name_in(buffer)) == (1, 64, "Session")
        assert (head(buffer).NumberOfBuffers, head(buffer).FreeBuffers, head(buffer).LoggerThreadId) == (4, 3, 99)
        (_, request, targets) = kernel.calls[0]
        assert (request.name, request.file, request.mode, targets) == (
            "Session",
            "x.etl",
            LogFileMode.FILE_MODE_SEQUENTIAL,
            (),
        )

    @pytest.mark.parametrize(
        ("name", "change", "status"),
        [
            ("s", None, 87),
            ("", {}, 123),
            (None, {}, 123),
            ("x" * 1025, {}, 123),
            ("a\0b", {}, 123),
            ("x" * 1024, {}, 24),
            ("x" * 63, {}, 0),
            ("x" * 64, {}, 24),
            ("s", {"LoggerNameOffset": 0}, 87),
            ("\U0001f600" * 513, {}, 123),
            ("\U0001f600" * 31, {}, 0),
            ("\U0001f600" * 32, {}, 24),
            ("s", {"LogFileNameOffset": 4}, 87),
            ("s", {"LogFileNameOffset": 10**6}, 87),
        ],
    )
    def test_what_is_refused_before_the_kernel(
        self, kernel: FakeKernel, name: str | None, change: dict[str, int] | None, status: int
    ) -> None:
        buffer = None if change is None else properties(file="f", **change)
        assert etw.StartTrace(name, buffer)[0] == status
        assert len(kernel.calls) == (status == 0)

    def test_sizes_and_flags(self, kernel: FakeKernel) -> None:
        for size, flags, status in ((119, 0x20000, 24), (10**6, 0x20000, 24), (None, 0, 87)):
            buffer = properties()
            head(buffer).Wnode.BufferSize = size or len(buffer)
            head(buffer).Wnode.Flags = flags
            assert etw.StartTrace("s", buffer) == (status, 0)

    def test_the_kernels_refusal(self, kernel: FakeKernel) -> None:
        assert etw.StartTrace("s", properties()) == (0, 1)
        assert etw.StartTrace("S", properties()) == (Status.ALREADY_EXISTS, 0)


class TestControlTrace:
    def test_by_handle_and_by_name(self, kernel: FakeKernel) -> None:
        _, handle = etw.StartTrace("Session", properties())
        for by in ((handle, None), (0, "SESSION"), (handle, "another")):
            buffer = properties()
            assert etw.ControlTrace(*by, buffer, etw.EVENT_TRACE_CONTROL_QUERY) == 0
            assert (name_in(buffer), head(buffer).Wnode.HistoricalContext) == ("Session", handle)
        assert etw.ControlTrace(0, None, properties(), 0) == 87
        assert etw.ControlTrace(0, "none", properties(), 0) == Status.WMI_INSTANCE_NOT_FOUND
        assert etw.ControlTrace(handle, None, None, 0) == 87
        assert etw.ControlTrace(handle, None, properties(), 6) == 87

    def test_only_what_asks_is_read(self, kernel: FakeKernel) -> None:
        """Query and stop need no flag and no text behind the structure; the others are requests."""
        _, handle = etw.StartTrace("s", properties())
        for code in Control:
            if code != Control.STOP:
                buffer = properties(file="new.etl", FlushTimer=3)
                head(buffer).Wnode.Flags = 0
                assert etw.ControlTrace(handle, None, buffer, code) == 0
                request = kernel.calls[-1][3]
                asks = (request.file, request.flush_timer) if request else None
                assert asks == (None if code == Control.QUERY else ("new.etl", 3))

    def test_stop_without_room_for_the_name(self, kernel: FakeKernel) -> None:
        """The session IS stopped, and 234 says that the name did not fit."""
        _, handle = etw.StartTrace("a rather long name", properties())
        assert etw.ControlTrace(handle, None, properties(room=4), Control.STOP) == 234
        assert kernel.running == {}

    def test_a_wrong_size_stops_nothing(self, kernel: FakeKernel) -> None:
        _, handle = etw.StartTrace("s", properties())
        buffer = properties()
        head(buffer).Wnode.BufferSize = 100
        assert etw.ControlTrace(handle, None, buffer, Control.STOP) == 24
        assert kernel.running


class TestQueryAllTraces:
    def test_all(self, kernel: FakeKernel) -> None:
        for name in ("a", "b", "c"):
            etw.StartTrace(name, properties())
        array = [properties() for _ in range(4)]
        assert etw.QueryAllTraces(array, 4) == (0, 3)
        assert [name_in(b) for b in array[:3]] == ["a", "b", "c"]
        assert etw.QueryAllTraces(array, 2) == (234, 3)

    @pytest.mark.parametrize(("array", "count"), [(None, 1), ([], 0), ([], 1), (None, 65)])
    def test_refused(self, kernel: FakeKernel, array: Any, count: int) -> None:
        assert etw.QueryAllTraces(array, count) == (87, 0)
        assert etw.QueryAllTraces([bytearray(8)], 1) == (24, 0)


def filters(*kinds: tuple[int, bytes]) -> tuple[Any, list[Any]]:
    """ENABLE_TRACE_PARAMETERS with descriptors, and what must stay alive with it."""
    descriptor = structure("EVENT_FILTER_DESCRIPTOR")
    datas = [ctypes.create_string_buffer(data, len(data)) for _, data in kinds]
    array = (descriptor * len(kinds))(
        *(descriptor(ctypes.addressof(d), len(d), kind) for d, (kind, _) in zip(datas, kinds, strict=True))
    )
    made = structure("ENABLE_TRACE_PARAMETERS")(2, 0x40, 0, guid_of(GUID))
    made.EnableFilterDesc, made.FilterDescCount = (ctypes.addressof(array) if kinds else 0), len(kinds)
    return made, [datas, array]


class TestEnableTraceEx2:
    def test_what_the_kernel_gets(self, kernel: FakeKernel) -> None:
        _, handle = etw.StartTrace("s", properties())
        made, _alive = filters((0x80000004, b"\x07\0\0\0"), (0x80000200, b"\x01\0\x01\0\x05\0"))
        assert etw.EnableTraceEx2(handle, GUID, 1, 4, 0x10, 0x2, 500, made) == 0
        *call, parameters = kernel.calls[-1]
        assert call == ["enable", handle, GUID, EnableProvider.ENABLE, 4, 0x10, 0x2, 500]
        assert (parameters.property, parameters.source) == (0x40, GUID)
        assert [(f.kind, f.data) for f in parameters.filters] == [
            (0x80000004, b"\x07\0\0\0"),
            (0x80000200, b"\x01\0\x01\0\x05\0"),
        ]
        assert etw.EnableTraceEx2(handle, guid_of(GUID), 0, 0, 0, 0, 0, None) == 0
        assert kernel.calls[-1][-1] is None

    @pytest.mark.parametrize(
        "arguments", [(0, GUID, 1, 0), (1, None, 1, 0), (1, "x", 1, 0), (1, GUID, 3, 0), (1, GUID, 1, 256)]
    )
    def test_refused(self, kernel: FakeKernel, arguments: tuple[Any, ...]) -> None:
        etw.StartTrace("s", properties())
        assert etw.EnableTraceEx2(*arguments, 0, 0, 0, None) == 87

    def test_filters_refused(self, kernel: FakeKernel) -> None:
        """Two of one type, too many PIDs, no array, a version that is none."""
        _, handle = etw.StartTrace("s", properties())
        cases = [
            filters((0x80000004, bytes(4)), (0x80000004, bytes(4))),
            filters((0x80000004, bytes(36))),
            filters(*((n, b"x") for n in range(14))),
        ]
        for made, _alive in cases:
            assert etw.EnableTraceEx2(handle, GUID, 1, 0, 0, 0, 0, made) == 87
        for field, value in (("FilterDescCount", 1), ("Version", 3)):
            made, _ = filters()
            setattr(made, field, value)
            assert etw.EnableTraceEx2(handle, GUID, 1, 0, 0, 0, 0, made) == 87


class TestLastBranchRecord:
    @pytest.mark.parametrize(
        ("flags", "given", "count", "status"),
        [
            (3, False, 5, 1292),
            (0, False, 1, 87),
            (3, True, 1, 87),
            (3, False, 0, 87),
            (0, False, 0, 0),
            (0x800, True, 1, 87),
            (0, True, 4, 0),
            (0, True, 5, 1292),
            (0x3C5, True, 1, 0),
            (0x400, True, 1, 0),
        ],
    )
    def test_order_of_checks(self, kernel: FakeKernel, flags: int, given: bool, count: int, status: int) -> None:
        """1292 for the count, then 87 for no array, then 87 for both levels left out; then the kernel."""
        _, handle = etw.StartTrace("s", properties())
        events = (structure("CLASSIC_EVENT_ID") * 5)() if given else None
        assert etw.TraceConfigureLastBranchRecord(handle, flags, events, count) == status
        assert any(call[0] == "lbr" for call in kernel.calls) == (status == 0)

    def test_events(self, kernel: FakeKernel) -> None:
        _, handle = etw.StartTrace("s", properties())
        event = structure("CLASSIC_EVENT_ID")(guid_of(PERFINFO_PROVIDER), 0x2F)
        assert etw.TraceConfigureLastBranchRecord(handle, 1, event, 1) == 0
        assert kernel.calls[-1] == ("lbr", handle, 1, [(PERFINFO_PROVIDER, 0x2F)])
        assert etw.TraceConfigureLastBranchRecord(77, 0, event, 1) == Status.WMI_INSTANCE_NOT_FOUND
        assert etw.TraceConfigureLastBranchRecord(handle, 0, bytes(47), 2) == 87


def pieces(*datas: bytes) -> tuple[Any, list[Any]]:
    kind = structure("EVENT_DATA_DESCRIPTOR")
    alive = [ctypes.create_string_buffer(d, len(d)) for d in datas]
    return (kind * len(datas))(*(kind(ctypes.addressof(a), len(a)) for a in alive)), alive


class TestProviders:
    def test_a_life(self, kernel: FakeKernel) -> None:
        told: list[tuple[Any, ...]] = []
        status, handle = etw.EventRegister(GUID, lambda *a: told.append(a), "context")
        assert status == 0
        kernel.calls[-1][2](GUID, EnableProvider.ENABLE, 4, 1, 2, ())
        assert told == [(GUID, 1, 4, 1, 2, (), "context")]
        made = kernel.registrations[-1]
        event = structure("EVENT_DESCRIPTOR")(7, 1, 0, 4, 2, 3, 0x10)
        data, _alive = pieces(b"ab", b"", b"cde")
        assert etw.EventWrite(handle, event, 3, data) == 0
        assert made.events[-1] == (EventDescriptor(7, 1, 0, 4, 2, 3, 0x10), b"abcde", b"", b"")
        assert etw.EventWriteTransfer(handle, event, GUID, None, 0, None) == 0
        assert made.events[-1][2:] == (GUID.bytes_le, b"")
        made.level, made.keywords = 3, 0x1
        assert not etw.EventEnabled(handle, event)
        assert etw.EventProviderEnabled(handle, 3, 1)
        assert not etw.EventProviderEnabled(handle, 3, 2)
        assert etw.EventSetInformation(handle, 2, b"traits!", 6) == 0
        assert made.information == {2: b"traits"}
        assert etw.EventUnregister(handle) == 0
        assert made.closed
        assert etw.EventUnregister(handle) == etw.EventWrite(handle, event, 0, None) == Status.INVALID_HANDLE
        assert not etw.EventEnabled(handle, event)

    def test_a_disabled_provider_looks_at_nothing(self, kernel: FakeKernel) -> None:
        _, handle = etw.EventRegister(GUID, None)
        kernel.registrations[-1].enabled = False
        assert etw.EventWrite(handle, object(), 10**6, object()) == 0
        assert kernel.registrations[-1].events == []
        assert etw.EventUnregister(handle) == 0

    def test_data_refused(self, kernel: FakeKernel) -> None:
        _, handle = etw.EventRegister(GUID, None)
        event = EventDescriptor(1)
        data, _alive = pieces(b"x")
        assert etw.EventWrite(handle, event, 129, data) == 87
        assert etw.EventWrite(handle, event, 1, None) == 87
        assert etw.EventWrite(handle, event, 2, data) == 87
        data[0].Size = 65537
        assert etw.EventWrite(handle, event, 1, data) == Status.ARITHMETIC_OVERFLOW
        data[0].Ptr, data[0].Size = 0, 1
        assert etw.EventWrite(handle, event, 1, data) == 87
        assert etw.EventRegister("no guid", None)[0] == 87
        assert etw.EventRegister(GUID, 5)[0] == 87
        assert etw.EventUnregister(handle) == 0


class TestTraceEvent:
    def event(self, data: bytes, flags: int = 0x20000, size: int | None = None) -> bytearray:
        kind = structure("EVENT_TRACE_HEADER")
        made = kind(
            Size=size or ctypes.sizeof(kind) + len(data),
            Version=5 | 2 << 8 | 9 << 16,
            Guid=guid_of(GUID),
            ProcessorTime=flags << 32,
        )
        return bytearray(bytes(made) + data)

    def test_data_and_pointers(self, kernel: FakeKernel) -> None:
        _, handle = etw.StartTrace("s", properties())
        assert etw.TraceEvent(handle, self.event(b"data")) == 0
        assert kernel.calls[-1] == ("trace_event", handle, ClassicHeader(GUID, 5, 2, 9), b"data")
        array, _alive = pieces(b"one", b"two")
        assert etw.TraceEvent(handle, self.event(bytes(array), 0x120000)) == 0
        assert kernel.calls[-1][-1] == b"onetwo"

    def test_refused(self, kernel: FakeKernel) -> None:
        _, handle = etw.StartTrace("s", properties())
        for event in (None, b"", self.event(b"x", 0), self.event(b"x", size=47), self.event(b"x", size=60)):
            assert etw.TraceEvent(handle, event) == 87
        assert etw.TraceEvent(handle, self.event(b"x" * 17, 0x120000)) == 87
        assert etw.TraceEvent(0, self.event(b"x")) == Status.INVALID_HANDLE
        assert etw.TraceEvent(9, self.event(b"x")) == Status.WMI_INSTANCE_NOT_FOUND


def test_errors_tell_call_code_and_reason() -> None:
    error = EtwError("StartTrace", 183)
    assert (error.status, error.call) == (Status.ALREADY_EXISTS, "StartTrace")
    assert str(error) == "StartTrace: it exists already (code 183)"
    assert EtwError("X", 99999).status == 99999
