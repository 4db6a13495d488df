"""Real time: the daemon's sink and the reader's stream over a socket, by their rules and with hostile ends."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl_builder as build
from etl_oracle import sample
from lastbranch.errors import FormatError
from lastbranch.etw import streams as live
from lastbranch.etw.consumer_api import Logfile, ProcessTrace, close_trace, open_trace, process_trace
from lastbranch.etw.flags import ProcessTraceMode
from lastbranch.etw.portable.session.sinks import RealTimeSink
from lastbranch.etw.status import EtwError, Status
from lastbranch.etw.streams import LiveStream
from lastbranch.formats.etl import events_of

LOST = 0x04  # WMI_BUFFER_FLAG_BUFFER_LOST
REAL_TIME = ProcessTraceMode.REAL_TIME | ProcessTraceMode.EVENT_RECORD | ProcessTraceMode.RAW_TIMESTAMP


def header(**options: Any) -> bytes:
    return bytes(build.Trace(**options))


def buffer(*times: int, cpu: int = 0, sequence: int = 1, size: int = 4096) -> bytes:
    return build.buffer([sample(at) for at in times], size=size, cpu=cpu, sequence=sequence)


class Pipe:
    """A connected pair: ``near`` is the sink's, ``far`` the reader's, with little room between them."""

    def __init__(self, room: int = 4096) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        self.far.settimeout(20)

    def rest(self) -> bytes:
        data = bytearray()
        while part := self.far.recv(1 << 16):
            data += part
        return bytes(data)


def frames(data: bytes) -> list[tuple[int, int, int, int]]:
    """(sequence, flags, type, time) of the buffers in a stream, by the layout of WMI_BUFFER_HEADER."""
    found, at = [], 0
    while at < len(data):
        size, stamp, sequence = struct.unpack_from("<I12xqq", data, at)
        used, flags, kind = struct.unpack_from("<IHH", data, at + 0x30)
        assert size == used + 7 & ~7
        assert len(data) >= at + size
        found.append((sequence, flags, kind, stamp))
        at += size
    return found


def drained(sink: RealTimeSink, pipe: Pipe) -> list[tuple[int, int, int, int]]:
    """Everything that the sink has for a reader, which reads while the sink sends."""
    reader = threading.Thread(target=lambda: got.append(pipe.rest()))
    got: list[bytes] = []
    reader.start()
    sink.stop(20)
    reader.join()
    return frames(got[0])


# -- the sink


def test_backlog_first_then_what_is_new() -> None:
    sink, pipe = RealTimeSink(header()), Pipe(1 << 20)
    for n in (1, 2, 3):
        assert sink.write(buffer(n, sequence=n), 1)
    sink.add_reader(pipe.near)
    assert sink.write(buffer(4, sequence=4), 1)
    assert [row[0] for row in drained(sink, pipe)] == [0, 1, 2, 3, 4]
    assert (sink.buffers_lost, sink.events_lost) == (0, 0)


def test_a_full_backlog_refuses_and_counts() -> None:
    sink, pipe = RealTimeSink(header(), limit=250), Pipe(1 << 20)
    taken = [sink.write(buffer(n, sequence=n), 10 + n) for n in range(1, 6)]  # 104 bytes each
    assert taken == [True, True, False, False, False]
    assert (sink.buffers_lost, sink.events_lost) == (3, 13 + 14 + 15)
    sink.add_reader(pipe.near)
    assert sink.write(buffer(6, sequence=6), 1)
    assert [(n, flags & LOST) for n, flags, *_ in drained(sink, pipe)] == [(0, 0), (1, 0), (2, 0), (6, LOST)]
    assert (sink.buffers_lost, sink.events_lost) == (3, 42)


def test_what_nobody_reads_is_lost_at_the_end() -> None:
    sink = RealTimeSink(header())
    for n in range(3):
        sink.write(buffer(n), 5)
        sink.flushed(n)
    sink.stop(1)
    assert (sink.buffers_lost, sink.events_lost) == (3, 15)


def test_a_reader_that_stands_still_stops_nobody() -> None:
    """Writing goes on in bounded memory; what the reader had not taken in the end is lost."""
    sink, pipe = RealTimeSink(header(), limit=1 << 16), Pipe()
    sink.add_reader(pipe.near)
    events = 0
    for n in range(1, 200):
        sink.write(buffer(*range(100), sequence=n), 100)
        sink.poll()
        events += 100
    assert sink._held <= 1 << 16
    assert sink.buffers_lost > 100
    before = time.monotonic()
    sink.stop(0.2)
    assert time.monotonic() - before < 30
    rest = pipe.rest()
    whole, at = 0, 0
    while at + 72 <= len(rest) and at + struct.unpack_from("<I", rest, at)[0] <= len(rest):
        at += struct.unpack_from("<I", rest, at)[0]
        whole += 1
    assert sink.events_lost + 100 * (whole - 1) == events


def test_a_reader_that_dies_loses_no_whole_buffer_for_the_next() -> None:
    sink, first, second = RealTimeSink(header()), Pipe(), Pipe(1 << 20)
    sink.add_reader(first.near)
    for n in range(1, 101):
        sink.write(buffer(*range(100), sequence=n), 100)
    assert sink.poll()
    got = len(first.far.recv(1 << 20))
    sent = sink._readers[0].next
    first.far.close()
    assert not sink.poll()
    assert not sink._readers
    sink.add_reader(second.near)
    assert [row[0] for row in drained(sink, second)] == [0, *range(sent + 1, 101)]
    assert got > 0
    assert sink.buffers_lost == 0


def test_two_readers_get_everything() -> None:
    sink, pipes = RealTimeSink(header()), [Pipe(1 << 20) for _ in range(2)]
    sink.add_reader(pipes[0].near)
    sink.write(buffer(1, sequence=1), 1)
    sink.poll()
    sink.add_reader(pipes[1].near)
    sink.write(buffer(2, sequence=2), 1)
    sink.stop(5)
    assert [[row[0] for row in frames(p.rest())] for p in pipes] == [[0, 1, 2], [0, 2]]


def test_a_fast_reader_does_not_wait_for_a_slow_one() -> None:
    sink, slow, fast = RealTimeSink(header()), Pipe(), Pipe(1 << 20)
    sink.add_reader(slow.near)
    sink.add_reader(fast.near)
    for n in range(1, 51):
        sink.write(buffer(*range(100), sequence=n), 100)
        sink.poll()
    data = fast.far.recv(1 << 20)
    assert frames(data)[-1][0] == 50
    third = Pipe(1 << 20)
    sink.add_reader(third.near)
    sink.write(buffer(1, sequence=51), 1)
    sink.poll()
    assert [row[0] for row in frames(third.far.recv(1 << 20))] == [0, 51]
    assert [row[0] for row in drained(sink, slow)] == list(range(52))


def test_markers_do_not_pile_up() -> None:
    sink, pipe = RealTimeSink(header()), Pipe(1 << 20)
    sink.write(buffer(1), 1)
    for n in range(1000):
        sink.flushed(n)
    assert len(sink._frames) == 2
    sink.add_reader(pipe.near)
    assert [row[2:] for row in drained(sink, pipe)][1:] == [(0, 0), (6, 999)]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 60)),
        st.tuples(st.just("read"), st.integers(1, 6000)),
        st.tuples(st.just("poll"), st.just(0)),
        st.tuples(st.just("flushed"), st.just(0)),
        st.tuples(st.just("connect"), st.just(0)),
        st.tuples(st.just("drop"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(operations)
def test_every_event_is_delivered_or_counted(steps: list[tuple[str, int]]) -> None:
    """One reader at a time, which may go at any moment: whole buffers are in the stream of one reader or are lost."""
    sink, offered, sequence = RealTimeSink(header(), limit=8000), 0, 0
    streams: list[bytearray] = []
    pipe: Pipe | None = None

    def take(count: int) -> None:
        assert pipe is not None
        pipe.far.setblocking(False)
        try:
            streams[-1].extend(pipe.far.recv(count))
        except BlockingIOError:
            return

    for what, number in steps:
        if what == "write":
            sequence, offered = sequence + 1, offered + number
            sink.write(buffer(*range(number), sequence=sequence), number)
        elif what == "poll":
            sink.poll()
        elif what == "flushed":
            sink.flushed(0)
        elif what == "connect" and pipe is None:
            pipe = Pipe()
            streams.append(bytearray())
            sink.add_reader(pipe.near)
        elif what == "read" and pipe is not None:
            take(number)
        elif what == "drop" and pipe is not None:
            while (size := len(streams[-1])) >= 0:  # what is in the socket counts as read
                take(1 << 20)
                if len(streams[-1]) == size:
                    break
            pipe.far.close()
            sink.poll()
            while sink._readers:
                sink.write(buffer(sequence=0), 0)
                sink.poll()
            pipe = None
    if pipe is not None:
        pipe.far.setblocking(True)
        far = pipe
        reader = threading.Thread(target=lambda: streams[-1].extend(far.rest()))
        reader.start()
        sink.stop(20)
        reader.join()
    sink.stop(0)
    seen: list[int] = []
    delivered = 0
    for stream in streams:
        at = 0
        while at + 72 <= len(stream) and at + struct.unpack_from("<I", stream, at)[0] <= len(stream):
            size, number = struct.unpack_from("<I20xq", stream, at)
            (kind,) = struct.unpack_from("<H", stream, at + 0x36)
            if kind == 0 and number:
                seen.append(number)
                delivered += (size - 72) // 32
            at += size
    assert seen == sorted(set(seen))
    assert delivered + sink.events_lost == offered


# -- the stream


def stream_of(*parts: bytes) -> LiveStream:
    near, far = socket.socketpair()
    threading.Thread(target=lambda: (near.sendall(b"".join(parts)), near.close()), daemon=True).start()
    return LiveStream(far, "test")


def sent(sink: RealTimeSink) -> LiveStream:
    """The stream of a reader that connects now."""
    pipe = Pipe(1 << 20)
    sink.add_reader(pipe.near)
    return LiveStream(pipe.far, "test")


def batches(stream: LiveStream) -> list[list[tuple[int, int]]]:
    return [[(e.time, e.cpu) for e in events_of(part.block)] for part in stream.parts()]


def test_events_of_processors_in_order_up_to_the_marker() -> None:
    """What came before a marker but is newer than it waits for what the other processors still have."""
    sink = RealTimeSink(header())
    stream = sent(sink)
    sink.write(buffer(100, 140, 180, cpu=0), 3)
    sink.write(buffer(110, 120, 150, cpu=1), 3)
    sink.flushed(145)
    sink.poll()
    parts = stream.parts()
    first = events_of(next(parts).block)
    assert [(e.time, e.cpu) for e in first] == [(100, 0), (110, 1), (120, 1), (140, 0)]
    sink.write(buffer(145, 160, cpu=2), 2)
    sink.flushed(1000)
    sink.stop(5)
    (rest,) = [events_of(part.block) for part in parts]
    assert [(e.time, e.cpu) for e in rest] == [(145, 2), (150, 1), (160, 2), (180, 0)]


def test_a_wait_has_an_end_so_that_signals_are_looked_at() -> None:
    """A handler of a signal that came just before the wait began runs only when that is over."""
    near, far = socket.socketpair()
    near.sendall(header())
    stream = LiveStream(far, "test")
    assert far.gettimeout()
    time.sleep(2 * far.gettimeout())  # which is no end of the stream
    threading.Timer(3 * far.gettimeout(), lambda: (near.sendall(buffer(100, cpu=0)), near.close())).start()
    assert batches(stream) == [[(100, 0)]]


def test_equal_times_stay_in_the_order_in_which_they_came() -> None:
    sink = RealTimeSink(header())
    stream = sent(sink)
    for cpu in (2, 0, 1):
        sink.write(buffer(5, 5, cpu=cpu), 2)
    sink.stop(5)
    assert batches(stream) == [[(5, 2), (5, 2), (5, 0), (5, 0), (5, 1), (5, 1)]]


def test_too_much_does_not_wait_for_a_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_MOST_HELD", 10_000)
    near, far = socket.socketpair()
    near.sendall(header())
    stream = LiveStream(far, "test")
    parts = stream.parts()
    for n in range(8):
        near.sendall(buffer(*range(n * 50, n * 50 + 50)))
    assert len(next(parts).block) >= 50  # with the session still running
    near.close()
    stream.close()


def test_a_stream_that_breaks_off_keeps_whole_buffers() -> None:
    """The daemon was killed in the middle of a buffer."""
    stream = stream_of(header(), buffer(1, 2), buffer(3, 4)[:2000])
    assert batches(stream) == [[(1, 0), (2, 0)]]


def test_a_session_that_ends_before_it_said_what_it_is() -> None:
    with pytest.raises(EtwError) as caught:
        stream_of(header()[:60])
    assert caught.value.status == Status.WMI_INSTANCE_NOT_FOUND


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (0, "<I", 71),
        (0, "<I", 0),
        (0, "<I", 1 << 31),
        (0, "<I", 4095),
        (0x30, "<I", 4104),
        (0x30, "<I", 3),
        (0x34, "<H", 0x40),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_no_session_sends_is_an_error(at: int, form: str, value: int, first: bool) -> None:
    wrong = bytearray(header() if first else buffer(1))
    struct.pack_into(form, wrong, at, value)
    with pytest.raises(FormatError):
        batches(stream_of(bytes(wrong)) if first else stream_of(header(), bytes(wrong)))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_streams_end_with_an_error_or_not_at_all(data: st.DataObject) -> None:
    """Any other exception fails."""
    whole = bytearray(header() + buffer(1, 2, 3) + buffer(4, 5, cpu=1))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FormatError, EtwError):
        batches(stream_of(bytes(whole)))


# -- ProcessTrace


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealTimeSink]:
    """A sink that OpenTrace finds as session "live"."""
    sink = RealTimeSink(header())

    class Kernel:
        def consume(self, name: str) -> socket.socket:
            if name != "live":
                raise EtwError("OpenTrace", Status.WMI_INSTANCE_NOT_FOUND)
            pipe = Pipe(1 << 20)
            sink.add_reader(pipe.near)
            return pipe.far

    monkeypatch.setattr(live, "kernel", Kernel)
    yield sink
    sink.stop(0)


def test_process_trace_in_real_time(session: RealTimeSink) -> None:
    seen: list[int] = []
    ended: list[int] = []
    logfile = Logfile(LoggerName="live", ProcessTraceMode=REAL_TIME)
    logfile.EventRecordCallback = lambda record: seen.append(record.EventHeader.TimeStamp)
    logfile.BufferCallback = lambda told: ended.append(told.BuffersRead)
    handle = open_trace(logfile)
    assert logfile.LogfileHeader.PerfFreq == 10_000_000
    session.write(buffer(3, 7, cpu=0), 2)
    session.write(buffer(5, cpu=1), 1)
    session.stop(5)
    process_trace([handle])
    assert (seen, ended) == ([3, 5, 7], [1, 2])
    assert close_trace(handle) == Status.SUCCESS


def test_close_from_a_callback_delivers_what_was_received(session: RealTimeSink) -> None:
    """Every event that had been received is delivered, and then ProcessTrace returns, though the session goes on."""
    seen: list[int] = []
    statuses: list[Status] = []

    def take(record: Any) -> None:
        if not seen:
            statuses.append(close_trace(handle))
        seen.append(record.EventHeader.TimeStamp)

    handle = open_trace(Logfile(LoggerName="live", ProcessTraceMode=REAL_TIME, EventRecordCallback=take))
    session.write(buffer(1, 2, 3), 3)
    session.flushed(10)
    session.poll()
    process_trace([handle])
    assert (seen, statuses) == ([1, 2, 3], [Status.CTX_CLOSE_PENDING])


def test_close_from_another_thread_wakes_a_waiting_reader(session: RealTimeSink) -> None:
    handle = open_trace(Logfile(LoggerName="live", ProcessTraceMode=REAL_TIME))
    waiting = threading.Thread(target=process_trace, args=([handle],))
    waiting.start()
    status = None
    while status is None:
        try:
            status = close_trace(handle) if waiting.is_alive() else status
        except EtwError:
            break
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_stream_that_is_none_is_invalid_data(session: RealTimeSink) -> None:
    handle = open_trace(Logfile(LoggerName="live", ProcessTraceMode=REAL_TIME))
    wrong = bytearray(buffer(1))
    struct.pack_into("<H", wrong, 0x34, 0x40)  # COMPRESSED
    session.write(wrong, 1)
    session.poll()
    assert ProcessTrace([handle]) == Status.INVALID_DATA
    close_trace(handle)


def test_rules_of_real_time(session: RealTimeSink) -> None:
    with pytest.raises(EtwError) as caught:
        open_trace(Logfile(LoggerName="other", ProcessTraceMode=REAL_TIME))
    assert caught.value.status == Status.WMI_INSTANCE_NOT_FOUND
    handles = [open_trace(Logfile(LoggerName="live", ProcessTraceMode=REAL_TIME)) for _ in range(2)]
    with pytest.raises(EtwError) as caught:
        process_trace(handles)
    assert caught.value.status == Status.INVALID_PARAMETER
    for handle in handles:
        close_trace(handle)
