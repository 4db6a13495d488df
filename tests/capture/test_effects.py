"""What instructions do to the stack and to registers: against what the processor's own manual says, and capstone."""

from __future__ import annotations

from collections.abc import Callable

import capstone  # type: ignore[import-untyped]
import pytest

from lastbranch.capture.ptrace import (
    FS_BASE,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
    RAX,
    RBP,
    RBX,
    RCX,
    RDI,
    RDX,
    RIP,
    RSI,
    RSP,
)
from lastbranch.capture.software.control_flow import Code, Edge
from lastbranch.capture.software.instructions import ANYWHERE, NOT_TAKEN, Memory, Store, moved, stored, written
from lastbranch.capture.software.successors import Successors
from lastbranch.lbr import KIND

_ENGINE = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
CALL, RET, IND_CALL = KIND["call"], KIND["ret"], KIND["ind_call"]


def text(code: bytes) -> str:
    ((_, _, mnemonic, operands),) = _ENGINE.disasm_lite(code, 0x1000)
    return f"{mnemonic} {operands}".strip()


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("53", -8),
        ("5b", 8),
        ("4883ec28", -0x28),
        ("4881c480000000", 0x80),
        ("4883c480", -0x80),
        ("488d642410", 0x10),
        ("488d6424f0", -0x10),
        ("9c", -8),
        ("9d", 8),
        ("ff3424", -8),
        ("4839e0", 0),
        ("4889e5", 0),
        ("90", 0),
        ("c9", None),
        ("4889ec", None),
        ("5c", None),
        ("6653", None),
        ("4801cc", None),
        ("4887e0", None),
        ("480fb1e0", None),
        ("4883e4f0", None),
    ],
)
def test_the_stack_pointer_moves_by_a_constant_or_it_is_not_known(code: str, wanted: int | None) -> None:
    raw = bytes.fromhex(code)
    assert moved(text(raw), raw) == wanted


STACK, RBX_AT, RIP_AT = ((RSP, 1),), ((RBX, 1),), ((RIP, 1),)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("48890424", Store(STACK, 0, 8)),
        ("4889442408", Store(STACK, 8, 8)),
        ("89442408", Store(STACK, 8, 4)),
        ("48894424f8", Store(STACK, -8, 8)),
        ("0f290424", Store(STACK, 0, 16)),
        ("c5fc110424", Store(STACK, 0, 32)),
        ("50", Store(STACK, -8, 8)),
        ("9c", Store(STACK, -8, 8)),
        ("48895ef8", Store(((RSI, 1),), -8, 8)),
        ("4889441ef8", Store(((RSI, 1), (RBX, 1)), -8, 8)),
        ("c5f81144c8f0", Store(((RAX, 1), (RCX, 8)), -16, 16)),
        ("64488904250c000000", Store(((FS_BASE, 1),), 12, 8)),
        ("488905f0ffffff", Store(RIP_AT, -16, 8)),
        ("f0480fc103", Store(RBX_AT, 0, 8)),
        ("f00103", Store(RBX_AT, 0, 4)),
        ("0f9403", Store(RBX_AT, 0, 1)),
        ("48870424", Store(STACK, 0, 8)),
        ("480fc70e", Store(((RSI, 1),), 0, 16)),
        ("0fae0424", ANYWHERE),
        ("f3ab", ANYWHERE),
        ("48a5", ANYWHERE),
        ("67488903", ANYWHERE),
        ("8f0424", ANYWHERE),
        ("660ff7c1", ANYWHERE),
        ("0f01fc", ANYWHERE),
        ("660f38f803", ANYWHERE),
        ("c8100000", ANYWHERE),
        ("62f27d49a20c03", ANYWHERE),
        ("488b0424", None),
        ("48833c2400", None),
        ("4801d8", None),
        ("480faf03", None),
        ("c5f96e03", None),
        ("c9", None),
    ],
)
def test_writes_to_memory_are_seen(code: str, wanted: Store | None) -> None:
    assert stored(text(bytes.fromhex(code))) == wanted


def test_every_register_can_be_a_base() -> None:
    for number in range(16):
        tail = b"\x24" if number & 7 == 4 else b""
        code = bytes([0x49 if number > 7 else 0x48, 0x89, 0x40 | number & 7]) + tail + b"\x10"
        wanted = (RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15)[number]
        assert stored(text(code)) == Store(((wanted, 1),), 16, 8)


def test_registers_that_change_and_words_they_are_loaded_from() -> None:
    def of(code: str) -> dict[int, int | None]:
        return written(text(bytes.fromhex(code)))

    assert of("4889d8") == {RAX: None}
    assert of("488b442408") == {RAX: 8}
    assert of("8b442408") == {RAX: None}, "half a word is none"
    assert of("4d8bc2") == {R8: None}
    assert of("4883f801") == {}
    assert of("660fd7d8") == {RBX: None}  # pmovmskb ebx, xmm0
    assert of("0f28c1") == {}
    assert {RAX, RBX, RCX, R10} <= set(of("48a5")), "movsq: what is not modelled may change all"
    assert {RAX, RBX, RCX, R10} <= set(of("48f7e3")), "mul"


# -- computed ahead

BASE = 0x400000


def memory_with(code: bytes, words: dict[int, int]) -> Callable[[int, int], bytes]:
    """Memory with ``code`` at `BASE`, and words at addresses; else zeros."""

    def read(address: int, length: int) -> bytes:
        found = bytearray(length)
        for start, held in [(BASE, code), *((at, word.to_bytes(8, "little")) for at, word in words.items())]:
            for at, byte in enumerate(held, start - address):
                if 0 <= at < length:
                    found[at] = byte
        return bytes(found)

    return read


def fork_of(
    code: bytes, stack: dict[int, int], registers: dict[int, int] | None = None, at: int = 0
) -> dict[int, tuple[Edge, ...]]:
    memory = code.ljust(64, b"\xf4")

    read = memory_with(memory, stack)
    found = Successors(Code(), read, 2)
    found.begin()
    values = [0] * 27
    for register, value in (registers or {}).items():
        values[register] = value
    return {e.branch.address - BASE: e.path for e in found.of(BASE + at, values, values[RSP]).fork.ends.values()}


def test_a_return_to_a_word_of_the_stack_is_followed() -> None:
    code = bytes.fromhex("5b4883c410c390900f05")  # pop rbx; add rsp, 16; ret; nops; 8: syscall
    assert fork_of(code, {0x7018: BASE + 8}, {RSP: 0x7000}) == {8: ((BASE + 5, BASE + 8, RET),)}


def test_a_return_to_what_was_written_on_the_way_is_not_followed() -> None:
    code = bytes.fromhex("48890424c39090900f05")  # mov [rsp], rax; ret: a retpoline
    assert fork_of(code, {0x7000: BASE + 8}, {RSP: 0x7000}) == {4: ()}


def test_a_call_and_its_return_are_followed() -> None:
    code = bytes.fromhex("e8030000000f0590c3")  # 0: call 8   5: syscall   8: ret
    assert fork_of(code, {}, {RSP: 0x7000}) == {5: ((BASE, BASE + 8, CALL), (BASE + 8, BASE + 5, RET))}


def test_a_call_by_a_register_that_stays_is_followed() -> None:
    code = bytes.fromhex("4889c3ffd09090900f05")  # mov rbx, rax; call rax; 8: syscall
    assert fork_of(code, {}, {RAX: BASE + 8}) == {8: ((BASE + 3, BASE + 8, IND_CALL),)}
    changed = bytes.fromhex("4889d8ffd09090900f05")  # mov rax, rbx; call rax
    assert fork_of(changed, {}, {RAX: BASE + 8}) == {3: ()}
    loaded = bytes.fromhex("488b442408ffd0900f05")  # mov rax, [rsp + 8]; call rax
    assert fork_of(loaded, {0x7008: BASE + 8}, {RSP: 0x7000}) == {8: ((BASE + 5, BASE + 8, IND_CALL),)}


def test_what_a_call_pushes_is_known_before_it_is_in_memory() -> None:
    code = bytes.fromhex("ffd00f0590909090c3")  # 0: call rax   2: syscall   8: ret
    found = Successors(Code(), lambda at, n: code.ljust(64, b"\xf4")[at - BASE :][:n] if at >= BASE else bytes(n), 2)
    found.begin()
    branch = found.line(BASE)
    assert branch is not None
    registers = [0] * 27
    registers[RAX], registers[RSP] = BASE + 8, 0x7000
    fork = found.after(branch, BASE + 8, registers).fork
    assert {e.branch.address - BASE: e.path for e in fork.ends.values()} == {2: ((BASE + 8, BASE + 2, RET),)}
    assert found.after(branch, NOT_TAKEN, registers).fork.ends.keys() == {BASE + 2}


# -- what must not be computed ahead


def ends_at(code: str, stack: dict[int, int], registers: dict[int, int], at: int = 0) -> set[int]:
    """Offsets of the ends of the fork at ``at``."""
    memory = bytes.fromhex(code.replace(" ", "")).ljust(64, b"\xf4")

    read = memory_with(memory, stack)
    found = Successors(Code(), read, 2)
    found.begin()
    values = [0] * 27
    for register, value in registers.items():
        values[register] = value
    return {address - BASE for address in found.of(BASE + at, values, values[RSP]).fork.ends}


@pytest.mark.parametrize(
    ("code", "hits", "misses"),
    [
        ("488903 c3 0f05", {RBX: 0x7000}, {RBX: 0x6FF8}),  # mov [rbx], rax; ret; syscall
        ("488903 c3 0f05", {RBX: 0x6FF9}, {RBX: 0x7008}),  # a part of the word
        ("48890433 c3 0f05", {RSI: 0x10, RBX: 0x6FF0}, {RSI: 0x20, RBX: 0x6FF0}),  # mov [rbx + rsi], rax
        ("c60300 c3 0f05", {RBX: 0x7007}, {RBX: 0x7008}),  # mov byte ptr [rbx], 0
        ("64c604250000000000 c3 0f05", {FS_BASE: 0x7000}, {FS_BASE: 0x8000}),
        ("f0488703 c3 0f05", {RBX: 0x7000}, {RBX: 0x7010}),  # xchg [rbx], rax
    ],
)
def test_a_store_by_a_register_is_looked_at_with_its_value(
    code: str, hits: dict[int, int], misses: dict[int, int]
) -> None:
    words = code.split()
    ret = sum(len(w) // 2 for w in words[:-2])
    stack = {0x7000: BASE + ret + 1, 0x7008: BASE}
    assert ends_at(code, stack, {RSP: 0x7000, **hits}) == {ret}
    assert ends_at(code, stack, {RSP: 0x7000, **misses}) == {ret + 1}


@pytest.mark.parametrize(
    "code",
    [
        "488b5b08 488903 c3",  # mov rbx, [rbx + 8]; mov [rbx], rax; ret: who knows where that is
        "f3aa c3",
        "48a5 c3",
        "0f01fc c3",
        "0fae03 c3",  # rep stosb; movsq; clzero; fxsave [rbx]
        "59 53 c3",  # pop rcx; push rbx; ret
        "4883c408 53 c3",  # add rsp, 8; push rbx; ret
        "0f114424f8 c3",  # movups [rsp - 8], xmm0: its upper half
        "9c 5b 48875cf8 c3".replace("48875cf8", "48871c24"),  # pushfq; pop rbx; xchg [rsp], rbx
    ],
)
def test_a_return_behind_what_may_write_its_word_is_not_told(code: str) -> None:
    ret = sum(len(w) // 2 for w in code.split()[:-1])
    registers = {RSP: 0x7000, RBX: 0x5000, RAX: 0x5000}
    stack = dict.fromkeys(range(0x6FF0, 0x7020, 8), BASE + 32)
    assert ends_at(code, stack, registers) == {ret}


def test_a_return_address_that_its_function_writes_over_is_not_told() -> None:
    code = "e804000000 0f05 9090 48890424 c3"  # 0: call 9   5: syscall   9: mov [rsp], rax   d: ret
    assert ends_at(code, {}, {RSP: 0x7000}) == {13}
    by_register = "e804000000 0f05 9090 48890390 c3"  # 9: mov [rbx], rax
    assert ends_at(by_register, {}, {RSP: 0x7000, RBX: 0x6FF8}) == {13}
    assert ends_at(by_register, {}, {RSP: 0x7000, RBX: 0x5000}) == {5}


def test_a_branch_to_where_the_stack_pointer_points_is_not_told() -> None:
    """0: push rax  1: jmp rsp. Told by what it is at the place, that would be to 3."""
    assert ends_at("50 ffe4 0f05", {}, {RSP: BASE + 3}) == {1}


def test_a_word_of_the_program_is_told_if_none_may_write_it() -> None:
    jump = "ff250a000000"  # jmp [rip + 10], behind which 0f05 stands at 6 and the word at 16
    stack = {BASE + 16: BASE + 6}
    assert ends_at(f"{jump} 0f05", stack, {}) == {6}
    store = "48890509000000"  # mov [rip + 9], rax: the same word
    after = f"{store} ff2503000000 0f05"
    assert ends_at(after, {BASE + 16: BASE + 13}, {}) == {7}
    other = "48890511000000"  # mov [rip + 17], rax: the next one
    assert ends_at(f"{other} ff2503000000 0f05", {BASE + 16: BASE + 13}, {}) == {13}


def test_two_ways_to_one_branch_that_tell_it_by_different_words_are_not_mixed() -> None:
    # 0: jz 7   2: mov rax, [rsp + 16]   7: call rax, which one way reaches with the rax from before
    code = "7405 488b442410 ffd0 0f05" + "90" * 9 + "0f05" + "0f05"
    registers = {RAX: BASE + 20, RSP: 0x7000}
    found = fork_of(bytes.fromhex(code.replace(" ", "")), {0x7010: BASE + 22}, registers)
    assert len(found) == 2
    for path in found.values():
        taken = (BASE, BASE + 7, KIND["cond"]) in path
        for source, target, _ in path:
            if source == BASE + 7:
                assert target == (BASE + 20 if taken else BASE + 22)


def test_a_branch_through_the_counter_of_a_loop_is_told_with_what_is_left() -> None:
    code = bytes.fromhex("e202 9090 ffe1")  # 0: loop 4   4: jmp rcx
    found = Successors(Code(), lambda at, n: code.ljust(64, b"\xf4")[at - BASE :][:n] if at >= BASE else b"", 2)
    found.begin()
    branch = found.line(BASE)
    assert branch is not None
    registers = [0] * 27
    registers[RCX] = BASE + 5
    ends = found.after(branch, BASE + 4, registers).fork.ends
    assert [end.path for end in ends.values()] == [((BASE + 4, BASE + 4, KIND["ind"]),)] or set(ends) == {BASE + 4}


def test_the_stack_pointer_must_be_what_the_way_leaves() -> None:
    code = bytes.fromhex("5b 90 ffe0")  # pop rbx; nop; jmp rax
    found = Successors(Code(), lambda at, n: code.ljust(64, b"\xf4")[at - BASE :][:n] if at >= BASE else b"", 2)
    found.begin()
    expected = found.of(BASE, [0] * 27, 0x7000)
    (end,) = expected.fork.ends.values()
    assert not found.diverged(expected, end, 0x7008)
    assert found.diverged(expected, end, 0x7000)
    assert not found.diverged(expected._replace(stack=None), end, 0x7000)


def test_a_word_that_another_thread_changes_meanwhile_is_not_believed() -> None:
    code = bytes.fromhex("ff2502000000 0f05").ljust(64, b"\xf4")  # 0: jmp [rip + 2]   6: syscall   8: the word
    word = [BASE + 6]

    found = Successors(Code(), lambda at, n: memory_with(code, {BASE + 8: word[0]})(at, n), 2)
    for alone in (True, False):
        word[0] = BASE + 6
        found.begin(alone=alone)
        expected = found.of(BASE, [0] * 27, 0x7000)
        (end,) = expected.fork.ends.values()
        assert end.path == ((BASE, BASE + 6, KIND["ind"]),)
        assert not found.diverged(expected, end, 0x7000)
        word[0] = BASE
        found.read.moved()
        assert found.diverged(expected, end, 0x7000) == (not alone)
        assert not found.diverged(expected, end._replace(path=()), 0x7000), "the way did not lead over that branch"


def test_code_of_another_process_is_not_taken_for_that_of_the_one_before() -> None:
    """Forks are shared by processes of one program; where code differs it is decoded again."""
    first, second = bytes.fromhex("5b 90 ffe0"), bytes.fromhex("5b ffe1")  # pop rbx; nop; jmp rax   pop rbx; jmp rcx

    def memory_of(code: bytes) -> Memory:
        return lambda at, n: code.ljust(64, b"\xf4")[at - BASE :][:n] if at >= BASE else b""

    found = Successors(Code(), memory_of(first), 2)
    forks = []
    for code in (first, first, second, first):
        found.aim(memory_of(code), -1)
        found.begin()
        forks.append(found.of(BASE, [0] * 27, 0x7000).fork)
    assert [list(fork.ends) for fork in forks] == [[BASE + 2], [BASE + 2], [BASE + 1], [BASE + 2]]
    assert forks[0] is forks[1]
