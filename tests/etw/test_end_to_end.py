"""The functions of the API together: a provider's events, by a session that really runs, to a consumer's callbacks."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

import pytest

from etw_properties import properties
from etw_world import PROVIDER, World, until
from etw_world import world as world
from lastbranch import etw
from lastbranch.etw.structures import guid_of, structure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the portable kernel runs on Linux")


def _pieces(*datas: bytes) -> tuple[Any, list[Any]]:
    kind = etw.EVENT_DATA_DESCRIPTOR
    alive = [ctypes.create_string_buffer(data, len(data)) for data in datas]
    return (kind * len(datas))(*(kind(ctypes.addressof(one), len(one)) for one in alive)), alive


def _classic(data: bytes) -> bytearray:
    kind = structure("EVENT_TRACE_HEADER")
    head = kind(
        Size=ctypes.sizeof(kind) + len(data),
        Version=7 | 2 << 8 | 3 << 16,
        Guid=guid_of(PROVIDER),
        ProcessorTime=etw.WNODE_FLAG_TRACED_GUID << 32,
    )
    return bytearray(bytes(head) + data)


def _consume(found: list[Any], **fields: Any) -> None:
    """(id, level, process, activity, data) of the provider's events into ``found``, by EventRecordCallback."""

    def take(record: Any) -> None:
        head = record.EventHeader
        if bytes(head.ProviderId) == PROVIDER.bytes_le:
            data = ctypes.string_at(record.UserData, record.UserDataLength) if record.UserDataLength else b""
            found.append(
                (
                    head.EventDescriptor.Id,
                    head.EventDescriptor.Level,
                    head.ProcessId,
                    bytes(head.ActivityId),
                    data,
                )
            )

    logfile = etw.Logfile(**fields)
    logfile.EventRecordCallback = take
    status, handle = etw.OpenTrace(logfile)
    assert status == 0
    assert etw.ProcessTrace([handle], None, None) == 0
    assert etw.CloseTrace(handle) == 0


def test_from_provider_to_consumer(world: World) -> None:
    status, session, _ = world.start()
    assert status == 0
    told: list[tuple[Any, ...]] = []
    status, provider = etw.EventRegister(PROVIDER, lambda *arguments: told.append(arguments), "context")
    assert status == 0
    try:
        assert not etw.EventProviderEnabled(provider, 4, 0)
        assert etw.EnableTraceEx2(session, PROVIDER, 1, 4, 0x3, 0, 20_000, None) == 0
        until(lambda: told)
        assert (told[0][1:5], told[0][6]) == ((1, 4, 0x3, 0), "context")
        event = etw.EVENT_DESCRIPTOR(11, 1, 0, 4, 0, 0, 0x1)
        assert etw.EventEnabled(provider, event)
        assert not etw.EventEnabled(provider, etw.EVENT_DESCRIPTOR(12, 0, 0, 5, 0, 0, 0x1))
        assert not etw.EventEnabled(provider, etw.EVENT_DESCRIPTOR(12, 0, 0, 4, 0, 0, 0x4))
        data, _alive = _pieces(b"one ", b"", b"two")
        assert etw.EventWrite(provider, event, 3, data) == 0
        assert etw.EventWriteTransfer(provider, event, PROVIDER, None, 0, None) == 0
        assert etw.EventWrite(provider, etw.EVENT_DESCRIPTOR(12, 0, 0, 5, 0, 0, 0x1), 0, None) == 0
        assert etw.TraceEvent(session, _classic(b"classic")) == 0
        assert etw.EnableTraceEx2(session, PROVIDER, 0, 0, 0, 0, 20_000, None) == 0
        assert etw.EventWrite(provider, event, 3, data) == 0
        assert told[-1][1] == 0
    finally:
        assert etw.EventUnregister(provider) == 0
    assert world.stop(session).EventsLost == 0
    mode = etw.ProcessTraceMode.EVENT_RECORD
    mine, none = os.getpid(), bytes(16)
    found: list[Any] = []
    _consume(found, LogFileName=world.file(), ProcessTraceMode=mode)
    assert found[0] == (11, 4, mine, none, b"one two")
    assert found[1] == (11, 4, mine, PROVIDER.bytes_le, b"")
    assert [row[2:] for row in found[2:]] == [(mine, none, b"classic")]


def test_in_real_time(world: World) -> None:
    status, session, _ = world.start(file=None, LogFileMode=etw.EVENT_TRACE_REAL_TIME_MODE)
    assert status == 0
    found: list[Any] = []
    mode = etw.ProcessTraceMode.EVENT_RECORD | etw.ProcessTraceMode.REAL_TIME
    fields = {"LoggerName": "session", "ProcessTraceMode": mode}
    reader = threading.Thread(target=_consume, args=(found,), kwargs=fields)
    provider = world.provider(session)
    world.write(provider, 3)
    reader.start()
    world.flush(session)
    world.write(provider, 3, first=3)
    world.flush(session)
    until(lambda: len(found) == 6)
    world.stop(session)
    reader.join(30)
    assert not reader.is_alive()
    assert [row[4][0] for row in found] == list(range(6))


def test_all_sessions_at_once(world: World) -> None:
    for number in range(3):
        assert world.start(name=f"session {number}", file=f"{number}.etl")[0] == 0
    array = [properties(room=1100, file="x") for _ in range(4)]
    assert etw.QueryAllTraces(array, 4) == (0, 3)
    names = {bytes(a[world.head(a).LoggerNameOffset :]).decode("utf-16-le").partition("\0")[0] for a in array[:3]}
    assert names == {f"session {number}" for number in range(3)}
    assert etw.QueryAllTraces(array, 2) == (234, 3)
