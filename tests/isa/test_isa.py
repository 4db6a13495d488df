"""Instruction boundaries, branch kinds and direct targets against llvm-objdump, stored and live."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isa_oracle as oracle
from isa_oracle import Line
from lastbranch import isa, native
from lastbranch.errors import UnavailableError
from lastbranch.isa import ARCHITECTURES, NOT_A_BRANCH, UNDECODABLE, Decoder, Instruction
from lastbranch.lbr import BRANCH_TYPES, KIND


def name_of(kind: int) -> str:
    return "(bad)" if kind == UNDECODABLE else BRANCH_TYPES[kind]


def check(lines: list[Line], arch: str) -> None:
    code, base = b"".join(line.code for line in lines), lines[0].address
    expected = []
    for line in lines:
        kind = oracle.kind_of(line.text, arch)
        expected.append((line.address, len(line.code), kind, oracle.target_of(line.text, kind)))
    decoder = Decoder(arch)
    found = list(decoder.lines(code, base))
    assert [(i.address, i.length, name_of(i.kind), i.target) for i in found] == expected
    for compiled in (True, False):
        columns = classified(decoder, [code], [base], [len(code)], compiled)[0]
        assert [c.dtype for c in columns] == [np.uint64, np.uint8, np.uint8, np.uint64]
        assert list(zip(*(c.tolist() for c in columns), strict=True)) == [i[:4] for i in found]


def classified(decoder: Decoder, pieces: list[bytes], address: list[int], span: list[int], compiled: bool) -> Any:
    """`Decoder.classify` with the compiled library, if there is one, or without it."""
    data = np.frombuffer(b"".join(pieces), np.uint8)
    arguments = data, np.cumsum([0, *map(len, pieces)]), np.array(address, np.uint64), np.array(span, np.int64)
    with nullcontext() if compiled else mock.patch.object(native, "library", return_value=None):
        return decoder.classify(*arguments)


@pytest.mark.parametrize("name", oracle.SAMPLES)
def test_stored_samples(name: str) -> None:
    arch = oracle.BUILDS[name][0]
    found = oracle.sections(oracle.sample_path(name).read_text(), arch)
    kinds = {oracle.kind_of(line.text, arch) for lines in found for line in lines}
    assert {"cond", "uncond", "ind", "call", "ind_call", "ret", "eret", "syscall", "irq", "unknown"} <= kinds
    assert sum(map(len, found)) > 150
    for lines in found:
        check(lines, arch)


@pytest.mark.parametrize("name", oracle.BUILDS)
def test_programs_built_here(name: str, tmp_path: Path) -> None:
    text = oracle.disassembly(name, tmp_path)
    if text is None:
        pytest.skip(f"no llvm-objdump, or {' '.join(oracle.BUILDS[name][1])} cannot build here")
    arch = oracle.BUILDS[name][0]
    for lines in oracle.sections(text, arch):
        check(lines, arch)


@pytest.mark.parametrize("name", oracle.PROGRAMS)
def test_every_code_address_of_linked_programs(name: str, tmp_path: Path) -> None:
    """Boundaries, lengths, kinds and direct targets of all executable sections, as llvm-objdump prints them."""
    text = oracle.program(name, tmp_path)
    if text is None:
        pytest.skip(f"no llvm-objdump, or {' '.join(oracle.PROGRAMS[name])} cannot build here")
    found = oracle.sections(text, "x86_64")
    assert sum(map(len, found)) > 100
    for lines in found:
        check(lines, "x86_64")


@pytest.mark.parametrize("arch", ["x86_64", "i386", "aarch64"])
@settings(max_examples=150, deadline=None)
@given(code=st.binary(max_size=60), base=st.sampled_from([0, 0x401000, 0xFFFFFFFF81000000]))
def test_any_bytes_are_covered_once(arch: str, code: bytes, base: int) -> None:
    decoder, at = Decoder(arch), 0
    for found in decoder.lines(code, base):
        assert found.address == base + at
        assert found.length > 0
        assert (found.text == "(bad)") == (found.kind == UNDECODABLE)
        assert decoder.one(code[at:], base + at) == found
        at += found.length
    assert at == len(code)


@pytest.mark.parametrize("arch", ["x86_64", "i386", "aarch64"])
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 41)), max_size=5), st.integers(0, (1 << 64) - 1))
def test_pieces_are_classified_like_lines(arch: str, pieces: list[tuple[bytes, int]], base: int) -> None:
    decoder, expected, counts = Decoder(arch), [], []
    for code, span in pieces:
        lines = decoder.lines(code, base)
        found = [i for i in lines if (i.address - base) % (1 << 64) < span]
        expected += [(i.address % (1 << 64), *i[1:4]) for i in found]
        counts.append(len(found))
    for compiled in (True, False):
        codes, spans = [code for code, _ in pieces], [span for _, span in pieces]
        columns, count = classified(decoder, codes, [base] * len(pieces), spans, compiled)
        assert list(zip(*(c.tolist() for c in columns), strict=True)) == expected
        assert count.tolist() == counts


@pytest.mark.parametrize("filler", [b"\x06", b"\x90", b"\x48\x8d\x84\x24\x00\x01\x00\x00"])
def test_long_ranges_are_decoded_in_pieces(filler: bytes) -> None:
    code = b"\x55" + filler * 5000 + b"\xc3\xe8"
    found = list(Decoder().lines(code, 0x1000))
    assert [i.length for i in found] == [1, *[len(filler)] * 5000, 1, 1]
    assert [i.kind for i in found[-2:]] == [KIND["ret"], UNDECODABLE]


def test_one_instruction() -> None:
    decoder = Decoder()
    assert decoder.one(bytes.fromhex("e8fbffffff9090"), 0x1000) == Instruction(
        0x1000, 5, KIND["call"], 0x1000, "call 0x1000"
    )
    assert decoder.one(bytes.fromhex("ff2578563412"), 0x1000).kind == KIND["ind"]
    assert decoder.one(b"\x90", 0x1000) == Instruction(0x1000, 1, NOT_A_BRANCH, 0, "nop")
    assert decoder.one(b"\xe8\0", 0x1000) == Instruction(0x1000, 1, UNDECODABLE, 0, "(bad)")
    assert decoder.one(b"\xeb\x7e", 0xFFFFFFFFFFFFFFF0).target == 0x70
    assert Decoder("i386").one(b"\xeb\x80", 0x10).target == 0xFFFFFF92


def test_other_machines_have_no_decoder() -> None:
    with pytest.raises(UnavailableError, match="riscv64") as refused:
        Decoder("riscv64")
    assert all(name in str(refused.value.hint) for name in ARCHITECTURES)


@pytest.mark.parametrize("library", [True, False])
def test_the_syntax_of_att(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not library:
        monkeypatch.setattr(isa, "_library", lambda: None)
    code = bytes.fromhex("480108 74fb ebf9 ff20")
    assert [(i.text, i.kind, i.target) for i in Decoder(att=True).lines(code, 0x1000)] == [
        ("addq %rcx, (%rax)", NOT_A_BRANCH, 0),
        ("je 0x1000", KIND["cond"], 0x1000),
        ("jmp 0x1000", KIND["uncond"], 0x1000),
        ("jmpq *(%rax)", NOT_A_BRANCH, 0),
    ]
    assert next(Decoder().lines(code, 0)).text == "add qword ptr [rax], rcx"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_library_says_the_same_as_the_package_around_it(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = random.Random(arch).randbytes(1 << 11) + bytes(64) + b"\xff" * 64
    direct = Decoder(arch)
    monkeypatch.setattr(isa, "_library", lambda: None)
    package = Decoder(arch)
    assert list(direct.lines(code, 2**64 - 4096)) == list(package.lines(code, 2**64 - 4096))
    given = [code, code[1:]], [2**64 - 4096, 0], [len(code)] * 2
    first, second = classified(direct, *given, True), classified(package, *given, True)
    assert [c.tolist() for c in (*first[0], first[1])] == [c.tolist() for c in (*second[0], second[1])]
    assert min(first[1]) > 100


def test_a_library_of_another_version_is_not_called() -> None:
    class Library:
        def cs_version(self, major: Any, _minor: Any) -> None:
            major._obj.value = 6

        def __getattr__(self, name: str) -> Any:
            return mock.MagicMock()

    isa._library.cache_clear()
    try:
        with mock.patch("ctypes.CDLL", return_value=Library()):
            assert isa._library() is None
    finally:
        isa._library.cache_clear()
