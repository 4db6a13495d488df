# ruff: noqa: N802  (the names are Windows')
"""The fake Windows' providers and consumers: what is written goes to sessions, and from there to callbacks."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from windows_memory import BUFFER, HANDLES, FakeEvent, FakeSession, put, text, u32


@dataclass
class Provider:
    guid: UUID
    callback: Any
    context: int


class Events:
    """Part of `windows_fake.FakeWindows`."""

    sessions: dict[int, FakeSession]
    _next: int
    _error: int

    def __init__(self) -> None:
        self.files: dict[str, list[FakeEvent]] = {}
        self.processing: set[int] = set()
        self.delivered = 0
        self.tells = True
        """Whether OpenTrace fills in more than the header."""
        self._providers: dict[int, Provider] = {}
        self._open: dict[int, bytes] = {}

    def EventRegister(self, guid_at: int, callback: int, context: int, out: int) -> int:
        types = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint8, ctypes.c_uint64, ctypes.c_uint64)
        function = ctypes.CFUNCTYPE(None, *types, ctypes.c_void_p, ctypes.c_void_p)(callback)
        self._next += 1
        provider = Provider(UUID(bytes_le=ctypes.string_at(guid_at, 16)), function, context)
        self._providers[HANDLES + self._next] = provider
        if any(provider.guid in s.enabled for s in self.sessions.values()):
            self._notify(provider, 1)
        put(out, HANDLES + self._next, 8)
        return 0

    def EventUnregister(self, handle: int) -> int:
        return 0 if self._providers.pop(handle, None) else 6

    def EventProviderEnabled(self, handle: int, level: int, keyword: int) -> int:
        guid = self._providers[handle].guid
        return int(any(self._takes(s.enabled.get(guid), level, keyword) for s in self.sessions.values()))

    @staticmethod
    def _takes(state: tuple[int, int, int] | None, level: int, keyword: int) -> bool:
        if state is None:
            return False
        most, match_any, match_all = state
        if most and level > most:
            return False
        return not keyword or not match_any or bool(keyword & match_any and keyword & match_all == match_all)

    def EventWriteTransfer(self, handle: int, descriptor: int, activity: int, related: int, count: int, at: int) -> int:
        if handle not in self._providers:
            return 6
        id_, _, _, level, _, _, keyword = struct.unpack("<HBBBBHQ", ctypes.string_at(descriptor, 16))
        pieces = (struct.unpack("<QII", ctypes.string_at(at + 16 * i, 16)) for i in range(count))
        data = b"".join(ctypes.string_at(address, size) for address, size, _ in pieces)
        if len(data) > 0xFFFF - 80:
            return 534
        guid = self._providers[handle].guid
        for session in self.sessions.values():
            if self._takes(session.enabled.get(guid), level, keyword):
                if len(data) + 80 > session.numbers[BUFFER] * 1024:
                    return 234
                time = 1000 + len(session.events)
                session.events.append(FakeEvent(guid, id_, data, time, level, keyword))
        return 0

    def EventSetInformation(self, handle: int, info: int, at: int, length: int) -> int:
        return 0 if handle in self._providers and info in (0, 2) else 87

    def TraceEvent(self, handle: int, at: int) -> int:
        session = self.sessions.get(handle)
        if session is None:
            return 6
        size, kind, flags = (
            ctypes.c_uint16.from_address(at).value,
            ctypes.c_uint8.from_address(at + 4).value,
            u32(at + 44),
        )
        if size < 48 or not flags & 0x20000:
            return 87
        guid = UUID(bytes_le=ctypes.string_at(at + 24, 16))
        data, time = ctypes.string_at(at + 48, size - 48), 1000 + len(session.events)
        session.events.append(FakeEvent(guid, kind, data, time, classic=True))
        return 0

    def _notify(self, provider: Provider, code: int, filters: int = 0, source_at: int = 0) -> None:
        states = [s.enabled[provider.guid] for s in self.sessions.values() if provider.guid in s.enabled]
        level = max((state[0] for state in states), default=0)
        keywords = 0
        for state in states:
            keywords |= state[1]
        if code != 2:
            code = 1 if states else 0
        provider.callback(source_at or None, code, level, keywords, 0, filters or None, provider.context or None)

    # -- consumers

    def OpenTraceW(self, at: int) -> int:
        file_at, name_at = struct.unpack("<QQ", ctypes.string_at(at, 16))
        live = bool(u32(at + 28) & 0x100)
        self._error = 87 if not (name_at if live else file_at) else 0
        if not self._error and live and not self._found(0, name_at):
            self._error = 4201
        if not self._error and not live and text(file_at) not in self.files:
            self._error = 2
        if self._error:
            return 2**64 - 1
        session = self._found(0, name_at) if live else None
        put(at + 120, 65536)  # LogfileHeader: BufferSize, LogFileMode, EventsLost
        put(at + 152, 0x2000000 if session is not None and session.system else 1)
        put(at + 168, 3)
        if self.tells:  # BufferSize, EventsLost, IsKernelTrace
            put(at + 408, 131072)
            put(at + 416, 4)
            put(at + 432, 1)
        self._next += 1
        self._open[HANDLES + self._next] = ctypes.string_at(at, 448)
        return HANDLES + self._next

    def _events(self, logfile: bytes) -> list[FakeEvent]:
        file_at, name_at = struct.unpack_from("<QQ", logfile)
        if struct.unpack_from("<I", logfile, 28)[0] & 0x100:
            session = self._found(0, name_at)
            return session.events if session else []
        return self.files[text(file_at)]

    def ProcessTrace(self, array_at: int, count: int, start_at: int, end_at: int) -> int:
        if not array_at or not 0 < count <= 64:
            return 87
        handles = list((ctypes.c_uint64 * count).from_address(array_at))
        if not all(h in self._open for h in handles):
            return 6
        start = ctypes.c_uint64.from_address(start_at).value if start_at else 0
        end = ctypes.c_uint64.from_address(end_at).value if end_at else 2**64
        played = [(e.time, i, e, h) for h in handles for i, e in enumerate(self._events(self._open[h]))]
        self.processing |= set(handles)
        try:
            for done, (time, _, event, handle) in enumerate(sorted(played, key=lambda p: p[:2]), 1):
                logfile = self._open.get(handle)
                if logfile is None or not start <= time <= end:
                    continue
                self._deliver(event, logfile)
                self.delivered += 1
                if done % 2 == 0 and not self._buffer(logfile):
                    return 1223
        finally:
            self.processing -= set(handles)
        return 0

    def _deliver(self, event: FakeEvent, logfile: bytes) -> None:
        data = ctypes.create_string_buffer(event.data, max(len(event.data), 1))
        where, size = ctypes.addressof(data), len(event.data)
        guid = event.provider.bytes_le
        if struct.unpack_from("<I", logfile, 28)[0] & 0x10000000:
            record = struct.pack("<HHHHIIq16s", 80 + size, 0, 0x40, 0, 77, 66, event.time, guid)
            record += struct.pack("<HBBBBHQ", event.id, 0, 0, event.level, 0, 0, event.keyword)
            context = struct.unpack_from("<Q", logfile, 440)[0]
            record += struct.pack("<Q16sBBHHHQQQ", 0, bytes(16), 3, 8, 1, 0, size, 0, where, context)
        else:
            record = struct.pack("<HHBBHIIq16sQ", 48 + size, 0, event.id, 0, 0, 77, 66, event.time, guid, 0)
            record += struct.pack("<II16sQII", 0, 0, bytes(16), where, size, 0)
        memory = ctypes.create_string_buffer(record, len(record))
        callback = struct.unpack_from("<Q", logfile, 424)[0]
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(callback)(ctypes.addressof(memory))

    @staticmethod
    def _buffer(logfile: bytes) -> int:
        memory = ctypes.create_string_buffer(logfile, len(logfile))
        callback = struct.unpack_from("<Q", logfile, 400)[0]
        return int(ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)(callback)(ctypes.addressof(memory)))

    def CloseTrace(self, handle: int) -> int:
        if self._open.pop(handle, None) is None:
            return 6
        return 7007 if handle in self.processing else 0
