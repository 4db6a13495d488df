# ruff: noqa: N802  (the names are Windows')
"""The fake Windows' TraceSetInformation, TraceQueryInformation and TraceConfigureLastBranchRecord.

Classes, handles, lengths and codes: the page of TraceQueryInformation and the list of TRACE_INFO_CLASS; of the LBR
function its page, and the order of its checks.
"""

from __future__ import annotations

import ctypes
import struct
from uuid import UUID

from windows_memory import FakeSession, put, u32

GROUP_PERFINFO = UUID("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc")
GUID_MAP = {GROUP_PERFINFO: 0x0F, UUID("3d6fa8d1-fe05-11d0-9dda-00c04fd7ba7c"): 0x05}
"""The groups that tests use, of 32."""


class Information:
    """Part of `windows_fake.FakeWindows`."""

    sessions: dict[int, FakeSession]
    privileged: bool
    size_code: int
    _build: int

    def __init__(self) -> None:
        self.sources = [
            (0, "Timer", 1221, 1000000),
            (6, "BranchInstructions", 4096, 2**31 - 1),
            (30, "BranchInstructionRetired", 4096, 2**31 - 1),
        ]
        """Id, name, smallest and largest interval."""
        self.growth: list[tuple[int, str, int, int]] = []
        """Sources that turn up after the next size query."""
        self.intervals = {source: 65536 for source, *_ in self.sources} | {0: 10000}
        self.configured: list[int] = []
        self.version = 1
        """The answer of class 11."""
        self.newer = {19: struct.pack("<I", 64), 22: struct.pack("<I", 8), 99: bytes(range(12))}
        """Classes that newer systems answer, with the answers."""
        self.newer_settings: dict[tuple[int, int], bytes] = {}
        """(handle, class) -> the last setting, of classes that newer systems accept."""

    def TraceSetInformation(self, handle: int, info: int, at: int, length: int) -> int:
        if info in (16, 17, 18, 23, 24, 99):
            self.newer_settings[handle, info] = ctypes.string_at(at, length) if at else b""
            return 0
        machine = {5: 8, 6: 4}
        elements = {3: 24, 4: 4, 8: 24, 9: 4, 10: 16, **({20: 4, 21: 4} if self._build >= 18362 else {})}
        if info not in machine and info not in elements:
            return 50
        if (info in machine) == bool(handle):
            return 87
        if length % (machine.get(info) or elements[info]) or (info in (5, 20) and length != (machine | elements)[info]):
            return 24
        session = self.sessions.get(handle)
        if handle and session is None:
            return 4201
        if info in (4, 5, 6, 8, 9, 20, 21) and not self.privileged:
            return 1314
        data = ctypes.string_at(at, length) if at else b""
        words = list(struct.unpack(f"<{length // 4}I", data)) if length % 4 == 0 else []
        if info == 5:
            if words[0] not in self.intervals:
                return 87
            self.intervals[words[0]] = words[1]
        elif info == 6:
            if not all(w in self.intervals for w in words):
                return 87
            self.configured = words
        elif session is not None and info == 4:
            if not session.system:
                return 87
            session.masks = (words + [0] * 8)[:8]
        elif session is not None and info in (3, 10):
            setattr(session, "stacks" if info == 3 else "disallowed", data)
        elif session is not None and info == 20:
            session.lbr_flags = words[0]
        elif session is not None and info == 21:
            if len(words) > 4:
                return 1292
            session.lbr_hooks = words
        return 0

    def TraceQueryInformation(self, handle: int, info: int, at: int, length: int, out: int) -> int:
        if info in self.newer:
            return self._answer(self.newer[info], at, length, out)
        if info not in (4, 5, 7, 11, 14):
            return 50
        if info in (5, 7, 11) and handle:
            return 87
        if info == 7:
            return self._source_list(at, length, out)
        session = self.sessions.get(handle)
        if info in (4, 14) and session is None:
            return 4201
        if info == 4 and session is not None:
            if not session.system:
                return 87
            data = struct.pack("<8I", *session.masks)
        elif info == 14 and session is not None:
            data = session.disallowed
        elif length != 8:
            return 24
        elif info == 5:
            source = u32(at)
            if source not in self.intervals:
                return 87
            data = struct.pack("<II", source, self.intervals[source])
        else:
            data = struct.pack("<II", self.version, 0)
        return self._answer(data, at, length, out)

    @staticmethod
    def _answer(data: bytes, at: int, length: int, out: int) -> int:
        if out:
            put(out, len(data))
        if length < len(data):
            return 24
        ctypes.memmove(at, data, len(data))
        return 0

    def _source_list(self, at: int, length: int, out: int) -> int:
        """A chain of PROFILE_SOURCE_INFO, with different gaps."""
        chain = b""
        for i, (source, name, least, most) in enumerate(self.sources):
            words = name.encode("utf-16-le") + b"\0\0"
            size = (24 + len(words) + 7) // 8 * 8 + 8 * (i % 3)
            last = i == len(self.sources) - 1
            chain += (struct.pack("<IIIIQ", 0 if last else size, source, least, most, 0) + words).ljust(size, b"\xee")
        if out:
            put(out, len(chain))
        self.sources, self.growth = self.sources + self.growth, []
        if not at or length < len(chain):
            return self.size_code
        ctypes.memmove(at, chain, len(chain))
        return 0

    def TraceConfigureLastBranchRecord(self, handle: int, flags: int, at: int, count: int) -> int:
        if count > 4:
            return 1292
        if (count and not at) or flags & 3 == 3:
            return 87
        session = self.sessions.get(handle)
        if session is None:
            return 4201
        if not self.privileged:
            return 1314
        session.lbr_hooks, session.lbr_flags = [], flags
        for i in range(count):
            guid = UUID(bytes_le=ctypes.string_at(at + 24 * i, 16))
            kind = ctypes.c_uint8.from_address(at + 24 * i + 16).value
            if guid in GUID_MAP:
                session.lbr_hooks.append(GUID_MAP[guid] << 8 | kind)
        return 0
