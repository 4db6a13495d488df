"""Symbol tables of ELF files: functions as llvm-nm lists them, and for each address the one llvm-symbolizer takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lastbranch.errors import FormatError
from lastbranch.symbols.backends import backend_of
from lastbranch.symbols.backends import symbol_tables as tables
from lastbranch.symbols.backends.symbol_tables import Symbols
from lastbranch.symbols.model import DebugFiles
from symbol_files import FUNC, SYMBOLS, written
from symbol_programs import Programs, agreed, code_addresses, command, elf, symbolized, told

MOST = 5000


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("programs"))


EXPECTED = {
    0xFFF: "", 0x1000: "longer", 0x101F: "longer", 0x1020: "", 0x1030: "versioned@@V_1", 0x1038: "", 0x1040: "label",
    0x104F: "label", 0x1050: "chosen", 0x1058: "chosen", 0x1060: "", 0x3010: "data", 0x3040: "",
}  # fmt: skip
"""What llvm-symbolizer 19 says of `SYMBOLS`."""


@pytest.mark.parametrize(("bits", "order", "machine"), [(64, "<", 62), (64, ">", 22), (32, "<", 3), (32, ">", 8)])
def test_choice_of_symbols(tmp_path: Path, bits: int, order: str, machine: int) -> None:
    path = tmp_path / "program"
    path.write_bytes(written(SYMBOLS, machine, bits, order))
    address = np.array(list(EXPECTED), np.uint64)
    ours = told(tables.symbolize(elf(path), address))
    assert [frames[0][0] if frames else "" for frames in ours] == list(EXPECTED.values())
    theirs = symbolized(path, address)
    assert [frames[0][0] for frames in theirs] == list(EXPECTED.values())


def test_table_of_functions(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(written(SYMBOLS))
    table = tables.functions(elf(path))
    assert [(f.name, f.start, f.size) for f in table.functions] == [
        ("longer", 0x1000, 32),
        ("versioned@@V_1", 0x1030, 8),
        ("label", 0x1040, 0),
        ("chosen", 0x1050, 16),
    ]
    assert table.end.tolist() == [0x1020, 0x1038, 0x1050, 0x1060]
    assert table.aliases == {0: ("local", "first", "short")}
    assert table.find("first") == [0]


@pytest.mark.parametrize(
    ("machine", "names"), [(40, ["$a", "$d", "$t", "$a.1"]), (183, ["$x", "$d", "$d.realdata"]), (243, ["$x", "$d"])]
)
def test_mapping_symbols(tmp_path: Path, machine: int, names: list[str]) -> None:
    path = tmp_path / "program"
    marks = [(name, 0x1010 + 4 * i, 0, 0, 1) for i, name in enumerate(names)]
    path.write_bytes(written([("code", 0x1000, 64, FUNC, 1), *marks], machine))
    address = np.arange(0x1000, 0x1040, 4, dtype=np.uint64)
    assert {f[0][0] for f in told(tables.symbolize(elf(path), address))} == {"code"}
    assert len(tables.functions(elf(path))) == 1


def test_thumb_functions(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(written([("thumb", 0x1011, 8, FUNC, 1)], 40, 32))
    assert tables.functions(elf(path)).start.tolist() == [0x1010]


@pytest.mark.parametrize("name", ["gcc", "gcc3-static", "clang-lld", "arm", "s390x"])
def test_as_llvm_tools(programs: Programs, tmp_path: Path, name: str) -> None:
    """Without debugging information llvm-symbolizer has nothing but the same table; llvm-nm lists its functions."""
    path = programs.path(name)
    bare = tmp_path / "bare"
    command(["llvm-strip-19", "--strip-debug", "-o", str(bare), str(path)], tmp_path)
    address = code_addresses(bare, MOST)
    ours, theirs = agreed(told(tables.symbolize(elf(bare), address)), symbolized(bare, address))
    assert [frames[0][0] if frames else "" for frames in ours] == [f[0][0] if f else "" for f in theirs]
    listed = command(["llvm-nm-19", "--defined-only", "--format=posix", str(bare)], tmp_path)
    rows = [line.rsplit(" ", 3) for line in listed.splitlines()]
    table = tables.functions(elf(bare))
    names = {f.name for f in table.functions} | {n for names in table.aliases.values() for n in names}
    assert names >= {r[0] for r in rows if r[1] in "Tti" and not r[0].startswith("$")}


def test_aliases(programs: Programs) -> None:
    table = backend_of("tables").functions(elf(programs.path("gcc")))
    (row,) = table.find("_Z4alsoi")
    assert {table.functions[row].name, *table.aliases[row]} == {"_Z4realf", "_Z4alsoi"}


def test_demangled(programs: Programs) -> None:
    table = backend_of("tables").functions(elf(programs.path("gcc")))
    assert [table.functions[i].shown for i in table.find("second")] == ["second(int*, int)"]


def test_a_hundred_thousand_symbols() -> None:
    """Columns all the way: no name is read that is not asked for."""
    count = 100_000
    name = b"".join(b"f%05d\0" % i for i in range(count))
    start = np.arange(count, dtype=np.uint64) * np.uint64(16)
    size, yes = np.full(count, 16, np.uint64), np.ones(count, bool)
    symbols = Symbols(start[::-1].copy(), size, np.arange(count) * 7, yes, yes, name).by_address()
    names = symbols.symbolize(np.array([5, 160, count * 16], np.uint64))
    assert [frames[0][0] if frames else "" for frames in told(names)] == ["f99999", "f99989", ""]
    assert len(names.functions) == 2


def test_truncated(tmp_path: Path) -> None:
    data = written(SYMBOLS)
    path = tmp_path / "program"
    for size in range(0, len(data), 17):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError):
            tables.symbolize(elf(path), np.array([0x1000], np.uint64))


def test_names_outside_of_their_table(tmp_path: Path) -> None:
    data = bytearray(written(SYMBOLS))
    at = 64 + 128 + 24 * 4
    data[at : at + 4] = b"\xff\xff\xff\x7f"  # st_name of the fourth symbol
    path = tmp_path / "program"
    path.write_bytes(data)
    table = tables.functions(elf(path))
    assert "first" not in {n for names in table.aliases.values() for n in names}


def test_nothing_at_hand() -> None:
    assert len(tables.functions(DebugFiles("elf"))) == 0
    assert tables.symbolize(DebugFiles("elf"), np.array([1], np.uint64)).check(1).function.tolist() == [-1]
