"""Probes read here are those that llvm-profgen shows; damaged sections are read up to the damage."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from lastbranch.binaries.pseudo_probes import guid, read_probes
from lastbranch.binaries.sections import open_binary
from lastbranch.errors import FormatError
from probed_programs import SOURCE, built, probes_of, read, shown, symbols


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(SOURCE, tmp_path_factory.mktemp("probed") / "probed")


@pytest.fixture(scope="module")
def contents(program: Path) -> bytes:
    return program.read_bytes()


def test_they_are_llvm_profgens(program: Path) -> None:
    found = probes_of(program)
    theirs, functions = shown(program)
    assert read(found) == theirs
    assert {number: (d.name, d.hash) for number, d in found.descriptors.items()} == functions
    assert len(theirs) > 50
    assert any(row[-1] == "hot:3" for row in theirs)
    assert found.notes == []


def test_a_guid_is_of_the_name() -> None:
    assert guid("main") == 15822663052811949562  # as in any binary that has a main


def cut(contents: bytes, name: bytes, where: slice, by: bytes) -> bytes:
    """The file with a piece of a section replaced."""
    (table,) = struct.unpack_from("<Q", contents, 40)
    count, names = struct.unpack_from("<HH", contents, 60)
    heads = [list(struct.unpack_from("<IIQQQQIIQQ", contents, table + 64 * i)) for i in range(count)]
    strings = heads[names][4]
    begins = [contents[strings + h[0] : contents.index(b"\0", strings + h[0])] for h in heads]
    number = begins.index(name)
    offset, size = heads[number][4:6]
    new = bytearray(contents[offset : offset + size])
    new[where] = by
    out = bytearray(contents)
    out[offset : offset + len(new)] = new
    struct.pack_into("<Q", out, table + 64 * number + 32, len(new))
    return bytes(out)


@pytest.mark.parametrize(
    ("section", "where", "by", "says"),
    [  # wherever the compiler put which function: that differs from run to run
        (b".pseudo_probe", slice(-1, None), b"", ".pseudo_probe: "),
        (b".pseudo_probe", slice(8, 9), b"\xff\xff\x7f", "number of probes"),
        (b".pseudo_probe", slice(30, 60), b"\xff" * 30, ".pseudo_probe: a number of more than 64 bits"),
        (b".pseudo_probe_desc", slice(17, None), b"", ".pseudo_probe_desc: 0 bytes are left"),
    ],
)
def test_what_is_before_damage_is_read(
    program: Path, contents: bytes, tmp_path: Path, section: bytes, where: slice, by: bytes, says: str
) -> None:
    whole = read(probes_of(program))
    (tmp_path / "p").write_bytes(cut(contents, section, where, by))
    found = read_probes(open_binary(str(tmp_path / "p")), symbols(program))
    assert found is not None
    assert len(found) < len(whole)
    assert set(read(found)) <= set(whole)
    notes = "; ".join(found.notes)
    assert says in notes
    assert notes


def test_every_cut_is_said(program: Path, contents: bytes, tmp_path: Path) -> None:
    """Of both sections, at any byte: an error that is noted, or a smaller section that is whole by chance."""
    starts, path = symbols(program), tmp_path / "p"
    for section in (b".pseudo_probe", b".pseudo_probe_desc"):
        for size in range(1, 250, 7):
            path.write_bytes(cut(contents, section, slice(size, None), b""))
            found = read_probes(open_binary(str(path)), starts)
            assert found is not None
            assert all(str(path) in what for what in found.damage)
            assert len(found.damage) <= 1


def test_probes_of_functions_without_a_symbol_are_counted(program: Path) -> None:
    starts = symbols(program)
    del starts[guid("main")]
    found = read_probes(open_binary(str(program)), starts)
    assert found is not None
    assert found.unplaced == sum(row[1] == "main" or row[-1].startswith("main:") for row in shown(program)[0])
    assert found.notes == [f"{found.unplaced} pseudo probes left out: their functions are not in the symbol table"]


def test_a_binary_without_them_has_none(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "p").write_bytes(contents.replace(b"\0.pseudo_probe\0", b"\0.another_name\0"))
    try:
        assert read_probes(open_binary(str(tmp_path / "p")), {}) is None
    except FormatError:  # the linker shares the ends of names
        pytest.skip("the name of the section is not by itself")
