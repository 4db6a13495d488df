"""From the pool to the sinks: copies and checks events, fills buffers, and writes the buffers or counts their events as
lost.

`Staging` copies and checks committed events, `MergedStream` merges events for sessions that want one order of time, and
`Delivery` brings the buffers to the sinks.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ....arrays import take_ranges
from ....formats.etl import HEADERS, MESSAGE, MESSAGE_FLAG, LogHeader, offset_of
from ....formats.etl.container.buffer_header import BufferHeader
from ....formats.etl.container.trace_file import encode_first_buffer, pad_event
from ....formats.etl.events.walk import HEADER_BYTES, KIND, MESSAGE_BYTES, SHIFT, chains
from ...flags import ClientContext, LogFileMode
from ...properties import SessionRequest
from ..clock import Clock
from ..pool import Geometry
from .log_file import open_log
from .session_file import SessionFile, Totals, session_header
from .sinks import FileSink, Finished, HeaderEvents, RealTimeSink
from .writers import Piece

__all__ = ["Delivery"]


# -- staging: events are copied to private memory, where no other process can change them, and checked there
#
# A buffer goes to a file only if its events chain: each header is known, each size leads to the next event, and the
# last event ends where the writer said. So a broken or hostile writer loses its own buffers, and harms no reader.


MOST_STAGED = 4 << 20
"""Bytes that are copied and checked at a time; a larger buffer is copied whole."""
_PAD = 1024  # `chains` reads ahead


@dataclass(slots=True)
class Staged:
    """Copied pieces. ``good`` are those whose events chain, and are as many as the writer said.

    ``words`` uint64 holds all; piece i is ``words[first[i]:end[i]]`` (int64). ``at`` int64 and ``head`` uint64 are
    position and first word of each event, ``count`` int64 how many each piece has.
    """

    pieces: list[Piece]
    good: NDArray[np.bool_]
    words: NDArray[np.uint64]
    first: NDArray[np.int64]
    end: NDArray[np.int64]
    at: NDArray[np.int64]
    head: NDArray[np.uint64]
    count: NDArray[np.int64]

    def events(self, i: int) -> NDArray[np.int64]:
        """Positions of the events of piece ``i`` in ``words``."""
        begin = int(self.count[:i].sum())
        return self.at[begin : begin + int(self.count[i])]

    def body(self, i: int) -> memoryview:
        """The bytes of piece ``i``, valid until the next pieces are staged."""
        return self.words[self.first[i] : self.end[i]].view(np.uint8).data


class Staging:
    """Copies pieces of the pools into memory that it reuses."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, np.uint64)

    def stages(self, pieces: list[Piece]) -> Iterator[Staged]:
        """All of ``pieces``, a few MB at a time; each stage is valid until the next is requested."""
        begin = 0
        while begin < len(pieces):
            past, total = begin, 0
            while past < len(pieces) and (past == begin or total + pieces[past].size <= MOST_STAGED):
                total += pieces[past].size
                past += 1
            room = (total + _PAD) // 8
            if len(self._memory) < room:
                self._memory = np.zeros(room, np.uint64)
            yield _check_pieces(self._memory[:room], pieces[begin:past])
            begin = past


def _check_pieces(memory: NDArray[np.uint64], pieces: list[Piece]) -> Staged:
    end = np.cumsum([piece.size // 8 for piece in pieces], dtype=np.int64)
    first = np.concatenate([np.zeros(1, np.int64), end[:-1]])
    for piece, at, past in zip(pieces, first.tolist(), end.tolist(), strict=True):
        memory[at:past] = np.frombuffer(piece.bytes, np.uint64, past - at, piece.start)
    memory[int(end[-1]) :] = 0
    found = chains(memory, first, end)
    mark = found.head.view(np.uint16)[1::4].astype(np.int64)
    kind = KIND.take(mark)
    size = ((found.head >> SHIFT.take(mark)) & np.uint64(0xFFFF)).view(np.int64)
    small = size < HEADER_BYTES.take(kind)
    message = np.flatnonzero(kind == MESSAGE)
    if len(message):
        options = (found.head[message] >> np.uint64(48)).astype(np.int64)
        small[message] = size[message] < MESSAGE_BYTES.take(options & 0xFF)
    claimed = np.array([piece.events for piece in pieces], np.int64)
    good = (found.stop == end) & (found.count == claimed)
    if small.any():
        owner = np.repeat(np.arange(len(pieces)), found.count)
        good[owner[small]] = False
    return Staged(pieces, good, memory, first, end, found.at, found.head, found.count)


# -- time stamps of encoded events
#
# Words are the events' bytes as uint64, each event at a word of its own; positions are counted in words.


Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_TIME_WORD = np.zeros(256, np.int64)
"""Header type -> word of the time stamp; 0 if that has no fixed place."""
for _type, _kind in HEADERS.items():
    if "TimeStamp" in dict(_kind.fields):
        _TIME_WORD[_type] = offset_of(_kind.fields, "TimeStamp") // 8


def at_least(least: int, words: Words, at: Ints) -> int:
    """Raise the times of the events at ``at`` (in order) to at least ``least``. Returns the last one.

    For sessions in system time: if that is set back, a writer repeats its last time (`clock`), and a later writer in
    its place continues there.
    """
    _, word = _kinds(words, at)
    place = (at + word)[word > 0]
    found: Ints = words.take(place).view(np.int64)
    low = found < least
    words[place[low]] = np.uint64(least)
    return max(least, int(found.max(initial=least)))


def times(words: Words, at: Ints) -> Ints:
    """Time stamps of the events at ``at``. An event without a time gets the previous event's time."""
    kind, word = _kinds(words, at)
    timed = word > 0
    time: Ints = words.take(np.minimum(at + word, len(words) - 1)).view(np.int64)
    message = np.flatnonzero(kind == MESSAGE)
    for i in message.tolist():  # no writer of ours makes such events, so one at a time is enough
        timed[i], time[i] = _message_time(words, int(at[i]))
    last = np.maximum.accumulate(np.where(timed, np.arange(len(at)), 0))
    filled: Ints = time[last]
    return filled


def _message_time(words: Words, at: int) -> tuple[bool, int]:
    options = int(words[at] >> np.uint64(48))
    if not options & MESSAGE_FLAG.TIMESTAMP:
        return False, 0
    begin = 8 + 4 * bool(options & MESSAGE_FLAG.SEQUENCE)
    if options & MESSAGE_FLAG.COMPONENTID:
        begin += 4
    elif options & MESSAGE_FLAG.GUID:
        begin += 16
    raw = words[at : at + 5].tobytes()[begin : begin + 8]
    return True, int.from_bytes(raw, "little", signed=True)


def _kinds(words: Words, at: Ints) -> tuple[NDArray[np.uint8], Ints]:
    """Header types of events, and the word of each time stamp; 0 if it has no fixed place."""
    kind = KIND.take(words.take(at).view(np.uint16)[1::4].astype(np.int64))
    return kind, _TIME_WORD.take(kind)


# -- NO_PER_PROCESSOR_BUFFERING: the events of all writers as one stream with processor index 0, in time order
#
# An event is released some time after its time stamp, because another writer may be about to commit an older one. An
# even later one goes to its place in the next buffer. Events later than now do not wait: the system time was set back,
# and what comes next belongs after them.


class MergedStream:
    """Merges pieces into buffers of ``capacity`` bytes; ``owner`` is the process whose file they go to, 0 for all.

    ``steady``: the time never goes back, even if the clock does; ``last`` is then the last time that was released.
    """

    def __init__(self, capacity: int, owner: int = 0, *, steady: bool = False) -> None:
        self.last = 0
        self._owner, self._steady = owner, steady
        self._room = capacity // 8
        self._words: list[NDArray[np.uint64]] = []
        self._held = 0
        self._first = np.empty(0, np.int64)
        self._size = np.empty(0, np.int64)
        self._time = np.empty(0, np.int64)
        self._lost = False

    def add(self, stage: Staged, i: int) -> None:
        """Add piece ``i`` of ``stage``, which has events and is good."""
        at = stage.events(i)
        words = stage.words[stage.first[i] : stage.end[i]].copy()
        first = at - stage.first[i]
        self._time = np.concatenate([self._time, times(words, first)])
        self._first = np.concatenate([self._first, first + self._held])
        self._size = np.concatenate([self._size, np.diff(first, append=len(words))])
        self._words.append(words)
        self._held += len(words)
        self._lost |= stage.pieces[i].marked

    def buffers(self, before: int | None, now: int) -> Iterator[Finished]:
        """Full buffers of the events before ``before``; of all events, if that is ``None``."""
        order = np.argsort(self._time, kind="stable")
        ahead = len(order) > 0 and self._time[order[-1]] > now
        ready = len(order) if ahead or before is None else int(np.searchsorted(self._time[order], before))
        order, rest = order[:ready], order[ready:]
        words = np.concatenate(self._words) if self._words else np.empty(0, np.uint64)
        ends = np.cumsum(self._size[order])
        done = begin = 0
        while done < ready:
            count = int(np.searchsorted(ends, begin + self._room, "right"))
            if count == ready and before is not None and begin + self._room - ends[-1] > 0:
                break  # not full yet
            rows = order[done:count]
            body = take_ranges(words, self._first[rows], self._size[rows])
            if self._steady:
                sizes = self._size[rows]
                self.last = at_least(self.last, body, np.cumsum(sizes) - sizes)
            yield Finished(0, body.view(np.uint8).data, count - done, now, self._lost, self._owner)
            self._lost = False
            done, begin = count, int(ends[count - 1])
        self._keep(words, np.concatenate([order[done:], rest]))

    def _keep(self, words: NDArray[np.uint64], rows: NDArray[np.int64]) -> None:
        self._words = [take_ranges(words, self._first[rows], self._size[rows])]
        self._held = len(self._words[0])
        self._size, self._time = self._size[rows], self._time[rows]
        self._first = np.cumsum(self._size) - self._size


READERS_WAIT = 2.0
"""Seconds that a stop waits for readers."""
_LATE = 50
"""A part (1/n) of a second after which no other writer is expected to commit an older event."""


class Delivery:
    """The sinks of session ``handle``, and the counts of what reached them.

    ``begun`` is the start of the session, in ticks of its clock and as FILETIME. Events may have been written since.
    """

    def __init__(
        self,
        request: SessionRequest,
        handle: int,
        clock: Clock,
        geometry: Geometry,
        file: FileSink | None,
        processors: int,
        begun: tuple[int, int],
        header_events: HeaderEvents,
    ) -> None:
        self.written = 0
        """Buffers that a sink took, including headers of files."""
        self.log_buffers_lost = self._live_buffers_lost = self._events_lost = 0
        self._handle, self._clock, self._header_events = handle, clock, header_events
        self._staging = Staging()
        one = bool(request.mode & LogFileMode.NO_PER_PROCESSOR_BUFFERING)
        self._streams: dict[int, MergedStream] = {}
        """A stream for each process if each process has a file of its own, else one stream for all."""
        self._private = bool(request.mode & LogFileMode.PRIVATE_LOGGER_MODE)
        self._capacity = geometry.capacity
        self.merges = one
        """Whether events of all writers become one stream, which needs the events of unfinished buffers, too."""
        self._processors = 1 if one else processors
        self._sequence = self._in_files = 0
        self._steady = clock.kind == ClientContext.SYSTEM_TIME
        """Whether the clock may go back. The time of the session then waits until it has caught up."""
        self._last: dict[int, int] = {}
        """In such a session, the last time of events of each processor index."""
        self._promised = 0
        """The time of a marker that was later than the clock: no event before it may follow."""
        self._file = file
        self._live: RealTimeSink | None = None
        self._only_live = False
        timestamp, start_time = begun
        header = session_header(request, handle, clock, self._processors)
        self._header = replace(header, timestamp=timestamp, start_time=start_time)
        if file is not None:
            file.begin(self._header, self._events(self._header))
        if request.mode & LogFileMode.REAL_TIME_MODE:
            self._go_live(request, self._header)

    def _events(self, header: LogHeader) -> tuple[bytes, ...]:
        """The events that follow ``header`` in its buffer."""
        return tuple(pad_event(event) for event in self._header_events(header.timestamp))

    # -- counts

    @property
    def events_lost(self) -> int:
        """Events of buffers that did not get to the file; without a file, to the readers."""
        return self._events_lost + (self._live.events_lost if self._live and self._only_live else 0)

    @property
    def live_buffers_lost(self) -> int:
        """Buffers that no reader got."""
        return self._live_buffers_lost + (self._live.buffers_lost if self._live else 0)

    @property
    def full(self) -> bool:
        """Whether events go to readers only, and their backlog is full: deliver no more now."""
        return self._live is not None and self._only_live and self._live.full

    @property
    def buffers_written(self) -> int:
        """Buffers that were written, including those with headers of files."""
        return self._in_files + self.written + (self._file.written if self._file else 0)

    # -- buffers

    def deliver(self, pieces: list[Piece]) -> None:
        """Deliver the events of ``pieces`` to the sinks."""
        now = self._clock.now()
        for stage in self._staging.stages(pieces):
            for i, piece in enumerate(stage.pieces):
                if not stage.good[i]:
                    self._lose(piece.events)
                elif not piece.events:
                    continue
                elif self.merges:
                    self._stream(piece.owner).add(stage, i)
                else:
                    if self._steady:
                        least = max(self._promised, self._last.get(piece.cpu, 0))
                        self._last[piece.cpu] = at_least(least, stage.words, stage.events(i))
                    body = stage.body(i)
                    self._write(Finished(piece.cpu, body, piece.events, now, piece.marked, piece.owner))
                    self._processors = max(self._processors, piece.cpu + 1)
        self._release(now - self._clock.frequency // _LATE, now)

    def _stream(self, owner: int) -> MergedStream:
        owner = owner if self._private else 0
        if owner not in self._streams:
            self._streams[owner] = MergedStream(self._capacity, owner, steady=self._steady)
        return self._streams[owner]

    def _release(self, before: int | None, now: int) -> None:
        """Write what the streams hold: events before ``before``, or all."""
        for stream in self._streams.values():
            for buffer in stream.buffers(before, now):
                self._write(buffer)

    def _lose(self, events: int) -> None:
        self._events_lost += events
        self.log_buffers_lost += 1

    def _write(self, buffer: Finished) -> None:
        if self._live is not None:
            self._sequence += 1
            head = BufferHeader(
                used=len(buffer.body),
                time=buffer.time,
                sequence=self._sequence,
                cpu=buffer.cpu,
                logger_id=self._handle,
                flags=buffer.flags,
            )
            taken = self._live.write(head.encode() + buffer.body, buffer.events)
            self.written += taken and self._only_live
        if self._file is not None and not self._file.write(buffer):
            self._lose(buffer.events)

    def flush(self, before: int) -> None:
        """All that was committed before ``before`` (ticks) has been delivered: release what is held back."""
        self._release(None, self._clock.now())
        if self._live is not None:
            last = max([*self._last.values(), *(stream.last for stream in self._streams.values())], default=0)
            if last > self._clock.now():  # the clock was set back, and readers would wait until it has caught up
                before = self._promised = last
            self._live.flushed(before)

    def snapshot(self, request: SessionRequest, path: str, pieces: list[Piece], lost: tuple[int, int]) -> None:
        """Write a copy of ``pieces`` as a file of their own; ``lost`` are events and buffers lost before. Raises
        `EtwError`, `OSError`."""
        begun, kept = self._header, request.mode & (LogFileMode.COMPRESSED_MODE | LogFileMode.BUFFERING_MODE)
        made = replace(request, mode=kept, file=path, maximum_file_size=0)
        header = session_header(made, self._handle, self._clock, self._processors)
        header = replace(header, timestamp=begun.timestamp, start_time=begun.start_time)
        file = SessionFile(path, header, open_log(path, append=False, call="ControlTrace"), self._events(header))
        now, top = self._clock.now(), self._processors
        events_lost, buffers_lost = lost
        for stage in self._staging.stages(pieces):
            for i, piece in enumerate(stage.pieces):
                if not stage.good[i]:
                    events_lost, buffers_lost = events_lost + piece.events, buffers_lost + 1
                elif piece.events:
                    file.write(piece.cpu, stage.body(i), now)
                    top = max(top, piece.cpu + 1)
        file.finish(Totals(self._clock.filetime(), top, events_lost, buffers_lost))

    # -- readers and files

    def add_reader(self, stream: socket.socket) -> None:
        """Send to this socket too, from now on."""
        if self._live is not None:
            self._live.add_reader(stream)

    def send(self) -> bool:
        """Send to readers what they accept at once. Returns whether more waits for them."""
        return self._live is not None and self._live.poll()

    def go_live(self, request: SessionRequest) -> None:
        """Begin to keep buffers for readers."""
        self._go_live(request, session_header(request, self._handle, self._clock, self._processors))

    def _go_live(self, request: SessionRequest, header: LogHeader) -> None:
        plain = replace(header, mode=header.mode & ~LogFileMode.COMPRESSED_MODE)
        self._only_live = self._file is None
        reserve = request.maximum_buffers * request.buffer_size * 1024 if self._only_live else 0
        self._live = RealTimeSink(encode_first_buffer(plain, self._events(plain)), reserve=reserve)

    def end_live(self) -> None:
        """Stop real-time delivery. Unread events are lost."""
        live = self._live
        if live is None:
            return
        live.stop(READERS_WAIT)
        self._live = None
        self._live_buffers_lost += live.buffers_lost
        self._events_lost += live.events_lost if self._only_live else 0

    def next_file(self) -> None:
        """As `FileSink.next_file`."""
        if self._file is not None:
            self._file.next_file()

    def change_file(self, file: FileSink | None, request: SessionRequest, lost: tuple[int, int]) -> None:
        """Complete the file, with ``lost`` events and buffers, and continue with another one or none."""
        self.close_file(lost)
        if file is not None:
            header = session_header(request, self._handle, self._clock, self._processors)
            file.begin(header, self._events(header))
        self._file = file

    def close_file(self, lost: tuple[int, int]) -> None:
        """Complete the file, with ``lost`` events and buffers. If the disk refuses, the first header stays."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(OSError):
            file.finish(Totals(self._clock.filetime(), self._processors, *lost))
        self._in_files += file.written
