"""A writer of a session: what it writes is delivered or counted, whatever the pool and the daemon do."""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch.etw.flags import LogFileMode
from lastbranch.etw.portable.pool import DONE, RING_SIZE
from lastbranch.etw.portable.provider.writer import Writer
from lastbranch.etw.portable.request import Host
from lastbranch.etw.status import EtwError, Status
from session_rig import Rig, event, read

ONE_CPU = Host(1, 1 << 32)


def test_events_come_out_as_they_went_in(tmp_path: Path) -> None:
    rig = Rig(file=str(tmp_path / "a.etl"), maximum_buffers=8)
    writer = rig.writer()
    for size in range(8, 200):
        assert rig.write(writer, payload=size) == 1
    state = rig.stop()
    found = read(tmp_path / "a.etl")
    assert found.numbers == list(range(192))
    assert [len(each.payload) for each in found.events] == list(range(8, 200))
    assert (state.events_lost, found.header.events_lost) == (0, 0)


def test_an_event_of_the_whole_buffer_fits_and_none_larger(tmp_path: Path) -> None:
    rig = Rig(file=str(tmp_path / "a.etl"), buffer_size=4)
    writer = rig.writer()
    assert rig.write(writer, payload=4096 - 72 - 80) == 1
    assert rig.write(writer, payload=4096 - 72 - 80 + 1) == 0
    assert rig.write(writer, payload=8) == 1
    assert rig.stop().events_lost == writer.lost == 1
    assert read(tmp_path / "a.etl").numbers == [0, 2]


def test_no_event_is_larger_than_64_kb(tmp_path: Path) -> None:
    rig = Rig(file=str(tmp_path / "a.etl"), buffer_size=128)
    writer = rig.writer()
    assert writer.capacity == 0xFFF8
    assert rig.write(writer, payload=0xFFF8 - 80) == 1
    assert writer.write(bytes(0x10000)) is False
    assert rig.stop().events_lost == 1
    assert read(tmp_path / "a.etl").numbers == [0]


def test_an_event_that_is_not_filled_up_is_refused(tmp_path: Path) -> None:
    rig = Rig(file=str(tmp_path / "a.etl"))
    writer = rig.writer()
    assert not writer.write(event(0, rig.time)[:-1])
    assert rig.stop().events_lost == 1


def test_a_full_pool_drops_counts_and_goes_on(tmp_path: Path) -> None:
    rig = Rig(ONE_CPU, file=str(tmp_path / "a.etl"), buffer_size=4, maximum_buffers=2)
    writer = rig.writer()
    taken = rig.write(writer, 200)
    assert taken == 2 * ((4096 - 72) // 104)  # two buffers
    assert writer.lost == 200 - taken
    assert rig.logger.state().events_lost == 200 - taken
    rig.poll()
    assert rig.write(writer, 10) == 10
    state = rig.stop()
    found = read(tmp_path / "a.etl")
    assert found.numbers == [*range(taken), *range(200, 210)]
    assert len(found.numbers) + state.events_lost == rig.offered
    assert found.header.events_lost == state.events_lost


def test_batches(tmp_path: Path) -> None:
    rig = Rig(file=str(tmp_path / "a.etl"), buffer_size=8, maximum_buffers=40)
    writer = rig.writer()
    events = [event(n, rig.time + n, 8 + n % 90) for n in range(500)]
    sizes = np.array([len(each) for each in events], np.uint32)
    assert writer.write_many(b"".join(events), sizes) == 500
    assert writer.write_many(b"", sizes[:0]) == 0
    assert rig.stop().events_lost == 0
    assert read(tmp_path / "a.etl").numbers == list(range(500))


def test_a_batch_that_does_not_fit_is_counted(tmp_path: Path) -> None:
    """Too large ones in its midst, and what the pool has no room for."""
    rig = Rig(ONE_CPU, file=str(tmp_path / "a.etl"), buffer_size=4)
    writer = rig.writer()
    events = [event(n, rig.time + n, 5000 if n in (0, 7) else 24) for n in range(300)]
    sizes = np.array([len(each) for each in events], np.uint32)
    taken = writer.write_many(b"".join(events), sizes)
    state = rig.stop()
    assert 0 < taken < 300
    assert taken + state.events_lost == 300
    found = read(tmp_path / "a.etl").numbers
    assert len(found) == taken
    assert found[:8] == [1, 2, 3, 4, 5, 6, 8, 9]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(8, 5000)),
        st.tuples(st.just("many"), st.integers(0, 3), st.lists(st.integers(8, 4200), max_size=40)),
        st.tuples(st.just("poll"), st.none(), st.none()),
        st.tuples(st.just("flush"), st.none(), st.none()),
        st.tuples(st.just("leave"), st.integers(0, 3), st.booleans()),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(2, 12), st.booleans(), st.sampled_from([4, 8]))
def test_offered_is_delivered_and_lost(
    tmp_path_factory: pytest.TempPathFactory, steps: list, buffers: int, one_stream: bool, size: int
) -> None:
    """Four writers come, write, stall, leave and die in any order."""
    file = tmp_path_factory.mktemp("run") / "a.etl"
    mode = LogFileMode.FILE_MODE_SEQUENTIAL | (LogFileMode.NO_PER_PROCESSOR_BUFFERING if one_stream else 0)
    rig = Rig(ONE_CPU, file=str(file), buffer_size=size, maximum_buffers=buffers, mode=mode)
    writers: dict[int, Writer] = {}
    taken = set()
    for step, which, what in steps:
        if step in ("write", "many") and which not in writers:
            writers[which] = rig.writer()
        if step == "write":
            number = rig.offered
            taken |= {number} if rig.write(writers[which], payload=what) else set()
        elif step == "many":
            first = rig.offered
            events = [event(first + n, rig.time + n, payload) for n, payload in enumerate(what)]
            rig.offered += len(events)
            rig.time += len(events)
            before = writers[which].lost
            done = writers[which].write_many(b"".join(events), np.array([len(e) for e in events], np.uint32))
            assert done == len(events) - (writers[which].lost - before)
            fits = [first + n for n, e in enumerate(events) if len(e) <= writers[which].capacity]
            taken |= set(fits[:done])
        elif step == "leave" and which in writers:
            rig.gone(writers.pop(which), cleanly=what)
        elif step == "poll":
            rig.poll()
        elif step == "flush":
            rig.logger.flush()
    state = rig.stop()
    found = read(file)
    assert len(found.numbers) + state.events_lost == rig.offered
    assert found.numbers == sorted(taken)
    assert found.header.events_lost == state.events_lost


def test_ring_numbers_go_round(tmp_path: Path) -> None:
    """More buffers than the ring has entries, and each of them once."""
    rig = Rig(ONE_CPU, file=str(tmp_path / "a.etl"), buffer_size=4, maximum_buffers=3)
    writer = rig.writer()
    for _ in range(RING_SIZE + 40):
        assert rig.write(writer, payload=3000) == 1
        rig.poll()
    assert writer.words[writer._slot + DONE] == RING_SIZE + 39
    assert rig.stop().events_lost == 0
    assert read(tmp_path / "a.etl").numbers == list(range(RING_SIZE + 40))


def test_the_doorbell_rings_before_buffers_run_out(tmp_path: Path) -> None:
    rig = Rig(ONE_CPU, file=str(tmp_path / "a.etl"), buffer_size=4, maximum_buffers=16)
    writer = rig.writer()
    rang = 0
    for _ in range(400):
        assert rig.write(writer) == 1
        if select.select([rig.logger.doorbell], [], [], 0)[0]:
            rang += 1
            rig.poll()
    assert 0 < rang < 400 * 104 // 4024
    assert rig.stop().events_lost == 0


def test_blocking_mode_waits_for_a_buffer(tmp_path: Path) -> None:
    mode = LogFileMode.FILE_MODE_SEQUENTIAL | LogFileMode.BLOCKING_MODE
    rig = Rig(ONE_CPU, file=str(tmp_path / "a.etl"), buffer_size=4, mode=mode)
    writer = rig.writer()
    thread = threading.Thread(target=rig.write, args=(writer, 1000))
    thread.start()
    while thread.is_alive():
        rig.poll()
        time.sleep(0.001)
    assert rig.stop().events_lost == 0
    assert read(tmp_path / "a.etl").numbers == list(range(1000))


def test_a_blocked_writer_gives_up_when_it_is_closed(tmp_path: Path) -> None:
    mode = LogFileMode.FILE_MODE_SEQUENTIAL | LogFileMode.BLOCKING_MODE
    rig = Rig(ONE_CPU, file=str(tmp_path / "a.etl"), buffer_size=4, mode=mode)
    writer = rig.writer()
    thread = threading.Thread(target=rig.write, args=(writer, 100))
    thread.start()
    while rig.offered < 76 and thread.is_alive():
        time.sleep(0.001)
    writer.closed = True
    thread.join(30)
    assert not thread.is_alive()
    rig.stop()


def test_processor_indices(tmp_path: Path) -> None:
    rig = Rig(file=str(tmp_path / "a.etl"))
    cpus = os.cpu_count() or 1
    assert rig.writer(processor=1).cpu == 1
    assert rig.writer().cpu == cpus
    assert rig.writer(processor=1).cpu == cpus + 1
    assert rig.writer(processor=0).cpu == 0
    rig.stop()


def test_answers_that_are_none(tmp_path: Path) -> None:
    rig = Rig(file=str(tmp_path / "a.etl"))
    _, answer, descriptors = rig.logger.attach(os.getpid())
    before = len(os.listdir("/proc/self/fd"))
    bad = [(answer, 2), (answer[:-1], 3), (b"\xff" * 8, 3), (answer, 0)]
    for body, count in bad:
        with pytest.raises(EtwError) as caught:
            Writer.of_answer(body, [os.dup(fd) for fd in descriptors[:count]])
        assert caught.value.status == Status.INVALID_DATA
    assert len(os.listdir("/proc/self/fd")) <= before  # what other tests left may be collected meanwhile
    rig.stop()
