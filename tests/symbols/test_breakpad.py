"""Breakpad's files: by identity only, with lines and inlined functions."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from lastbranch.model import Module, Profile
from lastbranch.symbols import Symbolizer, SymbolOptions
from lastbranch.symbols.breakpad import Breakpad, module_id
from lastbranch.symbols.model import DebugFiles
from symbol_files import GUID, KEY, TEXT


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "App.pdb" / KEY / "App.sym"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    return tmp_path


def ask(store: Path, *address: int, **fields: object) -> tuple[list[list[tuple[str, str, int]]], list[str]]:
    known = {"pdb_guid": GUID, "pdb_age": 42, "pdb_name": "App.pdb", **fields}
    module = Module(r"C:\App.exe", **known)  # type: ignore[arg-type]
    options = SymbolOptions(symbol_store=(str(store),), cache=str(store / "cache"))
    with Symbolizer(Profile("p", "etl", modules=[module]), options) as symbols:
        names = symbols.names(0, np.array(address, np.uint64))
        rows = [[(f.function.shown, f.file, f.line) for f in names.frames(i)] for i in range(len(address))]
        return rows, symbols.notes


OUTER, A, INNER = "outer(int, char)", "C:\\src\\a b.cc", "/src/inner.h"
EXPECTED = {
    0x0FFF: [],
    0x1000: [(OUTER, A, 10)],
    0x1010: [("middle(int)", INNER, 31), (OUTER, A, 12)],
    0x1014: [("inner()", INNER, 5), ("middle(int)", INNER, 33), (OUTER, A, 12)],
    0x1018: [("middle(int)", INNER, 34), (OUTER, A, 12)],
    0x1023: [("inner()", INNER, 34), ("middle(int)", INNER, 33), (OUTER, A, 12)],
    0x1030: [(OUTER, A, 14)],
    0x1038: [(OUTER, "", 0)],
    0x1040: [],
    0x200F: [("shared", A, 77)],
    0x4008: [("a::b()", "", 0)],
    0x5001: [("last", "", 4294967295)],
}


def test_chains_are_those_of_the_records(store: Path) -> None:
    for _ in range(2):  # the second time from the cache
        rows, notes = ask(store, *EXPECTED)
        assert dict(zip(EXPECTED, rows, strict=True)) == {**EXPECTED, 0x1040: rows[8]}
        assert notes == []


def test_functions_with_a_size_end_there(store: Path) -> None:
    table = Breakpad().functions(DebugFiles("breakpad", str(store / "App.pdb" / KEY / "App.sym")))
    assert [(int(s), f.name) for s, f in zip(table.start, table.functions, strict=True)] == [
        (0x1000, OUTER),
        (0x2000, "shared"),
        (0x4000, "_ZN1a1bEv"),
        (0x5000, "last"),
    ]
    assert table.aliases == {0: ("public name of outer",)}
    assert table.at(np.array([0x103F, 0x1040, 0x2010], np.uint64)).tolist() == [0, -1, -1]


@pytest.mark.parametrize("wrong", [{"pdb_age": 7}, {"pdb_guid": UUID(int=1)}])
def test_another_identity_has_no_names(store: Path, wrong: dict[str, object]) -> None:
    rows, notes = ask(store, 0x1000, **wrong)
    assert rows == [[]]
    assert "no names" in notes[0]


def test_the_identity_in_the_file_counts_not_its_folder(store: Path) -> None:
    path = store / "App.pdb" / KEY / "App.sym"
    path.write_text(TEXT.replace(KEY, "0" * 33))
    assert ask(store, 0x1000)[0] == [[]]
    path.write_bytes(b"\x7fELF" * 2000)
    assert module_id(str(path)) == ""
    assert ask(store, 0x1000)[0] == [[]]


def test_damaged_files_cost_names_only(store: Path) -> None:
    path = store / "App.pdb" / KEY / "App.sym"
    for cut in range(len(TEXT) // 3, len(TEXT), 17):
        path.write_text(TEXT[:cut])
        table = Breakpad().functions(DebugFiles("breakpad", str(path)))
        names = Breakpad().symbolize(DebugFiles("breakpad", str(path)), np.array(sorted(EXPECTED), np.uint64))
        assert names.check(len(EXPECTED)).function.max() < len(names.functions)
        assert len(table) <= 4
