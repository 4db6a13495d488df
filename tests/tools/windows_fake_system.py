# ruff: noqa: N802  (the names are Windows')
"""The fake Windows' token of the process, and the Windows Performance Toolkit's function."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

from windows_memory import FakeEvent, put, text

TOKEN, PROCESS = 0x7F00_0000_0000_0011, 2**64 - 1
LUID = 11


class System:
    """Part of `windows_fake.FakeWindows`."""

    has_privilege: bool
    files: dict[str, list[FakeEvent]]
    _error: int

    def __init__(self) -> None:
        self.privileged = False
        self.open_tokens = 0
        self.merged: list[tuple[str, list[str], int]] = []

    def GetCurrentProcess(self) -> int:
        return PROCESS

    def OpenProcessToken(self, process: int, access: int, out: int) -> int:
        if process != PROCESS or access & 0x28 != 0x28:
            self._error = 6 if process != PROCESS else 5
            return 0
        self.open_tokens += 1
        put(out, TOKEN, 8)
        return 1

    def LookupPrivilegeValueW(self, system: int, name_at: int, out: int) -> int:
        if system or text(name_at) != "SeSystemProfilePrivilege":
            self._error = 1313
            return 0
        put(out, LUID, 8)
        return 1

    def AdjustTokenPrivileges(self, token: int, all_off: int, at: int, size: int, old: int, out: int) -> int:
        count, luid, attributes = struct.unpack("<IQI", ctypes.string_at(at, 16))
        if token != TOKEN or (count, luid, attributes) != (1, LUID, 2) or all_off:
            self._error = 87
            return 0
        self._error = 0 if self.has_privilege else 1300  # the call succeeds either way
        self.privileged = self.has_privilege
        return 1

    def CloseHandle(self, handle: int) -> int:
        self.open_tokens -= handle == TOKEN
        return int(handle == TOKEN)

    def CreateMergedTraceFile(self, output_at: int, array_at: int, count: int, flags: int) -> int:
        inputs = [text(a) for a in (ctypes.c_uint64 * count).from_address(array_at)]
        if not all(i in self.files or Path(i).exists() for i in inputs):
            return 2
        if Path(inputs[0]).exists():  # an input that is no `files` is on the disk, and so is the output then
            Path(text(output_at)).write_bytes(Path(inputs[0]).read_bytes())
        self.merged.append((text(output_at), inputs, flags))
        return 0
