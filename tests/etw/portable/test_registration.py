"""Providers of this process: what they write reaches the sessions that enabled them, and only these."""

from __future__ import annotations

import os
import signal
import struct
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from lastbranch.etw.flags import EnableProvider, LogFileMode
from lastbranch.etw.interface import ClassicHeader, EnableParameters, EventDescriptor
from lastbranch.etw.portable.provider.registration import current
from lastbranch.etw.portable.provider.targets import target_of
from lastbranch.etw.portable.session_registry import EnableState, process_key
from lastbranch.etw.properties import Filter
from lastbranch.etw.status import EtwError
from lastbranch.formats.etl import Event, TraceLog
from lastbranch.model import BytesSource
from portable_sessions import Sessions, sessions_in, until

PROVIDER = UUID("a7c1f1de-5cc5-4b0c-8a0e-0123456789ab")
DESCRIPTOR = EventDescriptor(7, 2, 11, 4, 9, 0x1234, 0x8000_0000_0000_0005)
PLAIN = EventDescriptor(1)
EVENT_ID = 0x80000200


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    with sessions_in(tmp_path_factory.mktemp("sessions")) as made:
        yield made


@pytest.fixture
def provider(sessions: Sessions) -> Iterator[Any]:
    made = sessions.kernel.register(PROVIDER, None)
    yield made
    made.close()


def started(sessions: Sessions, name: str, **fields: Any) -> int:
    fields = {"file": f"{name}.etl", "maximum_buffers": 64, **fields}
    return sessions.start(name, **fields).handle


def enable(sessions: Sessions, handle: int, level: int = 0, any_: int = 0, all_: int = 0, **parameters: Any) -> None:
    code = EnableProvider.ENABLE
    sessions.kernel.enable(handle, PROVIDER, code, level, any_, all_, 20_000, EnableParameters(**parameters))


def logged(path: Path) -> list[Event]:
    """Events of providers in a file that has no damage."""
    log = TraceLog(BytesSource(path.read_bytes(), str(path)))
    found = [event for event in log.events() if event.hook < 0]
    assert not log.damage, log.damage
    return found


# -- what is written


def test_an_event_as_it_was_written(sessions: Sessions, provider: Any) -> None:
    handle = started(sessions, "fields")
    enable(sessions, handle)
    activity, related = UUID(int=77).bytes_le, UUID(int=88).bytes_le
    payloads = [bytes(range(size % 256)) * (size // 256 + 1) for size in (0, 1, 7, 8, 9, 255, 256, 5000)]
    for payload in payloads:
        assert provider.write(DESCRIPTOR, payload) == 0
    assert provider.write(DESCRIPTOR, b"with", activity) == 0
    assert provider.write(DESCRIPTOR, b"with", b"", related) == 0
    assert provider.write(DESCRIPTOR, b"with", activity, related) == 0
    sessions.stop("fields")
    found = logged(sessions.file("fields.etl"))
    assert [event.payload for event in found[:-3]] == payloads
    for event in found:
        made = (event.id, event.version, event.channel, event.level, event.opcode, event.task, event.keyword)
        assert made == tuple(DESCRIPTOR)
        assert (event.provider, event.pid, event.tid) == (PROVIDER.bytes_le, os.getpid(), threading.get_native_id())
        assert event.header == 19
    assert [(event.activity, event.extended) for event in found[-3:]] == [
        (activity, []),
        (bytes(16), [(1, related)]),
        (activity, [(1, related)]),
    ]
    assert [event.time for event in found] == sorted(event.time for event in found)


def test_what_sessions_want_with_each_event(sessions: Sessions, provider: Any) -> None:
    """EVENT_ENABLE_PROPERTY_SID, TS_ID and PROCESS_START_KEY, as extended items."""
    handle = started(sessions, "items")
    enable(sessions, handle, property=0x1 | 0x2 | 0x80)
    provider.write(PLAIN, b"data")
    provider.write(PLAIN, b"data", b"", bytes(16))
    sessions.stop("items")
    first, second = logged(sessions.file("items.etl"))
    sid, session, key = first.extended
    assert sid == (2, struct.pack("<BB6B2I", 1, 2, 0, 0, 0, 0, 0, 22, 1, os.getuid()))
    assert session == (3, struct.pack("<I", os.getsid(0)))
    assert key == (13, struct.pack("<Q", process_key().start))
    assert second.extended == [*first.extended, (1, bytes(16))]
    assert first.payload == second.payload == b"data"


def test_information_of_a_provider(sessions: Sessions, provider: Any) -> None:
    """Traits are in each event from then on; what else there is does nothing here, and is refused."""
    handle = started(sessions, "traits")
    enable(sessions, handle)
    traits = b"\x06\0abc\0"
    assert provider.write(PLAIN, b"before") == 0
    provider.set_information(2, traits)
    assert provider.write(PLAIN, b"after") == 0
    for kind, data, status in (
        (0, b"", 50),
        (1, b"", 50),
        (3, b"\1", 50),
        (4, b"", 87),
        (2, b"", 87),
        (2, b"\x07\0abc\0", 87),
        (2, b"\x05\0abc", 87),
    ):
        with pytest.raises(EtwError) as caught:
            provider.set_information(kind, data)
        assert caught.value.status == status
    sessions.stop("traits")
    found = logged(sessions.file("traits.etl"))
    assert [(event.payload, event.extended) for event in found] == [(b"before", []), (b"after", [(12, traits)])]


def test_events_that_are_too_large(sessions: Sessions, provider: Any) -> None:
    handle = started(sessions, "large", buffer_size=4)
    enable(sessions, handle)
    largest = 4096 - 72 - 80
    assert provider.write(PLAIN, bytes(largest)) == 0
    assert provider.write(PLAIN, bytes(largest + 1)) == 234
    assert provider.write(PLAIN, bytes(0xFFFF - 80)) == 234
    assert provider.write(PLAIN, bytes(0xFFFF - 79)) == 534
    state = sessions.stop("large")
    assert [len(event.payload) for event in logged(sessions.file("large.etl"))] == [largest]
    assert state.events_lost == 3


def test_a_full_pool_is_told_and_counted(sessions: Sessions, provider: Any) -> None:
    handle = started(sessions, "full", buffer_size=4, maximum_buffers=0)
    enable(sessions, handle)
    os.kill(sessions.pid("full"), signal.SIGCONT)
    assert provider.write(PLAIN, bytes(1000)) == 0
    os.kill(sessions.pid("full"), signal.SIGSTOP)
    try:
        statuses = [provider.write(PLAIN, bytes(1000)) for _ in range(50)]
    finally:
        os.kill(sessions.pid("full"), signal.SIGCONT)
    assert set(statuses) == {0, 8}
    state = sessions.stop("full")
    assert state.events_lost == statuses.count(8)
    assert len(logged(sessions.file("full.etl"))) == 1 + statuses.count(0)


def test_classic_events(sessions: Sessions) -> None:
    handle = started(sessions, "classic")
    header = ClassicHeader(UUID(int=5), 3, 2, 1)
    sessions.kernel.trace_event(handle, header, b"payload")
    for size, status in ((0xFFFF - 48, 234), (0xFFFF - 47, 534)):
        with pytest.raises(EtwError) as caught:
            sessions.kernel.trace_event(handle, header, bytes(size))
        assert caught.value.status == status
    with pytest.raises(EtwError) as caught:
        sessions.kernel.trace_event(63, header, b"")
    assert caught.value.status == 6
    assert sessions.stop("classic").events_lost == 2
    (event,) = logged(sessions.file("classic.etl"))
    assert (event.header, event.provider, event.opcode, event.level, event.version) == (
        20,
        UUID(int=5).bytes_le,
        3,
        2,
        1,
    )
    assert (event.payload, event.pid, event.tid) == (b"payload", os.getpid(), threading.get_native_id())


# -- what is taken


@pytest.mark.parametrize(
    ("state", "event", "taken"),
    [
        ((0, 0, 0, 0), (255, 5), True),
        ((4, 0, 0, 0), (4, 0), True),
        ((4, 0, 0, 0), (5, 0), False),
        ((4, 0, 0, 0), (0, 0), True),
        ((0, 0b0110, 0, 0), (1, 0b0100), True),
        ((0, 0b0110, 0, 0), (1, 0b1001), False),
        ((0, 0b0110, 0, 0), (1, 0), True),
        ((0, 0b0110, 0, 0x10), (1, 0), False),
        ((0, 0b0110, 0b1001, 0), (1, 0b1101), True),
        ((0, 0b0110, 0b1001, 0), (1, 0b0101), False),
        ((0, 0, 0b1001, 0), (1, 0b1000), False),
        ((0, 0, 0b1001, 0), (1, 0), True),
        ((0, 0, 0, 0x10), (1, 1 << 63), True),
    ],
)
def test_levels_and_keywords(state: tuple[int, ...], event: tuple[int, int], taken: bool) -> None:
    level, any_, all_, property_ = state
    target = target_of(EnableState(1, process_key(), "x", level, any_, all_, property_))
    assert target is not None
    assert target.takes(*event) is taken
    assert target.takes_event(EventDescriptor(1, level=event[0], keyword=event[1])) is taken


@pytest.mark.parametrize(
    ("data", "taken"),
    [
        (struct.pack("<BBH2H", 1, 0, 2, 3, 5), {3, 5}),
        (struct.pack("<BBH2H", 0, 0, 2, 3, 5), {1, 2, 4}),
        (struct.pack("<BBH", 1, 0, 0), set()),
        (struct.pack("<BBH1H", 1, 0, 2, 3), {1, 2, 3, 4, 5}),
        (b"\1", {1, 2, 3, 4, 5}),
    ],
    ids=["in", "out", "none", "cut", "shorter still"],
)
def test_event_id_filters(data: bytes, taken: set[int]) -> None:
    target = target_of(EnableState(1, process_key(), "x", filters=(Filter(EVENT_ID, data),)))
    assert target is not None
    assert {n for n in range(1, 6) if target.takes_event(EventDescriptor(n))} == taken


def test_scope_filters() -> None:
    pid = struct.pack("<I", os.getpid())
    for kind, data, taken in ((0x80000004, pid, True), (0x80000004, b"\1\0\0\0", False), (0x80000010, b"", True)):
        assert (target_of(EnableState(1, process_key(), "x", filters=(Filter(kind, data),))) is not None) is taken


def test_each_session_gets_what_it_enabled(sessions: Sessions, provider: Any) -> None:
    one, other = started(sessions, "one"), started(sessions, "other")
    enable(sessions, one, level=3)
    enable(sessions, other, level=5, any_=2)
    assert (provider.enabled, provider.level, provider.keywords) == (True, 5, 0)
    made = [
        EventDescriptor(n, level=level, keyword=keyword)
        for n, (level, keyword) in enumerate(((1, 1), (1, 2), (4, 2), (4, 1), (6, 2)))
    ]
    for _ in range(3):
        assert {provider.write(descriptor, b"x") for descriptor in made} == {0}
    assert [provider.takes(descriptor.level, descriptor.keyword) for descriptor in made] == [True] * 3 + [False] * 2
    sessions.stop("one")
    assert (provider.level, provider.keywords) == (5, 2)
    provider.write(made[1], b"later")
    sessions.stop("other")
    assert not provider.enabled
    assert [event.id for event in logged(sessions.file("one.etl"))] == [0, 1] * 3
    assert [event.id for event in logged(sessions.file("other.etl"))] == [1, 2] * 3 + [1]


# -- coming and going


def test_callbacks(sessions: Sessions) -> None:
    handle = started(sessions, "told")
    source = UUID(int=99)
    enable(sessions, handle, 4, 6, 2, source=source)  # before anybody registers
    calls: list[Any] = []
    provider = sessions.kernel.register(PROVIDER, lambda *said: calls.append(said))
    assert provider.enabled
    enable(sessions, handle, 5, source=source)
    sessions.kernel.enable(handle, PROVIDER, EnableProvider.CAPTURE_STATE, 0, 12, 0, 20_000, None)
    sessions.kernel.enable(handle, PROVIDER, EnableProvider.DISABLE, 0, 0, 0, 20_000, None)
    assert not provider.enabled
    enable(sessions, handle, 1)
    sessions.stop("told")
    until(lambda: len(calls) == 6)
    assert [call[:5] for call in calls] == [
        (source, 1, 4, 6, 2),
        (source, 1, 5, 0, 0),
        (source, 2, 5, 12, 0),
        (source, 0, 5, 0, 0),
        (UUID(int=0), 1, 1, 0, 0),
        (UUID(int=0), 0, 1, 0, 0),
    ]
    provider.close()


def test_a_callback_may_write_and_fail(sessions: Sessions) -> None:
    handle = started(sessions, "callback")

    def callback(*said: Any) -> None:
        provider.write(PLAIN, b"state")
        raise RuntimeError("a provider's own")

    provider = sessions.kernel.register(PROVIDER, None)
    provider._callback = callback
    enable(sessions, handle)
    assert provider.write(PLAIN, b"after") == 0
    sessions.stop("callback")
    provider.close()
    found = sorted(logged(sessions.file("callback.etl")), key=lambda event: event.time)  # of two threads' buffers
    assert [event.payload for event in found] == [b"state", b"after"]


def test_a_disabled_provider_writes_nowhere_and_attaches_to_nothing(sessions: Sessions, provider: Any) -> None:
    before = set(current()._writers)
    assert provider.write(PLAIN, b"x") == 0
    assert set(current()._writers) == before
    assert not provider.takes(0, 0)


def test_a_closed_provider_is_gone(sessions: Sessions) -> None:
    provider = sessions.kernel.register(PROVIDER, None)
    folder = sessions.root / "providers" / str(PROVIDER)
    assert len(list(folder.iterdir())) == 1
    provider.close()
    provider.close()
    assert list(folder.iterdir()) == []
    handle = started(sessions, "closed")
    enable(sessions, handle)
    assert provider.write(PLAIN, b"x") == 0
    sessions.stop("closed")
    assert logged(sessions.file("closed.etl")) == []


def test_threads_have_writers_of_their_own_and_give_them_back(sessions: Sessions, provider: Any) -> None:
    handle = started(sessions, "threads")
    enable(sessions, handle)
    before = len(current()._writers)
    barrier = threading.Barrier(5)

    def work() -> None:
        for _ in range(500):
            provider.write(PLAIN, b"x")
        barrier.wait(60)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    barrier.wait(60)
    for thread in threads:
        thread.join()
    until(lambda: len(current()._writers) == before)
    assert sessions.stop("threads").events_lost == 0
    found = logged(sessions.file("threads.etl"))
    assert len(found) == 2000
    assert len({(event.tid, event.cpu) for event in found}) == 4


def test_a_stop_in_the_midst_of_writing_loses_nothing_that_was_taken(sessions: Sessions, provider: Any) -> None:
    for mode in (
        LogFileMode.FILE_MODE_SEQUENTIAL,
        LogFileMode.FILE_MODE_SEQUENTIAL | LogFileMode.NO_PER_PROCESSOR_BUFFERING,
    ):
        handle = started(sessions, "midst", mode=mode, maximum_buffers=400)
        written, refused, go = [0] * 3, [0] * 3, threading.Event()

        def work(which: int, written: list[int] = written, refused: list[int] = refused, go: Any = go) -> None:
            go.wait()
            while provider.enabled:  # a write after that goes nowhere
                status = provider.write(DESCRIPTOR, b"x" * 40)
                if status:
                    refused[which] += 1
                else:
                    written[which] += 1

        enable(sessions, handle)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        go.set()
        until(lambda written=written: min(written) > 2000)
        state = sessions.stop("midst")
        for thread in threads:
            thread.join()
        found = len(logged(sessions.file("midst.etl")))
        assert state.events_lost == sum(refused)
        # Each thread may have come to its last write when the provider had been disabled already.
        assert sum(written) - 3 <= found <= sum(written)


def test_a_session_that_ends_does_not_wait_for_those_who_write_to_others(sessions: Sessions, provider: Any) -> None:
    """Nor does it miss what they write: threads that never cease, and two sessions of which one stops."""
    one, other = started(sessions, "ends", maximum_buffers=400), started(sessions, "goes", maximum_buffers=400)
    enable(sessions, one)
    enable(sessions, other)
    done, written = threading.Event(), [0, 0]

    def work(which: int) -> None:
        while not done.is_set():
            written[which] += not provider.write(DESCRIPTOR, b"x" * 40)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: min(written) > 500)
    first = sessions.stop("ends")
    done.set()
    for thread in threads:
        thread.join()
    second = sessions.stop("goes")
    early, late = logged(sessions.file("ends.etl")), logged(sessions.file("goes.etl"))
    assert len(late) + second.events_lost >= sum(written)
    for thread in {event.tid for event in early}:  # of each thread the first ones, without a gap
        mine = [event.time for event in early if event.tid == thread]
        assert len(mine) + first.events_lost > 500
    assert not {writer for writer, key in current()._writers.items() if writer.handle == one}


def test_a_killed_daemon_never_kills_a_provider(sessions: Sessions, provider: Any) -> None:
    handle = started(sessions, "killed")
    enable(sessions, handle)
    assert provider.write(PLAIN, b"before") == 0
    os.kill(sessions.pid("killed"), signal.SIGKILL)
    until(lambda: not provider.enabled)
    assert provider.write(PLAIN, b"after") == 0
    handle = started(sessions, "again")
    enable(sessions, handle)
    assert provider.write(PLAIN, b"again") == 0
    sessions.stop("again")
    assert [event.payload for event in logged(sessions.file("again.etl"))] == [b"again"]
    assert logged(sessions.file("killed.etl")) == []  # readable; its buffer had not been flushed


def test_a_child_by_fork_writes_as_itself(sessions: Sessions, provider: Any) -> None:
    handle = started(sessions, "fork")
    enable(sessions, handle)
    for _ in range(10):
        provider.write(PLAIN, b"parent")
    child = os.fork()
    if not child:
        status = 1
        try:
            assert provider.enabled
            for _ in range(10):
                assert provider.write(PLAIN, b"child") == 0
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    for _ in range(10):
        provider.write(PLAIN, b"parent")
    assert os.waitpid(child, 0)[1] == 0
    assert provider.write(PLAIN, b"last") == 0
    assert sessions.stop("fork").events_lost == 0
    found = logged(sessions.file("fork.etl"))
    assert [event.payload for event in found if event.pid == child] == [b"child"] * 10
    assert [event.payload for event in found if event.pid == os.getpid()] == [b"parent"] * 20 + [b"last"]
    assert {event.cpu for event in found if event.pid == child}.isdisjoint(
        event.cpu for event in found if event.pid != child
    )


def test_clocks(sessions: Sessions, provider: Any) -> None:
    """Time stamps count what the header says: both clocks give the wall time."""
    import time

    for clock in (1, 2):
        handle = started(sessions, "clock", clock=clock)
        enable(sessions, handle)
        begin = time.time_ns()
        provider.write(PLAIN, b"x")
        end = time.time_ns()
        sessions.stop("clock")
        log = TraceLog(BytesSource(sessions.file("clock.etl").read_bytes()))
        (event,) = (event for event in log.events() if event.hook < 0)
        assert log.header.clock_type == clock
        ticks, wall = log.clock.wall
        stamp = wall + (event.time - ticks) * 1_000_000_000 // log.clock.frequency
        slack = 1_000_000_000 if clock == 1 else 1000  # the two clocks are read one after the other at the start
        assert begin - slack <= stamp <= end + slack
