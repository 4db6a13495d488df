"""FROM, TO and INFO words of every format, against a decoder of one record written from the manuals' tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch.lbr import FORMATS, PROCESSORS, decode, flag, flags_from_info

M64 = (1 << 64) - 1
FIELDS = ("mispred", "predicted", "in_tx", "abort", "cycles", "type", "spec")
ARCH_TYPE = {0: 1, 1: 3, 2: 2, 3: 5, 4: 4, 5: 6}


def extend(value: int, sign: int) -> int:
    """Bits 0 to ``sign`` as a signed number, modulo 2**64."""
    value &= (2 << sign) - 1
    return (value - (2 << sign)) & M64 if value >> sign else value


def one(name: str, source: int, target: int, info: int) -> tuple[int, int, dict[str, int], bool]:
    def top(word: int) -> dict[str, int]:
        return {"mispred": word >> 63, "predicted": 1 - (word >> 63)}

    def tsx(word: int) -> dict[str, int]:
        return {"in_tx": word >> 62 & 1, "abort": word >> 61 & 1}

    there = bool(source or target)
    if name == "32":
        return source & 0xFFFFFFFF, source >> 32, {}, there
    if name in ("lip", "eip"):
        return source, target, {}, there
    if name == "eip_flags":
        return extend(source, 62), target, top(source), there
    if name == "eip_flags2":
        return extend(source, 60), target, top(source) | tsx(source), there
    if name == "time":
        return extend(source, 62), extend(target, 47), top(source) | {"cycles": target >> 48}, there
    if name == "amd_v2":
        valid, spec, bad = target >> 63, target >> 62 & 1, target >> 61 & 1
        meaning = {(0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 1): 3}[valid, spec]
        ok = (valid or spec) and not bad
        return extend(source, 57), extend(target, 57), top(source) | {"spec": meaning}, bool(ok)
    fields = top(info) | {"cycles": info & 0xFFFF}
    if name != "info2":
        fields |= tsx(info)
    if name == "arch":
        fields["cycles"] *= info >> 60 & 1
        fields["type"] = ARCH_TYPE.get(info >> 56 & 15, 0)
    return source, target, fields, there


WORD = st.one_of(
    st.integers(0, M64),
    st.just(0),
    st.integers(0, (1 << 47) - 1),
    st.integers(0xFFFF800000000000, M64),
    st.integers(0, 63).map(lambda b: 1 << b),
)


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("name", FORMATS)
@given(rows=st.lists(st.tuples(WORD, WORD, WORD), max_size=6))
def test_every_format(name: str, rows: list[tuple[int, int, int]]) -> None:
    columns = np.array(rows, np.uint64).reshape(-1, 3).T
    got = decode(name, *columns)
    for i, row in enumerate(rows):
        source, target, fields, recorded = one(name, *row)
        assert (int(got.source[i]), int(got.target[i])) == (source, target)
        assert {f: int(flag(got.flags, f)[i]) for f in FIELDS} == dict.fromkeys(FIELDS, 0) | fields
        assert bool(got.recorded[i]) == recorded
        assert int(got.counters[i]) == (row[2] >> 32 & 0xFF if name == "arch" else 0)
    assert not (got.flags >> np.uint64(26)).any()


def test_a_kernel_address_with_the_haswell_flags() -> None:
    source = 0xFFFFFFFF81000000 & ~(7 << 61) | 5 << 61  # mispredicted, aborted, not in a transaction
    got = decode("eip_flags2", np.array([source], np.uint64), np.array([0xFFFFFFFF81000010], np.uint64))
    assert int(got.source[0]) == 0xFFFFFFFF81000000
    assert [int(flag(got.flags, f)[0]) for f in ("mispred", "predicted", "in_tx", "abort")] == [1, 0, 0, 1]


def test_format_numbers_are_those_of_the_capability_register() -> None:
    numbers = {f.number: name for name, f in FORMATS.items() if f.number is not None}
    assert [numbers[i] for i in range(8)] == ["32", "lip", "eip", "eip_flags", "eip_flags2", "info", "time", "info2"]


@pytest.mark.parametrize(
    ("name", "depth", "source", "target", "tos"),
    [
        ("Core 2", 4, 0x40, 0x60, 0x1C9),
        ("Silvermont", 8, 0x40, 0x60, 0x1C9),
        ("Knights Mill", 8, 0x680, 0x6C0, 0x1C9),
        ("Westmere", 16, 0x680, 0x6C0, 0x1C9),
        ("Broadwell", 16, 0x680, 0x6C0, 0x1C9),
        ("Tremont", 32, 0x680, 0x6C0, 0x1C9),
        ("Ice Lake", 32, 0x680, 0x6C0, 0x1C9),
        ("Rocket Lake", 32, 0x680, 0x6C0, 0x1C9),
        ("Architectural LBR", 32, 0x1500, 0x1600, None),
    ],
)
def test_processors(name: str, depth: int, source: int, target: int, tos: int | None) -> None:
    found = PROCESSORS[name]
    assert (found.depth, found.source, found.target, found.tos) == (depth, source, target, tos)
    assert found.call_stack == (name not in ("Core 2", "Silvermont", "Knights Mill", "Westmere"))


def test_the_documented_processors_are_those_of_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "lbr.md").read_text().split("## Processors")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "0x" in line]
    told = {name.strip(): row for row in rows if len(row) == 9 for name in row[0].split(",")}
    assert set(told) == set(PROCESSORS)
    for name, (_, form, depth, *numbers, call_stack) in told.items():
        p = PROCESSORS[name]
        assert int(depth.split()[-1]) == p.depth
        registers = [p.source, p.target, p.info, p.select, p.tos]
        assert [int(n, 16) if n.startswith("0x") else None for n in numbers] == registers
        assert (call_stack == "yes") == p.call_stack
        number = FORMATS[p.format].number if p.format else None
        assert form == ("" if p.format is None else f"`{p.format}`" if number is None else f"{number} `{p.format}`")


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_has_the_registers_of_its_format(name: str) -> None:
    """A format that keeps something in LBR_INFO needs that register, and names what its bits hold."""
    p = PROCESSORS[name]
    if p.format is None:
        assert p.has("cycles") is None
        return
    bits = FORMATS[p.format].fields
    assert any(register == "info" for register, _, _ in bits.values()) == (p.info is not None)
    assert [p.has(field) for field in FIELDS] == [field in bits for field in FIELDS]


def test_an_info_word_reads_as_the_format_it_can_only_be_of() -> None:
    """Information words of ETW entries do not name their processor."""
    words = np.array([5, 1 << 63 | 5, 1 << 60 | 5, 3 << 56 | 5, 1 << 60 | 3 << 56 | 5], np.uint64)
    nowhere = np.zeros_like(words)
    old, new = (decode(name, nowhere, nowhere, words).flags for name in ("info", "arch"))
    assert flags_from_info(words).tolist() == [*old[:2].tolist(), *new[2:].tolist()]
    assert new[3] != old[3], "a count that is not valid is none"
    assert flags_from_info(nowhere).tolist() == nowhere.tolist()
