"""A session with each logging mode: it starts with what the mode needs, or not, and its events are in its file."""

from __future__ import annotations

import sys

import pytest

from etw_modes import MODES, Mode
from etw_world import PROVIDER, World
from etw_world import world as world
from lastbranch import etw
from lastbranch.etw.flags import LogFileMode as M

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the portable kernel runs on Linux")


def _name(mode: Mode) -> str:
    return str(mode.mode.name)


def test_every_mode_has_a_row() -> None:
    assert {row.mode for row in MODES} == set(M.__members__.values())
    assert len(MODES) == len(M.__members__)


@pytest.mark.parametrize("row", MODES, ids=_name)
def test_each_mode(row: Mode, world: World) -> None:
    status, handle, made = world.start(
        file=row.file or None, LogFileMode=row.mode | row.beside, MaximumFileSize=row.size
    )
    assert status == row.code
    if row.code:
        return
    assert made.LogFileMode == (row.mode | row.beside or M.FILE_MODE_SEQUENTIAL)
    provider = world.provider(handle)
    assert world.write(provider, 40) == [0] * 40
    unread = 40 if row.mode == M.REAL_TIME_MODE else 0  # nobody has read them when the session ends
    assert world.stop(handle).EventsLost == unread
    found = [
        int.from_bytes(e.event.payload[:4], "little")
        for path in sorted(world.folder.glob("*.etl*"))
        for e in etw.consume(str(path))
        if e.event.provider == PROVIDER.bytes_le
    ]
    assert found == ([] if row.lost else list(range(40)))


def test_append_goes_on(world: World) -> None:
    for first in (0, 10):
        _, handle, _ = world.start(LogFileMode=M.FILE_MODE_APPEND)
        world.write(world.provider(handle), 10, first=first)
        world.stop(handle)
    assert world.read() == list(range(20))


def test_blocking_loses_nothing(world: World) -> None:
    _, handle, _ = world.start(LogFileMode=M.BLOCKING_MODE | M.FILE_MODE_SEQUENTIAL, BufferSize=4)
    provider = world.provider(handle)
    assert set(world.write(provider, 500, size=1000)) == {0}
    assert world.stop(handle).EventsLost == 0
    assert world.read() == list(range(500))


def test_a_delayed_file_comes_with_the_first_event(world: World) -> None:
    _, handle, _ = world.start(LogFileMode=M.DELAY_OPEN_FILE_MODE | M.FILE_MODE_SEQUENTIAL)
    assert not (world.folder / "x.etl").exists()
    world.write(world.provider(handle), 1)
    world.flush(handle)
    assert (world.folder / "x.etl").exists()
