"""A recording whose disk is full goes on in the folder for temporary files, and nothing of it is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capture_tools import needs_ptrace
from command_line import Ran
from lastbranch.capture import Request, Target, hardware
from lastbranch.capture.overflow import Overflow
from lastbranch.capture.traceable import CollectorError
from lastbranch.model.atomic_output import PartFile

Run = Callable[..., Ran]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="records on Linux")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB."""
    (folder := tmp_path / "small").mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    (folder := tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def recorded(path: Path) -> tuple[bytes, str]:
    """What is written of a recording on a disk that is full from some byte on, joined; and what is said of that."""
    data = os.urandom(300_000)
    with PartFile(path) as spill:
        overflow = Overflow(spill)
        with overflow.writer() as file:
            for at in range(0, len(data), 7000):
                file.write(data[at : at + 7000])
        whole, note = overflow.join()
        with whole:
            whole.file.seek(0)
            assert whole.file.readall() == data
    return data, note


def test_the_rest_goes_where_there_is_room(small: Path, elsewhere: Path) -> None:
    _, note = recorded(small / "a.data")
    assert note == f"the disk of {small / 'a.data'} was full: the recording went on in {elsewhere}, nothing is lost"
    assert not [*small.iterdir(), *elsewhere.iterdir()]
    assert recorded(elsewhere / "a.data")[1] == ""


def test_pieces_that_cannot_be_joined_are_both_kept(
    small: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, to: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lastbranch.capture.overflow.copy_whole", full)
    with pytest.raises(OSError, match="no room to join its pieces: `cat") as error:
        recorded(small / "a.data")
    command = error.value.strerror.partition("`")[2].partition("`")[0].replace("NAME.data", str(elsewhere / "whole"))
    subprocess.run(command, shell=True, check=True)
    assert (elsewhere / "whole").stat().st_size == 300_000


@needs_ptrace
@pytest.mark.parametrize("name", ["a.tb5", "a.data"])
def test_a_recording_on_a_full_disk_is_whole(name: str, run: Run, small: Path, elsewhere: Path) -> None:
    """It is where it was to be, if it fits there in the end, and else its place is said."""
    loop = "x = 0\nfor i in range(3000000): x += i"
    done = run("record", "--duty", "50", "-o", small / name, sys.executable, "-S", "-c", loop)
    assert "was full: the recording went on in" in done.err, done.err
    (place,) = [*small.glob("a.*"), *elsewhere.glob("*.data")]
    assert (done.code == 0) == (place == small / name), done.err
    assert done.code == 0 or str(place) in done.err
    info = run("info", place)
    assert (info.code, "cut off" in info.out + info.err) == (0, False)
    assert run("verify", place).code == 0


def test_what_the_hardware_recorder_has_written_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(target: object, wanted: object, path: str, **_: object) -> None:
        Path(path).write_bytes(b"records")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hardware, "collect_hardware", full)
    with pytest.raises(CollectorError, match="No space left on device; it ended there") as error:
        hardware.record_hardware(["true"], Request(Target(0)), str(tmp_path / "a.data"))
    (kept,) = tmp_path.iterdir()
    assert kept.read_bytes() == b"records"
    assert str(kept) in str(error.value.hint)
