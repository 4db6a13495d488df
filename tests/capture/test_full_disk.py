"""A recording whose disk fills goes on in the folder for temporary files. Where that is full, too, it ends as a whole
file that counts what it lacks."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from capture_tools import needs_ptrace
from command_line import Ran
from full_disks import MadeUpDisks, no_file_beyond, small_disk
from lastbranch.capture import CollectorError, Request, Target, record_hardware
from lastbranch.capture.full_disk import Overflow
from lastbranch.capture.perf_events.refusals import EventUnavailable
from lastbranch.capture.software.record_writer import RECORDS, BurstSample, RecordWriter
from lastbranch.formats.perfdata.layout import SAMPLE
from lastbranch.formats.perfdata.writer import Described, PerfFile, SideRecords, record, text
from lastbranch.lbr import PERF_SELECT
from lastbranch.model import Profile
from lastbranch.model.atomic_output import PartFile
from lastbranch.opening import open_profile
from waiting import until

Run = Callable[..., Ran]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="records on Linux")
LOOP = "x = 0\nfor i in range(3000000): x += i"
SAMPLES = 4000
"""Of about 100 bytes."""


@pytest.fixture(params=["mounted", "made up"])
def disks(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disks]:
    made = Disks(tmp_path, monkeypatch)
    if request.param == "made up":
        yield made
        return
    with small_disk(tmp_path / "output", "64k"), small_disk(tmp_path / "elsewhere", "256k"):
        made.mounted = True
        yield made


class Disks:
    """Two disks: of 64 kB for the output, and of 256 kB for temporary files, or large."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.output, self._small, self._large = (tmp_path / name for name in ("output", "elsewhere", "large"))
        self._patch, self.mounted = monkeypatch, False

    def elsewhere(self, *, large: bool) -> Path:
        """The folder for temporary files."""
        folder = self._large if large else self._small
        if not self.mounted:
            self.output.mkdir(exist_ok=True)
            rooms = {self.output: 64 << 10, folder: 1 << 30 if large else 256 << 10}
            self._patch.setattr("lastbranch.formats.perfdata.record_file.os", MadeUpDisks(rooms))
        folder.mkdir(exist_ok=True)
        self._patch.setenv("TMPDIR", str(folder))
        self._patch.setattr("tempfile.tempdir", str(folder))
        return folder


def write_pipe(overflow: Overflow, went_on: Callable[[], None] = lambda: None) -> int:
    """Record as the software recorder does; the number of records that had no room."""
    with closing(overflow.writer(went_on)) as file:
        out = RecordWriter(file, PERF_SELECT["ANY"], 1, 1)
        out.begin([7], ["test"])
        for number in range(SAMPLES):
            out.sample(BurstSample(number + 1, 5, 5, 0, 1, 2, 1), [(1, 2, 1)])
        out.write(RECORDS.exit(5, 5, SAMPLES + 1))
        out.end()
        assert out.full == (out.dropped > 0)
        return out.dropped


def write_file(overflow: Overflow, went_on: Callable[[], None] = lambda: None) -> int:
    """Record as the hardware recorder does."""
    sample_type = SAMPLE.IDENTIFIER | SAMPLE.IP | SAMPLE.TID | SAMPLE.TIME
    head = struct.pack("=IIQQQQQ", 1, 128, 0, 1000, sample_type, 0, 1 << 18)  # a clock, with sample_id_all
    records = SideRecords(sample_type, 7)
    file = PerfFile(overflow.spill.path, [Described("e", head.ljust(128, b"\0"), [7])], overflow.rest, went_on)
    for number in range(SAMPLES):
        file.write(record("SAMPLE", struct.pack("=QQiiQ64x", 7, 2, 5, 5, number + 1)))
    file.write(records.exit(5, 5, SAMPLES + 1))
    file.finish({"HOSTNAME": text("here")}, records.lost)
    assert file.full == (file.dropped > 0)
    return file.dropped


FORMS = pytest.mark.parametrize("write", [write_pipe, write_file])


def is_whole(profile: Profile, dropped: int) -> bool:
    """Whether a recording by one of these has all that was written but ``dropped`` records, and says so."""
    ended = [one.name for one in profile.damage], profile.samples + dropped, profile.lost.get("records", 0)
    assert ended == ([], SAMPLES, dropped)
    assert profile.processes[0].end == SAMPLES + 1, "the last record is there"
    return True


@FORMS
def test_the_rest_goes_where_there_is_room(write: Callable[..., int], disks: Disks) -> None:
    elsewhere, said = disks.elsewhere(large=True), list[str]()
    with PartFile(disks.output / "a.data") as spill:
        overflow = Overflow(spill)
        assert write(overflow, overflow.tells(said.append, watched=True)) == 0
        with overflow.join() as whole:
            assert is_whole(open_profile(whole.path), 0)
    (line,) = said
    assert line.startswith(f"the disk of {disks.output / 'a.data'} is full: the recording goes on in {elsewhere}; what")
    assert not [*disks.output.iterdir(), *elsewhere.iterdir()]


@FORMS
def test_two_full_disks_leave_one_file_that_counts_what_it_lacks(write: Callable[..., int], disks: Disks) -> None:
    elsewhere = disks.elsewhere(large=False)
    with PartFile(disks.output / "a.data") as spill:
        dropped = write(overflow := Overflow(spill))
        with overflow.join() as whole:
            assert os.path.dirname(whole.path) == str(elsewhere)
            assert 0 < dropped < SAMPLES
            assert is_whole(open_profile(whole.path), dropped)
            assert os.path.getsize(whole.path) > 80_000, "there is much of both"


@FORMS
@pytest.mark.parametrize("limit", [1 << 15, 100_000, 100_001, 131_072])
def test_a_file_that_may_not_grow_is_whole_and_counts_what_it_lacks(
    write: Callable[..., int], limit: int, tmp_path: Path
) -> None:
    """No other place would help, as the whole would be as large."""
    with PartFile(tmp_path / "a.data") as spill:
        overflow = Overflow(spill)
        with no_file_beyond(limit):
            dropped = write(overflow)
        with overflow.join() as whole:
            assert whole is spill
            assert 0 < dropped < SAMPLES
            assert is_whole(open_profile(whole.path), dropped)
            assert limit - 20_000 < os.path.getsize(whole.path) <= limit


def test_pieces_that_cannot_be_joined_are_both_kept(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, to: object) -> None:
        raise OSError(28, "No space left on device")

    elsewhere = disks.elsewhere(large=True)
    monkeypatch.setattr(sys.modules[Overflow.__module__], "copy_whole", full)
    with PartFile(disks.output / "a.data") as spill:
        overflow = Overflow(spill)
        write_pipe(overflow)
        with pytest.raises(
            CollectorError, match=r"a.data cannot be written: .*no room to join its pieces: `cat"
        ) as error:
            overflow.whole("a.data")
    command = str(error.value).partition("`")[2].partition("`")[0].replace("NAME.data", str(elsewhere / "whole"))
    subprocess.run(command, shell=True, check=True)
    assert is_whole(open_profile(elsewhere / "whole"), 0)


# -- from end to end


@needs_ptrace
@pytest.mark.parametrize("name", ["a.tb5", "a.data"])
def test_a_recording_on_a_full_disk_is_whole(name: str, run: Run, tmp_path: Path, disks: Disks) -> None:
    """It is where it was to be, if it fits there in the end, and else its place is said."""
    elsewhere = disks.elsewhere(large=True)
    command = "record", "--duty", "50", "-o", disks.output / name, sys.executable, "-S", "-c", LOOP
    done = run(*command, alone=disks.mounted)
    assert "is full: the recording goes on in" in done.err or not disks.mounted, done.err
    (place,) = [*disks.output.glob("a.*"), *elsewhere.glob("*.data")]
    assert (done.code == 0) == (place == disks.output / name), done.err
    assert done.code == 0 or str(place) in done.err
    info = run("info", place)
    assert (info.code, "cut off" in info.out + info.err) == (0, False)
    assert run("verify", place).code == 0


@needs_ptrace
@pytest.mark.parametrize("name", ["a.tb5", "a.data"])
def test_a_recording_that_finds_no_room_says_what_is_lost(name: str, run: Run, tmp_path: Path) -> None:
    output, ended = tmp_path / name, tmp_path / "ended"
    program = f"{LOOP}\nimport os; os.mkdir({str(ended)!r})"
    with no_file_beyond(48 << 10):
        done = run("record", "--duty", "50", "-o", output, sys.executable, "-S", "-c", program)
    found = re.search(r"the recording ended early: no disk has room for more, (\d+) records? of its end", done.err)
    assert (done.code, found is not None) == (125, True), done.err
    until(ended.is_dir)  # the program is none the worse for it
    (place,) = tmp_path.glob("a*")
    assert place == output or str(place) in done.err
    assert open_profile(place).lost["records"] == int(found[1])
    for verb in ("info", "report", "check"):
        seen = run(verb, place)
        assert re.search(rf"\b{found[1]} records?|records: {found[1]}\b", seen.out + seen.err), verb


@pytest.mark.parametrize("name", ["a.tb5", "a.data"])
def test_the_hardware_recorder_does_so_too(name: str, tmp_path: Path) -> None:
    wanted = Request(Target(), event="cpu-clock:u", branches=0, frequency=5000)
    try:
        with no_file_beyond(24 << 10), pytest.raises(CollectorError, match=r"no disk has room for more, \d+ rec"):
            record_hardware([sys.executable, "-S", "-c", LOOP], wanted, str(tmp_path / name))
    except EventUnavailable as error:
        pytest.skip(f"perf events: {error}")
    (place,) = tmp_path.iterdir()
    profile = open_profile(place)
    assert (profile.samples > 0, profile.lost["records"] > 0, profile.damage) == (True, True, [])


@needs_ptrace
def test_a_recording_in_several_files_leaves_each_one_whole(run: Run, disks: Disks) -> None:
    elsewhere = disks.elsewhere(large=True)
    done = run(
        "record",
        "--duty",
        "50",
        "--switch-output",
        "40K",
        "-o",
        disks.output / "a.data",
        sys.executable,
        "-S",
        "-c",
        LOOP,
    )
    files = [*disks.output.glob("a.*"), *elsewhere.iterdir()]
    assert len(files) > 2, done.err
    for file in files:
        assert not open_profile(file).damage
    assert all(str(file) in done.err for file in elsewhere.iterdir())
