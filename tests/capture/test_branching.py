"""Where branches go: against this processor, which executes them, and against capstone's operands."""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Callable

import pytest

from capture_tools import needs_ptrace
from lastbranch.capture.ptrace import (
    EFLAGS,
    FS_BASE,
    GS_BASE,
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
    RSI,
    RSP,
)
from lastbranch.capture.software.control_flow import Code, Nearby
from lastbranch.capture.software.instructions import NOT_TAKEN, Branch, evaluation_of
from lastbranch.capture.software.successors import Successors
from lastbranch.lbr import KIND

pytestmark = needs_ptrace
FLAGS = (1, 4, 0x40, 0x80, 0x800)
NAMES = {
    "rax": RAX, "rcx": RCX, "rdx": RDX, "rbx": RBX, "rsp": RSP, "rbp": RBP, "rsi": RSI, "rdi": RDI, "r8": R8, "r9": R9,
    "r10": R10, "r11": R11, "r12": R12, "r13": R13, "r14": R14, "r15": R15,
}  # fmt: skip


def nothing(address: int, length: int) -> bytes:
    return b""


def goes(code: bytes, registers: list[int], address: int = 0x1000, target: int = 0x2000) -> int | None:
    evaluation = evaluation_of(code)
    assert evaluation is not None
    return evaluation(registers, Branch(address, len(code), 0, target, evaluation), nothing)


def executed(code: bytes) -> Callable[[int, int], int]:
    """A function of (flags, rcx) that executes the 2-byte branch ``code``, which goes 7 bytes on: 1 if it was taken."""
    # push rdi; popfq; mov rcx, rsi; branch; mov eax, 0; jmp 5; mov eax, 1; cld; ret
    body = b"\x57\x9d\x48\x89\xf1" + code + b"\xb8\0\0\0\0\xeb\x05" + b"\xb8\1\0\0\0" + b"\xfc\xc3"
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(body)
    where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)(where)
    return lambda flags, count: (memory, function(flags, count))[1]


@pytest.mark.parametrize("opcode", [*range(0x70, 0x80), *range(0xE0, 0xE4)], ids=hex)
def test_short_conditional_branches_go_where_the_processor_goes(opcode: int) -> None:
    run = executed(bytes([opcode, 7]))
    for bits in range(32):
        flags = 2 | sum(f for i, f in enumerate(FLAGS) if bits >> i & 1)
        for count in (0, 1, 2, 1 << 32):
            registers = [0] * 27
            registers[EFLAGS], registers[RCX] = flags, count
            assert (goes(bytes([opcode, 7]), registers) != NOT_TAKEN) == bool(run(flags, count)), (flags, count)


@pytest.mark.parametrize("code", range(16))
def test_near_conditional_branches_are_as_short_ones(code: int) -> None:
    for bits in range(32):
        registers = [0] * 27
        registers[EFLAGS] = sum(f for i, f in enumerate(FLAGS) if bits >> i & 1)
        near, short = bytes([0x0F, 0x80 | code, 0, 0, 0, 0]), bytes([0x70 | code, 0])
        assert goes(near, registers) == goes(short, registers) == goes(b"\x3e" + short, registers)


def test_indirect_branches_read_the_operand_that_capstone_names() -> None:
    import capstone
    from capstone import x86

    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    engine.detail = True
    chance = random.Random(1)
    address, seen = 0x401000, 0
    for _ in range(3000):
        registers = [chance.getrandbits(46) for _ in range(27)]
        prefix = chance.choice([b"", b"", b"\x64", b"\x65", b"\x3e", b"\xf2"])
        rex = chance.choice([b"", bytes([0x40 | chance.getrandbits(4)])])
        tail = chance.randbytes(6)
        modrm = chance.getrandbits(8) & 0xC7 | chance.choice((2, 4)) << 3
        code = prefix + rex + b"\xff" + bytes([modrm]) + tail
        found = next(engine.disasm(code, address), None)
        if found is None:
            continue
        evaluation = evaluation_of(code[: found.size])
        assert evaluation is not None
        asked: list[int] = []

        def read(at: int, length: int, asked: list[int] = asked) -> bytes:
            asked.append(at)
            return (0x123456789A).to_bytes(8, "little")

        result = evaluation(registers, Branch(address, found.size, 0, 0, evaluation), read)
        operand = found.operands[0]
        if operand.type == x86.X86_OP_REG:
            assert result == registers[NAMES[found.reg_name(operand.reg)]]
        else:
            memory, wanted = operand.mem, operand.mem.disp
            for register, scale in ((memory.base, 1), (memory.index, memory.scale)):
                name = found.reg_name(register) if register else ""
                if name == "rip":
                    wanted += address + found.size
                elif name and name not in ("riz", "eiz"):
                    wanted += registers[NAMES[name]] * scale
            segment = {x86.X86_REG_FS: FS_BASE, x86.X86_REG_GS: GS_BASE}.get(memory.segment)
            wanted += registers[segment] if segment is not None else 0
            assert asked == [wanted & (1 << 64) - 1], (found.mnemonic, found.op_str)
            assert result == 0x123456789A
        seen += 1
    assert seen > 2500


def test_a_return_goes_where_the_stack_says() -> None:
    evaluation = evaluation_of(b"\xc2\x08\x00")
    assert evaluation is not None
    registers = [0] * 27
    registers[RSP] = 0x7000
    branch = Branch(0x1000, 3, KIND["ret"], 0, evaluation)
    assert evaluation(registers, branch, lambda at, n: (at * 2).to_bytes(n, "little")) == 0xE000
    assert evaluation(registers, branch, nothing) is None


@pytest.mark.parametrize("code", [b"\x0f\x05", b"\xcd\x80", b"\xcc", b"\xcb", b"\xff\x28", b"\x66\xc3", b"\x48\xcf"])
def test_what_is_not_modelled_says_so(code: bytes) -> None:
    assert evaluation_of(code) is None


# -- forks


def successors(code: bytes, base: int = 0x400000, ends: int = 2) -> tuple[Successors, bytearray]:
    memory = bytearray(code.ljust(4096, b"\x90") + b"\xc3" * 4096)

    def read(address: int, length: int) -> bytes:
        at = address - base
        return bytes(memory[at : at + length]) if 0 <= at < len(memory) else b""

    return Successors(Code(), read, ends), memory


def test_a_condition_with_two_different_ends_needs_no_stop() -> None:
    #  0: jz 4   2: nop  3: ret   4: nop  5: jmp rax
    found, _ = successors(b"\x74\x02\x90\xc3\x90\xff\xe0")
    found.begin()
    fork = found.of(0x400000, [0] * 27, 0).fork
    assert {a: end.path for a, end in fork.ends.items()} == {
        0x400003: (),
        0x400005: ((0x400000, 0x400004, KIND["cond"]),),
    }


def test_a_new_place_gets_one_end_until_the_burst_is_over_or_it_is_come_to_often() -> None:
    code = b"\x74\x03\x90\x0f\x05\x90\x0f\x05"  # 0: jz 5   2: nop  3: syscall   5: nop  6: syscall
    memory = code.ljust(4096, b"\x90")
    registers = [0] * 27

    def found(times: int, *, over: bool) -> set[int]:
        successors = Successors(
            Code(), lambda at, n: memory[at - 0x400000 :][:n] if at >= 0x400000 else b"", 2, widen=True
        )
        successors.begin()
        for _ in range(times):
            ends = set(successors.of(0x400000, registers, 0).fork.ends)
        if over:
            successors.widen()
            successors.begin()
            ends = set(successors.of(0x400000, registers, 0).fork.ends)
        return ends

    assert found(1, over=False) == found(2, over=False) == {0x400000}
    assert found(3, over=False) == found(1, over=True) == {0x400003, 0x400006}


def test_forks_of_code_that_changed_are_made_anew() -> None:
    found, memory = successors(b"\x90\xc3")  # 0: nop   1: ret
    registers = [0] * 27
    for code, ends in ((b"\x90\xc3", {0x400001}), (b"\x90\x90\xff\xe0", {0x400002}), (b"\xc3", {0x400000})):
        memory[: len(code)] = code
        found.begin()
        assert set(found.of(0x400000, registers, None).fork.ends) == ends


def test_memory_nearby_is_read_once_for_each_stop() -> None:
    asked: list[tuple[int, int]] = []

    def read(address: int, length: int) -> bytes:
        asked.append((address, length))
        return bytes((at & 0xFF) ^ len(asked) for at in range(address, min(address + length, 0x1400)))

    near = Nearby(read)
    assert near(0x1010, 8) == bytes(b ^ 1 for b in range(0x10, 0x18))
    near(0x1018, 8)
    assert len(asked) == 1
    near.moved()
    assert near(0x1018, 8) == bytes(b ^ 2 for b in range(0x18, 0x20))
    assert near(0x11FC, 8) == bytes((at & 0xFF) ^ 3 for at in range(0x11FC, 0x1204)), "over the end of what was read"
    assert near(0x13FC, 8) == bytes((at & 0xFF) ^ 4 for at in range(0x13FC, 0x1400)), "as far as there is memory"


def test_of_two_ways_to_one_end_one_is_told_by_its_first_instruction() -> None:
    found, _ = successors(b"\x74\x01\x90\xc3")  # 0: jz 3   2: nop   3: ret
    found.begin()
    ends = found.of(0x400000, [0] * 27, None).fork.ends
    assert {a: end.path for a, end in ends.items()} == {0x400002: (), 0x400003: ((0x400000, 0x400003, KIND["cond"]),)}
    marker = ends[0x400002].branch
    assert marker.goes is not None
    assert marker.goes([0] * 27, marker, nothing) == NOT_TAKEN
    assert list(found.after(marker, NOT_TAKEN, [0] * 27).fork.ends) == [0x400003]


def test_an_instruction_on_both_ways_tells_none() -> None:
    found, _ = successors(b"\x74\x00\x90\xc3")  # 0: jz 2   2: nop   3: ret: it goes on at 2 in any case
    found.begin()
    assert list(found.of(0x400000, [0] * 27, None).fork.ends) == [0x400000]


def test_an_end_on_the_way_to_another_is_none() -> None:
    found, _ = successors(b"\x90\x75\xfd\xc3")  # 0: nop  1: jnz 0  3: ret: the way back leads to the branch itself
    found.begin()
    assert list(found.of(0x400000, [0] * 27, 0).fork.ends) == [0x400001]


def test_direct_branches_are_followed_and_a_loop_of_them_ends() -> None:
    found, _ = successors(b"\xe8\x03\x00\x00\x00\x90\x90\x90\xeb\xf6")  # 0: call 8   8: jmp 0
    found.begin()
    ((_, (branch, path, *_)),) = found.of(0x400000, [0] * 27, 0).fork.ends.items()
    assert path == ((0x400000, 0x400008, KIND["call"]),), "a second time round, a breakpoint would strike too early"
    assert (branch.address, branch.kind) == (0x400008, KIND["uncond"])


def test_code_that_changes_is_not_taken_for_what_it_was() -> None:
    found, memory = successors(b"\x90\xc3")
    found.begin()
    first = found.of(0x400000, [0] * 27, 0).fork
    assert found.of(0x400000, [0] * 27, 0).fork is first
    memory[0:4] = b"\x90\x90\x90\xc3"
    found.begin()
    assert list(first.ends) == [0x400001]
    assert list(found.of(0x400000, [0] * 27, 0).fork.ends) == [0x400003]


def test_a_line_over_the_end_of_a_page_goes_on() -> None:
    found, _ = successors(b"\x90" * 4096)
    found.begin()
    assert list(found.of(0x400000 + 100, [0] * 27, 0).fork.ends) == [0x400000 + 4096]


@pytest.mark.parametrize("code", [b"", b"\x06\x06"])
def test_code_that_cannot_be_read_has_no_ends(code: bytes) -> None:
    found, _ = successors(b"\x06" + code)  # push es is no instruction in 64-bit mode
    found.begin()
    assert not found.of(0x400000, [0] * 27, 0).fork.ends
    assert not found.of(0x900000, [0] * 27, 0).fork.ends
