"""Which file of this host ran, where no build id was recorded, as of programs that have only Go's note."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import lastbranch
from lastbranch.binaries import read_image
from lastbranch.bind.joined import SharedModules
from lastbranch.model import BytesSource, Module
from perfdata_writer import Builder, inode_of
from small_elf import GO_NOTE, tiny_elf

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows identifies files by other means")

PROGRAM = tiny_elf(b"\x90\x90\xeb\xfc".ljust(0x1800, b"\xcc"), GO_NOTE)
AT = 0x401000
Inode = dict[str, int]
OTHER = {"maj": 8, "min": 1, "ino": 77, "ino_generation": 5}
NOT_USED = "not used: no build id was recorded to identify it"


def capture(
    path: Path, *inodes: Inode, build_id: bytes | None = None, length: int = 0x2000, seconds: int | None = None
) -> Path:
    """The loop of ``path`` for a while, mapped once for each of the ``inodes``. ``seconds`` is when, since 1970."""
    b = Builder()
    if seconds is not None:
        b.feature("CLOCK_DATA", version=1, clockid=1, wall=seconds * 10**9, clock=0)
    b.comm(pid=7, name="it", time=1, exec=True)
    for inode in inodes or [{}]:
        b.mmap2(pid=7, addr=AT, length=length, pgoff=0x1000, name=str(path), time=2, build_id=build_id, **inode)
    for i in range(9):
        b.sample(ip=AT, pid=7, time=10 + i, branches=[(AT + 2, AT, 0)] * 4)
    out = path.with_name("x.data")
    out.write_bytes(b.build())
    return out


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "calls"
    path.write_bytes(PROGRAM)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


def module_of(path: Path) -> Module:
    (module,) = lastbranch.open(path).modules
    return module


def test_gos_note_is_no_build_id() -> None:
    assert read_image(BytesSource(PROGRAM)).build_id is None


def test_a_file_that_was_not_written_since_is_known_by_its_inode(program: Path) -> None:
    module = module_of(capture(program, inode_of(program)))
    assert (module.binary, module.missing, module.unverified) == (str(program), "", False)


def _written_since(path: Path) -> None:
    os.utime(path, (4_000_000_000, 4_000_000_000))


def _replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(PROGRAM)
    os.utime(other, (1_000_000_000, 1_000_000_000))
    other.replace(path)


@pytest.mark.parametrize(("seconds", "known"), [(999_999_999, False), (1_000_000_000, True)])
def test_when_it_was_recorded_is_in_the_capture_or_the_time_of_its_file(
    program: Path, seconds: int, known: bool
) -> None:
    taken = capture(program, inode_of(program), seconds=seconds)
    assert bool(module_of(taken).binary) == known
    taken = capture(program, inode_of(program))
    os.utime(taken, (seconds, seconds))
    assert bool(module_of(taken).binary) == known


@pytest.mark.parametrize("change", [_written_since, _replaced, Path.unlink])
def test_one_that_is_another_now_is_not_used(program: Path, change: Callable[[Path], None]) -> None:
    taken = capture(program, inode_of(program))
    change(program)
    module = module_of(taken)
    assert (module.binary, module.missing) == ("", NOT_USED)


@pytest.mark.parametrize("field", ["maj", "min", "ino", "ino_generation"])
def test_another_inode_is_another_file(program: Path, field: str) -> None:
    """Also one of the same number, which was given to another file before."""
    inode = inode_of(program)
    if not inode["ino_generation"] and field == "ino_generation":
        pytest.skip("this file system does not tell generations of inodes")
    inode[field] ^= 1
    assert module_of(capture(program, inode)).missing == NOT_USED


def test_nor_does_a_name_that_several_files_had(program: Path) -> None:
    inode = inode_of(program)
    for inodes in ((inode, OTHER), (OTHER, inode), (inode, OTHER, inode)):
        assert module_of(capture(program, *inodes)).missing == NOT_USED
    assert module_of(capture(program, inode, inode)).binary


@pytest.mark.parametrize("zeros", [None, bytes(20)], ids=["none", "of zeros"])
def test_without_inode_and_build_id_the_user_says_which_file_it_is(run, program: Path, zeros: bytes | None) -> None:
    """And is told what could be compared, and what could not."""
    taken = capture(program, build_id=zeros)
    assert module_of(taken).missing == NOT_USED
    done = run("export", taken, "--to", "profgen", "--binary", program)
    assert done.code == 0, done.err
    said = (
        f"calls was recorded without a build id: only the size of its code shows that {program} is the binary that ran"
    )
    assert f"note: {said}" in done.err.replace("\n  ", " ")
    done = run("export", taken, "--to", "profgen", "--symfs", "/", "-o", program.with_name("folder"))
    assert done.code == 0, done.err
    assert "calls was recorded without a build id" in done.err


def test_a_file_whose_code_has_another_size_is_probably_another_build(run, program: Path) -> None:
    done = run("export", capture(program, length=0x3000), "--to", "profgen", "--binary", program)
    assert done.code == 0, done.err
    assert "probably another build than the one that ran" in done.err
    assert "it has 8192 bytes of code in whole pages, and 12288 were mapped" in done.err


def test_a_known_inode_needs_no_note(run, program: Path) -> None:
    done = run("export", capture(program, inode_of(program)), "--to", "profgen", "--binary", program)
    assert (done.code, done.err.count("build")) == (0, 0)


def test_what_is_given_by_the_user_stays_so_in_several_captures(program: Path) -> None:
    """The second capture brings the binary."""
    shared = SharedModules()
    first = Module(str(program), build_id=b"\1" * 20, missing="not found")
    second = replace(first, name="/other", missing="")

    def attach(modules: list[Module]) -> None:
        for module in modules:
            if module.name == "/other":
                module.binary, module.unverified = str(program), True

    shared.add([first], attach)
    shared.add([second], attach)
    assert [(m.binary, m.unverified) for m in shared.modules] == [(str(program), True)]
