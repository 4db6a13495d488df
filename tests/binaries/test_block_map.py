"""The map of basic blocks is what llvm-readobj says of it; damaged maps are named, or read as far as they go."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from export_tools import tool
from lastbranch.binaries.block_map import BlockMap, read_block_map
from lastbranch.binaries.elf import read_elf
from lastbranch.errors import FormatError
from lastbranch.model import BytesSource

PROGRAM = r"""
extern int out(int);
__attribute__((noinline)) int pick(int x) {
  switch (x & 7) { case 0: return out(1); case 1: return 7 * x; case 2: return x ^ 5; case 3: return out(x) + 2;
                   case 4: x += out(9); default: return x > 70 ? out(x) : -x; }
}
int loop(int n) { int t = 0; for (int i = 0; i < n; i++) t += pick(i) > 3 ? out(i) : i; return t; }
int out(int x) { return x + 1; }
"""
LIST = "!pick\n!!0 2 1\n!!3 4\n!loop\n!!0 1\n"
FLAGS = ("HasReturn", "HasTailCall", "IsEHPad", "CanFallThrough", "HasIndirectBranch")
Row = tuple[int, int, int, int, int]


def built(folder: Path, *flags: str, source: str = PROGRAM, suffix: str = ".c") -> Path:
    (folder / f"x{suffix}").write_text(source)
    (folder / "list").write_text(LIST)
    options = ("-O2", "-fPIC", "-shared", "-nostdlib", "-fuse-ld=lld-19", "-fbasic-block-address-map", *flags)
    command = [tool("clang-19"), *options, "-o", folder / "x.so", folder / f"x{suffix}"]
    tool("lld-19"), tool("llvm-readobj-19")
    subprocess.run(command, check=True, cwd=folder)
    return folder / "x.so"


def llvm_says(path: Path) -> list[Row]:
    """(start, end, id, flags, function's address) of each block."""
    said = subprocess.run(["llvm-readobj-19", "--bb-addr-map", path], capture_output=True, text=True, check=True).stdout
    rows = []
    for function in said.split("Function {")[1:]:
        at = re.search(r"At: (\S+)", function)
        for part in function.split("Base Address: ")[1:]:
            base = int(part.split()[0], 16)
            for block in re.split(r"ID: (?=\d+\s+Offset)", part)[1:]:
                fields = dict(re.findall(r"(\w+): (\w+)", block))
                start = base + int(fields["Offset"], 16)
                flags = sum((fields[name] == "Yes") << i for i, name in enumerate(FLAGS))
                rows.append((start, start + int(fields["Size"], 16), int(block.split()[0]), flags, int(at[1], 16)))
    return sorted(rows)


def rows_of(blocks: BlockMap | None) -> list[Row]:
    assert blocks is not None
    columns = blocks.start, blocks.end, blocks.id, blocks.flags, blocks.entry[blocks.function]
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def read(data: bytes) -> BlockMap | None:
    return read_block_map(BytesSource(data, "x.so"))


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("-m32",),
        ("-fbasic-block-sections=list=list",),
        ("-mllvm", "-pgo-analysis-map=func-entry-count,bb-freq,br-prob", "-fbasic-block-sections=list=list"),
        ("-mllvm", "-pgo-analysis-map=bb-freq", "-ffunction-sections"),
    ],
    ids=["plain", "32 bits", "several ranges", "counts and probabilities", "frequencies"],
)
def test_it_is_what_llvm_says(tmp_path: Path, flags: tuple[str, ...]) -> None:
    made = built(tmp_path, *flags)
    found = read(made.read_bytes())
    want = llvm_says(made)
    assert len(want) > 12
    assert rows_of(found) == want
    assert found is not None
    assert found.notes == []
    assert found.at(found.start[found.start < found.end]).tolist() == [
        i for i in range(len(found)) if found.start[i] < found.end[i]
    ]


def test_version_1_numbers_blocks_by_place(tmp_path: Path) -> None:
    assembly = """
    .text
    f: nop
       nop
    .Lb: ret
    .Lend:
    .section .llvm_bb_addr_map,"o",@llvm_bb_addr_map,.text
    .byte 1, 0
    .quad f
    .uleb128 2
    .uleb128 0, .Lb-f, 8
    .uleb128 0, .Lend-.Lb, 1
    """
    made = built(tmp_path, source=assembly, suffix=".s")
    assert [row[2:4] for row in llvm_says(made)] == [(0, 8), (1, 1)]
    assert rows_of(read(made.read_bytes())) == llvm_says(made)


CODE = """
    .text
    f: nop
       call g
    .Lf1: call g
    .Lf2: nop
    .Lf3: ret
    .Lf4:
    g: nop
    .Lg1: ret
    .Lg2:
    .section .llvm_bb_addr_map,"o",@llvm_bb_addr_map,.text
"""
BLOCKS = (("f", ((7, "f", (".Lf1", ".Lf2"), ".Lf3", 8), (300, ".Lf3", (), ".Lf4", 1))),
          ("g", ((0, "g", (), ".Lg1", 8), (1, ".Lg1", (), ".Lg2", 1))))  # fmt: skip
"""(function, (id, start, ends of its calls, end, metadata) of its blocks)."""
CALLS, HASHES, COUNTS, LINKED = 0x20, 0x40, 0x07, 0x80


def map_of(version: int, features: int) -> str:
    """The map of `BLOCKS` as LLVM's documentation describes each version."""
    lines = []
    for function, blocks in BLOCKS:
        lines += [f".byte {version}", f".{'byte' if version < 5 else 'short'} {features}", f".quad {function}"]
        lines += [f".uleb128 {len(blocks)}"]
        before = function
        for number, start, calls, end, metadata in blocks:
            lines.append(f".uleb128 {number}, {start}-{before}")
            before = start
            if features & CALLS:
                lines.append(f".uleb128 {len(calls)}")
                for call in calls:
                    lines.append(f".uleb128 {call}-{before}")
                    before = call
            lines.append(f".uleb128 {end}-{before}, {metadata}")
            lines += [".quad 0x8100ff807f92a5c3"] * bool(features & HASHES)
            before = end
        if features & COUNTS:
            linked = [", 500"] if features & LINKED else [""]
            lines.append(".uleb128 1000")
            lines += [f".uleb128 90{linked[0]}, 1, 300, 77{linked[0]}" for _ in blocks]
    return CODE + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("version", "features"),
    [(3, 0), (3, CALLS), (4, HASHES), (4, CALLS | HASHES), (5, 0), (5, CALLS | HASHES | COUNTS | LINKED), (4, COUNTS)],
)
def test_later_versions_say_the_same(tmp_path: Path, version: int, features: int) -> None:
    """Version 2 is what llvm-readobj 19 reads; what later ones add is read over."""
    known = built(tmp_path, source=map_of(2, 0), suffix=".s")
    want = llvm_says(known)
    assert [row[2:4] for row in want] == [(7, 8), (300, 1), (0, 8), (1, 1)]
    assert rows_of(read(known.read_bytes())) == want
    found = read(built(tmp_path, source=map_of(version, features), suffix=".s").read_bytes())
    assert rows_of(found) == want
    assert found is not None
    assert found.notes == []


@pytest.mark.parametrize(("version", "feature"), [(2, CALLS), (3, HASHES), (4, LINKED)])
def test_a_feature_of_a_later_version_is_refused(tmp_path: Path, version: int, feature: int) -> None:
    with pytest.raises(FormatError) as error:
        read(built(tmp_path, source=map_of(version, feature), suffix=".s").read_bytes())
    assert f"features = {feature:#x}" in str(error.value)


def test_functions_without_blocks_have_their_number_alone(tmp_path: Path) -> None:
    without = "".join(f".byte 2, 0x10\n.quad {f}\n.uleb128 2\n" for f in "fg")
    found = read(built(tmp_path, source=CODE + without, suffix=".s").read_bytes())
    assert found is not None
    assert (len(found), len(found.entry)) == (0, 2)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int, int]:
    """A file, and where its map is."""
    data = built(tmp_path_factory.mktemp("map")).read_bytes()
    (section,) = [s for s in read_elf(BytesSource(data)).sections if s.name == ".llvm_bb_addr_map"]
    return data, section.offset, section.file_size


def test_another_version_ends_the_map(image: tuple[bytes, int, int]) -> None:
    data, offset, size = image
    whole = rows_of(read(data))
    entry = whole[-1][4].to_bytes(8, "little")
    second = data.index(b"\x02\x00" + entry, offset)
    found = read(data[:second] + b"\x63" + data[second + 1 :])
    assert found is not None
    assert rows_of(found) == [row for row in whole if data.index(row[4].to_bytes(8, "little"), offset) < second]
    assert found.notes == [
        f".llvm_bb_addr_map: version 99 at offset {second:#x} of x.so is not known, "
        "the functions from there on are left out"
    ]
    assert offset < second < offset + size
    first = read(data[:offset] + b"\x63" + data[offset + 1 :])
    assert first is not None
    assert first.notes == [f".llvm_bb_addr_map: version 99 at offset {offset:#x} of x.so is not known"]


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [(1, b"\x80", "features = 0x80"), (10, b"\xff\xff\xff\x7f", "blocks = 0xfffffff"), (11, b"\xff" * 11, "64 bits")],
)
def test_damage_is_named(image: tuple[bytes, int, int], at: int, value: bytes, says: str) -> None:
    data, offset, _ = image
    with pytest.raises(FormatError) as error:
        read(data[: offset + at] + value + data[offset + at + len(value) :])
    assert "x.so" in str(error.value)
    assert says in str(error.value)


def test_functions_of_another_build_are_left_out(image: tuple[bytes, int, int]) -> None:
    data, offset, _ = image
    found = read(data[: offset + 2] + (0x77777000).to_bytes(8, "little") + data[offset + 10 :])
    assert found is not None
    assert [n for n in found.notes if "1 function left out: not in the code of the file" in n]
    assert 0x77777000 not in {row[4] for row in rows_of(found)}


def test_any_bytes_make_a_sound_map_or_an_error(image: tuple[bytes, int, int]) -> None:
    data, offset, size = image
    rnd = random.Random(5)
    for _ in range(250):
        damaged = bytearray(data)
        for _ in range(rnd.randint(1, 4)):
            damaged[offset + rnd.randrange(size)] = rnd.choice((0, 1, 2, 8, 0x7F, 0x80, 0xFF, rnd.randrange(256)))
        try:
            found = read(bytes(damaged))
        except FormatError:
            continue
        assert found is not None
        assert (found.start <= found.end).all()
        assert (found.end[:-1] <= found.start[1:]).all()
