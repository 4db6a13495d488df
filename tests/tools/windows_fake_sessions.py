# ruff: noqa: N802  (the names are Windows')
"""The fake Windows' StartTrace, ControlTrace, QueryAllTraces and EnableTraceEx2.

Rules and codes, in their order: the pages of these functions and of EVENT_TRACE_PROPERTIES_V2.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from windows_memory import (
    BUFFER,
    BUFFERS,
    CLOCK,
    ENABLE,
    FILE_AT,
    FILE_SIZE,
    FIXED,
    FLAGS,
    FLUSH,
    FREE,
    GUID,
    HANDLES,
    HISTORICAL,
    KEPT,
    MAXIMUM,
    MINIMUM,
    MODE,
    NAME_AT,
    PLAIN,
    THREAD,
    V2,
    FakeEvent,
    FakeSession,
    put,
    text,
    u32,
)

SEQUENTIAL, CIRCULAR, APPEND, NEWFILE, REAL_TIME, BUFFERING = 0x1, 0x2, 0x4, 0x8, 0x100, 0x400
SYSTEM_LOGGER, NO_PER_PROCESSOR = 0x2000000, 0x10000000
MOST_SYSTEM_LOGGERS = 8
WINE_HANDLE = 0xCAFE4242


class Sessions:
    """Part of `windows_fake.FakeWindows`."""

    admin: bool
    wine: bool
    files: dict[str, list[FakeEvent]]
    _next: int

    def __init__(self) -> None:
        self.sessions: dict[int, FakeSession] = {}
        self.folders = {"", "C:\\traces"}
        self.most_sessions, self.processors = 64, 4
        self.log_of: Callable[[FakeSession], bytes] | None = None
        """Makes the contents of a stopped session's log file; None: no file is written."""

    def StartTraceW(self, handle_at: int, name_at: int, at: int) -> int:
        if self.wine:
            put(handle_at, WINE_HANDLE, 8)
            return 0
        if not handle_at or not at:
            return 87
        if u32(at) < PLAIN:
            return 24
        if not u32(at + FLAGS) & 0x20000:
            return 87
        name = text(name_at) if name_at else ""
        if not 0 < len(name) <= 1024:
            return 123
        file, code = self._names(at)
        if code:
            return code
        mode, size = u32(at + MODE), u32(at + FILE_SIZE)
        if mode & CIRCULAR and (mode & (SEQUENTIAL | APPEND | NEWFILE) or not size):
            return 87
        if mode & BUFFERING and mode & (SEQUENTIAL | CIRCULAR | APPEND | NEWFILE | REAL_TIME):
            return 87
        if mode & NEWFILE and file.count("%d") != 1:
            return 123
        guid = ctypes.string_at(at + GUID, 16)
        fixed = FIXED.get(name.casefold())
        if fixed is not None and guid != fixed.bytes_le:
            return 87
        if not file and not mode & (REAL_TIME | BUFFERING):
            return 161
        if file and file.rpartition("\\")[0] not in self.folders:
            return 161
        if not self.admin:
            return 5
        if any(s.name.casefold() == name.casefold() for s in self.sessions.values()):
            return 183
        system = bool(mode & SYSTEM_LOGGER) or fixed is not None
        if len(self.sessions) >= self.most_sessions or (
            system and sum(s.system for s in self.sessions.values()) >= MOST_SYSTEM_LOGGERS
        ):
            return 1450
        numbers = {offset: u32(at + offset) for offset in KEPT}
        least = 2 if mode & NO_PER_PROCESSOR else 2 * self.processors
        numbers[BUFFER] = min(max(numbers[BUFFER] or 64, 4), 16384)
        numbers[MINIMUM] = max(numbers[MINIMUM], least)
        numbers[MAXIMUM] = max(numbers[MAXIMUM], numbers[MINIMUM])
        numbers[BUFFERS] = numbers[FREE] = numbers[MINIMUM]
        self._next += 1
        session = FakeSession(name, file, guid, HANDLES + self._next, numbers, u32(at + CLOCK) or 1)
        session.masks[0] = numbers[ENABLE] if session.system else 0
        self.sessions[session.handle] = session
        put(handle_at, session.handle, 8)
        return self._tell(session, at)

    def _names(self, at: int) -> tuple[str, int]:
        """The file's name and 0, or a code."""
        room = u32(at)
        file_at, name_at = u32(at + FILE_AT), u32(at + NAME_AT)
        least = V2 if u32(at + FLAGS) & 0x800000 else PLAIN
        if any(o and not least <= o < room for o in (file_at, name_at)):
            return "", 87
        if file_at and name_at > file_at:  # the session's name stands before the file's
            return "", 87
        return (text(at + file_at, (room - file_at) // 2) if file_at else ""), 0

    def _tell(self, session: FakeSession, at: int) -> int:
        """Fill the caller's properties; 234 where a name does not fit."""
        room, file_at, name_at = u32(at), u32(at + FILE_AT), u32(at + NAME_AT)
        put(at + HISTORICAL, session.handle, 8)
        put(at + CLOCK, session.clock)
        put(at + THREAD, 4242, 8)
        ctypes.memmove(at + GUID, session.guid, 16)
        for offset, number in session.numbers.items():
            put(at + offset, number)
        code = 0
        for offset, end, value in ((name_at, file_at or room, session.name), (file_at, room, session.file)):
            data = value.encode("utf-16-le", "surrogatepass") + b"\0\0"
            if offset and len(data) <= end - offset:
                ctypes.memmove(at + offset, data, len(data))
            elif offset:
                code = 234
        return code

    def _found(self, handle: int, name_at: int) -> FakeSession | None:
        if handle:
            return self.sessions.get(handle)
        name = text(name_at).casefold()
        return next((s for s in self.sessions.values() if s.name.casefold() == name), None)

    def ControlTraceW(self, handle: int, name_at: int, at: int, code: int) -> int:
        if self.wine:
            return 0
        if not at or code > 5 or not (handle or name_at):
            return 87
        if u32(at) < PLAIN:
            return 24
        file, bad = self._names(at)
        if bad:
            return bad
        session = self._found(handle, name_at)
        if session is None:
            return 4201
        if not self.admin:
            return 5
        if code == 1:
            del self.sessions[session.handle]
            self.files[session.file] = session.events
            if self.log_of is not None and session.file:
                Path(session.file).write_bytes(self.log_of(session))
        elif code == 2:
            for offset in (MAXIMUM, FLUSH):
                session.numbers[offset] = u32(at + offset) or session.numbers[offset]
            session.file = file or session.file
            if session.system:
                session.masks[0] = session.numbers[ENABLE] = u32(at + ENABLE)
        elif code == 3 and session.numbers[MODE] & BUFFERING and not (file or session.file):
            return 161
        return self._tell(session, at)

    def QueryAllTracesW(self, array_at: int, count: int, out: int) -> int:
        if self.wine:
            return 120
        if not array_at or not out or not count:
            return 87
        pointers = (ctypes.c_uint64 * count).from_address(array_at)
        for at, session in zip(pointers, self.sessions.values(), strict=False):
            if u32(at) < PLAIN:
                return 24
            self._tell(session, at)
        put(out, len(self.sessions))
        return 234 if len(self.sessions) > count else 0

    def EnableTraceEx2(
        self,
        handle: int,
        guid_at: int,
        code: int,
        level: int,
        match_any: int,
        match_all: int,
        timeout: int,
        parameters_at: int,
    ) -> int:
        if not guid_at or code > 2:
            return 87
        if parameters_at and u32(parameters_at) not in (1, 2):
            return 87
        session = self.sessions.get(handle)
        if session is None:
            return 4201 if self.admin else 5
        guid = UUID(bytes_le=ctypes.string_at(guid_at, 16))
        if code == 1 and guid.bytes_le in (
            session.disallowed[i : i + 16] for i in range(0, len(session.disallowed), 16)
        ):
            return 5
        if code == 1:
            session.enabled[guid] = (level, match_any, match_all)
        elif code == 0:
            session.enabled.pop(guid, None)
        filters = 0
        if parameters_at and u32(parameters_at + 40):
            filters = ctypes.c_uint64.from_address(parameters_at + 32).value
        for provider in [p for p in self._providers.values() if p.guid == guid]:
            self._notify(provider, code, filters, parameters_at + 12 if parameters_at else 0)
        return 0
