"""Faults: processes that are killed or stopped, disks, files and clocks that change, writers that are hostile.

What each of them may cost is its own; nothing hangs, what was flushed reads, and what is lost is counted.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from full_disks import fill, small_disk
from lastbranch.analysis.checks import check
from lastbranch.errors import FormatError
from lastbranch.etw.flags import Control, EnableProvider, LogFileMode
from lastbranch.etw.interface import EventDescriptor
from lastbranch.etw.portable import clock as clock_module
from lastbranch.etw.portable.clock import Clock
from lastbranch.etw.portable.pool import PAGE, Geometry
from lastbranch.etw.portable.protocol import Connection, Kind, pack
from lastbranch.etw.portable.provider import registration as attachments
from lastbranch.etw.portable.provider.writer import Writer
from lastbranch.etw.portable.session.daemon import Commands
from lastbranch.etw.portable.session_registry import process_key
from lastbranch.etw.properties import SessionState
from lastbranch.etw.status import EtwError, Status
from lastbranch.formats.etl import TraceLog
from lastbranch.formats.etl.layout import BUFFER_TYPE
from lastbranch.model import BytesSource
from portable_sessions import Sessions, processes_of, sessions_in, until
from provider_process import PROVIDER, provider
from session_rig import Rig, read

EVENT = EventDescriptor(1)
ANY = pack(0xFFFF)
HOUR = 3600 * 10**9


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    with sessions_in(tmp_path) as made:
        yield made


def started(sessions: Sessions, **fields: object) -> SessionState:
    """A session that takes the provider's events."""
    state = sessions.start(**{"buffer_size": 4, "maximum_buffers": 200} | fields)  # type: ignore[arg-type]
    sessions.kernel.enable(state.handle, PROVIDER, EnableProvider.ENABLE, 0, 0, 0, 0, None)
    return state


def delivered(file: Path) -> int:
    """How many events of providers can be read in a file."""
    log = TraceLog(BytesSource(file.read_bytes(), str(file)))
    return sum(int(np.count_nonzero(block.hook < 0)) for block in log.blocks())


def findings(file: Path) -> set[str]:
    return {finding.name for finding in check(str(file))}


# -- killed


def test_a_provider_killed_in_the_midst_of_a_write(sessions: Sessions) -> None:
    """All that it committed is delivered, also of the buffers that it had; one event at most is neither."""
    started(sessions)
    with provider(sessions) as first, provider(sessions) as second:
        until(lambda: min(first.taken, second.taken) > 300)
        first.kill()
        until(lambda before=second.taken: second.taken > before + 300)  # it blocks nobody
        second.kill()
        state = sessions.stop()
        found = delivered(sessions.file())
        offered = first.offered + second.offered
        assert offered - 2 <= found + state.events_lost <= offered
        assert found >= first.taken + second.taken


def test_a_provider_killed_while_its_child_lives(sessions: Sessions) -> None:
    """A child by fork does not keep its parent's buffers from the session."""
    started(sessions)
    body = """
        write_while(lambda: counts[0] < 10)
        if not os.fork():
            print("child", flush=True)
            sys.stdin.read()
            os._exit(0)
        time.sleep(60)
    """
    with provider(sessions, body) as parent:
        assert parent.process.stdout is not None
        assert parent.process.stdout.readline() == b"child\n"
        parent.send(signal.SIGKILL)
        until(lambda: delivered(sessions.file()) == 10)
        assert sessions.stop().events_lost == 0


def test_what_a_killed_provider_leaves_is_removed(sessions: Sessions) -> None:
    """By whoever enables or disables it next, and by the next instance that registers."""
    folder = sessions.root / "providers" / str(PROVIDER)
    with provider(sessions) as one:
        until(lambda: folder.exists() and list(folder.iterdir()))
        one.kill()
    (left,) = folder.iterdir()
    registered = sessions.kernel.register(PROVIDER, None)
    try:
        (mine,) = folder.iterdir()
    finally:
        registered.close()
    assert mine != left
    assert list(folder.iterdir()) == []


def test_a_controller_that_goes_in_the_midst_of_a_stop(sessions: Sessions) -> None:
    started(sessions)
    with provider(sessions, "write_while(lambda: registered.enabled)") as one:
        until(lambda: one.taken > 100)
        with sessions.connected() as connection:
            connection.send(Kind.STOP)
        until(lambda: sessions.names() == [])
        until(lambda: one.process.poll() == 0)  # it was disabled
        assert delivered(sessions.file()) >= one.taken - 1
        assert "no end" not in findings(sessions.file())


def test_a_daemon_killed_while_providers_write(sessions: Sessions) -> None:
    started(sessions)
    with provider(sessions, "while time.monotonic() < end: write_while(lambda: registered.enabled)") as one:
        until(lambda: one.taken > 1000)
        sessions.control(Control.FLUSH)
        flushed = delivered(sessions.file())
        key = process_key(sessions.pid())
        os.kill(key.pid, signal.SIGKILL)
        until(lambda: not key.alive)
        assert sessions.names() == []
        assert list((sessions.root / "sessions").iterdir()) == []
        assert delivered(sessions.file()) >= flushed > 0
        assert "no end" in findings(sessions.file())
        before = one.offered
        started(sessions, file="y.etl")
        until(lambda: one.offered > before + 100)
        assert one.process.poll() is None
        sessions.stop()
        assert delivered(sessions.file("y.etl")) > 0
        assert "no end" not in findings(sessions.file("y.etl"))


# -- stopped


def test_a_provider_that_stands_still(sessions: Sessions) -> None:
    """Sessions end without it; when it goes on it takes part in the next one."""
    state = started(sessions)
    with provider(sessions, "while time.monotonic() < end: write_while(lambda: registered.enabled)") as one:
        until(lambda: one.taken > 100)
        one.send(signal.SIGSTOP)
        taken = one.taken
        enable = (state.handle, PROVIDER, EnableProvider.ENABLE, 0, 0, 0, 50, None)
        with pytest.raises(EtwError) as caught:
            sessions.kernel.enable(*enable)
        assert caught.value.status == Status.TIMEOUT
        sessions.stop()
        assert delivered(sessions.file()) >= taken
        started(sessions, file="y.etl")
        one.send(signal.SIGCONT)
        until(lambda: one.offered > taken)
        sessions.control(Control.FLUSH)
        until(lambda: sessions.control(Control.FLUSH) and delivered(sessions.file("y.etl")))
        sessions.stop()


def test_a_consumer_that_stands_still(sessions: Sessions) -> None:
    started(sessions, mode=LogFileMode.REAL_TIME_MODE, flush_timer=1)
    code = """
        from lastbranch.etw.events import consume
        for _ in consume("session", real_time=True):
            print("event", flush=True)
    """
    consumer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    try:
        with provider(sessions) as one:
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == b"event\n"
            consumer.send_signal(signal.SIGSTOP)
            until(lambda before=one.taken: one.taken > before + 500)
            assert sessions.query().handle == 1
            one.kill()
            state = sessions.stop()
            assert one.offered - 1 <= delivered(sessions.file()) + state.events_lost <= one.offered
        consumer.send_signal(signal.SIGCONT)
        consumer.communicate(timeout=60)  # the end of the session is its end
    finally:
        consumer.kill()
        consumer.communicate()


# -- disks and files


@contextmanager
def no_longer_files(sessions: Sessions, file: Path) -> Iterator[None]:
    resource.prlimit(sessions.pid(), resource.RLIMIT_FSIZE, (file.stat().st_size, resource.RLIM_INFINITY))
    yield
    resource.prlimit(sessions.pid(), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def no_more_room(sessions: Sessions, file: Path) -> Iterator[None]:
    filler = fill(file.parent)
    yield
    filler.unlink()


@pytest.mark.parametrize(("full", "disk"), [(no_longer_files, None), (no_more_room, "2m")])
def test_a_full_disk(full: Any, disk: str | None, sessions: Sessions, tmp_path: Path) -> None:
    """It takes no more of the log for a while: the session goes on, counts, and writes again when there is room."""
    with ExitStack() as mounted:
        file = mounted.enter_context(small_disk(tmp_path / "disk", disk)) / "a.etl" if disk else sessions.file()
        _on_a_full_disk(sessions, file, full)


def _on_a_full_disk(sessions: Sessions, file: Path, full: Any) -> None:
    started(sessions, file=str(file), maximum_buffers=400)
    registered = sessions.kernel.register(PROVIDER, None)
    offered = 0

    def write(events: int) -> None:
        nonlocal offered
        for _ in range(events):
            registered.write(EVENT, b"x" * 40)
            offered += 1

    try:
        write(100)
        sessions.control(Control.FLUSH)
        with full(sessions, file):
            write(500)
            lost = sessions.control(Control.FLUSH)
            assert lost.events_lost > 0
            assert lost.log_buffers_lost > 0
            assert delivered(file) == 100
        write(100)
        state = sessions.stop()
        assert delivered(file) + state.events_lost == offered
        assert delivered(file) >= 200
        assert "lost buffers" in findings(file)
    finally:
        registered.close()


def test_no_room_for_a_file_of_any_length(sessions: Sessions) -> None:
    """ulimit -f 1: no pool either, as that is a file to the kernel. A code, and nothing stays."""
    code = """
        import resource, sys
        from lastbranch.etw.portable.kernel import PortableKernel
        from lastbranch.etw.properties import SessionRequest
        from lastbranch.etw.status import EtwError
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            PortableKernel().start(SessionRequest("session", file=sys.argv[1]))
        except EtwError as error:
            print(int(error.status))
    """
    words = [sys.executable, "-B", "-c", textwrap.dedent(code), str(sessions.file())]
    done = subprocess.run(words, capture_output=True, timeout=60)
    assert done.stdout in (b"%d\n" % Status.NOT_ENOUGH_MEMORY, b"%d\n" % Status.DISK_FULL), done
    assert sessions.names() == []
    until(lambda: not processes_of(sessions.root))


@pytest.mark.parametrize("fault", ["removed", "truncated", "folder removed"])
def test_a_log_that_others_lay_hands_on(sessions: Sessions, fault: str) -> None:
    """The session goes on and ends; what it wrote there later can be read, if it can be found."""
    folder = sessions.file("logs")
    folder.mkdir()
    started(sessions, file="logs/x.etl")
    registered = sessions.kernel.register(PROVIDER, None)
    try:
        for _ in range(2):
            for _ in range(100):
                assert registered.write(EVENT, b"x" * 40) == 0
            sessions.control(Control.FLUSH)
            if fault == "removed":
                (folder / "x.etl").unlink(missing_ok=True)
            elif fault == "truncated":
                os.truncate(folder / "x.etl", 0)
            elif folder.exists():
                shutil.rmtree(folder)
        assert [registered.write(EVENT, b"last") for _ in range(10)] == [0] * 10
        assert sessions.stop().events_lost == 0
        if fault == "truncated":
            assert delivered(folder / "x.etl") == 10
            assert "damage" in findings(folder / "x.etl")
        else:
            assert not (folder / "x.etl").exists()
    finally:
        registered.close()


# -- clocks


class Wall(Rig):
    """With a clock in FILETIME, which may be set."""

    kind, frequency = 2, 10_000_000


def test_a_writers_time_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**18
    monkeypatch.setattr(clock_module.time, "time_ns", lambda: now)
    ticks = Clock.of(2).ticks()
    first = ticks()
    now -= HOUR
    assert ticks() == first
    now += 2 * HOUR
    assert ticks() > first


@pytest.mark.parametrize("mode", [LogFileMode(0), LogFileMode.NO_PER_PROCESSOR_BUFFERING])
def test_a_clock_that_is_set_back(tmp_path: Path, mode: LogFileMode) -> None:
    """A writer that comes later, in the place of the one before, goes on where that ended; nothing waits an hour."""
    file = tmp_path / "x.etl"
    mode |= LogFileMode.FILE_MODE_SEQUENTIAL
    rig = Wall(file=str(file), buffer_size=4, maximum_buffers=64, clock=2, mode=mode, begin=9000)
    first = rig.writer()
    rig.write(first, 150)
    rig.poll()
    rig.gone(first)
    rig.time -= HOUR
    second = rig.writer()
    assert second.cpu == first.cpu
    for _ in range(4):
        rig.write(second, 76)
        rig.poll()
    assert len(read_open(file)) > 300
    rig.time += 2 * HOUR
    rig.write(second, 10)
    state = rig.stop()
    found = read(file)  # in time order
    assert len(found.numbers) == rig.offered
    assert (state.events_lost, set(found.by_cpu)) == (0, {0 if mode > 1 else first.cpu})
    assert found.events[-1].time == rig.time


def read_open(file: Path) -> list[int]:
    """Numbers of the events of a log that is being written."""
    return read(file).numbers


def test_readers_do_not_wait_for_a_clock_that_was_set_back(tmp_path: Path) -> None:
    rig = Wall(buffer_size=4, clock=2, mode=LogFileMode.REAL_TIME_MODE, begin=9000)
    ours, theirs = socket.socketpair()
    rig.logger.add_reader(theirs)
    writer = rig.writer()
    rig.write(writer, 10)
    last = rig.time
    rig.time -= HOUR
    rig.logger.flush()
    rig.poll()
    ours.setblocking(False)
    data, at, markers = ours.recv(1 << 20), 0, []
    while at < len(data):
        size, stamp, kind = (struct.unpack_from(f, data, at + o)[0] for f, o in (("<I", 0), ("<q", 16), ("<H", 0x36)))
        if kind == BUFFER_TYPE.EMPTY_MARKER:
            markers.append(stamp)
        at += size
    assert markers[-1] == last
    assert rig.stop().events_lost == 0


# -- strangers and hostile writers


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_has_no_way_in() -> None:
    """Neither the directory, nor its lists, nor the socket; and the directory of another is none of one's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        with sessions_in(Path(name)) as sessions:
            sessions.start()
            entry = sessions.registry.find(1)
            assert entry is not None
            code = """
                import os, socket, sys
                from lastbranch.etw.flags import LogFileMode
                from lastbranch.etw.portable.kernel import PortableKernel
                from lastbranch.etw.properties import SessionRequest
                from lastbranch.etw.status import EtwError
                import lastbranch.etw.portable.provider.registration, lastbranch.etw.portable.session.spawn
                os.setgroups([]); os.setgid(65534); os.setuid(65534)
                kernel = PortableKernel()
                def tried(call):
                    try:
                        return call()
                    except EtwError as error:
                        return int(error.status)
                    except OSError as error:
                        return type(error).__name__
                root, key = sys.argv[1:]
                print(tried(kernel.sessions), tried(lambda: kernel.control(1, "session", None)),
                      tried(lambda: kernel.start(SessionRequest("mine", mode=LogFileMode(0x100)))),
                      tried(lambda: os.listdir(root)), tried(lambda: open(f"{root}/sessions/{key}.state")),
                      tried(lambda: socket.socket(socket.AF_UNIX).connect(f"{root}/sessions/{key}.sock")))
            """
            words = [sys.executable, "-B", "-c", textwrap.dedent(code), str(sessions.root), entry.key]
            done = subprocess.run(words, capture_output=True, timeout=60, cwd="/")
            assert done.stdout == b"5 5 5" + b" PermissionError" * 3 + b"\n", done
            assert sessions.names() == ["session"]


def test_a_hostile_writer_scribbles_over_everything_that_it_can_reach(sessions: Sessions, run: Any) -> None:
    """It costs its own events, and never those of others, of providers that come later, the daemon or the file."""
    chance = random.Random(5)
    started(sessions)
    with provider(sessions) as one, sessions.connected() as connection:
        until(lambda: one.taken > 100)
        _, fds = connection.call(Kind.ATTACH, ANY)
        with pytest.raises(PermissionError):
            os.pwrite(fds[0], bytes(8), 0)
        geometry = Geometry.read(fds[0])
        fcntl.fcntl(fds[2], fcntl.F_SETFL, 0)  # whoever reads the empty doorbell would wait now
        for size in (0, PAGE, geometry.size + PAGE):
            with pytest.raises(PermissionError):
                os.truncate(fds[1], size)
        memory = mmap.mmap(fds[1], geometry.size)
        reach = geometry.buffer(40)
        for _ in range(30):
            for _ in range(60):
                at = chance.choice([PAGE * (1 + chance.randrange(3)), geometry.buffer(chance.randrange(40))])
                at += chance.choice([0, 0, 0x38, 8 * chance.randrange(512)])
                if chance.random() < 0.1:
                    at = chance.randrange(reach // 8) * 8
                word = chance.getrandbits(chance.choice([4, 10, 33, 64]))
                memory[at : at + 8] = word.to_bytes(8, "little")
            os.eventfd_write(fds[2], 1)
            assert sessions.query().handle == 1
        memory[0:reach] = chance.randbytes(reach)
        os.eventfd_write(fds[2], 1)
        assert sessions.control(Control.FLUSH).handle == 1
        assert one.process.poll() is None
        with pytest.raises(EtwError) as caught:
            connection.call(Kind.ATTACH, ANY)  # this process gets no second chance
        assert caught.value.status == Status.NO_SYSTEM_RESOURCES
        with provider(sessions, "write_while(lambda: counts[0] < 500)") as late:
            until(lambda: late.process.poll() == 0)
            assert late.taken == late.offered == 500
        one.kill()
        taken = one.taken + late.taken
        state = sessions.stop()
    until(lambda: not processes_of(sessions.root))
    assert taken <= delivered(sessions.file()) <= one.offered + late.offered
    assert state.log_buffers_lost >= 1
    assert findings(sessions.file()) & {"damage", "lost buffers"} == {"lost buffers"}
    ran = run("verify", "--format", "json", sessions.file())
    assert ran.code == 1
    (row,) = json.loads(ran.out)
    assert (row["field"], row["value"]) == ("BuffersLost", str(state.log_buffers_lost))
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("status", [Status.INVALID_DATA, Status.NOT_ENOUGH_MEMORY, Status.NO_SYSTEM_RESOURCES])
def test_a_session_that_cannot_be_written_to_is_an_error_of_each_write(
    sessions: Sessions, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a writer is not given, whatever the reason, is lost: a status of 0 would say that it is not."""
    started(sessions)

    def refused(path: str) -> Writer:
        raise EtwError("attach", status, "refused")

    monkeypatch.setattr(attachments, "connect_writer", refused)
    registered = sessions.kernel.register(PROVIDER, None)
    try:
        assert registered.enabled
        assert registered.write(EVENT, b"x") == Status.NOT_ENOUGH_MEMORY
    finally:
        registered.close()


def test_a_writer_whose_buffers_cannot_be_taken_ends_no_session() -> None:
    """Whatever comes up when it hangs up: its other slots are freed, and the daemon goes on."""
    tried = []

    def detach(slot: int) -> None:
        tried.append(slot)
        raise ZeroDivisionError

    commands, connection = object.__new__(Commands), Connection(socket.socket())
    commands._daemon = SimpleNamespace(ended=False, poll_soon=lambda: None)  # type: ignore[assignment]
    commands._sources = SimpleNamespace(hung_up=lambda _: None)  # type: ignore[assignment]
    commands.logger = SimpleNamespace(detach=detach)  # type: ignore[assignment]
    commands._slots = {connection: {1, 2}}
    commands.gone(connection)
    assert tried == [1, 2]
    connection.close()


def test_a_doorbell_that_would_block(tmp_path: Path) -> None:
    rig = Rig(file=str(tmp_path / "x.etl"))
    os.set_blocking(rig.logger.doorbell, True)

    def overdue(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, overdue)
    signal.alarm(20)
    try:
        rig.poll()
    finally:
        left = signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert left > 0
    rig.stop()


# -- in one provider


def test_unregistered_in_the_midst_of_writes(sessions: Sessions) -> None:
    """Threads that write, threads that come and end, and a provider that is closed meanwhile."""
    started(sessions, maximum_buffers=400)
    registered = sessions.kernel.register(PROVIDER, None)
    statuses: list[int] = []
    failed: list[BaseException] = []
    done = threading.Event()

    def some() -> None:
        try:
            for _ in range(50):
                if registered.enabled:
                    statuses.append(registered.write(EVENT, b"x" * 40))
        except BaseException as error:
            failed.append(error)

    def many() -> None:
        while not done.is_set():
            thread = threading.Thread(target=some)
            thread.start()
            some()
            thread.join()

    threads = [threading.Thread(target=many) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: len(statuses) > 1000)
    registered.close()
    before = len(statuses)
    time.sleep(0.05)
    done.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(statuses) <= before + 4  # those who were past the test
    assert registered.write(EVENT, b"x") == 0
    state = sessions.stop()
    assert delivered(sessions.file()) + state.events_lost >= before - 4
    assert delivered(sessions.file()) <= statuses.count(0)


def test_an_append_to_a_file_that_was_damaged_meanwhile(tmp_path: Path) -> None:
    """The header could not be written at the begin, and now the file is no log: the events are lost, and counted."""
    file = tmp_path / "x.etl"
    rig = Rig(file=str(file), buffer_size=4, mode=LogFileMode.FILE_MODE_APPEND)
    assert rig.logger._file is not None
    rig.logger._file._files.clear()  # as after a full disk
    file.write_bytes(b"no log" * 1000)
    writer: Writer = rig.writer()
    rig.write(writer, 100)
    with pytest.raises(FormatError):
        read(file)
    assert rig.stop().events_lost == 100
