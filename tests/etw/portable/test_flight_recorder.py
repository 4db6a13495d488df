"""Buffering mode: the newest buffers of all writers are in the copy, exactly."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from lastbranch.etw.flags import LogFileMode as Mode
from lastbranch.etw.portable.provider.writer import Writer
from lastbranch.etw.portable.request import Host
from session_rig import Rig, event, read

CAPACITY = 4096 - 72
BIG = Host(1, 1 << 32)


def recorder(buffers: int = 4, **more: object) -> Rig:
    return Rig(BIG, mode=Mode.BUFFERING_MODE, buffer_size=4, minimum_buffers=buffers, **more)


class Oracle:
    """Buffers of a writer: the numbers and bytes of the events in each."""

    def __init__(self) -> None:
        self.buffers: list[list[int]] = []
        self._used = CAPACITY

    def wrote(self, number: int, size: int) -> None:
        if self._used + size > CAPACITY:
            self.buffers.append([])
            self._used = 0
        self.buffers[-1].append(number)
        self._used += size


def assert_newest_are_kept(file: Path, seed: int) -> None:
    choose = random.Random(seed)
    most = choose.randint(2, 9)
    rig = recorder(most)
    writers: dict[Writer, Oracle] = {}
    everyone: list[Oracle] = []
    for step in range(60):
        what = choose.random()
        if not writers or (what < 0.1 and len(writers) < 6):
            writer = rig.writer()
            writers[writer] = Oracle()
            everyone.append(writers[writer])
        elif what < 0.16:
            gone = choose.choice(list(writers))
            rig.gone(gone, cleanly=choose.random() < 0.5)
            del writers[gone]
        elif what < 0.2:
            rig.poll()
        elif what < 0.24:
            assert_newest_are_in(rig, file.with_name(f"{step}.etl"), everyone, most)
        else:
            writer = choose.choice(list(writers))
            for _ in range(choose.choice([1, 3, 40, 300])):
                payload = choose.choice([0, 24, 900, 3900])
                number = rig.offered
                assert rig.write(writer, 1, payload) == 1
                writers[writer].wrote(number, len(event(number, 0, payload)))
    assert_newest_are_in(rig, file, everyone, most)
    assert rig.stop().events_lost == 0


def assert_newest_are_in(rig: Rig, file: Path, everyone: list[Oracle], most: int) -> None:
    rig.logger.flush(str(file))
    newest = sorted((b for one in everyone for b in one.buffers), key=lambda b: b[-1])[-most:]
    assert sorted(read(file).numbers) == sorted(number for buffer in newest for number in buffer)
    assert rig.logger.state().number_of_buffers == most


@pytest.mark.parametrize("seed", range(3))
def test_the_newest_buffers_of_all_writers_are_kept_exactly(tmp_path: Path, seed: int) -> None:
    """Whoever writes and leaves, and whether or not the session looks."""
    assert_newest_are_kept(tmp_path / "a.etl", seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_sessions(tmp_path: Path, seed: int) -> None:
    assert_newest_are_kept(tmp_path / "a.etl", seed)


def assert_copies_have_no_gap(tmp_path: Path, copies: int) -> None:
    rig = recorder(4)
    writer, stop = rig.writer(), threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            assert writer.write(event(number, 10**9 + number))
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for i in range(copies):
            rig.logger.flush(str(tmp_path / f"{i}.etl"))
            found = read(tmp_path / f"{i}.etl").numbers
            assert found == list(range(min(found, default=0), min(found, default=0) + len(found)))
    finally:
        stop.set()
        thread.join()
    state = rig.stop()
    assert (state.events_lost, state.log_buffers_lost) == (0, 0)


def test_a_copy_of_a_busy_writer_has_no_gap(tmp_path: Path) -> None:
    """Though a thread uses the buffers again all the time."""
    assert_copies_have_no_gap(tmp_path, 8)


@pytest.mark.thorough
def test_many_copies_of_a_busy_writer(tmp_path: Path) -> None:
    assert_copies_have_no_gap(tmp_path, 500)


def test_large_events_without_a_pause(tmp_path: Path) -> None:
    """Each fills a buffer, and they come faster than any other process could take them."""
    rig = Rig(BIG, mode=Mode.BUFFERING_MODE, buffer_size=64, minimum_buffers=4)
    writer = rig.writer()
    assert rig.write(writer, 30, 50_000) == 30
    rig.logger.flush(str(tmp_path / "a.etl"))
    assert read(tmp_path / "a.etl").numbers == [26, 27, 28, 29]
    assert rig.stop().events_lost == 0
