"""The events of a log file or a session, as blocks in time order, each with the buffers that end in it.

`FileStream` reads a file, `LiveStream` a session in real time; `merged` brings several streams into one time order.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from ..formats.etl import (
    AS_IT_SAYS,
    BUFFER_FLAG,
    BUFFER_HEADER,
    BUFFER_HEADER_SIZE,
    BUFFER_TYPE,
    MAX_BUFFER,
    EventBlock,
    LogHeader,
    Reading,
    picked,
    read_header,
)
from ..formats.etl.container.buffers import Buffers, DamageLog
from ..formats.etl.container.read_windows import PAD, Window
from ..formats.etl.events.columns import Rules
from ..formats.etl.events.merge import LAST, Held, blocks_of_runs, release
from ..model import BytesSource
from ..opening import FileSource
from .kernel_choice import kernel
from .status import EtwError, Status, status_of_reading

__all__ = [
    "Ended",
    "FileStream",
    "LiveStream",
    "Stream",
    "Timed",
    "filetimes",
    "merged",
    "open_stream",
    "timed",
]


_FILETIME_HZ = 10_000_000
_SYSTEM_TIME = 2
Ints = NDArray[np.int64]


class Ended(NamedTuple):
    """A buffer whose last event is row ``row`` of a block: its BufferSize and its bytes in use."""

    row: int
    size: int
    filled: int


@dataclass(slots=True)
class Part:
    """Events in time order, in memory of their own."""

    block: EventBlock
    ended: list[Ended]
    """By row."""


class Stream(Protocol):
    """The events of one log file or session."""

    header: LogHeader

    def parts(self) -> Iterator[Part]:
        """All events, up to the end of the file or session."""

    def end(self) -> None:
        """Let `parts` end soon; any thread may call it."""

    def close(self) -> None:
        """Release what it holds, after the last part."""


class BufferEnds:
    """Finds the row where each buffer ends: `loaded` counts its events when it is read, `in_block` when they go out."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}

    def loaded(self, block: EventBlock) -> slice:
        """Count the events of a buffer, and select all of them."""
        if len(block):
            for offset, count in zip(*np.unique(_offsets(block), return_counts=True), strict=True):
                self._left[int(offset)] = int(count)
        return slice(None)

    def in_block(self, block: EventBlock) -> list[Ended]:
        """The buffers whose last event is in ``block``."""
        places, last, count = np.unique(_offsets(block)[::-1], return_index=True, return_counts=True)
        ended = []
        for offset, back, number in zip(places.tolist(), last.tolist(), count.tolist(), strict=True):
            self._left[offset] -= number
            if not self._left[offset]:
                del self._left[offset]
                row = len(block) - 1 - back
                buffers, which = block.window.buffers, int(block.buffer[row])
                ended.append(Ended(row, int(buffers.length[which]), int(buffers.filled[which])))
        return sorted(ended)


def _offsets(block: EventBlock) -> Ints:
    return block.window.buffers.offset.take(block.buffer)


class FileStream:
    """The events of a log file, in bounded memory: one buffer of each processor, and a block.

    `EtwError` for one that cannot be opened or is no trace log.
    """

    def __init__(self, path: str, reading: Reading = AS_IT_SAYS) -> None:
        try:
            self._source = FileSource(path)
        except OSError as error:
            raise EtwError("OpenTrace", status_of_reading(error), f"{path}: {error.strerror}") from None
        except FormatError as error:
            raise EtwError("OpenTrace", Status.BAD_PATHNAME, str(error)) from None
        try:
            self.log = reading.log(self._source)
        except FormatError as error:
            self._source.close()
            raise EtwError("OpenTrace", Status.INVALID_DATA, str(error), hint=error.hint) from None
        self.header = self.log.header
        self._ending = False

    def parts(self) -> Iterator[Part]:
        ends = BufferEnds()
        for block in self.log.ordered_blocks(select=ends.loaded):
            if self._ending:
                return
            yield Part(block, ends.in_block(block))

    def end(self) -> None:
        self._ending = True

    def close(self) -> None:
        self._source.close()


def open_stream(source: str, *, session: bool, reading: Reading = AS_IT_SAYS) -> Stream:
    """The events of log file ``source``, or of the session of that name in real time. Raises `EtwError`."""
    if not session:
        return FileStream(os.fspath(source), reading)
    try:
        return LiveStream.of_session(source)
    except EtwError as error:
        if error.status == Status.WMI_INSTANCE_NOT_FOUND and not os.path.exists(source):
            error.hint = "nor is there a file of that name"
        raise


def filetimes(ticks: Ints, header: LogHeader) -> Ints:
    """Times of events as FILETIMEs, rounded down; unchanged if the log has no clock rate or no wall time."""
    if not header.frequency or not header.start_time:
        return ticks
    if header.clock_type == _SYSTEM_TIME and header.timestamp == header.start_time:
        return ticks
    whole, part = np.divmod(ticks - header.timestamp, header.frequency)
    result: Ints = header.start_time + whole * _FILETIME_HZ + part * _FILETIME_HZ // header.frequency
    return result


# -- The events of several streams in one time order, a block of each at a time


@dataclass(slots=True)
class Timed:
    """A part of stream number ``owner``, with the FILETIMEs of its events; rows ``at`` to ``stop`` are not delivered
    yet."""

    owner: int
    part: Part
    times: Ints
    at: int
    stop: int


def timed(owner: int, stream: Stream, start: int | None = None, end: int | None = None) -> Iterator[Timed]:
    """The parts of ``stream`` that have events from ``start`` to ``end``, both FILETIMEs and included."""
    for part in stream.parts():
        times = filetimes(part.block.time, stream.header)
        # If a damaged time stamp jumps back, the order of the log counts.
        order = np.maximum.accumulate(times)
        at = 0 if start is None else int(np.searchsorted(order, start))
        stop = len(times) if end is None else int(np.searchsorted(order, end, "right"))
        if at < stop:
            yield Timed(owner, part, times, at, stop)
        if stop < len(times):
            return


def merged(streams: list[Iterator[Timed]]) -> Iterator[tuple[Timed, int, int]]:
    """(part, first row, row after the last) in time order; equal times in the order of ``streams``."""
    heads = [(stream, head) for stream in streams if (head := next(stream, None)) is not None]
    while heads:
        yield from _runs([head for _, head in heads])
        following = ((stream, head if head.at < head.stop else next(stream, None)) for stream, head in heads)
        heads = [(stream, head) for stream, head in following if head is not None]


def _runs(heads: list[Timed]) -> Iterator[tuple[Timed, int, int]]:
    """The rows of parts up to the end of the one that ends first."""
    until = min(int(head.times[head.stop - 1]) for head in heads)
    if len(heads) == 1:
        stops = [heads[0].stop]
    else:
        stops = [head.at + int(np.searchsorted(head.times[head.at : head.stop], until, "right")) for head in heads]
    counts = [stop - head.at for head, stop in zip(heads, stops, strict=True)]
    times = np.concatenate([head.times[head.at : stop] for head, stop in zip(heads, stops, strict=True)])
    owner = np.repeat(np.arange(len(heads)), counts)[np.argsort(times, kind="stable")]
    cuts = np.flatnonzero(np.diff(owner)) + 1
    for begin, end in pairwise([0, *cuts.tolist(), len(owner)]):
        head = heads[int(owner[begin])]
        first, head.at = head.at, head.at + end - begin
        yield head, first, head.at


# -- The reader's end of a session in real time: buffers off a socket, their events in time order
#
# `session.sinks` sends the buffers. Events wait until a marker says that all before its time have come. If too much
# waits, all are delivered, and older events that come after that are late.


_HEAD = picked(BUFFER_HEADER, "BufferSize", "TimeStamp", "Offset", "BufferFlag", "BufferType")
_RECEIVE = 1 << 20
_MOST_HELD = 32 << 20
"""Bytes of buffers whose events wait for a marker."""
_LOOK = 0.25
"""Seconds of one wait: the handler of a signal that came just before the wait runs when the wait is over."""


@dataclass(slots=True)
class _SocketRead:
    """The result of a read of the socket: whole buffers, and the last marker among them."""

    data: bytearray = field(default_factory=bytearray)
    at: list[int] = field(default_factory=list)
    marker: int | None = None


class Channel(Protocol):
    """The part of a connected socket that `LiveStream` uses."""

    def settimeout(self, seconds: float | None, /) -> None: ...
    def recv(self, size: int, /) -> bytes:
        """`TimeoutError` if nothing comes within the timeout."""
        ...

    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class LiveStream:
    """The events of a session as they are delivered, until the session stops; ``channel`` is connected to its daemon.

    `FormatError` for anything that is no trace, `EtwError` 4201 if the session ends before its header has come.
    """

    def __init__(self, channel: Channel, name: str = "") -> None:
        channel.settimeout(_LOOK)
        self._channel, self._name = channel, name
        self._raw = bytearray()
        self._offset = 0
        """Bytes of the stream before those in ``_raw``: the offset that the buffer would have in a file."""
        self._held: list[Held] = []
        self._rank = count()
        self._ends = BufferEnds()
        self._damage = DamageLog()
        first = self._first()
        self.header: LogHeader = read_header(BytesSource(first, name))
        self._rules = Rules(self._damage, self.header.payload_pointer_size)

    @classmethod
    def of_session(cls, name: str) -> LiveStream:
        """The session called ``name``. `EtwError` 4201 if none of that name delivers in real time."""
        connect = getattr(kernel(), "consume", None)
        if connect is None:
            raise EtwError("OpenTrace", Status.NOT_SUPPORTED)
        return cls(connect(name), name)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._channel.close()

    def parts(self) -> Iterator[Part]:
        more = True
        while more:
            taken = self._whole()
            if taken.at:
                self._hold(taken)
            if taken.marker is not None:
                yield from self._release(taken.marker)
            elif sum(held.block.raw.nbytes for held in self._held) > _MOST_HELD:
                yield from self._release(LAST)
            more = self._receive()
        yield from self._release(LAST)

    # -- bytes

    def _receive(self) -> bool:
        """Receive more bytes. Returns whether any came."""
        while True:
            try:
                data = self._channel.recv(_RECEIVE)
            except TimeoutError:
                continue
            except OSError:
                return False
            self._raw += data
            return bool(data)

    def _first(self) -> bytes:
        """The header buffer."""
        while (size := self._size(0)) is None:
            if not self._receive():
                self._channel.close()
                raise EtwError("OpenTrace", Status.WMI_INSTANCE_NOT_FOUND, f"session {self._name} has ended")
        first = bytes(self._raw[:size])
        del self._raw[:size]
        self._offset = size
        return first

    def _size(self, at: int) -> int | None:
        """Bytes of the buffer at ``at`` of ``_raw``; None until it is whole. `FormatError` for what is no buffer."""
        if len(self._raw) < at + BUFFER_HEADER_SIZE:
            return None
        size, _, used, flags, _ = _HEAD.unpack_from(self._raw, at)
        if not BUFFER_HEADER_SIZE <= used <= size <= MAX_BUFFER or size % 8 or flags & BUFFER_FLAG.COMPRESSED:
            where = self._offset + at
            raise FormatError("not a buffer of a session", file=self._name, offset=where, field="Offset", value=used)
        return int(size) if len(self._raw) >= at + size else None

    def _whole(self) -> _SocketRead:
        """Take the whole buffers out of ``_raw``."""
        taken, at = _SocketRead(), 0
        while (size := self._size(at)) is not None:
            _, time, _, _, kind = _HEAD.unpack_from(self._raw, at)
            if kind == BUFFER_TYPE.EMPTY_MARKER:
                taken.marker = int(time)
            else:
                taken.at.append(len(taken.data))
                taken.data += memoryview(self._raw)[at : at + size]
            at += size
        del self._raw[:at]
        return taken

    # -- events

    def _hold(self, taken: _SocketRead) -> None:
        at = np.array(taken.at, np.int64)
        length = np.diff(np.append(at, len(taken.data)))
        taken.data += bytes(PAD)
        raw = np.frombuffer(taken.data, np.uint8)
        buffers = Buffers.of(raw, at, self._offset, length)
        self._offset += int(length.sum())
        window = Window(raw, raw[: len(raw) & ~7].view(np.uint64), at, buffers, self.header)
        block = EventBlock.of(window, self._rules)
        self._ends.loaded(block)
        if len(block):
            self._held.append(Held.of(block, next(self._rank)))

    def _release(self, until: int) -> Iterator[Part]:
        """The events from before ``until``, in time order; equal times in the order in which they came."""
        run = release(self._held, until)
        self._held = [held for held in self._held if len(held.time)]
        for block in blocks_of_runs([] if run is None else [run]):
            yield Part(block, self._ends.in_block(block))
