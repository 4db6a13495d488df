"""The process of a session: what it serves, and that nothing that others do to it or to each other ends badly."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from lastbranch.etw.events import consume
from lastbranch.etw.flags import Control, EnableProvider
from lastbranch.etw.interface import EventDescriptor
from lastbranch.etw.portable import kernel as kernel_module
from lastbranch.etw.portable.pool import Attached
from lastbranch.etw.portable.protocol import Connection, Decoder, Kind, address_in, encode, pack, unpack
from lastbranch.etw.portable.provider.writer import Writer, connect_writer
from lastbranch.etw.portable.session_registry import process_key
from lastbranch.etw.properties import SessionState
from lastbranch.etw.status import EtwError, Status
from portable_sessions import Sessions, code_of, processes_of, sessions_in, until

PROVIDER = UUID("11111111-2222-3333-4444-555555555555")
ONE_EVENT = struct.pack("<HH", 0x50, 0xC013) + bytes(0x4C)
"""EVENT_HEADER of a provider whose GUID is 0."""


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    with sessions_in(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """A session that the tests leave running."""
    with sessions_in(tmp_path_factory.mktemp("running")) as made:
        made.start()
        yield made


def attached(sessions: Sessions) -> Writer:
    """A writer of the session."""
    entry = sessions.registry.find(1)
    assert entry is not None
    with sessions.registry.folder("sessions") as folder:
        return connect_writer(address_in(folder, entry.socket))


def events_of(file: Path) -> int:
    """How many `ONE_EVENT` a file has."""
    return sum(found.event.provider == bytes(16) for found in consume(file))


class TestLife:
    def test_from_start_to_stop(self, sessions: Sessions) -> None:
        started = sessions.start("One", buffer_size=16)
        assert (started.handle, started.request.name, started.request.buffer_size) == (1, "One", 16)
        assert started.request.guid.int
        assert started.logger_thread == sessions.pid(1)
        assert sessions.query("oNE").request == sessions.query(1).request == started.request
        assert sessions.names() == ["One"]
        stopped = sessions.stop("ONE")
        assert (stopped.handle, stopped.request.file) == (1, str(sessions.file()))
        assert sessions.names() == []
        assert code_of(sessions.query, 1) == code_of(sessions.stop, "one") == Status.WMI_INSTANCE_NOT_FOUND
        assert list((sessions.root / "sessions").iterdir()) == []
        until(lambda: not processes_of(sessions.root))
        assert sessions.file().stat().st_mode & 0o777 == 0o600
        with sessions.file().open("rb") as file:
            assert file.read(4) == struct.pack("<I", 16 * 1024)

    def test_a_daemon_is_nobodys_child(self, running: Sessions) -> None:
        fields = Path(f"/proc/{running.pid()}/stat").read_text().rpartition(")")[2].split()
        parent, session = int(fields[1]), int(fields[3])
        assert os.getpid() not in (parent, session)
        assert os.readlink(f"/proc/{running.pid()}/cwd") == "/"
        assert os.readlink(f"/proc/{running.pid()}/fd/0") == "/dev/null"

    def test_it_does_nothing_when_nothing_happens(self, running: Sessions) -> None:
        def woken() -> int:
            status = Path(f"/proc/{running.pid()}/status").read_text()
            return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

        running.query()

        def quiet() -> bool:
            before = woken()
            time.sleep(0.3)
            return woken() == before

        assert until(quiet)

    def test_sigterm_stops_the_session_as_stop_does(self, sessions: Sessions) -> None:
        sessions.start()
        os.kill(sessions.pid(), signal.SIGTERM)
        until(lambda: not processes_of(sessions.root))
        assert list((sessions.root / "sessions").iterdir()) == []
        assert sessions.file().stat().st_size >= 4096

    def test_a_start_that_fails_leaves_nothing(self, sessions: Sessions) -> None:
        sessions.file("folder").mkdir()
        assert code_of(lambda: sessions.start(file="no/such/folder/x.etl")) == Status.BAD_PATHNAME
        assert code_of(lambda: sessions.start(file="folder")) == Status.BAD_PATHNAME
        sessions.start("other")
        assert code_of(lambda: sessions.start("second on that file")) == Status.ALREADY_EXISTS
        assert sessions.names() == ["other"]
        assert len(list((sessions.root / "sessions").glob("*.state"))) == 1
        sessions.stop("other")
        until(lambda: not processes_of(sessions.root))

    def test_a_daemon_that_cannot_run_says_why(self, sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(sessions.folder))
        (sessions.folder / "selectors.py").write_text("raise ImportError('broken installation')")
        with pytest.raises(Exception, match=r"broken installation.*1450"):
            sessions.start()
        assert sessions.registry.entries() == []

    def test_a_deep_registry(self, tmp_path: Path) -> None:
        """Addresses of local sockets have 107 bytes."""
        deep = tmp_path / ("d" * 100) / ("e" * 100)
        deep.mkdir(parents=True)
        with sessions_in(deep) as made:
            made.start()
            assert made.stop().handle == 1


class TestKilled:
    def test_a_killed_daemon_is_forgotten_by_the_next_command(self, sessions: Sessions) -> None:
        sessions.start()
        writer = attached(sessions)
        assert all(writer.write(ONE_EVENT) for _ in range(100))
        sessions.control(Control.FLUSH)
        key = process_key(sessions.pid())
        os.kill(key.pid, signal.SIGKILL)
        until(lambda: not key.alive)
        assert code_of(sessions.query) == Status.WMI_INSTANCE_NOT_FOUND
        assert sessions.names() == []
        assert list((sessions.root / "sessions").iterdir()) == []
        assert events_of(sessions.file()) == 100
        assert sessions.start().handle == 1
        writer.close()

    def test_a_provider_outlives_the_daemon(self, sessions: Sessions) -> None:
        """It is disabled when it notices, and takes part in the next session."""
        registered = sessions.kernel.register(PROVIDER, None)
        event = EventDescriptor(1)
        try:
            for name in ("first", "second"):
                state = sessions.start(name, f"{name}.etl")
                sessions.kernel.enable(state.handle, PROVIDER, EnableProvider.ENABLE, 0, 0, 0, 30_000, None)
                assert [registered.write(event, b"data") for _ in range(10)] == [0] * 10
                if name == "first":
                    os.kill(state.logger_thread, signal.SIGKILL)
                    until(lambda: registered.write(event, b"late") == 0 and not registered.enabled)
            assert sessions.stop("second").events_lost == 0
            found = [event.event for event in consume(sessions.file("second.etl"))]
            assert sum(one.provider == PROVIDER.bytes_le for one in found) == 10
        finally:
            registered.close()

    def test_an_orphaned_session_is_listed_and_stopped(self, sessions: Sessions) -> None:
        controller = _controller(sessions)
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"1\n"
        controller.kill()
        controller.wait()
        assert sessions.names() == ["orphan"]
        assert sessions.stop("orphan").handle == 1
        until(lambda: not processes_of(sessions.root))

    @pytest.mark.parametrize("seed", range(2))
    def test_a_controller_killed_at_any_moment(self, sessions: Sessions, seed: int) -> None:
        """Its session runs, and can be stopped; or there is none, and no process of it."""
        controller = _controller(sessions)
        delay = random.Random(seed).uniform(0, 0.5)
        until(lambda: (sessions.root / "sessions").exists())
        time.sleep(delay)
        controller.kill()
        controller.wait()
        until(lambda: len(sessions.names()) == len(processes_of(sessions.root)))
        for name in sessions.names():
            with suppress(EtwError):  # it ends by itself unless it knew already that it may stay
                sessions.stop(name)
        until(lambda: not processes_of(sessions.root))
        assert sessions.names() == []
        assert sessions.start("orphan").handle == 1
        assert sessions.stop("orphan").handle == 1
        until(lambda: not processes_of(sessions.root))
        assert list((sessions.root / "sessions").iterdir()) == []

    def test_a_daemon_that_does_not_answer_is_listed(self, sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernel_module, "LIST_TIMEOUT", 0.2)
        sessions.start("stuck")
        sessions.start("well", "y.etl")
        os.kill(sessions.pid("stuck"), signal.SIGSTOP)
        states = {state.request.name: state for state in sessions.kernel.sessions()}
        assert sorted(states) == ["stuck", "well"]
        assert (states["stuck"].handle, states["stuck"].request.file) == (1, "")
        os.kill(sessions.pid("stuck"), signal.SIGCONT)
        assert until(lambda: sessions.query("stuck").request.file)

    def test_a_registry_that_vanishes(self, sessions: Sessions) -> None:
        """What runs goes on; it is out of reach for new controllers, and ends by a signal."""
        sessions.start()
        pid = sessions.pid()
        with sessions.connected() as connection:
            shutil.rmtree(sessions.root)
            assert unpack(SessionState, connection.call(Kind.QUERY)[0]).handle == 1
            assert sessions.names() == []
            os.kill(pid, signal.SIGTERM)
            until(lambda: not processes_of(sessions.root))
        assert sessions.file().stat().st_size >= 4096


def _controller(sessions: Sessions) -> subprocess.Popen[bytes]:
    """Another process that starts a session called orphan, says its handle and waits."""
    code = f"""
        from lastbranch.etw.portable.kernel import PortableKernel
        from lastbranch.etw.properties import SessionRequest
        print(PortableKernel().start(SessionRequest("orphan", file={str(sessions.file())!r})).handle, flush=True)
        input()
    """
    environment = dict(os.environ) | {"LASTBRANCH_ETW_DIR": str(sessions.root)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )


class TestStrangers:
    def test_garbage_ends_its_own_connection_only(self, running: Sessions) -> None:
        chance = random.Random(7)
        with running.connected() as well:
            for size in (1, 15, 16, 17, 500, 70_000):
                with running.connected() as bad:
                    bad.stream.settimeout(30)
                    bad.stream.sendall(b"L" + chance.randbytes(size + 16))
                    assert _hung_up(bad.stream)
            with running.connected() as half:
                half.stream.sendall(encode(Kind.QUERY)[:9])
                assert unpack(SessionState, well.call(Kind.QUERY)[0]).handle == 1
            with running.connected() as long:
                long.stream.sendall(struct.pack("<4sHHII", b"LBET", 1, Kind.QUERY, 0, 2**32 - 1))
                assert _hung_up(long.stream)
            assert unpack(SessionState, well.call(Kind.QUERY)[0]).handle == 1

    def test_wrong_bodies_are_answered_with_a_code(self, running: Sessions) -> None:
        chance = random.Random(11)
        answered = [kind for kind in Kind if kind not in (Kind.READY, Kind.FAILED, Kind.STOP, Kind.CONSUME)]
        needless = {Kind.QUERY, Kind.REFRESH, Kind.FLUSH, Kind.CONVERT_TO_REALTIME}
        with running.connected() as connection:
            for kind in answered:
                if kind in needless:
                    continue
                for size in (0, 1, 7, 40, 3000):
                    status = _status(connection, kind, chance.randbytes(size))
                    assert status, (kind, size)
            assert unpack(SessionState, connection.call(Kind.QUERY)[0]).handle == 1

    @pytest.mark.parametrize(
        ("kind", "body", "status"),
        [
            (Kind.SET_INFO, pack((99, None)), Status.NOT_SUPPORTED),
            (Kind.QUERY_INFO, pack(99), Status.NOT_SUPPORTED),
            (Kind.QUERY_INFO, pack(5), Status.NOT_SUPPORTED),
            (Kind.DETACH, pack(0), Status.INVALID_PARAMETER),
            (Kind.SOURCE, b"", Status.ACCESS_DENIED),
            (Kind.START, b"", Status.NOT_SUPPORTED),
            (Kind.CONSUME, b"", Status.INVALID_PARAMETER),
        ],
    )
    def test_what_a_session_does_not_do(self, running: Sessions, kind: Kind, body: bytes, status: int) -> None:
        with running.connected() as connection:
            assert _status(connection, kind, body) == status

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
    def test_another_user_is_hung_up_on(self, sessions: Sessions) -> None:
        """The directory keeps others out; here it is opened, so that the check of the peer is what refuses."""
        sessions.start()
        entry = sessions.registry.find(1)
        assert entry is not None
        address = sessions.root / "sessions" / entry.socket
        for path in (address, *list(address.parents)[:-2]):
            path.chmod(0o777)
        code = f"""
            import os, socket
            os.setgid(65534); os.setuid(65534)
            os.chdir({str(address.parent)!r})
            with socket.socket(socket.AF_UNIX) as stream:
                stream.settimeout(30)
                stream.connect({address.name!r})
                try:
                    stream.sendall({encode(Kind.STOP)!r})
                    print(stream.recv(10))
                except OSError:
                    print(b"")
        """
        done = subprocess.run([sys.executable, "-I", "-c", textwrap.dedent(code)], capture_output=True, timeout=60)
        assert (done.stdout, done.stderr) == (b"b''\n", b"")
        for path in (sessions.root, sessions.root / "sessions"):
            path.chmod(0o700)
        assert sessions.names() == ["session"]

    def test_many_connections_at_once(self, running: Sessions) -> None:
        entry = running.registry.find(1)
        assert entry is not None
        with running.registry.folder("sessions") as folder:
            streams = [socket.socket(socket.AF_UNIX) for _ in range(200)]
            for stream in streams:
                stream.connect(f"/proc/self/fd/{folder}/{entry.socket}")
                stream.sendall(encode(Kind.QUERY))
            for stream in streams:
                stream.settimeout(30)
                decoder = Decoder()
                while (message := decoder.next()) is None:
                    decoder.feed(stream.recv(decoder.missing))
                assert unpack(SessionState, message.body).handle == 1
                stream.close()


def _hung_up(stream: socket.socket) -> bool:
    try:
        return stream.recv(10) == b""
    except ConnectionResetError:
        return True


def _status(connection: Connection, kind: Kind, body: bytes) -> int:
    connection.send(kind, body)
    message = connection.receive(30)
    assert message is not None
    return int(message.status)


class TestWriters:
    def test_they_are_told_of_the_end(self, sessions: Sessions) -> None:
        sessions.start()
        with sessions.connected() as connection:
            connection.call(Kind.ATTACH, pack(0xFFFF))
            with sessions.connected() as control:
                control.send(Kind.STOP)
                message = connection.receive(30)
                assert message is not None
                assert message.kind == Kind.ENDED
                connection.close()
                answer = control.receive(30)
                assert answer is not None
                assert answer.status == 0

    def test_one_that_does_not_let_go_is_not_waited_for_long(self, sessions: Sessions) -> None:
        sessions.start()
        with sessions.connected() as connection:
            connection.call(Kind.ATTACH, pack(0xFFFF))
            assert sessions.stop().handle == 1
            until(lambda: not processes_of(sessions.root))

    def test_slots_come_back_when_a_writer_detaches_or_hangs_up(self, running: Sessions) -> None:
        def attach(connection: Connection) -> int:
            body, fds = connection.call(Kind.ATTACH, pack(0xFFFF))
            for fd in fds:
                os.close(fd)
            return int(unpack(Attached, body).slot)

        with running.connected() as one:
            first, second = attach(one), attach(one)
            assert first != second
            with running.connected() as other:
                assert _status(other, Kind.DETACH, pack(first)) == Status.INVALID_PARAMETER
            assert _status(one, Kind.DETACH, pack(first)) == 0
            assert attach(one) == first
        with running.connected() as again:
            assert until(lambda: attach(again) == first)

    def test_what_was_written_is_in_the_file(self, sessions: Sessions) -> None:
        sessions.start()
        with attached(sessions) as writer:
            assert all(writer.write(ONE_EVENT) for _ in range(100))
        state = sessions.stop()
        assert (state.events_lost, state.buffers_written) == (0, 2)
        assert events_of(sessions.file()) == 100
