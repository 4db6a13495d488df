"""AArch64 on any machine: where branches go, and where a program may be stopped. `make arm64` records there."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastbranch.capture.architectures import ARCHITECTURES
from lastbranch.capture.software.control_flow import Code, Fork
from lastbranch.capture.software.instructions import NOT_TAKEN
from lastbranch.capture.software.startup_test import KNOWN
from lastbranch.capture.software.successors import Successors
from lastbranch.lbr import KIND

VECTORS = Path(__file__).parents[1] / "data" / "aarch64_branches.txt"
"""What qemu executed of tests/programs/forms_a64.c (`arm64_machine.py`): an instruction, its address, the next one's,
and the registers before it."""
BASE = 0x400000
ADD_EXCLUSIVE = ("c85f7d20", "8b010002", "c8037d22", "35ffffa3", "d65f03c0")
"""ldxr; add; stxr; cbnz to the first; ret."""
SWAP_EXCLUSIVE = ("c85ffd20", "eb01001f", "54000081", "c803fd22", "35ffff83", "d65f03c0", "d5033f5f", "d65f03c0")
"""ldaxr; cmp; b.ne to clrex; stlxr; cbnz to the first; ret; clrex; ret."""
RAISE_PAIR = ("c87f8920", "b40000e1", "36000040", "91000400", "91000c00", "c8238920", "35ffff43", "d65f03c0",
              "d28000e0", "d65f03c0")  # fmt: skip
"""ldaxp; cbz to mov; tbz to the second add; add; add; stlxp; cbnz to the first; ret; mov; ret."""
ONLY_LOAD = ("c85f7c00", "37080040", "91000800", "d65f03c0")
"""ldxr; tbnz to ret; add; ret: its store never comes."""


def code(*words: str) -> bytes:
    return b"".join(int(word, 16).to_bytes(4, "little") for word in words)


def successors(memory: bytes, most: int) -> Successors:
    def read(address: int, length: int) -> bytes:
        return memory[max(address - BASE, 0) :][:length] if address >= BASE else b"" * length

    found = Successors(Code("aarch64"), read, most)
    found.begin()
    return found


def fork(memory: bytes, start: int, most: int) -> Fork:
    return successors(memory, most).of(BASE + start, [0] * ARCHITECTURES["aarch64"].words, 0).fork


def test_branches_go_where_a_processor_goes() -> None:
    decoder, lines = Code("aarch64"), VECTORS.read_text().splitlines()
    evaluated = 0
    for line in lines:
        word, at, after, *given = line.split()
        here, registers = int(at, 16), [0] * 34
        for pair in given:
            number, _, value = pair.partition("=")
            registers[int(number, 16)] = int(value, 16)
        memory = code(word)
        found = decoder.line(lambda a, n, here=here, memory=memory: memory[:n] if a == here else b"", here).branch
        if found is None:  # a hint, a barrier, or the like
            assert int(after, 16) == here + 4, line
            continue
        assert found.goes is not None, line
        goes = found.goes(registers, found, lambda a, n: b"")
        assert (here + 4 if goes == NOT_TAKEN else goes) == int(after, 16), line
        evaluated += 1
    assert evaluated > 90


@pytest.mark.parametrize(
    ("word", "kind"), [("d4000001", "syscall"), ("d69f03e0", "eret"), ("d4200000", "irq"), ("d6bf03e0", "")]
)
def test_what_leaves_the_program_is_not_evaluated(word: str, kind: str) -> None:
    found = Code("aarch64").line(lambda a, n: code(word)[a - BASE :][:n], BASE).branch
    assert (found is None) if not kind else (found is not None and found.goes is None and found.kind == KIND[kind])


def test_instructions_that_no_decoder_knows_are_no_branches() -> None:
    memory = code("ff000000", "04ffffff", "d65f03c0")
    found = Code("aarch64").line(lambda a, n: memory[a - BASE :][:n], BASE).branch
    assert found is not None
    assert (found.address, found.kind) == (BASE + 8, KIND["ret"])
    assert Code("aarch64").line(lambda a, n: code("00001234")[a - BASE :][:n], BASE).branch is None, (
        "undefined for ever"
    )


@pytest.mark.parametrize("words", [ADD_EXCLUSIVE, SWAP_EXCLUSIVE, RAISE_PAIR, ONLY_LOAD])
@pytest.mark.parametrize("most", [1, 2, 4])
def test_no_stop_lies_between_an_exclusive_load_and_its_store(words: tuple[str, ...], most: int) -> None:
    """Otherwise the store would fail as often as the recorder stops there."""
    store = next((i for i, word in enumerate(words) if int(word, 16) >> 21 in (0x640, 0x641)), len(words) - 1)
    for start in (0, 4):  # a nop before the load, and the load
        found = fork(code("d503201f", *words), start, most)
        assert {BASE + 4 + 4 * i for i in range(1, store + 1)}.isdisjoint(found.ends)
        known = words is ADD_EXCLUSIVE or (words is SWAP_EXCLUSIVE and most > 1)
        assert (found.ends != {}, found.why == "exclusive access") == (known, not known)


def test_a_way_out_between_load_and_store_needs_no_stop() -> None:
    ends = fork(code(*SWAP_EXCLUSIVE), 0, 2).ends
    assert {address - BASE: [(a - BASE, b - BASE) for a, b, _ in end.path] for address, end in ends.items()} == {
        0x10: [], 0x1C: [(0x8, 0x18)],
    }  # fmt: skip


def test_an_exclusive_load_is_never_stepped() -> None:
    found = successors(code("c85f7d20", "c8a27c20", "c8037d22", "48207c82", "885ffc20"), 1)
    assert [bool(found.step_refusal(BASE + i * 4)) for i in range(5)] == [True, False, False, False, True]
    #                                        ldxr, cas, stxr, casp, ldaxr


def test_the_start_up_test_knows_its_code() -> None:
    known = KNOWN["aarch64"]
    found = successors(known.code, 1)
    for source, target, kind in set(known.edges(BASE, 40)):
        branch = found.line(source)
        assert branch is not None
        assert (branch.address, branch.kind) == (source, kind)
        assert branch.target in (0, target)
