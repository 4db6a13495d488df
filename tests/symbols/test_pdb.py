"""PDBs and the symbol tables of PE files, read in-tree and by the other backends."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from lastbranch.binaries.pdb import PdbStreams
from lastbranch.binaries.sections import open_binary
from lastbranch.errors import FormatError
from lastbranch.model import BytesSource
from lastbranch.symbols.backends import backend_of
from lastbranch.symbols.backends import symbol_tables as tables
from lastbranch.symbols.backends.symbol_tables import pdb_symbols
from lastbranch.symbols.model import DebugFiles
from pdb_files import PDB, PROCEDURES, PUBLICS, SOURCE, written
from symbol_programs import NOTHING, Frame, code_addresses, command, symbolized, told


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with program.exe and program.pdb of clang and lld-link."""
    folder = tmp_path_factory.mktemp("windows")
    (folder / "program.cpp").write_text(SOURCE)
    compile_ = ["clang++-19", "--target=x86_64-pc-windows-msvc", "-O2", "-g", "-gcodeview", "-c", "program.cpp"]
    command([*compile_, "-o", "program.obj"], folder)
    link = ["lld-link-19", "/nodefaultlib", "/entry:start", "/subsystem:console", "/debug", "/out:program.exe"]
    command([*link, "program.obj"], folder)
    return folder


def files(folder: Path, pdb: bool = True) -> DebugFiles:
    return DebugFiles("pe", str(folder / "program.exe"), str(folder / "program.pdb") if pdb else None)


# -- a PDB written here


def test_publics_and_procedures() -> None:
    symbols = pdb_symbols(BytesSource(PDB))
    address = np.array([0x100F, 0x1010, 0x102F, 0x1030, 0x1045, 0x1067, 0x1080, 0x11FF, 0x1200, 0x2050], np.uint64)
    found = [f[0][0] if f else "" for f in told(symbols.by_address().symbolize(address))]
    shown = "?shown@@YAHH@Z"
    assert found == ["", shown, shown, "", "hidden", "f" * 700, "assembled", "assembled", "", "constant"]
    assert [f.name for f in symbols.table().functions] == [shown, "hidden", "f" * 700, "assembled"]


@pytest.mark.parametrize("block", [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536])
def test_every_block_size_that_linkers_write(block: int) -> None:
    symbols = pdb_symbols(BytesSource(written(PUBLICS, PROCEDURES, [(0x1000, 0x200)], block)))
    assert [f.start for f in symbols.table().functions] == [0x1010, 0x1040, 0x1060, 0x1080]


@pytest.mark.parametrize("block", [0, 256, 768, 131072])
def test_no_other_block_size(block: int) -> None:
    data = PDB[:32] + struct.pack("<I", block) + PDB[36:]  # after the 32 bytes of magic
    with pytest.raises(FormatError, match="BlockSize"):
        pdb_symbols(BytesSource(data))


def test_truncated_anywhere() -> None:
    for size in range(0, len(PDB) - 512, 13):  # the last block is padding
        with pytest.raises(FormatError):
            pdb_symbols(BytesSource(PDB[:size]))


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [(32, 3, "BlockSize"), (44, 0x7FFFFFF0, "NumDirectoryBytes"), (52, 0x7FFFFFF, "BlockMap"), (0, 0, "FileMagic")],
)
def test_hostile_superblock(at: int, value: int, said: str) -> None:
    data = bytearray(PDB)
    struct.pack_into("<I", data, at, value)
    with pytest.raises(FormatError, match=said):
        PdbStreams(BytesSource(data, "x.pdb"))


def test_hostile_records() -> None:
    for publics in (b"\xff\xff\x0e\x11", b"\0\0\0\0" * 4):
        with pytest.raises(FormatError, match="RecordLen"):
            pdb_symbols(BytesSource(written(publics, b"", [(0x1000, 16)])))


# -- programs


def test_as_llvm_pdbutil(windows: Path) -> None:
    text = command(["llvm-pdbutil-19", "dump", "-symbols", "-publics", "program.pdb"], windows)
    procedures = re.findall(r"S_[GL]PROC32 \[size = \d+\] `(.+)`\n.*addr = 0001:(\d+), code size = (\d+)", text)
    publics = re.findall(r"S_PUB32 \[size = \d+\] `(.+)`\n +flags = function, addr = 0001:(\d+)", text)
    linkage = {int(offset): name for name, offset in publics}
    wanted = sorted((0x1000 + int(o), int(size), linkage.get(int(o), name)) for name, o, size in procedures)
    table = tables.functions(files(windows))
    assert [(f.start, f.size, f.name) for f in table.functions] == wanted
    assert len(wanted) == 4


@pytest.mark.parametrize("backend", ["symbolic", "llvm"])
def test_lines_and_chains(windows: Path, backend: str) -> None:
    """As llvm-symbolizer at every address. The symbolic library has no columns, and writes arguments of inlined calls.

    Padding between functions belongs to the one before it for llvm-symbolizer, and to none for the library.
    """
    path = windows / "program.exe"
    address = code_addresses(path)
    base = open_binary(str(path)).image.image_base
    ours = told(backend_of(backend).symbolize(files(windows), address - np.uint64(base)))
    theirs = [[f for f in frames if f[0] or f[1]] for frames in symbolized(path, address)]
    if backend == "symbolic":
        ours, theirs = ([_without_columns(f) for f in frames] for frames in (ours, theirs))
        padding = [not o and [f[1:] for f in t] == [NOTHING[1:]] for o, t in zip(ours, theirs, strict=True)]
        assert 0 < sum(padding) < 30
        theirs = [[] if p else t for p, t in zip(padding, theirs, strict=True)]
    assert ours == theirs
    assert any(len(f) >= 3 for f in ours)


def _without_columns(frames: list[Frame]) -> list[Frame]:
    inlined = len(frames) - 1
    names = [re.sub(r"\(.*\)$", "", f[0]) if n < inlined else f[0] for n, f in enumerate(frames)]
    return [(name, f[1], f[2], 0, 0, "", 0) for name, f in zip(names, frames, strict=True)]


def test_only_a_pdb(windows: Path) -> None:
    only = DebugFiles("pe", "", str(windows / "program.pdb"))
    assert [f.shown for f in backend_of("auto").functions(only).functions][1] == "shown(int)"
    names = backend_of("auto").symbolize(only, np.array([0x1000], np.uint64))
    assert names.frames(0)[-1].function.name.startswith("plain")


def test_exports(windows: Path) -> None:
    """All that a PE file has without its PDB; a name goes no further than the exception table says."""
    table = backend_of("tables").functions(files(windows, pdb=False))
    assert [(f.name, f.start) for f in table.functions] == [("plain", 0x1000)]
    assert table.end.tolist() == [0x1010]


def test_coff_symbols(tmp_path: Path) -> None:
    (tmp_path / "program.cpp").write_text(SOURCE + "int main() { return start(); }\n")
    command(["x86_64-w64-mingw32-g++", "-O1", "program.cpp", "-o", "program.exe"], tmp_path)
    path = tmp_path / "program.exe"
    base = open_binary(str(path)).image.image_base
    address = code_addresses(path, 3000)
    ours = told(tables.symbolize(files(tmp_path, pdb=False), address - np.uint64(base)))
    theirs = symbolized(path, address)
    named = [(o[0][0] if o else "", t[-1][0] if t else "") for o, t in zip(ours, theirs, strict=True)]
    assert sum(bool(a) for a, _ in named) > 1000
    # Lists of constructors stand in .text, too. They are data for llvm-symbolizer, which gives them no name in places.
    assert {pair for pair in named if pair[0] != pair[1]} <= {("___CTOR_LIST__", ""), ("___DTOR_LIST__", "")}
    listed = command(["llvm-nm-19", "--format=posix", str(path)], tmp_path)
    functions = {f.name for f in tables.functions(files(tmp_path, pdb=False)).functions}
    assert {"main", "start", "_Z5showni"} <= functions
    assert "_Z5showni T" in listed
