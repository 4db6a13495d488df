"""Release wheels: what is wrong with one is found, and the driver that compares their kernels sees another result."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import fuzz_kernels
import make_wheels
from lastbranch import native
from lastbranch.native import build

SOURCES = make_wheels.ROOT / "src"
LIBRARY = "lastbranch/native/_lastbranch.so"


def elf(*names: str, machine: int = 62) -> bytes:
    """What the checks read of a library: the header, and strings."""
    return b"\x7fELF".ljust(18, b"\0") + struct.pack("<H", machine) + b"\0".join([b"", *map(str.encode, names), b""])


GOOD = elf("GLIBC_2.14", *native.SIGNATURES)


@pytest.fixture
def wheel(tmp_path: Path) -> Callable[..., Path]:
    """``wheel(libraries, leaving=name)``: a wheel with the package's files but one, and with the named contents."""

    def make(libraries: dict[str, bytes], leaving: str = "") -> Path:
        path = tmp_path / "made.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for file in SOURCES.rglob("*"):
                name = str(file.relative_to(SOURCES))
                if file.is_file() and name != leaving and build.NAME not in name:
                    archive.write(file, name)
            for name, content in libraries.items():
                archive.writestr(name, content)
        return path

    return make


def test_a_good_wheel_has_no_faults(wheel: Callable[..., Path]) -> None:
    assert make_wheels.faults(wheel({LIBRARY: GOOD}), "manylinux_2_17_x86_64") == []


@pytest.mark.parametrize(
    ("libraries", "tag", "fault"),
    [
        ({}, "manylinux_2_17_x86_64", "binaries []"),
        ({LIBRARY: GOOD, "lastbranch/native/_lastbranch.dll": b""}, "manylinux_2_17_x86_64", "_lastbranch.dll"),
        ({LIBRARY: GOOD, "lastbranch/native/_lastbranch.pdb": b""}, "manylinux_2_17_x86_64", "_lastbranch.pdb"),
        ({LIBRARY: GOOD}, "win_amd64", "instead of lastbranch/native/_lastbranch.dll"),
        ({LIBRARY: GOOD}, "manylinux_2_17_aarch64", "for ('ELF', 62) instead of ('ELF', 183)"),
        ({LIBRARY: GOOD}, "musllinux_1_2_x86_64", "needs glibc (2, 14)"),
        ({LIBRARY: elf("GLIBC_2.34", *native.SIGNATURES)}, "manylinux_2_17_x86_64", "needs glibc (2, 34)"),
        ({LIBRARY: elf(".debug_info", *native.SIGNATURES)}, "manylinux_2_17_x86_64", "has debug symbols"),
        ({LIBRARY: elf(*list(native.SIGNATURES)[1:])}, "manylinux_2_17_x86_64", "lacks the functions ['lb_abi']"),
    ],
)
def test_faults_of_a_wheel_are_found(
    libraries: dict[str, bytes], tag: str, fault: str, wheel: Callable[..., Path]
) -> None:
    assert any(fault in found for found in make_wheels.faults(wheel(libraries), tag))


def test_a_lost_file_is_found(wheel: Callable[..., Path]) -> None:
    (found,) = make_wheels.faults(wheel({LIBRARY: GOOD}, leaving="lastbranch/native/abi.c"), "manylinux_2_17_x86_64")
    assert found == "lacks the files ['lastbranch/native/abi.c']"


@pytest.mark.skipif(not build.compiler(), reason="no C compiler")
def test_another_result_has_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that no expectation of the driver sees: all wheels must print what the first one printed."""
    monkeypatch.setattr(build, "SANITIZED", ["-O0"])
    printed = []
    for fault in ("", "latest = when - 1"):
        sources = tmp_path / f"native{len(printed)}"
        sources.mkdir()
        for file in [*build.HERE.glob("*.c"), *build.HERE.glob("*.h")]:
            text = file.read_text()
            (sources / file.name).write_text(text.replace("latest = when", fault) if fault else text)
        with monkeypatch.context() as patch:
            patch.setattr(build, "HERE", sources)
            driver = fuzz_kernels.build_driver(sources)
        done = [fuzz_kernels.run_driver(driver, "-2", 1, sources) for _ in range(2)]
        assert done[0].returncode == 0, done[0].stderr
        assert done[0].stdout == done[1].stdout
        printed.append(done[0].stdout.splitlines())
    differ = [good.split(":")[0] for good, bad in zip(*printed, strict=True) if good != bad]
    assert differ[0] == "perf_records"


def test_each_kernel_of_the_driver_has_results_in_the_digest() -> None:
    text = fuzz_kernels.SOURCE.read_text()
    rows = dict(re.findall(r'^    {"(\w+)", (\w+)},$', text, re.MULTILINE))
    assert rows.keys() == fuzz_kernels.SEEDS.keys()
    bodies = {
        name: text.partition(f"\nstatic int {function}(struct input in)\n")[2].partition("\n}\n")[0]
        for name, function in rows.items()
    }
    assert [name for name, body in bodies.items() if "seen(" not in body and "taken(" not in body] == []


@pytest.mark.skipif(os.name == "nt", reason="no shell")
def test_compilers_leave_only_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers for Windows write .pdb and .lib beside it."""
    compiler = tmp_path / "cc"
    compiler.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nfolder=${2%/*}\n'
        'touch "$2" "$folder/_lastbranch.pdb" "$folder/abi.lib"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    folder = tmp_path / "native"
    folder.mkdir()
    build.compile_library(folder / "_lastbranch.dll")
    assert [path.name for path in folder.iterdir()] == ["_lastbranch.dll"]


@pytest.mark.skipif(not build.compiler(), reason="no C compiler")
def test_options_follow_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As release wheels have it: without debug symbols."""
    found = []
    for options in ("-O0", shlex.join(["-O0", *make_wheels.CFLAGS])):
        monkeypatch.setenv("CFLAGS", options)
        library = build.compile_library(tmp_path / f"_lastbranch{native.ENDING}").read_bytes()
        found.append(b".debug_" in library or b"__DWARF" in library)
    assert found == [True, False]


def test_a_library_of_macos_is_for_the_machine_that_compiled_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python from python.org is for both processors, and the oldest system: the compiler writes for this one."""
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("sysconfig.get_platform", lambda: "macosx-10.13-universal2")
    monkeypatch.setattr("platform.mac_ver", lambda: ("14.5", ("", "", ""), "arm64"))
    hook = runpy.run_path(str(make_wheels.ROOT / "hatch_build.py"))
    assert hook["this_platform"]() == "macosx_14_0_arm64"


def test_the_page_of_the_library_lists_each_source() -> None:
    page = (make_wheels.ROOT / "docs" / "concepts" / "native.md").read_text()
    assert [file.name for file in build.sources() if f"| `{file.name}` |" not in page] == []
