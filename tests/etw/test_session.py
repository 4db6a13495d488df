"""Sessions and providers in Python's own terms, over a kernel in memory."""

from __future__ import annotations

from uuid import UUID

import pytest

from etw_fake import SOURCES, FakeKernel
from lastbranch.etw import LogFileMode, Provider, Session, event_id_filter, pid_filter, provider_guid
from lastbranch.etw.flags import PERFINFO_PROVIDER, Control, EnableProvider, FilterType, Info
from lastbranch.etw.interface import EventDescriptor
from lastbranch.etw.session import (
    configure_profile_sources,
    profile_interval,
    profile_sources,
    sessions,
    set_profile_interval,
)
from lastbranch.etw.status import EtwError, Status

GUID = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


def refused(status: int, call: object, *arguments: object) -> str:
    with pytest.raises(EtwError) as caught:
        call(*arguments)  # type: ignore[operator]
    assert caught.value.status == status
    return str(caught.value)


class TestSession:
    def test_the_block_starts_and_stops(self, kernel: FakeKernel) -> None:
        with Session("one", "x.etl", mode=1, targets=[5], buffer_size=8, on=kernel) as session:
            assert session.handle == 1
            assert session.request.buffer_size == 8
            assert [s.request.name for s in sessions(on=kernel)] == ["one"]
        assert kernel.running == {}
        assert session.final is not None
        assert session.handle == 0
        assert kernel.calls[0][1].mode is LogFileMode.FILE_MODE_SEQUENTIAL
        assert kernel.calls[0][2] == (5,)

    def test_it_stops_when_the_block_fails(self, kernel: FakeKernel) -> None:
        with pytest.raises(KeyError), Session("one", on=kernel):
            raise KeyError
        assert kernel.running == {}

    def test_one_that_runs(self, kernel: FakeKernel) -> None:
        Session("One", on=kernel).start()
        found = Session.of("ONE", on=kernel)
        assert (found.handle, found.name) == (1, "One")
        refused(4201, lambda: Session.of("two", on=kernel))

    def test_names(self, kernel: FakeKernel) -> None:
        for name in ("", "x" * 1025, "\U0001f600" * 513, "a\0b"):
            refused(123, Session(name, on=kernel).start)
        Session("one", on=kernel).start()
        assert "it exists already (code 183)" in refused(183, Session("ONE", on=kernel).start)

    @pytest.mark.parametrize(
        "fields", [{"flush_timer": -5}, {"maximum_file_size": 2**32}, {"mode": 1 << 32}, {"age_limit": 2**31}]
    )
    def test_numbers_that_the_structure_cannot_hold(self, kernel: FakeKernel, fields: dict[str, int]) -> None:
        assert "does not fit in 32 bits" in refused(87, Session("one", on=kernel, **fields).start)
        assert kernel.running == {}
        with Session("one", on=kernel, age_limit=-1) as session:
            refused(87, lambda: session.update(**fields))
            refused(87, lambda: setattr(session, "masks", [1 << 32]))

    def test_control(self, kernel: FakeKernel) -> None:
        session = Session("one", on=kernel, enable_flags=3, mode=LogFileMode.SYSTEM_LOGGER_MODE)
        session.start()
        session.flush("snapshot.etl")
        assert kernel.calls[-1][1:3] == (Control.FLUSH, 1)
        assert kernel.calls[-1][3].file == "snapshot.etl"
        session.increment_file()
        assert kernel.calls[-1][1] == Control.INCREMENT_FILE
        session.convert_to_real_time()
        assert kernel.calls[-1][1] == Control.CONVERT_TO_REALTIME
        session.update(flush_timer=3)
        asked = kernel.calls[-1][3]
        assert (asked.flush_timer, asked.enable_flags, asked.mode) == (3, 3, LogFileMode.SYSTEM_LOGGER_MODE)
        assert "no_such" in refused(87, lambda: session.update(no_such=1))

    def test_enabling(self, kernel: FakeKernel) -> None:
        session = Session("one", on=kernel)
        refused(87, session.enable, GUID)
        session.start()
        session.enable(GUID, 4, 0x10, 0x1, event_ids=[5, 7], timeout=0.5)
        *call, parameters = kernel.calls[-1]
        assert call == ["enable", 1, GUID, EnableProvider.ENABLE, 4, 0x10, 0x1, 500]
        assert [(f.kind, f.data) for f in parameters.filters] == [(FilterType.EVENT_ID, b"\x01\0\x02\0\x05\0\x07\0")]
        for level, keywords, match_all in ((256, 0, 0), (-1, 0, 0), (0, 1 << 64, 0), (0, 0, -1)):
            refused(87, session.enable, GUID, level, keywords, match_all)
        session.enable("{01020304-0506-0708-090a-0b0c0d0e0f10}")
        assert kernel.calls[-1][2:4] == (GUID, EnableProvider.ENABLE)
        session.disable(GUID)
        assert kernel.calls[-1][3] == EnableProvider.DISABLE
        session.capture_state(GUID)
        assert kernel.calls[-1][3] == EnableProvider.CAPTURE_STATE

    def test_classes(self, kernel: FakeKernel) -> None:
        with Session("one", on=kernel) as session:
            session.masks = [1, 0x400]
            assert kernel.values[1, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO] == [1, 0x400, 0, 0, 0, 0, 0, 0]
            assert session.masks[:2] == [1, 0x400]
            session.trace_stacks([(PERFINFO_PROVIDER, 0x2E)])
            assert kernel.values[1, Info.STACK_TRACING_INFO] == [(PERFINFO_PROVIDER, 0x2E)]
            session.disallow(["MyCompany.MyComponent"])
            assert kernel.values[1, Info.SET_DISALLOW_LIST] == [UUID("ce5fa4ea-ab00-5402-8b76-9f76ac858fb5")]
            refused(87, session.trace_stacks, [(PERFINFO_PROVIDER, 1)] * 257)
            session.configure_lbr([(PERFINFO_PROVIDER, 0x2F)], 1)
            assert kernel.calls[-1] == ("lbr", 1, 1, [(PERFINFO_PROVIDER, 0x2F)])
            refused(1292, session.configure_lbr, [(PERFINFO_PROVIDER, 0x2F)] * 5)
            refused(87, session.configure_lbr, [], 3)


def test_profile_sources(kernel: FakeKernel) -> None:
    assert profile_sources(on=kernel) == SOURCES
    set_profile_interval(6, 10000, on=kernel)
    assert profile_interval(6, on=kernel) == 10000
    configure_profile_sources([6, 25], on=kernel)
    assert kernel.values[0, Info.PROFILE_SOURCE_CONFIG_INFO] == [6, 25]


def test_providers(kernel: FakeKernel) -> None:
    with Provider("MyCompany.MyComponent", on=kernel) as provider:
        assert kernel.calls[-1][1] == provider.guid == UUID("ce5fa4ea-ab00-5402-8b76-9f76ac858fb5")
        made = kernel.registrations[0]
        assert provider.enabled
        assert provider.event(3, b"data", level=2, keyword=8, opcode=1) == Status.SUCCESS
        assert made.events == [(EventDescriptor(3, level=2, opcode=1, keyword=8), b"data", b"", b"")]
        made.enabled = False
        assert not provider.enabled
    assert made.closed


@pytest.mark.parametrize(
    ("text", "guid"),
    [
        ("MyCompany.MyComponent", "ce5fa4ea-ab00-5402-8b76-9f76ac858fb5"),
        ("mycompany.mycomponent", "ce5fa4ea-ab00-5402-8b76-9f76ac858fb5"),
        ("{CE5FA4EA-AB00-5402-8B76-9F76AC858FB5}", "ce5fa4ea-ab00-5402-8b76-9f76ac858fb5"),
    ],
)
def test_names_of_providers(text: str, guid: str) -> None:
    """The first pair is the vendor's example of TraceLogging."""
    assert provider_guid(text) == UUID(guid)


@pytest.mark.parametrize(
    "text", ["{01020304-0506-0708-090a-0b0c0d0e0f1}", "01020304-0506-0708-090a-0b0c0d0e0f1", "{MyCompany}"]
)
def test_a_guid_with_a_mistake_is_no_name(text: str) -> None:
    """A session would wait for that provider for ever."""
    assert repr(text) in refused(87, provider_guid, text)


def test_filters() -> None:
    assert (pid_filter([7]).kind, pid_filter([7]).data) == (FilterType.PID, b"\x07\0\0\0")
    assert event_id_filter([1], take=False).data == b"\0\0\x01\0\x01\0"
    for bad in (
        lambda: pid_filter([]),
        lambda: pid_filter(range(9)),
        lambda: event_id_filter(range(65)),
        lambda: event_id_filter([70000]),
        lambda: provider_guid(""),
    ):
        refused(87, bad)
