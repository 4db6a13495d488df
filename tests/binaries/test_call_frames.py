"""Call frame information against readelf, row by row, and damaged."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastbranch.binaries.call_frames import CallFrames, Cie, Fde, FrameRow, FrameSection, Rule, evaluate, frame_sections
from lastbranch.errors import FormatError, LastbranchError
from lastbranch.model import BytesSource

X86_64 = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{i}" for i in range(8, 16)), "ra")
NUMBERS = {name: number for number, name in enumerate(X86_64)} | {f"xmm{i}": 17 + i for i in range(16)}
LIBRARIES = ("libc.so.6", "libstdc++.so.6", "libgcc_s.so.1")


def library(name: str) -> Path:
    for folder in ("/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"):
        if (path := Path(folder, name)).exists():
            return path.resolve()
    pytest.skip(f"{name} is not installed")


needs_readelf = pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")

Shown = tuple[int, str, dict[str, str]]
"""A row as readelf prints it: address, CFA, rules by register."""


def by_readelf(path: Path) -> dict[tuple[str, int], tuple[int, int, list[Shown]]]:
    """(section, offset) of each FDE -> its range and rows."""
    command = ["readelf", "--debug-dump=frames-interp", "--wide", str(path)]
    text = subprocess.run(command, capture_output=True, text=True).stdout  # it fails without a debug file
    found: dict[tuple[str, int], tuple[int, int, list[Shown]]] = {}
    section, rows, columns = "", list[Shown](), list[str]()
    for line in text.splitlines():
        if title := re.match(r"Contents of the (\S+) section", line):
            section = title[1].replace(".zdebug", ".debug")
        elif entry := re.match(
            r"([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ FDE cie=[0-9a-f]+ pc=([0-9a-f]+)\.\.([0-9a-f]+)", line
        ):
            rows, columns = [], []
            found[section, int(entry[1], 16)] = int(entry[2], 16), int(entry[3], 16), rows
        elif " CIE " in line:
            rows = []
        elif line.strip().startswith("LOC"):
            columns = line.split()[2:]
        elif re.match(r"[0-9a-f]{8,16} (exp|\w+[+-]\d+) ", line):
            address, cfa, *rules = re.sub(r"r\d+ \((\w+)\)", r"\1", line).split()
            rows.append((int(address, 16), cfa, dict(zip(columns, rules, strict=True))))
    return found


def shown(row: FrameRow, columns: dict[str, str]) -> Shown:
    """``row`` as readelf prints it."""
    cfa = "exp" if row.expression else f"{name_of(row.cfa)}{row.offset:+d}"
    names = {name_of(register): rule for register, rule in row.rules.items()}
    return row.address, cfa, {name: shown_rule(names.get(name)) for name in {**columns, **names}}


def shown_rule(rule: Rule | None) -> str:
    if rule is None:
        return "u"
    forms = (
        "u",
        "s",
        f"c{rule.value:+d}",
        f"v{rule.value:+d}",
        name_of(rule.value).replace("ra", "rip"),
        "exp",
        "vexp",
    )
    return forms[rule.kind]


def name_of(register: int) -> str:
    return next((name for name, number in NUMBERS.items() if number == register), f"r{register}")


def fdes(data: bytes, name: str) -> list[tuple[FrameSection, Fde]]:
    source = BytesSource(data, name)
    sections = frame_sections(source, CallFrames(source).image)
    return [(section, entry) for section in sections for entry in section.entries() if not isinstance(entry, Cie)]


def compare(path: Path) -> int:
    """Compare all rows of the file with readelf's; how many."""
    expected, count = by_readelf(path), 0
    found = fdes(path.read_bytes(), path.name)
    assert {(section.name, fde.offset) for section, fde in found} == {*expected}
    for section, fde in found:
        begin, end, rows = expected[section.name, fde.offset]
        assert (fde.begin, fde.end) == (begin, end)
        mine = section.rows(fde)
        if rows:  # it prints none where they are those of the CIE
            assert [shown(row, wanted[2]) for row, wanted in zip(mine, rows, strict=True)] == rows
        count += len(mine)
    return count


@needs_readelf
@pytest.mark.parametrize("name", LIBRARIES)
def test_every_row_of_a_library_is_that_of_readelf(name: str) -> None:
    assert compare(library(name)) > 100


SOURCE = """
#include <alloca.h>
#include <stdarg.h>
int g(int, void *);
int f(int n) { char *p = alloca(n); int r = g(n, p); if (r > 3) return r; return r + f(n - 1) + g(2, 0); }
int h(int n, ...) { va_list l; va_start(l, n); int r = va_arg(l, int) + f(n); va_end(l); return r; }
int g(int n, void *p) { return n + (p != 0); }
int main(void) { return h(2, 1); }
"""
BUILDS = {
    "debug_frame": ["-fno-asynchronous-unwind-tables", "-g"],
    "compressed": ["-fno-asynchronous-unwind-tables", "-g", "-gz=zlib"],
    "old-compression": ["-fno-asynchronous-unwind-tables", "-g", "-Wl,--compress-debug-sections=zlib-gnu"],
    "no-table": ["-Wl,--no-eh-frame-hdr"],
    "32-bit": ["-m32", "-g", "-fno-asynchronous-unwind-tables"],
}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("frames")

    def one(name: str) -> Path:
        if shutil.which("gcc") is None or sys.platform != "linux":
            pytest.skip("gcc is not installed")
        (folder / "p.c").write_text(SOURCE)
        command = ["gcc", "-O2", *BUILDS[name], str(folder / "p.c"), "-o", str(folder / name)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip(f"gcc cannot build {' '.join(BUILDS[name])}")
        return folder / name

    return one


@needs_readelf
@pytest.mark.parametrize("name", ["debug_frame", "compressed", "old-compression"])
def test_rows_of_debug_frame_are_those_of_readelf(name: str, build: Callable[[str], Path]) -> None:
    path = build(name)
    assert compare(path) > 10
    sections = frame_sections(source := BytesSource(path.read_bytes()), CallFrames(source).image)
    main = next(f for s in sections if not s.is_eh for f in s.entries() if isinstance(f, Fde))
    known = CallFrames(source).find(main.begin)
    assert known is not None
    assert known[0] == main


@pytest.mark.parametrize("name", ["no-table", "32-bit"])
def test_what_covers_an_address_is_found_with_and_without_the_table(name: str, build: Callable[[str], Path]) -> None:
    data = build(name).read_bytes()
    assert_every_address_is_found(data)


def test_what_covers_an_address_of_a_library_is_found() -> None:
    assert_every_address_is_found(library("libgcc_s.so.1").read_bytes())


def assert_every_address_is_found(data: bytes) -> None:
    frames, known = CallFrames(BytesSource(data)), fdes(data, "file")
    for section, fde in known:
        rows = [row for row in section.rows(fde) if row.address < fde.end]
        ends = [*(row.address for row in rows[1:]), fde.end]
        for row, end in zip(rows, ends, strict=True):
            assert frames.find(row.address) == frames.find(end - 1) == (fde, row)
    past = max(fde.end for _, fde in known)
    assert frames.find(past) is None
    assert frames.find(0) is None


# -- damage


@pytest.fixture(scope="module")
def small() -> bytes:
    """A section with a CIE, FDEs, and a terminator."""
    source = BytesSource(library("libgcc_s.so.1").read_bytes())
    (section, *_) = frame_sections(source, CallFrames(source).image)
    return section.data[:600]


@given(data=st.data())
def test_damage_is_named_or_read(data: st.DataObject, small: bytes) -> None:
    spoiled = bytearray(small)
    for _ in range(data.draw(st.integers(1, 4))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    section = FrameSection(data.draw(st.sampled_from([".eh_frame", ".debug_frame"])), bytes(spoiled), file="f")
    damage: FormatError | None = None
    try:
        for entry in section.entries():
            if isinstance(entry, Fde):
                rows = section.rows(entry)
                assert rows == sorted(rows, key=lambda row: row.address)
    except FormatError as error:
        damage = error
    if damage is not None:
        assert (damage.file, damage.field != "") == ("f", True)
        assert damage.offset is not None
        assert 0 <= damage.offset <= len(spoiled)
    for begin, end, at in section.extents():
        assert begin < end
        assert 0 <= at < len(spoiled)


@given(st.binary(max_size=40), st.lists(st.integers(0, 2**64 - 1), max_size=3))
def test_expressions_end_with_a_word_or_an_error(code: bytes, first: list[int]) -> None:
    with suppress(FormatError):
        assert 0 <= evaluate(code, range(17), lambda address, size: bytes(size), first) < 2**64


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        ((0, b"\xf0\xff\x00\x00"), "length"),
        ((8, b"\x09"), "version"),
        ((9, b"q\0\0"), "augmentation"),
        ((9, b"\x7f" * 60), "augmentation"),
    ],
)
def test_an_error_names_the_field(small: bytes, spoil: tuple[int, bytes], field: str) -> None:
    at, new = spoil
    data = small[:at] + new + small[at + len(new) :]
    with pytest.raises(LastbranchError, match=field):
        list(FrameSection(".eh_frame", data, file="lib").entries())


PLT = bytes.fromhex("7708800 03f1a3b2a332422".replace(" ", ""))
"""What linkers write for the procedure linkage table: breg7 8, breg16 0, lit15, and, lit11, ge, lit3, shl, plus."""


@pytest.mark.parametrize(("rip", "pushed"), [(0x1000, 0), (0x1006, 0), (0x100B, 8), (0x100F, 8)])
def test_the_expression_of_linkage_stubs(rip: int, pushed: int) -> None:
    registers = [0] * 7 + [0x7000] + [0] * 8 + [rip]
    assert evaluate(PLT, registers, lambda address, size: b"") == 0x7008 + pushed
