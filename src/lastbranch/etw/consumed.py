"""Events of a log file or a session, one after the other, with their fields by name.

for event in consume("x.etl"):
    print(event.time, event.name, event.fields)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from ..formats.etl import Event
from ..formats.etl.decode import Decoded, Decoder
from ..formats.etl.dump import teaches
from ..formats.etl.events.columns import CHUNK, events_of
from ..formats.etl.payload.manifest import Described, message_of
from ..opening import reading_of
from .streams import FileStream, Stream, filetimes, open_stream

__all__ = ["ConsumedEvent", "consume", "is_session"]

_FIRST_DAY = datetime(1601, 1, 1, tzinfo=UTC)


class ConsumedEvent:
    """An event of a trace. ``event`` is what its header and payload say, ``filetime`` its time in 100 ns since 1601 UTC
    (ticks of the log's clock, if that has no rate or no wall time). What is below is decoded when it is asked for."""

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
        """Wall time in UTC, to the microsecond below."""
        return _FIRST_DAY + timedelta(microseconds=self.filetime // 10)

    @property
    def provider(self) -> UUID:
        """GUID of the provider; of a kernel event that of its group."""
        return UUID(bytes_le=self.event.provider)

    @cached_property
    def _decoded(self) -> Decoded:
        return self._decoder.decode(self.event)

    @property
    def provider_name(self) -> str:
        """Name of the provider, its GUID where nobody tells."""
        return self._decoded.provider_name

    @property
    def name(self) -> str:
        """Name without the provider: "Process/Start"."""
        return self._decoded.event_name

    @property
    def fields(self) -> dict[str, Any]:
        """Fields by name. An event of unknown layout has one, ``payload``."""
        return self._decoded.fields

    @cached_property
    def _described(self) -> Described | None:
        return self._decoder.find(self.event).described

    @property
    def message(self) -> str:
        """The message that the manifest has for it, with the values of its fields in it; "" for none."""
        known = self._described
        return message_of(known.message, list(self.fields.values())) if known is not None else ""

    @property
    def level_name(self) -> str:
        """What the manifest calls the level, without "win:"; "" where nobody tells."""
        return self._described.level if self._described is not None else ""

    @property
    def keyword_names(self) -> tuple[str, ...]:
        """The keywords that the manifest has for it."""
        return self._described.keywords if self._described is not None else ()

    def __repr__(self) -> str:
        return f"<{self.provider_name}/{self.name} pid={self.pid} tid={self.tid} cpu={self.cpu} {self.fields}>"


def consume(
    source: str | os.PathLike[str], *, real_time: bool | None = None, pointer_size: int | None = None,
    manifests: Sequence[str | os.PathLike[str]] = (),
) -> Iterator[ConsumedEvent]:  # fmt: skip
    """The events of ``source`` in time order: the path of a log file, or the name of a session that is read in real
    time until it stops.

    ``real_time`` says which; ``None``: a file if there is one of that name. Memory is bounded. Of a file everything
    that describes other events is read first; of a session events are decoded by what came before them.
    ``pointer_size`` (32 or 64 bits) is that of all payloads, where the headers of events say it wrong.
    ``manifests`` are instrumentation manifests, or folders of them, that describe what the source does not. Raises
    `ValueError` for another size, `FormatError` for what is no manifest, `EtwError` where it cannot be opened. What is
    damaged in a file is left out.
    """
    name, reading = os.fspath(source), reading_of(pointer_size, manifests)
    session = is_session(name) if real_time is None else real_time
    return _events(open_stream(name, session=session, reading=reading), reading.decoder())


def is_session(name: str) -> bool:
    """Whether ``name`` is taken for that of a session: there is no such file."""
    return not os.path.exists(name)


def _events(stream: Stream, decoder: Decoder) -> Iterator[ConsumedEvent]:
    whole = isinstance(stream, FileStream)
    try:
        if isinstance(stream, FileStream):
            for event in stream.log.events(select=teaches):
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
