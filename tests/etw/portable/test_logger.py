"""The data path of a session: pool, flush timer, statistics, and writers that lie or die."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastbranch.etw.flags import LogFileMode
from lastbranch.etw.portable.pool import BELL_AT, COMMIT_AT, DONE, EVENT, LOST, PAGE, REFUSED, RING
from lastbranch.etw.portable.pool import FULL as FULL_WORD
from lastbranch.etw.portable.provider.writer import Writer, refusal
from lastbranch.etw.portable.request import Host, adjusted
from lastbranch.etw.portable.session.logger import SLOW_READER, Logger
from lastbranch.etw.portable.session.sinks import BACKLOG
from lastbranch.etw.portable.sources.recorder import mask_event
from lastbranch.etw.properties import Filter, SessionRequest
from lastbranch.etw.status import EtwError, Status
from lastbranch.formats.etl import TraceLog, encode_event
from lastbranch.formats.etl.layout import BUFFER_HEADER_SIZE
from lastbranch.model import BytesSource
from private_registry import until
from session_rig import ANY_DISK, Rig, event, read

ONE_CPU = Host(1, 1 << 32)
FULL = (4096 - BUFFER_HEADER_SIZE) // 104
"""Events of 104 bytes in a buffer of 4 KB."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.etl"


# -- pool and statistics


def test_query_tells_of_buffers(file: Path) -> None:
    rig = Rig(ONE_CPU, file=str(file), buffer_size=4, minimum_buffers=4, maximum_buffers=40)
    state = rig.logger.state()
    assert (state.number_of_buffers, state.free_buffers, state.buffers_written) == (4, 4, 1)  # the header's
    writer = rig.writer()
    rig.write(writer)
    state = rig.logger.state()
    assert (state.number_of_buffers, state.free_buffers) == (4, 3)
    rig.write(writer, 7 * FULL)
    rig.poll()
    state = rig.logger.state()
    assert (state.number_of_buffers, state.free_buffers, state.buffers_written) == (8, 7, 8)
    state = rig.stop()
    assert (state.buffers_written, state.events_lost, state.handle) == (9, 0, 5)
    assert read(file).header.buffers_written == 9
    assert state.logger_thread


def test_the_pool_has_no_more_buffers_than_maximum_buffers(file: Path) -> None:
    """Those who come early take what they can use; those who come late have two all the same."""
    rig = Rig(ONE_CPU, file=str(file), buffer_size=4, maximum_buffers=16)
    writers, leases = [], rig.logger._writers._leases
    for count in range(1, 12):
        writers.append(rig.writer())
        assert rig.write(writers[-1], 2 * FULL) == 2 * FULL
        for _ in range(3):
            rig.poll()
            for writer in writers:
                rig.write(writer, 3 * FULL)
            assert leases.out <= max(16, 2 * count)
    state = rig.stop()
    assert state.number_of_buffers <= 2 * 11
    assert len(read(file).numbers) + state.events_lost == rig.offered


def test_a_writer_that_comes_late_is_not_starved(file: Path) -> None:
    rig = Rig(ONE_CPU, file=str(file), buffer_size=4, maximum_buffers=64)
    writers = [rig.writer() for _ in range(4)]
    for writer in writers:
        assert rig.write(writer, 8 * FULL) == 8 * FULL
    assert rig.stop().events_lost == 0


def test_a_busy_writer_gets_more(file: Path) -> None:
    rig = Rig(ONE_CPU, file=str(file), buffer_size=4, maximum_buffers=64)
    writer = rig.writer()
    rig.write(writer, 16 * FULL)
    rig.poll()
    assert rig.write(writer, 31 * FULL) == 31 * FULL
    assert rig.stop().events_lost == 0


def test_every_writer_has_two_buffers_whatever_the_maximum(file: Path) -> None:
    rig = Rig(ONE_CPU, file=str(file), buffer_size=4, maximum_buffers=2)
    writers = [rig.writer() for _ in range(8)]
    for writer in writers:
        assert rig.write(writer, 2 * FULL) == 2 * FULL
    state = rig.stop()
    assert (state.events_lost, state.number_of_buffers) == (0, 16)
    assert read(file).numbers == list(range(rig.offered))


def test_a_session_may_have_many_writers_and_says_when_there_are_too_many(file: Path) -> None:
    rig = Rig(file=str(file), buffer_size=16384)
    slots = rig.logger._writers.geometry.slots
    for _ in range(slots):
        rig.logger.attach(os.getpid())
    with pytest.raises(EtwError) as caught:
        rig.logger.attach(os.getpid())
    assert caught.value.status == Status.NO_SYSTEM_RESOURCES
    rig.logger.detach(7)
    assert rig.logger.attach(os.getpid())[0] == 7
    assert rig.logger.attached == slots
    rig.stop()


def test_a_processor_index_is_in_time_order_when_it_is_used_again(file: Path) -> None:
    rig = Rig(file=str(file))
    for _ in range(5):
        writer = rig.writer(processor=0)
        rig.write(writer, 100)
        rig.gone(writer)
    rig.stop()
    assert read(file).by_cpu == {0: list(range(500))}


def test_threads_without_a_slot_are_counted(file: Path) -> None:
    rig = Rig(file=str(file))
    writer = rig.writer()
    writer.count_refused()
    writer.count_refused()
    writer.count_lost(3)
    assert rig.logger.state().events_lost == 5
    rig.gone(writer)
    assert rig.stop().events_lost == 5
    assert read(file).header.events_lost == 5


def test_buffers_say_that_events_were_lost_before_them(file: Path) -> None:
    rig = Rig(ONE_CPU, file=str(file), buffer_size=4, maximum_buffers=2)
    writer = rig.writer()
    rig.write(writer, 3 * FULL)
    rig.poll()
    rig.write(writer, FULL + 1)
    rig.poll()
    rig.write(writer, 2 * FULL)
    rig.stop()
    data = file.read_bytes()
    flags = [struct.unpack_from("<H", data, at + 0x34)[0] >> 1 & 1 for at in range(4096, len(data), 4096)]
    assert flags.count(1) == 2
    assert flags[0] == 1  # the first one that was taken after the loss


# -- flushes


@pytest.mark.parametrize(("timer", "mode"), [(2, 0), (2000, LogFileMode.USE_MS_FLUSH_TIMER)])
def test_flush_timer(file: Path, timer: int, mode: int) -> None:
    rig = Rig(file=str(file), flush_timer=timer, mode=LogFileMode.FILE_MODE_SEQUENTIAL | mode)
    writer = rig.writer()
    rig.write(writer, 10)
    wait = rig.poll()
    assert wait is not None
    assert wait <= 2
    assert file.stat().st_size == 65536
    rig.time += 2_000_000_000
    rig.poll()
    assert read(file).numbers == list(range(10))  # while the session runs
    rig.write(writer, 5)
    rig.time += 2_000_000_000
    rig.poll()
    rig.poll()
    assert file.stat().st_size == 3 * 65536  # and nothing without events
    rig.stop()
    assert read(file).numbers == list(range(15))


def test_an_idle_session_wants_no_cpu(file: Path) -> None:
    rig = Rig(file=str(file))
    assert rig.poll() is None
    writer = rig.writer()
    rig.write(writer, 10)
    while rig.poll() is not None:
        pass
    assert writer.words[writer._slot + BELL_AT] == 1  # the next buffer will ring
    rig.stop()


def test_control_flush_and_the_same_buffer_goes_on(file: Path) -> None:
    rig = Rig(file=str(file), buffer_size=4)
    writer = rig.writer()
    for _ in range(10):
        rig.write(writer, 3)
        rig.logger.flush()
    assert read(file).numbers == list(range(30))
    assert rig.stop().events_lost == 0
    assert read(file).numbers == list(range(30))


# -- writers that lie


@pytest.mark.parametrize(
    ("filled", "events", "lost"),
    [
        (1 << 31, 5, 5),
        (4032, 5, 5),
        (104 * 3 + 4, 3, 3),
        (104 * 3 + 8, 3, 3),
        (104 * 3, 1 << 31, 503),
        (104 * 3, 2, 2),
        (104 * 3, 4, 4),
        (96, 1, 1),
    ],
    ids=[
        "past the pool",
        "past the buffer",
        "not aligned",
        "with a rest",
        "absurd count",
        "too few",
        "too many",
        "cut event",
    ],
)
def test_absurd_commits_cost_the_buffer_only(file: Path, filled: int, events: int, lost: int) -> None:
    rig = Rig(file=str(file), buffer_size=4)
    liar, honest = rig.writer(), rig.writer()
    rig.write(liar, 3)
    liar.words[liar.word] = events * EVENT | filled
    rig.write(honest, 10)
    slot = rig.logger._writers.slots[0]
    rig.gone(liar, cleanly=False)
    assert slot.broken == (filled > 4024 or filled % 8 > 0 or events > filled)
    state = rig.stop()
    assert read(file).numbers == list(range(3, 13))
    assert state.events_lost == lost
    assert state.log_buffers_lost == 1


def test_what_is_no_chain_of_events_is_not_written(file: Path) -> None:
    rig = Rig(file=str(file), buffer_size=4)
    liar, honest = rig.writer(), rig.writer()
    rig.write(liar, 2 * FULL)
    liar.memory[liar.at - 104 : liar.at - 100] = b"\0\0\0\0"
    rig.write(honest, 10)
    state = rig.stop()
    assert read(file).numbers == [*range(FULL), *range(2 * FULL, 2 * FULL + 10)]
    assert state.events_lost == FULL
    assert read(file).header.buffers_lost == state.log_buffers_lost == 1


@pytest.mark.parametrize("done", [7, 1 << 63, (1 << 64) - 1])
def test_buffers_that_it_never_had(file: Path, done: int) -> None:
    rig = Rig(file=str(file), buffer_size=4)
    liar, honest = rig.writer(), rig.writer()
    rig.write(liar, 3)
    liar.words[liar._slot + DONE] = done
    for _ in range(4):
        assert rig.write(honest, FULL) == FULL
        rig.poll()
    rig.gone(liar, cleanly=False)
    rig.stop()
    assert {*range(3, rig.offered)} <= {*read(file).numbers}


@pytest.mark.parametrize("claims", [((1 << 64) - 1, 0), (0, 1 << 63), (5, 0)])
def test_absurd_losses_do_not_spoil_the_count(file: Path, claims: tuple[int, int]) -> None:
    """More than anybody can lose, or fewer than before: the writer is believed no more, what others lost is counted."""
    rig = Rig(file=str(file), buffer_size=4)
    liar, honest = rig.writer(), rig.writer()
    rig.write(liar, 3)
    liar.count_lost(7)
    honest.count_lost(20)
    assert rig.logger.state().events_lost == 27
    liar.words[liar._slot + LOST], liar.words[liar._slot + REFUSED] = claims
    for state in (rig.logger.state(), rig.stop()):
        assert (state.events_lost, state.log_buffers_lost) == (30, 1)
    assert read(file).header.events_lost == 30


def test_more_events_lost_than_the_header_can_say(file: Path) -> None:
    rig = Rig(file=str(file))
    rig.writer().count_lost(1 << 40)
    assert rig.logger.state().events_lost == (1 << 32) - 1
    rig.stop()
    assert read(file).header.events_lost == (1 << 32) - 1


@pytest.mark.parametrize("mode", [LogFileMode(0), LogFileMode.BUFFERING_MODE])
@pytest.mark.parametrize("word", ["ring", "bell", "between", "page 0", "full", "done", "lost", "commit"])
def test_every_word_that_a_writer_spoils_is_noticed(file: Path, word: str, mode: LogFileMode) -> None:
    """Nothing of it is believed then. What it had committed is counted, and the log says that a buffer is lost."""
    rig = Rig(file=str(file), buffer_size=4, mode=mode)
    liar = rig.writer()
    rig.write(liar, 5)
    slot = liar._slot
    at = {
        "ring": slot + RING + 200,
        "bell": slot + BELL_AT,
        "between": slot + 100,
        "page 0": 0,
        "full": FULL_WORD,
        "done": slot + DONE,
        "lost": slot + LOST,
        "commit": liar.word,
    }
    liar.words[at[word]] = 0xDEAD_BEEF_0000_BADD
    rig.logger.flush()
    rig.write(liar, FULL)
    assert not liar.write(event(rig.offered, rig.time)), "it has no second buffer any more"
    state = rig.stop()
    assert state.log_buffers_lost == read(file).header.buffers_lost == 1
    assert state.events_lost >= 5
    assert read(file).numbers == []


def test_a_process_that_spoiled_the_first_page_is_refused_until_its_writers_are_gone(file: Path) -> None:
    rig = Rig(file=str(file), buffer_size=4)
    liar, other = rig.writer(), rig.writer()
    liar.words[17] = 1
    rig.poll()
    with pytest.raises(EtwError) as caught:
        rig.writer()
    assert caught.value.status == Status.NO_SYSTEM_RESOURCES
    rig.gone(liar)
    rig.gone(other)
    rig.write(rig.writer(), 5)
    state = rig.stop()
    assert (state.events_lost, state.log_buffers_lost) == (0, 2)
    assert len(read(file).numbers) == 5


def test_processes_share_nothing_but_the_geometry(file: Path) -> None:
    """A pool and a doorbell each; threads of a process have the same, and what nobody uses any more is closed."""
    rig = Rig(file=str(file))
    before = len(os.listdir("/proc/self/fd"))
    child = subprocess.Popen(["sleep", "60"])
    try:
        mine, theirs = (rig.logger.attach(pid) for pid in (os.getpid(), child.pid))
        again = rig.logger.attach(os.getpid())
        inodes = [[os.fstat(fd).st_ino for fd in made[2]] for made in (mine, theirs, again)]
        assert inodes[0] == inodes[2]
        assert mine[2][0] == theirs[2][0]
        assert inodes[0][1] != inodes[1][1]
        assert mine[2][2] != theirs[2][2], "eventfds are all of one inode"
    finally:
        child.kill()
        child.wait()
    for slot in (mine[0], theirs[0], again[0]):
        rig.logger.detach(slot)
    assert len(os.listdir("/proc/self/fd")) <= before
    rig.stop()


def test_whatever_page_a_process_scribbles_over_the_others_lose_nothing(file: Path) -> None:
    """Random bytes over each page in turn: the other process's events are all taken and all in the file."""
    chance = random.Random(20)
    child = subprocess.Popen(["sleep", "60"])
    try:
        for page in range(1 + 64 + 12):
            rig = Rig(ONE_CPU, file=str(file), buffer_size=4, maximum_buffers=16)
            slots = rig.logger._writers.geometry.slots
            number = page if page <= 2 else page - 64 + slots if page > 64 else chance.randrange(3, slots)
            slot, answer, fds = rig.logger.attach(child.pid)
            liar, honest = Writer.of_answer(answer, [os.dup(fd) for fd in fds]), rig.writer()
            for turn in range(6):
                assert rig.write(honest, 2 * FULL) == 2 * FULL
                taken = honest.lost
                liar.write(event(1 << 40, rig.time))
                if turn % 2:
                    liar.memory[number * PAGE : (number + 1) * PAGE] = chance.randbytes(PAGE)
                rig.poll()
            rig.logger.detach(slot)
            assert rig.write(honest, FULL) == FULL
            assert (honest.lost, taken) == (0, 0)
            rig.stop()
            numbers = read(file).numbers
            assert [n for n in numbers if n < 1 << 40] == list(range(rig.offered)), number
    finally:
        child.kill()
        child.wait()


def test_buffers_that_go_from_one_process_to_another_take_their_memory_along(file: Path) -> None:
    """Else a session's memory would grow with each process that wrote to it, whatever MaximumBuffers says."""
    rig = Rig(ONE_CPU, file=str(file), buffer_size=64, maximum_buffers=16)
    child = subprocess.Popen(["sleep", "60"])
    try:
        writers, pools = [], []
        for pid in (os.getpid(), child.pid):
            _, answer, fds = rig.logger.attach(pid)
            pools.append(fds[1])
            writers.append(Writer.of_answer(answer, [os.dup(fd) for fd in fds]))
        for turn in range(6):
            for _ in range(8):
                rig.write(writers[turn % 2], 4 * 600)
                rig.poll()
            assert sum(os.fstat(pool).st_blocks * 512 for pool in pools) <= (16 + 2) * 65536 + 8 * 4096
    finally:
        child.kill()
        child.wait()
    state = rig.stop()
    assert len(read(file).numbers) + state.events_lost == rig.offered


def test_random_garbage_all_over_the_pool(file: Path) -> None:
    """Whatever stands in slots and buffers, nothing is raised; `read_header_and_walk` asserts that the file reads."""
    random.seed(11)
    for _ in range(30):
        rig = Rig(file=str(file), buffer_size=4)
        liar = rig.writer()
        rig.write(liar, 60)
        words, geometry = liar.words, rig.logger._writers.geometry
        for _ in range(40):
            slot, buffer = geometry.slot(0), geometry.buffer(random.randrange(3)) // 8
            at = random.choice([slot + random.randrange(512), buffer + random.randrange(512), buffer + COMMIT_AT // 8])
            words[at] = random.getrandbits(random.choice([4, 16, 33, 40, 64]))
            rig.poll()
        rig.logger.flush()
        rig.gone(liar, cleanly=False)
        rig.stop()
        read_header_and_walk(file)


def read_header_and_walk(file: Path) -> None:
    from lastbranch.formats.etl import TraceLog
    from lastbranch.model import BytesSource

    log = TraceLog(BytesSource(file.read_bytes(), str(file)))
    assert sum(len(block) for block in log.blocks()) >= 1
    assert not log.damage


# -- writers that die

_WRITE_FOREVER = """
import os, socket, struct, sys, time
from lastbranch.etw.portable.provider.writer import Writer
stream = socket.socket(fileno=int(sys.argv[1]))
answer, fds, _, _ = socket.recv_fds(stream, 64, 3)
writer = Writer.of_answer(answer, fds)
number = 0
while True:
    head = struct.pack("<HBBIIIq16sHBBBBHQQ16s", 96, 19, 0xC0, 0, 7, 6, time.monotonic_ns(), bytes(16), number & 0xFFFF,
                       0, 0, 4, 0, 0, 1, 0, bytes(16))
    writer.write(head + struct.pack("<Q", number) + bytes([number % 251]) * 8)
    number += 1
    if number == 100:
        stream.send(b"x")
"""


def test_a_killed_writer_blocks_nobody_and_what_it_committed_is_there(file: Path) -> None:
    rig = Rig(file=str(file), buffer_size=4, maximum_buffers=64)
    for _ in range(3):
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-c", _WRITE_FOREVER, str(theirs.fileno())]
        process = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
        slot, answer, descriptors = rig.logger.attach(process.pid)
        socket.send_fds(ours, [answer], descriptors)
        ours.settimeout(60)
        assert ours.recv(1) == b"x"
        for _ in range(20):
            rig.poll()
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        rig.logger.detach(slot)
        ours.close()
        theirs.close()
    honest = rig.writer()
    rig.time = time.monotonic_ns()
    rig.write(honest, 10)
    rig.stop()
    found = read(file)
    for cpu, numbers in found.by_cpu.items():
        assert len(numbers) >= 10, cpu
    assert rig.logger.attached == 0


# -- who may write


@pytest.mark.parametrize(
    ("kind", "data", "taken"),
    [
        (0x80000004, struct.pack("<2I", 1, os.getpid()), True),
        (0x80000004, struct.pack("<I", 1), False),
        (
            0x80000008,
            "init;PYTHON3.11;x".replace("PYTHON3.11", os.path.basename(os.readlink("/proc/self/exe")).upper()).encode(
                "utf-16-le"
            )
            + b"\0\0",
            True,
        ),
        (0x80000008, "other.exe".encode("utf-16-le"), False),
        (0x80000001, b"", True),
    ],
    ids=["pid", "other pid", "executable", "other executable", "another kind"],
)
def test_filters_of_private_loggers(tmp_path: Path, kind: int, data: bytes, taken: bool) -> None:
    mode = LogFileMode.FILE_MODE_SEQUENTIAL | LogFileMode.PRIVATE_LOGGER_MODE
    rig = Rig(file=str(tmp_path / "a.etl"), mode=mode, filters=(Filter(kind, data),))
    if taken:
        rig.writer()
    else:
        with pytest.raises(EtwError) as caught:
            rig.writer()
        assert caught.value.status == Status.ACCESS_DENIED
    rig.stop()


# -- real time


def received(stream: socket.socket) -> bytes:
    data = bytearray()
    while part := stream.recv(1 << 20):
        data += part
    return bytes(data)


def test_real_time_alone(tmp_path: Path) -> None:
    rig = Rig(mode=LogFileMode.REAL_TIME_MODE, buffer_size=4)
    ours, theirs = socket.socketpair()
    rig.logger.add_reader(theirs)
    writer = rig.writer()
    rig.write(writer, 100)
    rig.poll()
    rig.write(writer, 10)
    state = rig.stop()
    (tmp_path / "sent.etl").write_bytes(received(ours))
    assert state.events_lost + _sent(tmp_path / "sent.etl") == rig.offered
    assert (state.real_time_buffers_lost, state.log_buffers_lost) == (0, 0)


def _sent(file: Path) -> int:
    """Events in a stream of buffers, each of its own size."""
    from lastbranch.formats.etl.events.walk import chains

    data, at, count = file.read_bytes(), 0, 0
    while at < len(data):
        size, used, kind = struct.unpack_from("<I", data, at) + struct.unpack_from("<I2xH", data, at + 0x30)
        if kind == 0:
            import numpy as np

            words = np.frombuffer(data[at : at + used] + bytes(2048), np.uint64)
            found = chains(words, np.array([9]), np.array([used // 8]))
            count += int(found.count[0])
        at += size
    return count


def _fill(rig: Rig, writer: Writer) -> int:
    """Write until nothing is taken any more; how many events were."""
    taken = 0
    while now := rig.write(writer, 20, payload=60_000):
        taken += now
        rig.poll()
        assert rig.offered * 60_000 < 2 * BACKLOG, "the backlog has no limit"
    assert taken * 60_000 > BACKLOG
    return taken


def test_a_full_backlog_refuses_what_is_new_and_keeps_what_was_taken(tmp_path: Path) -> None:
    """Until a reader has made room: each event is taken or lost, once, and what was taken is delivered."""
    rig = Rig(mode=LogFileMode.REAL_TIME_MODE, buffer_size=1024, maximum_buffers=8)
    writer = rig.writer()
    taken = _fill(rig, writer)
    assert refusal(writer, 100) == Status.LOG_FILE_FULL
    rig.time += 10_000_000_000
    assert rig.poll() is None, "the timer of flushes is no reason to look while nobody reads"
    rig.logger.flush()
    assert rig.write(writer, 20) == 0
    state = rig.logger.state()
    assert (state.events_lost, state.real_time_buffers_lost) == (rig.offered - taken, 0)

    ours, theirs = socket.socketpair()
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(received(ours)))
    reader.start()
    rig.logger.add_reader(theirs)
    until(lambda: rig.poll() != SLOW_READER)
    assert refusal(writer, 100) == Status.NOT_ENOUGH_MEMORY
    assert rig.write(writer, 20) == 20
    final = rig.stop()
    reader.join()
    (tmp_path / "sent.etl").write_bytes(got[0])
    assert _sent(tmp_path / "sent.etl") == taken + 20
    assert (final.events_lost, final.real_time_buffers_lost) == (state.events_lost, 0)


def test_real_time_without_a_reader_is_bounded_and_counted() -> None:
    rig = Rig(mode=LogFileMode.REAL_TIME_MODE, buffer_size=1024, maximum_buffers=8)
    _fill(rig, rig.writer())
    late = [rig.writer() for _ in range(40)]  # which leave the little that a writer has at once, and go
    for writer in late:
        rig.write(writer, 20, payload=60_000)
        rig.gone(writer)
    assert rig.logger.state().real_time_buffers_lost > 0, "what is left behind has a limit as well"
    state = rig.stop()
    assert state.events_lost == rig.offered  # nobody ever came


def test_nobody_is_blocked_by_a_reader_that_does_not_come() -> None:
    mode = LogFileMode.REAL_TIME_MODE | LogFileMode.BLOCKING_MODE
    rig = Rig(mode=mode, buffer_size=1024, maximum_buffers=8)
    writer = rig.writer()
    writer.patience = 0.0
    _fill(rig, writer)
    writer.patience = 60.0
    begin = time.monotonic()
    assert rig.write(writer) == 0
    assert time.monotonic() - begin < 30
    rig.stop()


def test_a_session_that_leaves_real_time_keeps_nothing_for_readers(file: Path) -> None:
    """What nobody had read counts as lost to readers, and nothing that comes after it."""
    both = LogFileMode.REAL_TIME_MODE | LogFileMode.FILE_MODE_SEQUENTIAL
    rig = Rig(mode=both, file=str(file), buffer_size=4)
    writer = rig.writer()
    rig.write(writer, 5)
    rig.logger.update(replace(rig.request, mode=LogFileMode.FILE_MODE_SEQUENTIAL))
    lost = rig.logger.state().real_time_buffers_lost
    assert lost > 0
    rig.write(writer, 3 * FULL)
    rig.poll()
    rig.logger.update(rig.request)
    state = rig.stop()
    assert (state.real_time_buffers_lost, state.events_lost) == (lost, 0)
    assert read(file).numbers == list(range(rig.offered))


def test_a_file_keeps_what_readers_lose(file: Path) -> None:
    rig = Rig(mode=LogFileMode.REAL_TIME_MODE | LogFileMode.FILE_MODE_SEQUENTIAL, file=str(file))
    writer = rig.writer()
    rig.write(writer, 1000)
    state = rig.stop()
    assert (state.events_lost, state.log_buffers_lost) == (0, 0)
    assert state.real_time_buffers_lost == state.buffers_written - 1
    assert read(file).numbers == list(range(1000))


def test_convert_to_real_time(file: Path) -> None:
    rig = Rig(file=str(file))
    writer = rig.writer()
    rig.write(writer, 10)
    rig.logger.convert_to_realtime()
    assert file.stat().st_mode & 0o777 == 0o600
    assert read(file).numbers == list(range(10))
    state = rig.logger.state()
    assert state.request.mode == LogFileMode.REAL_TIME_MODE
    assert state.request.file == ""
    rig.write(writer, 7)
    assert rig.stop().events_lost == 7
    assert read(file).header.buffers_written == 2


# -- one stream


def test_one_stream_is_in_time_order(file: Path) -> None:
    mode = LogFileMode.FILE_MODE_SEQUENTIAL | LogFileMode.NO_PER_PROCESSOR_BUFFERING
    rig = Rig(file=str(file), buffer_size=4, mode=mode, maximum_buffers=16)
    writers = [rig.writer() for _ in range(3)]
    for n in range(900):
        rig.write(writers[n * 7 % 11 % 3])
        if n % 90 == 0:
            rig.time += 30_000_000
            rig.poll()
    rig.stop()
    found = read(file)
    assert found.by_cpu == {0: list(range(900))}
    assert found.header.processors == 1
    full = -(-900 // FULL)
    assert found.header.buffers_written == 1 + full  # no buffer is written that is not full, but the last


def test_an_event_that_comes_late_is_there(file: Path) -> None:
    mode = LogFileMode.FILE_MODE_SEQUENTIAL | LogFileMode.NO_PER_PROCESSOR_BUFFERING
    rig = Rig(file=str(file), buffer_size=4, mode=mode, maximum_buffers=16)
    one, other = rig.writer(), rig.writer()
    old = event(10_000, rig.time)
    rig.write(one, 100)
    rig.time += 10**9
    rig.poll()
    other.write(old)
    rig.write(one, 10)
    rig.stop()
    data: list[Any] = read_unordered(file)
    assert sorted(data) == [*range(110), 10_000]


def read_unordered(file: Path) -> list[int]:
    from lastbranch.formats.etl import TraceLog
    from lastbranch.model import BytesSource
    from session_rig import number_of

    log = TraceLog(BytesSource(file.read_bytes(), str(file)))
    return [number_of(found) for found in log.events() if found.hook < 0]


def test_nothing_is_older_than_its_log(tmp_path: Path) -> None:
    """The log begins when the session does, not when its first buffers are taken."""
    file = tmp_path / "x.etl"
    clock = Rig(file=str(tmp_path / "other.etl"))  # only its clock
    request = adjusted(SessionRequest("slow", file=str(file)), ONE_CPU)

    def masks(time: int) -> list[bytes]:
        return [encode_event(mask_event([7], time))]

    logger = Logger(request, 1, header_events=masks, clock=clock, disk=ANY_DISK)
    begun = clock.time
    _, answer, descriptors = logger.attach(os.getpid())
    writer = Writer.of_answer(answer, [os.dup(descriptor) for descriptor in descriptors])
    clock.write(writer, 3)
    clock.time += 10**9
    second = clock.time
    logger.update(replace(request, file=str(tmp_path / "y.etl")))
    clock.time += 10**9
    logger.stop()
    for path, first, events in ((file, begun, [1000, 2000, 3000]), (tmp_path / "y.etl", second, [])):
        log = TraceLog(BytesSource(path.read_bytes()))
        found = list(log.events())
        assert log.header.timestamp == first
        assert log.header.start_time == clock.filetime() - (clock.time - first) // 100
        assert [event.hook for event in found][:2] == [0x0000, 0x0005]
        assert [event.time - first for event in found] == [0, 0, *events]
