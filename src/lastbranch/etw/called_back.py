"""Events that a system delivers by callback, as the stream of buffers that `portable.live` reads.

Windows' sessions are read in real time by OpenTrace and ProcessTrace alone. A thread runs them; the events come back
into on-disk form, with FILETIMEs for time stamps, so that everything behind is the same as for a session of the
portable kernel.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from queue import Empty, Full, Queue
from typing import Any

from ..formats.etl import Event, log_header
from ..formats.etl.container.header import buffer_head
from ..formats.etl.container.trace_file import aligned, header_buffer
from ..formats.etl.event import encode_event
from ..formats.etl.layout import BUFFER_FLAG, BUFFER_TYPE
from .consumer import close_trace, open_trace, process_trace
from .event_records import event_of
from .logfile import Logfile, ProcessTraceMode

__all__ = ["CallbackChannel"]

_MOST_WAITING = 1 << 14
"""Events that wait to be received; then the callback waits, and in the end the session counts buffers as lost."""
_LARGEST = 1 << 20
"""Bytes of events of one buffer, one event more or less."""
_SYSTEM_TIME, _FILETIME_HZ = 2, 10_000_000
_FLUSHED = 3  # State


class CallbackChannel:
    """What `LiveStream` takes for a socket. ``session`` False: ``name`` is a file. Raises `EtwError` as OpenTrace."""

    def __init__(self, name: str, *, session: bool = True) -> None:
        self._waiting: Queue[Event | BaseException | None] = Queue(_MOST_WAITING)
        self._stopped = threading.Event()
        mode = ProcessTraceMode.EVENT_RECORD | (ProcessTraceMode.REAL_TIME if session else ProcessTraceMode.FILE)
        logfile = Logfile(ProcessTraceMode=mode, EventRecordCallback=lambda record: self._put(event_of(record)))
        setattr(logfile, "LoggerName" if session else "LogFileName", name)
        self._handle = open_trace(logfile)
        self._bytes: Iterator[bytes] = self._stream(logfile.LogfileHeader, name)
        self._thread = threading.Thread(target=self._process, daemon=True)
        self._thread.start()

    def settimeout(self, seconds: float | None) -> None:
        """Receiving always waits."""

    def recv(self, _: int) -> bytes:
        """Whole buffers, as many as there are; nothing at the end."""
        return next(self._bytes, b"")

    def shutdown(self, _: int) -> None:
        """End the stream; any thread may call it."""
        self._stopped.set()
        with contextlib.suppress(Full):
            self._waiting.put_nowait(None)

    def close(self) -> None:
        """Give the handle back."""
        self.shutdown(0)
        close_trace(self._handle)
        self._thread.join()

    def _put(self, item: Event | BaseException | None) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(Full):
                self._waiting.put(item, timeout=0.1)
                return

    def _process(self) -> None:
        try:
            process_trace([self._handle])
        except BaseException as error:
            self._put(error)
        else:
            self._put(None)

    def _stream(self, told: Any, name: str) -> Iterator[bytes]:
        """The header buffer, then buffers of what came, each batch with a marker: events come in time order."""
        start = told.StartTime or 1
        yield header_buffer(log_header(
            timestamp=start, start_time=start, clock_type=_SYSTEM_TIME, frequency=_FILETIME_HZ,
            processors=max(told.NumberOfProcessors, 1), boot_time=told.BootTime, session_name=name,
            pointer_size=told.PointerSize if told.PointerSize in (4, 8) else 8, build=told.ProviderVersion,
        ))  # fmt: skip
        while not self._stopped.is_set() and (events := self._received()):
            yield b"".join(_buffers(events))

    def _received(self) -> list[Event]:
        """All events that are there, at least one; none at the end. Raises what ended the processing."""
        events: list[Event] = []
        item = self._waiting.get()
        while isinstance(item, Event):
            events.append(item)
            try:
                item = self._waiting.get_nowait()
            except Empty:
                return events
        if isinstance(item, BaseException) and not events:
            raise item
        self._put(item)  # for the next time
        return events


def _buffers(events: list[Event]) -> Iterator[bytes]:
    open_: dict[int, bytearray] = {}
    for event in events:
        body = open_.setdefault(event.cpu, bytearray())
        body += aligned(encode_event(event))
        if len(body) > _LARGEST:
            yield _buffer(event.cpu, bytes(open_.pop(event.cpu)))
    yield from (_buffer(cpu, bytes(body)) for cpu, body in open_.items())
    yield _buffer(0, b"", events[-1].time + 1, BUFFER_TYPE.EMPTY_MARKER)


def _buffer(cpu: int, body: bytes, time: int = 0, kind: int = BUFFER_TYPE.GENERIC) -> bytes:
    size = 72 + len(body)
    return buffer_head(size, time, 0, cpu, 0, _FLUSHED, len(body), BUFFER_FLAG.PROC_INDEX, kind) + body
