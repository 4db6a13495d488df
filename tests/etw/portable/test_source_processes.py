"""Source processes of a session as its daemon handles them: ready, failing, dying, reconfigured and ended."""

from __future__ import annotations

import socket
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lastbranch.etw.portable.protocol import Connection, Kind, Message, peer_of
from lastbranch.etw.portable.session import source_processes as module
from lastbranch.etw.portable.session.loop import Loop, Tasks
from lastbranch.etw.portable.session.source_processes import SourceProcesses
from lastbranch.etw.status import EtwError, Status

SOURCE = """
    import os, sys
    from lastbranch.etw.portable.protocol import Connection, Kind, pack
    address, behaviour = sys.argv[1:]
    if behaviour == "dies":
        sys.exit(3)
    with Connection.open(address) as connection:
        body, _ = connection.call(Kind.SOURCE)
        while True:
            os.write(1, body + b"\\n")  # one write: lines of two processes must not mix
            if behaviour == "fails" or body == b"bad":
                connection.send(Kind.FAILED, pack((1314, "no right to that")))
            elif behaviour != "silent":
                connection.send(Kind.READY)
            message = connection.receive(60)
            if message is None or (message.kind == Kind.SOURCE_STOP and behaviour != "stays"):
                break
            body = message.body
"""


class Rig:
    """What a daemon has, as far as sources need it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.address = str(folder / "socket")
        self.program = folder / "source.py"
        self.program.write_text(textwrap.dedent(SOURCE))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(self.address)
        listener.listen()
        self.loop = Loop(self._serve, lambda connection: self.sources.hung_up(connection))
        self.loop.listen(listener)
        self.tasks = Tasks()
        self.sources = SourceProcesses(self.loop.post, self.loop.watch, self.loop.forget)
        stack.callback(self.sources.kill)

    def _serve(self, connection: Connection, message: Message) -> None:
        if message.kind == Kind.SOURCE:
            pid = peer_of(connection.stream).pid
            self.loop.post(connection, Kind.ANSWER, self.sources.connect(connection, pid))
        else:
            self.sources.answered(connection, message)

    def wanted(self, **behaviours: str) -> dict[str, list[str]]:
        return {role: [sys.executable, str(self.program), self.address, how] for role, how in behaviours.items()}

    def turn(self, done: list[object], seconds: float = 60) -> None:
        """Until something is in ``done``."""
        end = time.monotonic() + seconds
        while not done:
            assert time.monotonic() < end
            self.loop.turn(0.02)
            self.tasks.advance()

    def apply(self, configuration: bytes, **behaviours: str) -> EtwError | None:
        """The error of going over to these sources, if any."""
        done: list[object] = []

        def work() -> Iterator[object]:
            yield from self.sources.apply(self.wanted(**behaviours), configuration)
            return b""

        self.tasks.begin(work, lambda body, error: done.append((body, error)))  # type: ignore[arg-type]
        self.turn(done)
        error = done[0][1]  # type: ignore[index]
        assert error is None or isinstance(error, EtwError)
        return error

    def end(self) -> None:
        self.sources.stop()
        end = time.monotonic() + 60
        while not self.sources.gone:
            assert time.monotonic() < end
            self.loop.turn(0.02)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(tmp_path, stack)


def test_ready_configured_and_ended(rig: Rig, capfd: pytest.CaptureFixture[str]) -> None:
    assert rig.apply(b"first", kernel="works", branch="works") is None
    assert rig.apply(b"second", kernel="works", branch="works") is None
    assert rig.apply(b"second", kernel="works") is None
    assert not rig.sources.gone
    rig.end()
    assert sorted(capfd.readouterr().out.split()) == ["first", "first", "second", "second"]


def test_one_that_fails_gives_its_code(rig: Rig) -> None:
    error = rig.apply(b"first", kernel="fails")
    assert error is not None
    assert (error.status, error.reason) == (Status.PRIVILEGE_NOT_HELD, "no right to that")
    assert rig.apply(b"first", kernel="fails") is not None
    rig.end()


def test_a_configuration_that_is_refused_and_one_that_is_not(rig: Rig) -> None:
    assert rig.apply(b"good", kernel="works") is None
    refused = rig.apply(b"bad", kernel="works")
    assert refused is not None
    assert refused.status == Status.PRIVILEGE_NOT_HELD
    assert rig.apply(b"good", kernel="works") is None
    rig.end()


def test_one_that_dies_is_reported_and_started_again(rig: Rig) -> None:
    error = rig.apply(b"first", kernel="dies")
    assert error is not None
    assert (error.status, error.reason) == (Status.NO_SYSTEM_RESOURCES, "the kernel source ended with code 3")
    assert rig.sources.gone
    assert rig.apply(b"first", kernel="works") is None
    rig.end()


def test_one_that_says_nothing_is_not_waited_for_without_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOURCE_TIMEOUT", 0.5)
    error = rig.apply(b"first", kernel="silent")
    assert error is not None
    assert error.status == Status.TIMEOUT


def test_one_that_does_not_end_is_killed(rig: Rig) -> None:
    assert rig.apply(b"first", kernel="stays") is None
    rig.sources.stop()
    rig.loop.turn(0.05)
    assert not rig.sources.gone
    rig.sources.kill()
    assert rig.sources.gone


def test_another_process_is_no_source(rig: Rig) -> None:
    with pytest.raises(EtwError) as caught:
        rig.sources.connect(Connection(socket.socketpair()[0]), 1)
    assert caught.value.status == Status.ACCESS_DENIED
