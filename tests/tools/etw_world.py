"""Sessions of the portable kernel in a registry of their own, driven by the functions of the API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from etw_properties import properties
from lastbranch import etw
from lastbranch.etw.flags import Control
from lastbranch.etw.interface import EventDescriptor, Registration
from lastbranch.etw.kernel_choice import kernel
from lastbranch.etw.structures import structure
from private_registry import registry_at, until

__all__ = ["PROVIDER", "World", "until"]

PROVIDER = UUID("6b1f8ca1-0f2d-4d2c-9d6a-1b1f2c3d4e5f")
_ROOM = 1100
"""Characters for each name: absolute paths come back."""


class World:
    """A folder for log files, a registry, and short forms of the calls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self._open: list[Registration] = []

    def close(self) -> None:
        for one in self._open:
            one.close()
        for state in etw.sessions():
            etw.ControlTrace(state.handle, None, properties(room=_ROOM), Control.STOP)

    def file(self, name: str = "x.etl") -> str:
        return str(self.folder / name)

    def start(self, name: str = "session", file: str | None = "x.etl", **fields: Any) -> tuple[int, int, Any]:
        """(status, handle, the structure as it comes back); ``file`` is in the folder unless it is a path."""
        path = "" if file is None else file if "/" in file else self.file(file)
        buffer = properties(file=path, room=_ROOM, **fields)
        status, handle = etw.StartTrace(name, buffer)
        return status, handle, self.head(buffer, fields.get("version", 1))

    def code(self, **fields: Any) -> int:
        """The status of a start; one that succeeds is stopped again."""
        status, handle, _ = self.start(**fields)
        if not status:
            self.stop(handle)
        return status

    def started(self, **fields: Any) -> Any:
        """The structure of a start that succeeds."""
        status, _, made = self.start(**fields)
        assert status == 0
        return made

    @staticmethod
    def head(buffer: Any, version: int = 1) -> Any:
        return structure("EVENT_TRACE_PROPERTIES_V2" if version == 2 else "EVENT_TRACE_PROPERTIES").from_buffer(buffer)

    def control(self, code: Control, session: int | str = "session", file: str = "", **fields: Any) -> Any:
        """The structure of a control call that succeeds."""
        buffer = properties(file=file, room=_ROOM, **fields)
        if not file:
            self.head(buffer).LogFileNameOffset = self.head(buffer).LoggerNameOffset + 2 * _ROOM
        by = (session, None) if isinstance(session, int) else (0, session)
        assert etw.ControlTrace(*by, buffer, code) == 0
        return self.head(buffer)

    def query(self, session: int | str = "session") -> Any:
        return self.control(Control.QUERY, session)

    def stop(self, session: int | str = "session") -> Any:
        return self.control(Control.STOP, session)

    def flush(self, session: int | str = "session", file: str = "") -> Any:
        return self.control(Control.FLUSH, session, file)

    # -- events

    def provider(self, *sessions: int, guid: UUID = PROVIDER, level: int = 0, keywords: int = 0) -> Registration:
        """A provider that these sessions take events of."""
        for handle in sessions:
            assert etw.EnableTraceEx2(handle, guid, 1, level, keywords, 0, 0, None) == 0
        made = kernel().register(guid, None)
        self._open.append(made)
        if sessions:
            until(lambda: made.enabled)
        return made

    def write(self, provider: Registration, number: int, size: int = 16, first: int = 0) -> list[int]:
        """Statuses of ``number`` events whose payload begins with their number."""
        descriptor = EventDescriptor(7)
        return [
            provider.write(descriptor, n.to_bytes(4, "little").ljust(size, b"\x5a"))
            for n in range(first, first + number)
        ]

    def write_all(self, provider: Registration, number: int, size: int = 16, first: int = 0) -> int:
        """Events of which none is lost in the end: each is offered until a buffer is free. Returns the refusals."""
        refused = 0
        for n in range(first, first + number):
            while self.write(provider, 1, size, n) != [0]:
                refused += 1
                time.sleep(0.001)
        return refused

    def read(self, file: str = "x.etl", guid: UUID = PROVIDER) -> list[int]:
        """The numbers of the events of a provider in a log file, in time order."""
        path = file if "/" in file else self.file(file)
        return [
            int.from_bytes(e.event.payload[:4], "little")
            for e in etw.consume(path)
            if e.event.provider == guid.bytes_le
        ]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with registry_at(tmp_path / "registry"):
        made = World(tmp_path, monkeypatch)
        try:
            yield made
        finally:
            made.close()
