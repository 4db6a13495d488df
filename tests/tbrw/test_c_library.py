"""libtbrw: the guide's programs in C and C++, compiled and run, against what Python makes of the same files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tbrw_recipe as recipe
from lastbranch.tbrw import open_file
from lastbranch.tbrw.c.build import build, missing
from lastbranch.tbrw.listing import list_lines

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "TBRW"
LEFT_ALONE = ("reserved", "desc_access")
"""Words of fields that the guide's recipe does not set: in C they hold what was in the memory before."""

_LACKING = missing() or next((f"there is no {name}" for name in ("g++", "make") if not shutil.which(name)), "")
pytestmark = pytest.mark.skipif(bool(_LACKING), reason=_LACKING)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make libtbrw` makes it, with all warnings as errors."""
    folder = tmp_path_factory.mktemp("libtbrw")
    build(folder)
    shutil.copytree(EXAMPLES, folder / "examples" / "TBRW")
    words = ["make", "-s", "-C", str(folder / "examples" / "TBRW"), "CC=gcc -Werror", "CXX=g++ -Werror"]
    subprocess.run(words, check=True)
    return folder


def example(package: Path, name: str) -> Path:
    return package / "examples" / "TBRW" / name


def run(*words: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=folder, check=False)


def listed(path: Path) -> list[str]:
    with open_file(path) as file:
        return list(list_lines(file))


def test_the_package_has_the_files_of_the_guide(package: Path) -> None:
    """1.2, as far as it is of Linux; 2.4.2, 2.5."""
    names = (
        "bin/libtbrw.so",
        "bin/libsampling_utils.so",
        "include/samprec_shared.h",
        "include/tbrw.h",
        "include/tbrw_types.h",
    )
    assert all((package / "analyzer" / name).is_file() for name in names)
    names = ("linux_setenv", "Makefile", "print_tb5.cpp", "tbrw_reader.cpp", "tbrw_writer.cpp", "sample.tb5")
    assert all(example(package, name).is_file() for name in names)
    with open_file(example(package, "sample.tb5")) as file:
        assert file.missing() == []
    found = run("bash", "-c", ". ./linux_setenv && echo $LD_LIBRARY_PATH", folder=example(package, ""))
    assert found.stdout.strip().split(":")[0] == str(package / "analyzer" / "bin")


def test_the_recipe_makes_the_file_that_python_makes(package: Path, tmp_path: Path) -> None:
    ran = run(example(package, "recipe"), tmp_path / "c.tb5")
    assert (ran.returncode, ran.stderr) == (0, "")
    recipe.write_recipe(tmp_path / "python.tb5")
    found, expected = (
        [line for line in listed(tmp_path / name) if not any(word in line.partition("=")[0] for word in LEFT_ALONE)]
        for name in ("c.tb5", "python.tb5")
    )
    assert found == expected


def test_chapter_10_says_what_it_lacks(package: Path, tmp_path: Path) -> None:
    words = example(package, "stream_info"), tmp_path / "a.tb5"
    ran = run(*words)
    assert (ran.returncode, ran.stdout) == (
        1,
        'TBRW_done_stream number 0 returned error "the stream has no data descriptor"\n',
    )
    assert not (tmp_path / "a.tb5").exists()
    ran = run(*words, "described")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert "    comment = 'sample_comment'" in listed(tmp_path / "a.tb5")


def test_every_way_of_reading_writing_and_refusing(package: Path, tmp_path: Path) -> None:
    source, binaries = ROOT / "tests" / "programs" / "tbrw_calls.c", package / "analyzer" / "bin"
    words = ["gcc", "-Wall", "-Wextra", "-Werror", "-I", str(package / "analyzer" / "include")]
    words += ["-o", str(tmp_path / "calls"), str(source)]
    words += [f"-L{binaries}", "-ltbrw", "-lpthread", f"-Wl,-rpath,{binaries}"]
    subprocess.run(words, check=True)
    shutil.copyfile(example(package, "sample.tb5"), tmp_path / "sample.tb5")
    ran = run(tmp_path / "calls", tmp_path / "sample.tb5", tmp_path / "näme.tb5")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_reader_and_writer_carry_a_file_over(package: Path, tmp_path: Path) -> None:
    recipe.write_full(tmp_path / "full.tb5")
    ran = run(example(package, "tbrw_reader"), "full.tb5", "full.dat", folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert {p.name for p in tmp_path.iterdir()} == {
        "full.tb5",
        "full.dat",
        "full.tb5.dat",
        "full.tb5.1.dat",
        "full.tb5.2.dat",
    }
    writer = example(package, "tbrw_writer")
    ran = run(writer, "full.dat", "again.tb5", folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert listed(tmp_path / "again.tb5") == listed(tmp_path / "full.tb5")
    (tmp_path / "short.dat").write_bytes((tmp_path / "full.dat").read_bytes()[:2000])
    ran = run(writer, "short.dat", "short.tb5", folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (1, "tbrw_writer: the input ends early, or is none of tbrw_reader\n")


def values(text: list[str]) -> set[tuple[str, str | int]]:
    """Fields and their values: numbers in any notation."""
    pairs = (line.strip().split(" = ", 1) for line in text if " = " in line)
    return {(n, int(v, 0) if v[:1].isdigit() else v.replace("\\\\", "\\")) for n, v in pairs}


def test_print_shows_the_fields_that_python_shows(package: Path, tmp_path: Path) -> None:
    recipe.write_full(tmp_path / "full.tb5")
    ran = run(example(package, "print_tb5"), tmp_path / "full.tb5")
    assert (ran.returncode, ran.stderr) == (0, "")
    theirs, ours = ran.stdout.splitlines(), listed(tmp_path / "full.tb5")
    assert len(values(theirs)) > 80
    assert values(theirs) <= values(ours)
    assert {line for line in ours if line.startswith(("section", "stream"))} <= set(theirs)
    assert any("99: eip=0x63000 eflags=0x246 csd=0xffff,0xcf9b00 cs=0x1b cpuNum=0 codeMode=2 " in t for t in theirs)


def test_python_loads_it_too(package: Path) -> None:
    """A process that has an interpreter gets no second one."""
    code = (
        "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); major, minor = ctypes.c_uint32(), ctypes.c_uint32()\n"
        "print(library.TBRW_get_version(ctypes.byref(major), ctypes.byref(minor)), major.value, minor.value)"
    )
    ran = run(sys.executable, "-c", code, package / "analyzer" / "bin" / "libtbrw.so")
    assert (ran.stdout, ran.stderr) == ("0 2 3\n", "")


def test_without_the_package_it_says_so(package: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [example(package, "recipe"), tmp_path / "a.tb5"],
        capture_output=True,
        text=True,
        env={"LASTBRANCH_PYTHON": "/nowhere/python"},
        check=False,
    )
    assert ran.returncode == 1
    assert "lastbranch cannot be used" in ran.stderr
    assert "no text (99)" in ran.stderr
