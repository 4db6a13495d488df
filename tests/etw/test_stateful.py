"""Random sequences of control calls and events against a simple model, on sessions that really run."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from etw_properties import properties
from lastbranch import etw
from lastbranch.etw.flags import Control
from lastbranch.etw.flags import LogFileMode as M
from lastbranch.etw.interface import EventDescriptor, Registration
from lastbranch.etw.kernel_choice import kernel
from lastbranch.etw.structures import structure
from private_registry import registry_at

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the portable kernel runs on Linux")

NAMES = ("one", "ONE", "two", "three")
GUIDS = tuple(UUID(int=0x11110000 + n) for n in range(2))
_ROOM, _WAIT = 1100, 20_000
_NO_SESSION = 4201
_KEEPS_ALL = M.FILE_MODE_SEQUENTIAL | M.FILE_MODE_NEWFILE
MODES: dict[str, tuple[int, int, str, int]] = {
    "sequential": (M.FILE_MODE_SEQUENTIAL, 0, "s{}.etl", 0),
    "nothing said": (0, 0, "n{}.etl", 0),
    "one stream": (M.NO_PER_PROCESSOR_BUFFERING | M.FILE_MODE_SEQUENTIAL, 0, "p{}.etl", 0),
    "circular": (M.FILE_MODE_CIRCULAR, 2, "c{}.etl", 0),
    "buffering": (M.BUFFERING_MODE, 0, "", 0),
    "real time": (M.REAL_TIME_MODE, 0, "", 0),
    "circular without a size": (M.FILE_MODE_CIRCULAR, 0, "c{}.etl", 87),
    "two kinds": (M.FILE_MODE_CIRCULAR | M.FILE_MODE_SEQUENTIAL, 1, "c{}.etl", 87),
    "no folder": (M.FILE_MODE_SEQUENTIAL, 0, "none/{}.etl", 161),
    "nowhere": (M.FILE_MODE_SEQUENTIAL, 0, "", 161),
}
"""What a start is asked for: mode, MaximumFileSize, file, and the code if nothing else is wrong."""


@dataclass
class Running:
    """A session as the model has it."""

    name: str
    handle: int
    mode: int
    file: str
    flush_timer: int = 0
    enabled: dict[UUID, tuple[int, int]] = field(default_factory=dict)
    offered: list[int] = field(default_factory=list)
    """Numbers of the events that it was to take."""

    def takes(self, guid: UUID, level: int, keyword: int) -> bool:
        most, any_of = self.enabled.get(guid, (-1, 0))
        return most >= 0 and (not most or level <= most) and (not any_of or not keyword or bool(keyword & any_of))


class Sessions(RuleBasedStateMachine):
    """Every call is made on the kernel and on the model; codes, states and log files must agree."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lb"))
        self.registry = registry_at(self.folder / "registry")
        self.registry.__enter__()
        self.running: dict[str, Running] = {}
        self.files = self.events = 0
        self.providers: dict[UUID, Registration] = {guid: kernel().register(guid, None) for guid in GUIDS}

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            for name in list(self.running):
                self.stop(name)
            for provider in self.providers.values():
                provider.close()
            assert etw.sessions() == []
        finally:
            self.registry.__exit__(None, None, None)
            shutil.rmtree(self.folder)

    # -- control

    @rule(name=st.sampled_from(NAMES), kind=st.sampled_from(sorted(MODES)), timer=st.integers(0, 3))
    def start(self, name: str, kind: str, timer: int) -> None:
        mode, size, pattern, expected = MODES[kind]
        self.files += 1
        file = str(self.folder / pattern.format(self.files)) if pattern else ""
        buffer = properties(
            file=file,
            room=_ROOM,
            LogFileMode=mode,
            MaximumFileSize=size,
            FlushTimer=timer,
            BufferSize=16,
            MaximumBuffers=200,
        )
        if name.casefold() in self.running:
            expected = expected or 183
        status, handle = etw.StartTrace(name, buffer)
        assert status == expected, kind
        if not status:
            made = _head(buffer)
            assert made.FlushTimer == (timer or int(kind == "real time"))
            self.running[name.casefold()] = Running(name, handle, made.LogFileMode, file, made.FlushTimer)

    def _control(self, name: str, code: Control, **fields: Any) -> Any:
        """The structure after a call that must have the model's result; ``None`` where there is no such session."""
        buffer = properties(room=_ROOM, **fields)
        _head(buffer).LogFileNameOffset = _head(buffer).LoggerNameOffset + 2 * _ROOM
        found = self.running.get(name.casefold())
        status = etw.ControlTrace(0, name, buffer, code)
        assert status == (0 if found else _NO_SESSION)
        if found is None:
            return None
        made = _head(buffer)
        assert (made.Wnode.HistoricalContext, made.LogFileMode) == (found.handle, found.mode)
        return made

    @rule(name=st.sampled_from(NAMES))
    def query(self, name: str) -> None:
        made = self._control(name, Control.QUERY)
        if made is not None:
            found = self.running[name.casefold()]
            assert made.FlushTimer == found.flush_timer
            assert made.EventsLost <= len(found.offered)
            assert made.FreeBuffers <= made.NumberOfBuffers

    @rule(name=st.sampled_from(NAMES), timer=st.integers(1, 9))
    def update(self, name: str, timer: int) -> None:
        found = self.running.get(name.casefold())
        real_time = found.mode & M.REAL_TIME_MODE if found else 0
        made = self._control(name, Control.UPDATE, FlushTimer=timer, LogFileMode=real_time)
        if found and made is not None:
            found.flush_timer = timer
            assert made.FlushTimer == timer

    @rule(name=st.sampled_from(NAMES))
    def flush(self, name: str) -> None:
        found = self.running.get(name.casefold())
        if found and not found.mode & M.BUFFERING_MODE:  # that one wants a file
            self._control(name, Control.FLUSH)

    @rule(name=st.sampled_from(NAMES))
    def stop(self, name: str) -> None:
        made = self._control(name, Control.STOP)
        if made is None:
            return
        found = self.running.pop(name.casefold())
        if found.file:
            read = [
                int.from_bytes(e.event.payload, "little")
                for e in etw.consume(found.file)
                if e.event.provider in [g.bytes_le for g in GUIDS]
            ]
            assert read == sorted(set(read)), "in the order of time, each one time"
            assert set(read) <= set(found.offered)
            if found.mode & _KEEPS_ALL:
                assert len(read) + made.EventsLost == len(found.offered)

    # -- providers

    @rule(name=st.sampled_from(NAMES), guid=st.sampled_from(GUIDS), level=st.integers(0, 5), keys=st.integers(0, 3))
    def enable(self, name: str, guid: UUID, level: int, keys: int) -> None:
        found = self.running.get(name.casefold())
        status = etw.EnableTraceEx2(found.handle if found else 60, guid, 1, level, keys, 0, _WAIT, None)
        assert status == (0 if found else _NO_SESSION)
        if found:
            found.enabled[guid] = (level, keys)

    @rule(name=st.sampled_from(NAMES), guid=st.sampled_from(GUIDS))
    def disable(self, name: str, guid: UUID) -> None:
        found = self.running.get(name.casefold())
        if found:
            assert etw.EnableTraceEx2(found.handle, guid, 0, 0, 0, 0, _WAIT, None) == 0
            found.enabled.pop(guid, None)

    @rule(
        guid=st.sampled_from(GUIDS),
        number=st.integers(1, 30),
        level=st.integers(0, 5),
        keyword=st.integers(0, 3),
    )
    def write(self, guid: UUID, number: int, level: int, keyword: int) -> None:
        taking = [s for s in self.running.values() if s.takes(guid, level, keyword)]
        provider = self.providers[guid]
        assert (provider.enabled and provider.takes(level, keyword)) or not taking
        descriptor = EventDescriptor(5, level=level, keyword=keyword)
        for _ in range(number):
            self.events += 1
            assert provider.write(descriptor, self.events.to_bytes(8, "little")) in (0, 8)
            for session in taking:
                session.offered.append(self.events)

    @invariant()
    def the_list_is_the_models(self) -> None:
        if hasattr(self, "running"):
            found = {(s.request.name, s.handle) for s in etw.sessions()}
            assert found == {(s.name, s.handle) for s in self.running.values()}


def _head(buffer: Any) -> Any:
    return structure("EVENT_TRACE_PROPERTIES").from_buffer(buffer)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=6, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
