"""Sessions in buffering mode whose daemon is killed: what they had is saved, exactly."""

from __future__ import annotations

import json
import os
import signal
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from command_line import run_cli
from lastbranch.etw.flags import Control, LogFileMode
from lastbranch.etw.portable.kernel import PortableKernel
from lastbranch.etw.portable.protocol import address_in
from lastbranch.etw.portable.provider.writer import Writer, connect_writer
from lastbranch.etw.portable.session.remains import _LEFT, _copies_left, left_sessions, rescue
from lastbranch.etw.portable.session_registry import Registry, process_key
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.status import EtwError, Status
from private_registry import private_kernel
from session_rig import event, read
from waiting import until

KEPT = 4
EACH = 3
"""Events that fill a buffer of 4 KB: each of 1,200 bytes."""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[PortableKernel]:
    with private_kernel(tmp_path / "etw") as made:
        yield made
        with made.registry.folder("remains") as folder:
            for name in os.listdir(folder):
                with suppress(OSError, ValueError):
                    os.kill(
                        json.loads((made.registry.root / "remains" / name).read_text())["keeper"][0], signal.SIGKILL
                    )


def start(kernel: PortableKernel) -> Registry:
    request = SessionRequest("flight", mode=LogFileMode.BUFFERING_MODE, buffer_size=4, minimum_buffers=KEPT)
    kernel.start(request, ())
    return kernel.registry


def writer_of(registry: Registry) -> Writer:
    entry = registry.find("flight")
    assert entry is not None
    with registry.folder("sessions") as folder:
        return connect_writer(address_in(folder, entry.socket))


def kill(registry: Registry) -> None:
    entry = registry.find("flight")
    assert entry is not None
    os.kill(entry.owner.pid, signal.SIGKILL)
    until(lambda: not entry.owner.alive)


def write(writer: Writer, numbers: range) -> None:
    for number in numbers:
        assert writer.write(event(number, writer.clock.now(), 1100))


def remains(registry: Registry) -> Path:
    (path,) = (one for one in (registry.root / "remains").iterdir() if one.suffix != ".new")
    return path


def test_the_newest_buffers_are_saved_exactly(kernel: PortableKernel, tmp_path: Path) -> None:
    """Those of a writer that had left, of one that goes on, and of one that is gone, too."""
    registry = start(kernel)
    left, goes_on, gone = (writer_of(registry) for _ in range(3))
    write(left, range(EACH))  # one buffer, and the oldest: too old in the end
    left.close()
    write(goes_on, range(100, 100 + 2 * EACH))
    write(gone, range(200, 200 + EACH))
    gone.close()
    until(lambda: len(json.loads(remains(registry).read_bytes())["slots"]) == 1)  # one that goes on
    write(goes_on, range(300, 300 + EACH))
    kill(registry)
    write(goes_on, range(400, 401))  # it has not noticed
    remains(registry).with_suffix(".new").write_bytes(remains(registry).read_bytes())  # killed while it wrote that
    assert left_sessions(registry) == ["flight"]
    made = run_cli("session", "rescue", "FLIGHT", "-o", tmp_path / "saved.etl")
    assert (made.code, made.err.split(" of ")[0]) == (0, "10 events in 4 buffers")
    expected = [*range(100 + EACH, 100 + 2 * EACH), *range(200, 200 + EACH), *range(300, 300 + EACH), 400]
    assert sorted(read(tmp_path / "saved.etl").numbers) == expected
    assert left_sessions(registry) == []
    assert not list((registry.root / "remains").iterdir())
    goes_on.close()
    again = run_cli("session", "rescue", "flight", "-o", tmp_path / "again.etl")
    assert (again.code, "there are: none" in again.err) == (5, True)


def remains_of(registry: Registry) -> bytes:
    with writer_of(registry):
        return remains(registry).read_bytes()


def gone(keeper: list[int]) -> bool:
    """Whether the process that kept the buffers of a session has ended: (its id, when it began)."""
    return process_key(keeper[0]).start != keeper[1]


def test_a_session_takes_the_place_of_what_was_left_and_in_order_leaves_nothing(
    kernel: PortableKernel, tmp_path: Path
) -> None:
    registry = start(kernel)
    writer = writer_of(registry)
    kill(registry)
    left = json.loads(remains(registry).read_bytes())["keeper"]
    start(kernel)
    until(lambda: gone(left))
    assert left_sessions(registry) == []
    writer.close()
    keeper = json.loads(remains_of(registry))["keeper"]
    with pytest.raises(EtwError) as caught:
        rescue("flight", str(tmp_path / "a.etl"))
    assert caught.value.status == Status.ALREADY_EXISTS
    kernel.control(Control.STOP, kernel.sessions()[0].handle, None)
    assert not list((registry.root / "remains").iterdir())
    until(lambda: gone(keeper))


def test_a_damaged_buffer_of_a_writer_that_left_is_named() -> None:
    """What precedes it is saved."""

    def kept(body: bytes) -> bytes:
        return _LEFT.pack(5, len(body), 1, 0, 77, zlib.crc32(body)) + body

    good = kept(bytes(range(16)))
    for spoiled, said in ((good[:-1] + b"?", "is damaged"), (good[:-1], "is damaged"), (good[:7], "end early")):
        damage: list[str] = []
        with open(os.memfd_create("left"), "w+b") as file:
            file.write(good + spoiled)
            file.flush()
            found = _copies_left(file.fileno(), damage)
        assert [(time, piece.owner, bytes(piece.bytes)) for time, piece in found] == [(5, 77, bytes(range(16)))]
        assert [f"{said}, at byte {len(good)}" in one for one in damage] == [True]


DAMAGES = (("version", 2, "version 2 of the pool"), ("geometry", [1, 2, 3, 4, 5, 6, 7], "no layout of pools"),
           ("slots", "none", "damaged, not the state of a session"))  # fmt: skip


def test_damaged_remains_are_named(kernel: PortableKernel, tmp_path: Path) -> None:
    registry = start(kernel)
    with writer_of(registry) as writer:
        write(writer, range(2))
        kill(registry)
        state = json.loads(remains(registry).read_bytes())
        for field, value, said in DAMAGES:
            remains(registry).write_text(json.dumps(state | {field: value}))
            made = run_cli("session", "rescue", "flight", "-o", tmp_path / "a.etl")
            assert (made.code, said in made.err) == (5, True), field
        remains(registry).write_text(json.dumps(state))
        writer.words[writer._slot] = 1 << 60  # a count of buffers that cannot be
        made = run_cli("session", "rescue", "flight", "-o", tmp_path / "a.etl")
        assert (made.code, "its counters or buffers are damaged" in made.err) == (1, True)
