"""What instructions do to the stack and to registers: against what the processor's own manual says, and capstone."""

from __future__ import annotations

import capstone  # type: ignore[import-untyped]
import pytest

from lastbranch.capture.ptrace import R8, R10, RAX, RBX, RCX, RSP
from lastbranch.capture.software.branching import NOT_TAKEN
from lastbranch.capture.software.code import Code
from lastbranch.capture.software.effects import moved, stored, written
from lastbranch.capture.software.ways import Ways
from lastbranch.lbr import KIND

_ENGINE = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
CALL, RET, IND_CALL = KIND["call"], KIND["ret"], KIND["ind_call"]


def text(code: bytes) -> str:
    ((_, _, mnemonic, operands),) = _ENGINE.disasm_lite(code, 0x1000)
    return f"{mnemonic} {operands}".strip()


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("53", -8), ("5b", 8), ("4883ec28", -0x28), ("4881c480000000", 0x80), ("4883c480", -0x80), ("488d642410", 0x10),
        ("488d6424f0", -0x10), ("9c", -8), ("9d", 8), ("ff3424", -8), ("4839e0", 0), ("4889e5", 0), ("90", 0),
        ("c9", None), ("4889ec", None), ("5c", None), ("6653", None), ("4801cc", None), ("4887e0", None),
        ("480fb1e0", None), ("4883e4f0", None),
    ],
)  # fmt: skip
def test_the_stack_pointer_moves_by_a_constant_or_it_is_not_known(code: str, wanted: int | None) -> None:
    raw = bytes.fromhex(code)
    assert moved(text(raw), raw) == wanted


@pytest.mark.parametrize(
    ("code", "wanted"),
    [("48890424", 0), ("4889442408", 8), ("48894424f8", -8), ("488b0424", None), ("48833c2400", None), ("0f290424", 0)],
)
def test_writes_by_the_stack_pointer_are_seen(code: str, wanted: int | None) -> None:
    assert stored(text(bytes.fromhex(code))) == wanted


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


# -- told ahead

BASE = 0x400000


def fork_of(code: bytes, stack: dict[int, int], registers: dict[int, int] | None = None, at: int = 0) -> object:
    memory = code.ljust(64, b"\xf4")

    def read(address: int, length: int) -> bytes:
        if address in stack:
            return stack[address].to_bytes(length, "little")
        return memory[address - BASE :][:length] if BASE <= address < BASE + len(memory) else b""

    found = Ways(Code(), read, 2)
    found.begin()
    values = [0] * 27
    for register, value in (registers or {}).items():
        values[register] = value
    return {e.branch.address - BASE: e.path for e in found.of(BASE + at, values, values[RSP]).ends.values()}


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
    found = Ways(Code(), lambda at, n: code.ljust(64, b"\xf4")[at - BASE :][:n] if at >= BASE else bytes(n), 2)
    found.begin()
    branch = found.line(BASE)
    assert branch is not None
    registers = [0] * 27
    registers[RAX], registers[RSP] = BASE + 8, 0x7000
    fork = found.after(branch, BASE + 8, registers)
    assert {e.branch.address - BASE: e.path for e in fork.ends.values()} == {2: ((BASE + 8, BASE + 2, RET),)}
    assert found.after(branch, NOT_TAKEN, registers).ends.keys() == {BASE + 2}
