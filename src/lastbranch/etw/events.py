"""Events of a log file or a session, with their fields by name::

for event in consume("x.etl"):
    print(event.time, event.name, event.fields)
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from queue import Empty, Full, Queue
from typing import Any
from uuid import UUID

from ..formats.dump import Dump, Wanted
from ..formats.etl import (
    AS_IT_SAYS,
    BUFFER_TYPE,
    Decoded,
    Decoder,
    Event,
    LogHeader,
    Reading,
    describes,
    dump_live,
    encode_event,
    events_of,
)
from ..formats.etl.container.buffer_header import BufferHeader
from ..formats.etl.container.trace_file import encode_first_buffer, pad_event
from ..formats.etl.events.columns import CHUNK
from ..formats.etl.payload.manifest import Described, message_of
from ..opening import reading_of
from .consumer_api import Logfile, close_trace, open_trace, process_trace
from .event_records import event_of
from .flags import ProcessTraceMode
from .kernel_choice import windows
from .streams import FileStream, LiveStream, Stream, filetimes, open_stream

__all__ = ["CallbackChannel", "ConsumedEvent", "consume", "dump_session", "is_session"]


_FIRST_DAY = datetime(1601, 1, 1, tzinfo=UTC)


class ConsumedEvent:
    """An event of a trace. ``event`` has its header and payload, ``filetime`` its time in 100 ns since 1601 UTC
    (ticks of the log's clock, if that has no rate or no wall time). Names and fields are decoded at first use."""

    def __init__(self, event: Event, filetime: int, decoder: Decoder) -> None:
        self.event, self.filetime, self._decoder = event, filetime, decoder

    pid = property(lambda self: self.event.pid, doc="Process id of the header, -1 if it has none.")
    tid = property(lambda self: self.event.tid, doc="Thread id of the header, -1 if it has none.")
    cpu = property(lambda self: self.event.cpu, doc="Processor index of the buffer.")
    id = property(lambda self: self.event.id, doc="Id of the descriptor, 0 of kernel and classic events.")
    version = property(lambda self: self.event.version, doc="Version of the layout.")
    level = property(lambda self: self.event.level, doc="Level, 0 of kernel events.")
    opcode = property(lambda self: self.event.opcode, doc="Opcode, or Type of kernel and classic events.")
    task = property(lambda self: self.event.task, doc="Task of the descriptor.")
    keyword = property(lambda self: self.event.keyword, doc="Keyword mask of the descriptor.")
    payload = property(lambda self: self.event.payload, doc="The event's own data, `bytes`.")

    @property
    def time(self) -> datetime:
        """Wall time in UTC, rounded down to a microsecond."""
        return _FIRST_DAY + timedelta(microseconds=self.filetime // 10)

    @property
    def provider(self) -> UUID:
        """GUID of the provider; of a kernel event that of its group."""
        return UUID(bytes_le=self.event.provider)

    @cached_property
    def _fields_and_names(self) -> Decoded:
        return self._decoder.decode(self.event)

    @property
    def provider_name(self) -> str:
        """Name of the provider, its GUID where the name is not known."""
        return self._fields_and_names.provider_name

    @property
    def name(self) -> str:
        """Name without the provider: "Process/Start"."""
        return self._fields_and_names.event_name

    @property
    def fields(self) -> dict[str, Any]:
        """Fields by name. An event of unknown layout has one, ``payload``."""
        return self._fields_and_names.fields

    @cached_property
    def _description(self) -> Described | None:
        return self._decoder.find(self.event).described

    @property
    def message(self) -> str:
        """The manifest's message for the event, with the values of its fields in it; "" for none."""
        known = self._description
        return message_of(known.message, list(self.fields.values())) if known is not None else ""

    @property
    def level_name(self) -> str:
        """The manifest's name of the level, without "win:"; "" where it is not known."""
        return self._description.level if self._description is not None else ""

    @property
    def keyword_names(self) -> tuple[str, ...]:
        """The manifest's names of the event's keywords."""
        return self._description.keywords if self._description is not None else ()

    def __repr__(self) -> str:
        return f"<{self.provider_name}/{self.name} pid={self.pid} tid={self.tid} cpu={self.cpu} {self.fields}>"


def consume(
    source: str | os.PathLike[str],
    *,
    real_time: bool | None = None,
    pointer_size: int | None = None,
    manifests: Sequence[str | os.PathLike[str]] = (),
) -> Iterator[ConsumedEvent]:
    """The events of ``source`` in time order: the path of a log file, or the name of a session, which is read in real
    time until it stops.

    ``real_time`` says which; ``None``: a file if a file of that name exists. Memory is bounded. In a file, everything
    that describes other events is read first; a session's events are decoded by the descriptions before them.
    ``pointer_size`` (32 or 64 bits) is that of all payloads, for logs whose event headers have it wrong. ``manifests``
    are instrumentation manifests, or folders of manifests, for events that the source does not describe. Raises
    `ValueError` for another size, `FormatError` for a file that is no manifest, `EtwError` for a source that cannot be
    opened. Damaged parts of a file are left out.
    """
    name, reading = os.fspath(source), reading_of(pointer_size, manifests)
    session = is_session(name) if real_time is None else real_time
    return _events(open_source(name, session=session, reading=reading), reading.decoder())


def open_source(source: str, *, session: bool, reading: Reading = AS_IT_SAYS) -> Stream:
    """As `open_stream`, also for Windows' sessions, whose events come by callback. Raises `EtwError`."""
    if session and windows() is not None:
        return LiveStream(CallbackChannel(source), source)
    return open_stream(source, session=session, reading=reading)


def dump_session(name: str, wanted: Wanted, reading: Reading = AS_IT_SAYS) -> tuple[Stream, Dump]:
    """The session ``name`` in real time, and its ``wanted`` events as rows, as they come. Raises `EtwError`."""
    stream = open_source(name, session=True)
    return stream, dump_live(name, stream.header, (part.block for part in stream.parts()), wanted, reading)


def is_session(name: str) -> bool:
    """Whether ``name`` is taken for a session's: no such file exists."""
    return not os.path.exists(name)


def _events(stream: Stream, decoder: Decoder) -> Iterator[ConsumedEvent]:
    whole = isinstance(stream, FileStream)
    try:
        if isinstance(stream, FileStream):
            for event in stream.log.events(select=describes):
                decoder.learn(event)
        for part in stream.parts():
            times = filetimes(part.block.time, stream.header)
            for begin in range(0, len(part.block), CHUNK):
                chunk = slice(begin, begin + CHUNK)
                for event, filetime in zip(events_of(part.block.take(chunk)), times[chunk].tolist(), strict=True):
                    if not whole:
                        decoder.learn(event)
                    yield ConsumedEvent(event, filetime, decoder)
    finally:
        stream.close()


# -- Events that a system delivers by callback, as the stream of buffers that `LiveStream` reads
#
# Only OpenTrace and ProcessTrace read Windows' sessions in real time. A thread runs them and turns the events back into
# their form on disk, with FILETIMEs for time stamps. All that follows is the same as for a portable session.


_MOST_WAITING = 1 << 14
"""Events that wait to be received. With more the callback waits, and at last the session counts lost buffers."""
_LARGEST = 1 << 20
"""Bytes of the events in one buffer, give or take one event."""
_SYSTEM_TIME, _FILETIME_HZ = 2, 10_000_000


class CallbackChannel:
    """In the place of `LiveStream`'s socket. ``session`` False: ``name`` is a file. Raises `EtwError` as OpenTrace."""

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
        """Does nothing: receiving always waits."""

    def recv(self, _: int) -> bytes:
        """Whole buffers, as many as there are; nothing at the end."""
        return next(self._bytes, b"")

    def shutdown(self, _: int) -> None:
        """End the stream; any thread may call it."""
        self._stopped.set()
        with contextlib.suppress(Full):
            self._waiting.put_nowait(None)

    def close(self) -> None:
        """Close the handle."""
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

    def _stream(self, header: Any, name: str) -> Iterator[bytes]:
        """The header buffer, then buffers of the events, each batch with a marker: events come in time order."""
        start = header.StartTime or 1
        yield encode_first_buffer(
            LogHeader(
                timestamp=start,
                start_time=start,
                clock_type=_SYSTEM_TIME,
                perf_freq=_FILETIME_HZ,
                processors=max(header.NumberOfProcessors, 1),
                boot_time=header.BootTime,
                session_name=name,
                pointer_size=header.PointerSize if header.PointerSize in (4, 8) else 8,
                provider_version=header.ProviderVersion,
            )
        )
        while not self._stopped.is_set() and (events := self._next_events()):
            yield b"".join(_buffers(events))

    def _next_events(self) -> list[Event]:
        """All waiting events, at least one; none at the end. Raises the exception that ended the processing."""
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
        body += pad_event(encode_event(event))
        if len(body) > _LARGEST:
            yield _buffer(event.cpu, bytes(open_.pop(event.cpu)))
    yield from (_buffer(cpu, bytes(body)) for cpu, body in open_.items())
    yield _buffer(0, b"", events[-1].time + 1, BUFFER_TYPE.EMPTY_MARKER)


def _buffer(cpu: int, body: bytes, time: int = 0, kind: int = BUFFER_TYPE.GENERIC) -> bytes:
    return BufferHeader(used=len(body), time=time, cpu=cpu, kind=kind).encode() + body
