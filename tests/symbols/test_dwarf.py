"""DWARF read in-tree: every name, line, inline chain and discriminator as llvm-symbolizer has it."""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastbranch.binaries.files import Space
from lastbranch.errors import FormatError
from lastbranch.symbols.backends import backend_of
from lastbranch.symbols.backends.dwarf import bytecode
from lastbranch.symbols.backends.dwarf import reader as dwarf_reader
from lastbranch.symbols.model import DebugFiles
from symbol_programs import (
    PROGRAMS,
    Programs,
    agreed,
    code_addresses,
    command,
    compared,
    elf,
    symbolized,
    told,
)

MOST = 3000
"""Addresses of a program that are asked for; only the static one has more."""


SHALLOW = {"gcc3-static", "local-unoptimized", "nested", "nested-lto4", "fortran", "fortran-lto"}
"""Programs in which little is inlined."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("programs"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_llvm_symbolizer(programs: Programs, name: str) -> None:
    path = programs.path(name)
    _, left, right = compared(path, code_addresses(path, MOST))
    assert left == right
    assert any(len(frames) >= 4 for frames in left) or name in SHALLOW


@pytest.mark.parametrize("name", ["gcc", "clang4", "clang-lld"])
def test_discriminators(programs: Programs, name: str) -> None:
    """Of lines and of calls: what a sample profile is made from."""
    names = dwarf_reader.symbolize(elf(programs.path(name)), code_addresses(programs.path(name)))
    found = [f.discriminator for row in range(len(names)) for f in names.frames(row)[:1]]
    assert any(found)
    if name != "gcc":  # -fdebug-info-for-profiling says it of calls, too
        called = [f.discriminator for row in range(len(names)) for f in names.frames(row)[1:]]
        assert any(called)


def test_outermost_frame_is_the_symbol(programs: Programs) -> None:
    path = programs.path("gcc")
    address = code_addresses(path)
    names = dwarf_reader.symbolize(elf(path), address)
    symbols = backend_of("tables").functions(elf(path))
    row = symbols.at(address)
    known = np.flatnonzero((row >= 0) & (names.function >= 0))
    assert len(known) > 1000
    for i in known[::50].tolist():
        function, symbol = names.functions[names.function[i]], symbols.functions[row[i]]
        assert (function.name, function.start, function.size) == (symbol.name, symbol.start, symbol.size)


@pytest.mark.parametrize("kind", ["zlib-gnu", "zlib"])
def test_compressed_sections(programs: Programs, tmp_path: Path, kind: str) -> None:
    """As GNU tools once wrote them (.zdebug_info), and as the gABI has them."""
    path = programs.path("gcc4")
    command(["objcopy", f"--compress-debug-sections={kind}", str(path), str(tmp_path / "packed")], tmp_path)
    names = {s.name for s in dwarf_reader.open_binary(str(tmp_path / "packed")).image.sections}
    assert (".zdebug_info" in names) == (kind == "zlib-gnu")
    address = code_addresses(path)
    packed, whole = (backend_of("auto").symbolize(elf(p), address) for p in (tmp_path / "packed", path))
    assert told(packed) == told(whole)


def test_shared_debugging_information_is_missed(programs: Programs, tmp_path: Path) -> None:
    path = programs.path("gcc")
    (tmp_path / "link").write_bytes(b"/usr/lib/debug/.dwz/shared.debug\0" + bytes(20))
    command(["objcopy", f"--add-section=.gnu_debugaltlink={tmp_path / 'link'}", str(path), "linked"], tmp_path)
    (note,) = backend_of("auto").symbolize(elf(tmp_path / "linked"), code_addresses(path, 10)).notes
    assert "/usr/lib/debug/.dwz/shared.debug" in note


def test_package(programs: Programs, tmp_path: Path) -> None:
    path = programs.path("clang-split")
    address = code_addresses(path)
    command(["llvm-dwp-19", "-e", str(path), "-o", str(tmp_path / "program.dwp")], path.parent)
    packed = dwarf_reader.symbolize(elf(path, dwp=tmp_path / "program.dwp"), address)
    loose = dwarf_reader.symbolize(elf(path, dwo=path.parent), address)
    assert told(packed) == told(loose)
    assert any(len(frames) > 2 for frames in told(packed))


def test_split_units_that_are_missing_or_of_another_build(programs: Programs, tmp_path: Path) -> None:
    """Lines are in the binary; of inline chains nothing is made up."""
    path = programs.path("clang-split")
    address = code_addresses(path)
    names = dwarf_reader.symbolize(elf(path, dwo=tmp_path), address)
    alone = told(names)
    (missing,) = names.notes
    assert "split DWARF is missing" in missing
    assert "second.dwo" in missing
    assert all(len(frames) <= 1 for frames in alone)
    assert any(frames[0][2] for frames in alone if frames)
    for other in path.parent.glob("*.dwo"):
        data = bytearray(other.read_bytes())
        at = next(i for i in range(len(data)) if data[i : i + 3] == b"\x05\x00\x05" and data[i + 3] == 8)
        data[at + 8] ^= 1  # the DWO id
        (tmp_path / other.name).write_bytes(data)
    other_build = dwarf_reader.symbolize(elf(path, dwo=tmp_path), address)
    assert told(other_build) == alone
    assert other_build.notes == [missing]
    assert dwarf_reader.symbolize(elf(path, dwo=path.parent), address).notes == []


def test_stripped_with_debug_file(programs: Programs, tmp_path: Path) -> None:
    path = programs.path("gcc")
    bare, debug = tmp_path / "bare", tmp_path / "bare.debug"
    command(["objcopy", "--only-keep-debug", str(path), str(debug)], tmp_path)
    command(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", str(path), str(bare)], tmp_path)
    address = code_addresses(path)
    whole = told(dwarf_reader.symbolize(elf(path), address))
    assert told(dwarf_reader.symbolize(elf(bare, debug), address)) == whole
    # a debug file alone has no code, and so no stubs of calls
    stubs = [bool(frames) and frames[0][0].endswith(("@plt", ".plt", ".plt.got")) for frames in whole]
    alone = told(dwarf_reader.symbolize(DebugFiles("elf", "", str(debug)), address))
    assert [f for f, stub in zip(alone, stubs, strict=True) if not stub] == [
        f for f, stub in zip(whole, stubs, strict=True) if not stub
    ]
    stripped = told(backend_of("auto").symbolize(elf(bare), address))
    assert all(len(frames) <= 1 for frames in stripped)


def test_minidebuginfo(programs: Programs, tmp_path: Path) -> None:
    """A stripped program whose symbols are in .gnu_debugdata."""
    path = programs.path("gcc")
    small, bare, packed = tmp_path / "small", tmp_path / "bare", tmp_path / "small.xz"
    command(["objcopy", "--strip-debug", "--remove-section=.comment", str(path), str(small)], tmp_path)
    packed.write_bytes(lzma.compress(small.read_bytes()))
    command(["objcopy", "--strip-all", f"--add-section=.gnu_debugdata={packed}", str(path), str(bare)], tmp_path)
    address = code_addresses(path)
    assert told(backend_of("auto").symbolize(elf(bare), address)) == told(
        backend_of("tables").symbolize(elf(path), address)
    )


def test_rust(tmp_path: Path) -> None:
    (tmp_path / "code.rs").write_text(
        "#![no_std]\n#[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n"
        "#[inline(always)] fn inner(v: &[u64]) -> u64 { v.iter().map(|x| x * 3).filter(|x| x % 2 == 0).sum() }\n"
        "#[inline(never)] fn outer<const N: usize>(v: &[u64]) -> u64 { inner(v) + inner(&v[N..]) }\n"
        "#[no_mangle] pub fn entry(v: &[u64]) -> u64 { outer::<1>(v) * outer::<3>(v) }\n"
    )
    options = ["--crate-type=cdylib", "-O", "-g", "-C", "panic=abort", "-C", "link-arg=-nostdlib"]
    command(["rustc", *options, "-o", "code.so", "code.rs"], tmp_path)
    path = tmp_path / "code.so"
    address = code_addresses(path, MOST)
    left, right = agreed(told(dwarf_reader.symbolize(elf(path), address)), symbolized(path, address))
    assert left == right
    shown = {f.shown for f in backend_of("dwarf").symbolize(elf(path), address).functions}
    assert any("Iterator" in name for name in shown)


def test_windows_program_of_gnu_tools(programs: Programs) -> None:
    """By addresses that count from the image's base, as everything else that is known of PE files."""
    path = programs.path("mingw")
    address = code_addresses(path, MOST)
    base = dwarf_reader.open_binary(str(path)).image.image_base
    names = backend_of("auto").symbolize(DebugFiles("pe", str(path)), address - np.uint64(base))
    assert len({f.start for f in names.functions}) > 50
    assert all(f.start < 1 << 31 for f in names.functions)


@pytest.mark.parametrize("name", ["lbrdemo", "liblbrdemo.so", "local-gcc", "local-lto4"])
def test_as_llvm_symbolizer_said(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    """Every address of code, without compilers and LLVM. Kept by ``tests/tools/compare_symbols.py --keep``.

    The last two are ``local.cpp`` by ``g++ -O2 -g`` and ``-O1 -gdwarf-4 -flto``, both with ``-std=c++17 -nostdlib
    -static -Wl,-e,start -Wl,--build-id=none -ffreestanding``.
    """
    packed = Path(__file__).parents[1] / "data" / f"{name}.xz"
    if packed.exists():
        path = tmp_path / name
        path.write_bytes(lzma.decompress(packed.read_bytes()))
    else:
        path = request.getfixturevalue("data").root / "synthetic" / name
    runs = json.loads((Path(__file__).parents[1] / "data" / "symbols.json").read_text())[name]
    address = code_addresses(path)
    starts = np.array([start for start, _ in runs], np.uint64)
    said = [[tuple(f) for f in runs[i][1]] for i in (np.searchsorted(starts, address, side="right") - 1).tolist()]
    left, right = agreed(told(dwarf_reader.symbolize(elf(path), address)), said)
    assert left == right
    assert any(frames[0][2] for frames in left if frames)


# -- byte code


def test_instructions_are_found_wherever_pieces_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a walk from the beginning, with operands that look like instructions."""
    dice = np.random.default_rng(3)
    codes = {0: (), 1: (-1,), 2: (-1, -1), 3: (8,), 4: (2, -1)}
    data, starts = bytearray(), []
    while len(data) < 20_000:
        starts.append(len(data))
        first = int(dice.integers(6))
        if first == 5:
            length = int(dice.integers(1, 40))
            data += bytes([5, length]) + dice.integers(0, 6, length, np.uint8).tobytes()
            continue
        data.append(first)
        for operand in codes[first]:
            if operand < 0:
                data += dice.integers(0x80, 0x100, int(dice.integers(4)), np.uint8).tobytes() + bytes(
                    [int(dice.integers(6))]
                )
            else:
                data += dice.integers(0, 6, operand, np.uint8).tobytes()
    space, table = Space.of(bytes(data)), bytecode.state_table(codes, counted=5)
    begin, end = np.array([0, starts[700]]), np.array([len(data), starts[900]])
    for piece in (7, 64, 256):
        monkeypatch.setattr(bytecode, "PIECE", piece)
        at, program = bytecode.instruction_starts(space, begin, end, table)
        assert at[program == 0].tolist() == starts
        assert at[program == 1].tolist() == starts[700:900]


def test_a_program_ends_at_a_byte_that_means_nothing() -> None:
    space = Space.of(bytes([1, 0, 0, 9, 0, 0, 0]))
    at, _ = bytecode.instruction_starts(space, np.array([0]), np.array([7]), bytecode.state_table({0: (), 1: (-1,)}))
    assert at.tolist() == [0, 2]


# -- damage


@pytest.mark.parametrize(
    ("section", "place", "value", "said"),
    [
        (".debug_info", 0, b"\xf0\xff\xff\x7f", "unit_length"),
        (".debug_info", 8, b"\xff\xff\xff\x7f", "debug_abbrev_offset"),
        (".debug_line", 0, b"\xf0\xff\xff\x7f", "unit_length"),
        (".debug_line", 8, b"\xff\xff\xff\x7f", "header_length"),
    ],
)
def test_hostile_headers(programs: Programs, tmp_path: Path, section: str, place: int, value: bytes, said: str) -> None:
    path = programs.path("gcc")
    where = next(s for s in dwarf_reader.open_binary(str(path)).image.sections if s.name == section)
    data = bytearray(path.read_bytes())
    data[where.offset + place : where.offset + place + 4] = value
    bad = tmp_path / "bad"
    bad.write_bytes(data)
    names = backend_of("auto").symbolize(elf(bad), code_addresses(path))
    (note,) = names.notes
    assert said in note
    assert note.startswith(f"{bad}: .debug_")
    assert "(at offset 0x" in note
    assert any(told(names))  # symbols are still there


@pytest.mark.parametrize(("section", "place"), [(".debug_info", 8), (".debug_info", 12), (".debug_line", 8)])
def test_a_damaged_unit_costs_its_own_names(programs: Programs, tmp_path: Path, section: str, place: int) -> None:
    """The first unit's abbreviations, first entry or line table are nonsense; all else stays as it was."""
    path = programs.path("gcc")
    where = next(s for s in dwarf_reader.open_binary(str(path)).image.sections if s.name == section)
    data = bytearray(path.read_bytes())
    data[where.offset + place : where.offset + place + 2] = b"\xff\x7f"
    bad = tmp_path / "bad"
    bad.write_bytes(data)
    address = code_addresses(path)
    whole, damaged = (dwarf_reader.symbolize(elf(p), address) for p in (path, bad))
    assert whole.notes == []
    assert len(damaged.notes) == 1
    same = [a == b for a, b in zip(told(whole), told(damaged), strict=True)]
    assert 0.2 < sum(same) / len(same) < 0.95
    units = [i for i, frames in enumerate(told(whole)) if any(f[1].endswith("second.cpp") for f in frames)]
    assert len(units) > 300
    assert all(same[i] for i in units)


def test_a_reader_that_fails_leaves_a_note(programs: Programs, tmp_path: Path) -> None:
    """``auto`` falls back to symbols, and says why."""
    path = programs.path("gcc64-zlib")
    data = bytearray(path.read_bytes())
    where = next(s for s in dwarf_reader.open_binary(str(path)).image.sections if s.name == ".debug_info")
    data[where.offset + 24 + 30] ^= 0xFF
    bad = tmp_path / "bad"
    bad.write_bytes(data)
    names = backend_of("auto").symbolize(elf(bad), code_addresses(path))
    assert told(names) == told(backend_of("tables").symbolize(elf(path), code_addresses(path)))
    (note,) = names.notes
    assert ".debug_info: cannot be uncompressed" in note


def test_more_unpacked_bytes_than_there_can_be(programs: Programs, tmp_path: Path) -> None:
    path = programs.path("gcc64-zlib")
    where = next(s for s in dwarf_reader.open_binary(str(path)).image.sections if s.name == ".debug_info")
    data = bytearray(path.read_bytes())
    data[where.offset + 8 : where.offset + 16] = (1 << 40).to_bytes(8, "little")
    bad = tmp_path / "bad"
    bad.write_bytes(data)
    with pytest.raises(FormatError, match="ch_size"):
        dwarf_reader.symbolize(elf(bad), code_addresses(path))


def test_truncated(programs: Programs, tmp_path: Path) -> None:
    path = programs.path("gcc")
    data = path.read_bytes()
    bad = tmp_path / "bad"
    for size in range(0, len(data), len(data) // 40):
        bad.write_bytes(data[:size])
        with pytest.raises(FormatError):
            backend_of("auto").symbolize(elf(bad), np.array([0x1000], np.uint64))


def test_answers_do_not_depend_on_what_else_is_asked(programs: Programs) -> None:
    path = programs.path("gcc")
    address = code_addresses(path)
    whole = told(dwarf_reader.symbolize(elf(path), address))
    for i in range(0, len(address), 97):
        one = dwarf_reader.symbolize(elf(path), address[i : i + 1])
        assert told(one) == [whole[i]]


def test_lines_and_some_entries_are_read_beside_the_others(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """In copies of the process, and here where that fails."""
    path = programs.path("gcc")
    address = code_addresses(path, MOST)
    whole = told(dwarf_reader.symbolize(elf(path), address))
    forks = []
    fork = os.fork
    monkeypatch.setattr(dwarf_reader, "LARGE", 0)
    monkeypatch.setattr(dwarf_reader.threading, "active_count", lambda: 1)
    monkeypatch.setattr(dwarf_reader.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(dwarf_reader.os, "fork", lambda: forks.append(1) or fork())
    assert told(dwarf_reader.symbolize(elf(path), address)) == whole
    monkeypatch.setattr(dwarf_reader, "pack", lambda *_: b"not columns")
    assert told(dwarf_reader.symbolize(elf(path), address)) == whole
    assert len(forks) == 2 * 2


def test_what_a_copy_has_to_say_is_told(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dwarf_reader, "LARGE", 0)
    monkeypatch.setattr(dwarf_reader.threading, "active_count", lambda: 1)
    monkeypatch.setattr(dwarf_reader.os, "cpu_count", lambda: 2)
    chains, here = dwarf_reader.Dwarf._chains, os.getpid()

    def noting(self: dwarf_reader.Dwarf, *arguments: Any) -> Any:
        if os.getpid() != here:
            self.notes.append("a part is damaged")
        return chains(self, *arguments)

    monkeypatch.setattr(dwarf_reader.Dwarf, "_chains", noting)
    path = programs.path("gcc")
    assert dwarf_reader.symbolize(elf(path), code_addresses(path, MOST)).notes == ["a part is damaged"]


def test_no_addresses(programs: Programs) -> None:
    names = backend_of("auto").symbolize(elf(programs.path("gcc")), np.empty(0, np.uint64)).check(0)
    assert names.functions == []
