"""print_tb5, tbrw_reader and tbrw_writer, run as programs and from inside."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tbrw_recipe as recipe
from captures import Data
from fuzz_tb5 import mend
from lastbranch import demo, tbrw
from lastbranch import open as open_profile
from lastbranch.cli import run as run_program
from lastbranch.formats.tb5.layout import STRINGS, Scope, Table
from lastbranch.formats.tb5.profile_writer import write_profile
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.formats.tb5.writer import Tb5Writer
from lastbranch.opening import FileSource

PROGRAMS = ("print_tb5", "tbrw_reader", "tbrw_writer")


@dataclass
class Ran:
    code: int
    out: str
    err: str


def run(program: str, *args: str | Path) -> Ran:
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    argv = [program, *map(str, args)]
    with (
        mock.patch.object(sys, "argv", argv),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        run_program(import_module(f"lastbranch.cli.{program}").command, program)
    out.seek(0)
    return Ran(end.value.code or 0, out.read(), err.getvalue())


def contents(path: Path) -> tuple[list[str], dict[Table, tuple[int, bytes]]]:
    """Strings by id, and every table but those of strings, and of children that nothing has: exact bytes."""
    with Tb5File(FileSource(str(path))) as file:
        tables = {
            key: (file.record_size(key), file.read(key).tobytes())
            for key in file.tables
            if not (key.scope is Scope.STORE and key.section == STRINGS) and (file.count(key) or not key.part)
        }
        return list(file.all_strings()), tables


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A file with every section, three streams, and one of them without data."""
    path = tmp_path / "in" / "full.tb5"
    path.parent.mkdir()
    recipe.write_full(path)
    return path


def test_reader_then_writer_reproduces_the_file(full: Path, tmp_path: Path) -> None:
    ran = run("tbrw_reader", full, tmp_path / "full.dat")
    names = ["full.dat", "full.tb5.dat", "full.tb5.1.dat", "full.tb5.2.dat"]
    assert ran.code == 0, ran.err
    assert ran.err.splitlines() == [f"written: {tmp_path / name}" for name in names]
    assert (tmp_path / "full.tb5.dat").stat().st_size == 100 * 40, "the samples alone"
    ran = run("tbrw_writer", tmp_path / "full.dat", tmp_path / "again.tb5")
    assert ran.code == 0, ran.err
    assert contents(tmp_path / "again.tb5") == contents(full)
    assert run("print_tb5", tmp_path / "again.tb5").out == run("print_tb5", full).out


def test_reader_then_writer_reproduces_a_profile(tmp_path: Path) -> None:
    """With tables that the guide does not know."""
    write_profile(open_profile(demo.capture()), tmp_path / "profile.tb5")
    assert run("tbrw_reader", tmp_path / "profile.tb5", tmp_path / "profile.dat").code == 0
    ran = run("tbrw_writer", tmp_path / "profile.dat", tmp_path / "again.tb5")
    assert ran.code == 0, ran.err
    assert contents(tmp_path / "again.tb5") == contents(tmp_path / "profile.tb5")
    assert open_profile(tmp_path / "again.tb5").samples == 240


@pytest.mark.parametrize("name", ["demo_2proc", "snb_raw_callchain_branch-3.4", "hsw_5820k_16deep_attr136"])
def test_real_captures_go_through_both_programs(data: Data, tmp_path: Path, name: str) -> None:
    profile = open_profile(data.path(name))
    write_profile(profile, tmp_path / "profile.tb5")
    assert run("tbrw_reader", tmp_path / "profile.tb5", tmp_path / "profile.dat").code == 0
    ran = run("tbrw_writer", tmp_path / "profile.dat", tmp_path / "again.tb5")
    assert ran.code == 0, ran.err
    assert contents(tmp_path / "again.tb5") == contents(tmp_path / "profile.tb5")
    with tbrw.open_file(tmp_path / "again.tb5", "a") as file:
        file.verify()
        file.bind(0)
        with file.reading_stream(0) as stream:
            assert len(stream.array()) == len(stream.bound()) == profile.samples
    assert run("print_tb5", tmp_path / "again.tb5").code == 0


def test_reader_leaves_binding_out(full: Path, tmp_path: Path) -> None:
    before = contents(full)
    with tbrw.open_file(full, "a") as file:
        file.bind(0)
    assert run("tbrw_reader", full, tmp_path / "full.dat").code == 0
    assert run("tbrw_writer", tmp_path / "full.dat", tmp_path / "again.tb5").code == 0
    assert contents(tmp_path / "again.tb5") == before


def test_reader_does_not_write_over_its_own_output(full: Path, tmp_path: Path) -> None:
    ran = run("tbrw_reader", full, tmp_path / "full.tb5.dat")
    assert ran.code != 0
    assert "give a different one" in ran.err


def folder(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir() if p.is_file()}


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_input_is_not_written_over(full: Path, link: Callable[[Path, Path], None] | None) -> None:
    assert run("tbrw_reader", full, full.with_name("x.dat")).code == 0
    there = dict.fromkeys(["full.tb5", "x.dat", "full.tb5.dat"])
    names = {name: full.with_name(name if link is None else f"link.{name}") for name in there}
    if link is not None:
        for name, path in names.items():
            link(full.with_name(name), path)
    before = folder(full.parent)
    for args in (
        ["tbrw_reader", full, names["full.tb5"]],
        ["tbrw_writer", full.with_name("x.dat"), names["x.dat"]],
        ["tbrw_writer", full.with_name("x.dat"), names["full.tb5.dat"]],
    ):
        ran = run(*args)
        assert ran.code == 2
        assert "give a different one" in ran.err
        assert folder(full.parent) == before


@pytest.mark.parametrize("change", ["missing", "half", "one less", "one more", "one changed", "cut", "text"])
def test_writer_replaces_nothing_unless_all_of_the_input_is_there(full: Path, tmp_path: Path, change: str) -> None:
    assert run("tbrw_reader", full, tmp_path / "x.dat").code == 0
    (tmp_path / "good.tb5").write_bytes(full.read_bytes())
    records = tmp_path / "full.tb5.1.dat"
    data = records.read_bytes()
    records.write_bytes(
        {
            "half": data[:-6],
            "one less": data[:-12],
            "one more": data + bytes(12),
            "one changed": bytes(12) + data[12:],
        }.get(change, data)
    )
    if change == "missing":
        records.unlink()
    if change == "cut":
        (tmp_path / "x.dat").write_bytes((tmp_path / "x.dat").read_bytes()[:-30])
    if change == "text":
        (tmp_path / "x.dat").write_bytes((tmp_path / "x.dat").read_bytes().replace(b"testhost", b"tEsthost"))
    before = folder(tmp_path)
    ran = run("tbrw_writer", tmp_path / "x.dat", tmp_path / "good.tb5")
    assert ran.code == 3
    assert str(tmp_path / "x.dat" if change in ("cut", "text") else records) in ran.err
    assert ("was written with 1000 records of 12 bytes" in ran.err) == (change in ("half", "one less", "one more"))
    assert folder(tmp_path) == before


def test_writer_that_fails_late_replaces_nothing(full: Path, tmp_path: Path) -> None:
    assert run("tbrw_reader", full, tmp_path / "x.dat").code == 0
    before = folder(tmp_path)
    with mock.patch("lastbranch.tbrw.interchange._copy_unknown", side_effect=OSError(28, "no space left")):
        assert run("tbrw_writer", tmp_path / "x.dat", tmp_path / "x.tb5").code != 0
    assert folder(tmp_path) == before


def test_reader_of_a_damaged_file_replaces_nothing(full: Path, tmp_path: Path) -> None:
    assert run("tbrw_reader", full, tmp_path / "x.dat").code == 0
    data = bytearray(full.read_bytes())
    data[data.index(recipe.sample(0x1000 * 50, 50))] ^= 1
    full.write_bytes(data)
    before = folder(tmp_path)
    ran = run("tbrw_reader", "--force", full, tmp_path / "x.dat")
    assert ran.code == 3
    assert folder(tmp_path) == before


def test_programs_tell_that_a_file_is_damaged(full: Path, tmp_path: Path) -> None:
    full.write_bytes(full.read_bytes()[:-1])
    for args in (["print_tb5", full], ["tbrw_reader", full, tmp_path / "x.dat"]):
        ran = run(*args)
        assert ran.code == 1
        assert f"warning: {full}" in ran.err


def test_records_have_no_file_elsewhere(full: Path, tmp_path: Path) -> None:
    assert run("tbrw_reader", full, tmp_path / "x.dat").code == 0
    with Tb5File(FileSource(str(tmp_path / "x.dat"))) as left, Tb5Writer.create(tmp_path / "y.dat") as other:
        for text in left.all_strings():
            other.string(text)
        for key in left.tables:
            if not (key.scope is Scope.STORE and key.section == STRINGS):
                moved = left.bytes(key).replace(b"full.tb5.dat", b"../ll.tb5.da")
                other.put(key, moved if moved != left.bytes(key) else left.read(key))
    os.replace(tmp_path / "y.dat", tmp_path / "x.dat")
    ran = run("tbrw_writer", tmp_path / "x.dat", tmp_path / "again.tb5")
    assert ran.code == 3
    assert "no file name" in ran.err


def test_print_shows_every_section_and_its_values(full: Path) -> None:
    with tbrw.open_file(full, "a") as file:
        file.bind(0)
    ran = run("print_tb5", full)
    assert ran.code == 0, ran.err
    for section in tbrw.Section:
        assert f"section {section.name}\n" in ran.out
    for expected in (
        "stream 0 (bound)",
        "stream 1 (not bound)",
        "data streams: 3",
        "host_name = 'testhost.intel.com'",
        "cpuid_ebx = 0x756e6547",
        "pid_name = 'näme 2'",
        "TBRW_MODULE 4",
        "module_load_address = 0x4000",
        "event_name = 'SampleEvent'",
        "detail_value = 0xffe17b80",
        "desc_name = 'TimeStamp'",
        "comment = 'first'",
        "sampling_start_time.dwLowDateTime = 1526932352",
        "module=3 process=none",
    ):
        assert expected in ran.out, expected
    assert ran.out.count(" TimeStamp=") == 100
    assert "  0x0000  66 69 72 73 74" in ran.out, "user-defined data of stream 1"


def test_print_shows_the_half_of_a_record_that_holds(tmp_path: Path) -> None:
    narrow, wide = recipe.sample(), tbrw.TBRW_SampleRecordPC(iip=0x7F0000001234, ipsr=3 << 32, IA64PC=1)
    with tbrw.open_file(tmp_path / "a.tb5", "w") as file:
        recipe.write_globals(file.handle, [])
        recipe.write_stream(file.handle, [(one, recipe.time_stamp()) for one in (narrow, wide)])
    first, second = [line for line in run("print_tb5", tmp_path / "a.tb5").out.splitlines() if "TimeStamp=" in line]
    assert "eip=0x617000 eflags=0x246 csd_lowWord=0xffff csd_highWord=0xcf9b00" in first
    assert "iip" not in first
    assert "iip=0x7f0000001234 ipsr=0x300000000" in second
    assert "eip" not in second
    assert "eflags" not in second


def test_programs_fail_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no such file")
    for args in (
        ["print_tb5", tmp_path / "text"],
        ["tbrw_reader", tmp_path / "text", tmp_path / "out"],
        ["tbrw_writer", tmp_path / "text", tmp_path / "out.tb5"],
    ):
        ran = run(*args)
        assert ran.code == 3, (args, ran)
        assert ran.err.startswith("error: ")
        assert str(tmp_path / "text") in ran.err
    assert not (tmp_path / "out.tb5").exists()
    for program in PROGRAMS:
        ran = run(program)
        assert ran.code == 2
        assert "Usage" in ran.err
        ran = run(program, tmp_path / "none", *[tmp_path / "x"] * (program != "print_tb5"))
        assert ran.code in (1, 3)
        assert ran.err.startswith("error: ")


@pytest.mark.parametrize("program", PROGRAMS)
def test_usage_is_that_of_the_guide(program: str) -> None:
    usage = {
        "print_tb5": "print_tb5 [OPTIONS] TB5FILE",
        "tbrw_reader": "tbrw_reader [OPTIONS] UNBOUND_TB5_FILE OUTPUT_FILE_NAME",
        "tbrw_writer": "tbrw_writer [OPTIONS] INPUT_DATA_FILE_NAME TB5_FILE_NAME",
    }
    assert usage[program] in run(program, "--help").out


@pytest.fixture(scope="module")
def transferred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transferred")
    recipe.write_recipe(folder / "a.tb5")
    assert run("tbrw_reader", folder / "a.tb5", folder / "a.dat").code == 0
    return folder


@mock.patch("os.fsync", new=id)  # durability is not what is tested here
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_transfer_files_end_in_a_message(transferred: Path, data: st.DataObject) -> None:
    broken = bytearray((transferred / "a.dat").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        broken = broken[: data.draw(st.integers(0, len(broken)))]
    if len(broken) > 1088 and data.draw(st.booleans()):  # damage that no checksum finds
        mend(broken)
    (transferred / "broken.dat").write_bytes(broken)
    ran = run("tbrw_writer", "--force", transferred / "broken.dat", transferred / "b.tb5")
    assert ran.code in (0, 1, 3)
    assert ran.code == 0 or ran.err.startswith("error: ")


def test_output_to_a_closed_pipe_is_no_error(full: Path) -> None:
    code = "from lastbranch.cli.print_tb5 import main; main()"
    child = subprocess.Popen([sys.executable, "-c", code, full], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.close()
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, b"")
