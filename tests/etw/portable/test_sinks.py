"""Where a session's buffers end up, mode by mode; and disks that are full, slow to give, or gone."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lastbranch.etw.flags import LogFileMode as Mode
from lastbranch.etw.portable.request import Host, adjusted
from lastbranch.etw.portable.session.log_file import RESERVE, Disk, open_log
from lastbranch.etw.portable.session.logger import Logger
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.status import EtwError, Status
from session_rig import ANY_DISK, Rig, read

ONE_CPU = Host(1, 1 << 32)
FULL = (4096 - 72) // 104


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.etl"


def run(rig: Rig, buffers: int) -> Any:
    """Fill so many buffers of one writer, with polls between, and stop."""
    writer = rig.writer()
    for _ in range(buffers):
        rig.write(writer, FULL)
        rig.poll()
    return rig.stop()


def test_the_file_is_there_and_readable_from_the_begin(file: Path) -> None:
    """So is it if the daemon is killed: nothing is renamed or completed first."""
    rig = Rig(file=str(file), buffer_size=4)
    assert os.listdir(file.parent) == [file.name]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read(file).events == []
    assert read(file).header.end_time == 0
    writer = rig.writer()
    rig.write(writer, 3 * FULL)
    rig.poll()
    assert read(file).numbers == list(range(len(read(file).events)))
    header = read(file).header
    assert (header.session_name, header.logger_id) == ("rig", 5)
    assert header.cpu_mhz > 0  # a peer divides by it, whatever the clock
    assert header.start_time == rig.filetime() - rig.time // 100 + 10**7  # one second after the clocks' begin
    rig.time += 10**9
    rig.stop()
    assert read(file).header.end_time == rig.filetime()


def test_an_old_file_is_replaced(file: Path) -> None:
    file.write_bytes(bytes(1 << 20))
    file.chmod(0o644)
    run(Rig(file=str(file), buffer_size=4), 2)
    assert read(file).numbers == list(range(2 * FULL))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_sequential_file_stops_at_its_size(file: Path) -> None:
    mode = Mode.FILE_MODE_SEQUENTIAL | Mode.USE_KBYTES_FOR_SIZE
    state = run(Rig(file=str(file), buffer_size=4, mode=mode, maximum_file_size=20), 9)
    found = read(file)
    assert file.stat().st_size == 20 * 1024
    assert found.numbers == list(range(4 * FULL))
    assert (state.log_buffers_lost, state.events_lost) == (5, 5 * FULL)
    assert (found.header.buffers_lost, found.header.events_lost, found.header.buffers_written) == (5, 5 * FULL, 5)


@pytest.mark.parametrize("compressed", [0, Mode.COMPRESSED_MODE])
def test_a_circular_file_keeps_the_newest(file: Path, compressed: int) -> None:
    mode = Mode.FILE_MODE_CIRCULAR | Mode.USE_KBYTES_FOR_SIZE | compressed
    state = run(Rig(file=str(file), buffer_size=4, mode=mode, maximum_file_size=24), 40)
    found = read(file).numbers
    assert file.stat().st_size <= 24 * 1024
    assert found == list(range(found[0], 40 * FULL))
    assert len(found) >= 5 * FULL
    assert state.events_lost == 0
    if not compressed:
        assert len(found) == 5 * FULL


def test_a_series_of_files(tmp_path: Path) -> None:
    mode = Mode.FILE_MODE_NEWFILE | Mode.USE_KBYTES_FOR_SIZE
    rig = Rig(file=str(tmp_path / "a%d.etl"), buffer_size=4, mode=mode, maximum_file_size=12)
    writer = rig.writer()
    for _ in range(3):
        rig.write(writer, FULL)
        rig.poll()
    rig.logger.increment_file()
    rig.write(writer, FULL)
    state = rig.stop()
    assert sorted(os.listdir(tmp_path)) == ["a1.etl", "a2.etl", "a3.etl"]
    parts = [read(tmp_path / f"a{n}.etl") for n in (1, 2, 3)]
    assert [part.numbers for part in parts] == [
        list(range(2 * FULL)),
        list(range(2 * FULL, 3 * FULL)),
        list(range(3 * FULL, 4 * FULL)),
    ]
    assert [part.header.buffers_written for part in parts] == [3, 2, 2]
    assert state.buffers_written == 7


def test_only_a_series_has_a_next_file(file: Path) -> None:
    rig = Rig(file=str(file))
    with pytest.raises(EtwError) as caught:
        rig.logger.increment_file()
    assert caught.value.status == Status.INVALID_PARAMETER
    rig.stop()


@pytest.mark.parametrize("compressed", [0, Mode.COMPRESSED_MODE])
def test_append(file: Path, compressed: int) -> None:
    mode = Mode.FILE_MODE_APPEND | compressed
    for session in range(3):
        rig = Rig(file=str(file), buffer_size=4, mode=mode, begin=1 + session)
        rig.offered = session * 100
        writer = rig.writer()
        rig.write(writer, 50)
        rig.stop()
    found = read(file)
    assert found.numbers == [session * 100 + n for session in range(3) for n in range(50)]
    assert [header.buffers_written for header in found.headers] == [3, 3, 3]


def test_append_only_to_its_like(file: Path) -> None:
    for content in (b"not a trace", bytes(100_000)):
        file.write_bytes(content)
        with pytest.raises(EtwError) as caught:
            Rig(file=str(file), mode=Mode.FILE_MODE_APPEND)
        assert caught.value.status == Status.INVALID_PARAMETER
        assert file.read_bytes() == content
    run(Rig(file=str(file), buffer_size=4), 1)
    with pytest.raises(EtwError):
        Rig(file=str(file), buffer_size=8, mode=Mode.FILE_MODE_APPEND)


def test_preallocate_reserves_and_gives_back(file: Path) -> None:
    mode = Mode.FILE_MODE_SEQUENTIAL | Mode.FILE_MODE_PREALLOCATE
    rig = Rig(file=str(file), buffer_size=4, mode=mode, maximum_file_size=1)
    assert file.stat().st_size == 1 << 20
    assert file.stat().st_blocks * 512 >= 1 << 20
    run(rig, 3)
    assert file.stat().st_size == 4 * 4096
    assert read(file).numbers == list(range(3 * FULL))


def test_compressed(file: Path) -> None:
    mode = Mode.FILE_MODE_SEQUENTIAL | Mode.COMPRESSED_MODE
    rig = Rig(file=str(file), mode=mode, maximum_buffers=16)
    writer = rig.writer()
    rig.write(writer, 2000)
    assert rig.stop().events_lost == 0
    assert file.stat().st_size < 2000 * 104 // 2
    assert read(file).numbers == list(range(2000))


def test_private_sessions_write_a_file_for_each_process(file: Path) -> None:
    rig = Rig(file=str(file), buffer_size=4, mode=Mode.FILE_MODE_SEQUENTIAL | Mode.PRIVATE_LOGGER_MODE)
    assert os.listdir(file.parent) == []
    writer = rig.writer()
    rig.write(writer, 10)
    state = rig.stop()
    assert os.listdir(file.parent) == [f"a.etl_{os.getpid()}"]
    found = read(f"{file}_{os.getpid()}")
    assert found.numbers == list(range(10))
    assert found.header.file_name == f"{file}_{os.getpid()}"
    assert state.buffers_written == 2


def test_delayed_file(file: Path) -> None:
    rig = Rig(file=str(file), buffer_size=4, mode=Mode.FILE_MODE_SEQUENTIAL | Mode.DELAY_OPEN_FILE_MODE)
    assert not file.exists()
    run(rig, 1)
    assert read(file).numbers == list(range(FULL))


# -- buffering


def buffering(**more: Any) -> Rig:
    return Rig(ONE_CPU, mode=Mode.BUFFERING_MODE, buffer_size=4, minimum_buffers=6, **more)


def test_buffering_keeps_the_newest_in_memory(file: Path) -> None:
    """Six buffers, one of which has begun, though the session never looked at them."""
    rig = buffering(file=str(file))
    assert not file.exists()
    writer = rig.writer()
    assert rig.write(writer, 20 * FULL + 5) == 20 * FULL + 5
    rig.logger.flush()
    assert read(file).numbers == list(range(15 * FULL, 20 * FULL + 5))
    rig.logger.flush(str(file.with_name("b.etl")))
    assert read(file.with_name("b.etl")).numbers == list(range(15 * FULL, 20 * FULL + 5))
    rig.write(writer, 5)
    state = rig.stop()
    assert (state.events_lost, state.number_of_buffers) == (0, 6)
    assert read(file).numbers == list(range(15 * FULL, 20 * FULL + 10))


def test_buffering_keeps_what_a_writer_that_left_had(file: Path) -> None:
    rig = buffering(file=str(file))
    for cleanly in (True, False):
        writer = rig.writer()
        rig.write(writer, 5)
        rig.gone(writer, cleanly=cleanly)
    rig.stop()
    assert read(file).numbers == list(range(10))


def test_buffering_without_a_file_ends_without_one(tmp_path: Path) -> None:
    rig = buffering()
    run(rig, 3)
    assert os.listdir(tmp_path) == []


# -- another file


def test_update_to_another_file(file: Path) -> None:
    rig = Rig(file=str(file), buffer_size=4)
    writer = rig.writer()
    rig.write(writer, 10)
    other = file.with_name("b.etl")
    from dataclasses import replace

    rig.logger.update(replace(rig.request, file=str(other), maximum_buffers=50, flush_timer=3))
    rig.write(writer, 10)
    state = rig.stop()
    assert (read(file).numbers, read(other).numbers) == (list(range(10)), list(range(10, 20)))
    assert (state.request.maximum_buffers, state.request.file, state.buffers_written) == (50, str(other), 4)


def test_update_to_a_file_that_cannot_be_changes_nothing(file: Path) -> None:
    rig = Rig(file=str(file), buffer_size=4)
    writer = rig.writer()
    from dataclasses import replace

    with pytest.raises(EtwError) as caught:
        rig.logger.update(replace(rig.request, file=str(file.parent / "none" / "b.etl")))
    assert (caught.value.status, caught.value.call) == (Status.BAD_PATHNAME, "ControlTrace")
    rig.write(writer, 10)
    rig.stop()
    assert read(file).numbers == list(range(10))


# -- what cannot be


def request(file: Path | str, **more: Any) -> SessionRequest:
    return adjusted(SessionRequest(name="rig", file=str(file), **more), ONE_CPU)


def refused(*arguments: Any, **more: Any) -> Status:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(EtwError) as caught:
        Logger(*arguments, 1, **{"disk": ANY_DISK, **more})
    assert len(os.listdir("/proc/self/fd")) <= before  # what other tests left may be collected meanwhile
    return caught.value.status


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "real.etl").write_bytes(b"mine")
    (tmp_path / "link.etl").symlink_to(tmp_path / "real.etl")
    os.mkfifo(tmp_path / "pipe.etl")
    assert refused(request(tmp_path / "none" / "a.etl")) == Status.BAD_PATHNAME
    assert refused(request(tmp_path / "real.etl" / "a.etl")) == Status.BAD_PATHNAME
    assert refused(request(tmp_path / ("a" * 300))) == Status.BAD_PATHNAME
    assert refused(request(tmp_path / "link.etl")) == Status.ACCESS_DENIED
    assert refused(request(tmp_path / "pipe.etl")) == Status.ACCESS_DENIED
    assert refused(request(tmp_path)) == Status.ACCESS_DENIED
    assert (tmp_path / "real.etl").read_bytes() == b"mine"


def test_one_session_a_file(file: Path) -> None:
    rig = Rig(file=str(file))
    assert refused(request(file)) == Status.ALREADY_EXISTS
    run(rig, 1)
    run(Rig(file=str(file)), 1)


def test_the_reserve_of_the_systems_drive(file: Path) -> None:
    def disk(free: int, system: bool) -> Disk:
        return Disk(free=lambda folder: free, system=lambda folder: system)

    short = RESERVE + (100 << 20) - 1
    asked = request(file, maximum_file_size=100)
    assert refused(asked, disk=disk(short, True)) == Status.DISK_FULL
    assert refused(request(file), disk=disk(RESERVE - 1, True)) == Status.DISK_FULL
    assert not file.exists()
    for free, system in ((short + 1, True), (short, False), (0, False)):
        logger = Logger(asked, 1, disk=disk(free, system))
        logger.discard()
    assert not file.exists()


def test_a_file_with_no_room_for_a_buffer(file: Path) -> None:
    mode = Mode.FILE_MODE_CIRCULAR | Mode.USE_KBYTES_FOR_SIZE
    assert refused(request(file, mode=mode, maximum_file_size=100)) == Status.INVALID_PARAMETER


def test_the_clock_that_there_is_not(file: Path) -> None:
    assert refused(request(file, clock=3)) == Status.INVALID_PARAMETER
    assert not file.exists()


def test_preallocation_without_room(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    mode = Mode.FILE_MODE_SEQUENTIAL | Mode.FILE_MODE_PREALLOCATE
    assert refused(request(file, mode=mode, maximum_file_size=100)) == Status.DISK_FULL
    assert not file.exists()


def test_names_that_are_longer_than_the_header_buffer(file: Path) -> None:
    rig = Rig(file=str(file), buffer_size=4)
    rig.stop()
    logger = Logger(adjusted(SessionRequest(name="n" * 1024, file=str(file), buffer_size=4), ONE_CPU), 1, disk=ANY_DISK)
    logger.poll()
    logger.stop()
    header = read(file).header
    assert (header.session_name, header.file_name) == ("n" * 1024, str(file))
    logger = Logger(adjusted(SessionRequest(name="\U0001f600" * 1024, file=str(file)), ONE_CPU), 1, disk=ANY_DISK)
    logger.poll()
    logger.stop()
    assert read(file).header.session_name == "\U0001f600" * 1024


# -- disks that fail


TOOLS = Path(__file__).parents[2] / "tools"
_FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from session_rig import Rig, read
file = Path(sys.argv[2])
rig = Rig(file=str(file), buffer_size=4, maximum_buffers=64)
writer = rig.writer()
rig.write(writer, 100)
rig.poll()
resource.setrlimit(resource.RLIMIT_FSIZE, (6 * 4096 + 100, resource.RLIM_INFINITY))
for _ in range(10):
    rig.write(writer, 38)
    rig.poll()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
rig.write(writer, 38 * 2)
state = rig.stop()
print(rig.offered, state.events_lost, state.log_buffers_lost)
"""


def test_a_full_disk_loses_what_it_cannot_hold_and_nothing_else(file: Path) -> None:
    argv = [sys.executable, "-B", "-c", _FULL_DISK, str(TOOLS), str(file)]
    offered, lost, buffers = map(int, subprocess.run(argv, check=True, capture_output=True).stdout.split())
    found = read(file)
    assert lost > 0
    assert buffers > 0
    assert len(found.numbers) + lost == offered
    assert found.numbers[-1] == offered - 1  # it went on when there was room again
    assert (found.header.events_lost, found.header.buffers_lost) == (lost, buffers)


def test_a_directory_that_vanishes(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    mode = Mode.FILE_MODE_NEWFILE | Mode.USE_KBYTES_FOR_SIZE
    rig = Rig(file=str(folder / "a%d.etl"), buffer_size=4, mode=mode, maximum_file_size=12)
    writer = rig.writer()
    rig.write(writer, FULL)
    rig.poll()
    shutil.rmtree(folder)
    for _ in range(4):
        rig.write(writer, FULL)
        rig.poll()
    folder.mkdir()
    rig.write(writer, FULL)
    rig.poll()
    state = rig.stop()
    kept = read(folder / "a2.etl").numbers
    assert kept[-1] == rig.offered - 1
    # What went to the files that were removed is gone with them, and was delivered once.
    assert 0 < state.events_lost <= rig.offered - len(kept)


def test_the_lock_goes_with_the_descriptor(file: Path) -> None:
    fd = open_log(str(file), append=False)
    with pytest.raises(EtwError):
        open_log(str(file), append=False)
    os.close(fd)
    os.close(open_log(str(file), append=False))
