"""Running ahead: what it computes is what the processor does, and no code of a program can harm who runs it ahead."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ahead_oracle import BASE, CODE, DATA, PAGE, SIZE, STACK_TOP, STATE, Ahead, Bench, Generator, compare
from capture_tools import needs_ptrace
from lastbranch import native
from lastbranch.capture import ptrace
from lastbranch.capture.architectures import HERE
from lastbranch.capture.ptrace import EFLAGS, RAX, RBX, RCX, RDI, RDX, RIP, RSI, RSP
from lastbranch.capture.software.kept_file import MemoryFiles

pytestmark = [
    needs_ptrace,
    pytest.mark.skipif(HERE.name != "x86_64" or sys.platform != "linux", reason="it is for x86-64 Linux"),
    pytest.mark.skipif(native.library() is None, reason="it is in the compiled library"),
]
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


@pytest.fixture(scope="module")
def ahead() -> Iterator[Ahead]:
    library = native.library()
    assert library is not None
    try:
        made = Ahead(library)
    except OSError as error:
        pytest.skip(str(error))
    yield made
    made.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("bench"))
    yield made
    made.close()


def ran(
    bench: Bench, ahead: Ahead, code: bytes, values: dict[int, int] | None = None, most: int = 1000, **how: bool
) -> str:
    """Why a run of ``code`` ends."""
    bench.write(CODE, code)
    bench.set({RIP: CODE, RSP: STACK_TOP, **(values or {})})
    ptrace.registers(bench.pid, ahead.registers)
    return ahead.go(bench.pid, bench.memory, most, **how)


@pytest.mark.parametrize(
    ("kinds", "length", "tests"),
    [
        pytest.param("l", 1, 150, id="one of the maps without VEX"),
        pytest.param("e", 1, 400, id="one of VEX or EVEX"),
        pytest.param("lj", 5, 60, id="jumps between"),
        pytest.param("j", 6, 40, id="bit strings and overlapping copies"),
    ],
)
def test_random_code_does_what_the_processor_does(
    bench: Bench, ahead: Ahead, kinds: str, length: int, tests: int
) -> None:
    for seed in range(tests):
        generator = Generator(seed)
        code = generator.sequence(length, kinds)
        found = compare(
            bench, ahead, code, generator.values(), generator.data(), generator.state(), alone=seed % 2 == 0
        )
        assert not found.differ, (seed, code.hex(), found)


class _Stack(ctypes.Structure):
    """stack_t."""

    _fields_ = (("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def of_this_process() -> tuple[object, ...]:
    """What a fault in foreseen code could leave changed: handlers, mask, alternate stack, controls."""
    libc = ctypes.CDLL(None)
    actions = []
    for number in _FAULTS:
        action = ctypes.create_string_buffer(152)
        assert not libc.sigaction(number, None, action)
        actions.append(action.raw[:16] + action.raw[136:140])
    stack = _Stack()
    assert not libc.sigaltstack(None, ctypes.byref(stack))
    state = ctypes.create_string_buffer(28 + 4)
    assert not libc.fegetenv(state)
    controls = (state.raw[:2], state.raw[28:])
    return (*actions, signal.pthread_sigmask(signal.SIG_BLOCK, ()), stack.at, stack.flags, stack.size, controls)


@pytest.mark.parametrize(
    ("code", "why", "executed"),
    [
        pytest.param("90 488b0425 00000000", "fault", 1, id="load from 0"),
        pytest.param("31c9 90 f7f1", "fault", 2, id="division by 0"),
        pytest.param("0f0b", "not modelled", 0, id="ud2"),
        pytest.param("cc", "not modelled", 0, id="int3"),
        pytest.param("0f38 0b c0 0f38 0c c0", "fault", 1, id="undefined"),
        pytest.param("488d442401 0f2808", "fault", 1, id="misaligned movaps"),
        pytest.param("31e4 50", "fault", 1, id="push without a stack"),
        pytest.param("31e4 e800000000", "fault", 1, id="call without a stack"),
        pytest.param("31e4 c3", "fault", 1, id="return without a stack"),
        pytest.param("31c0 ffe0", "unreadable code", 2, id="jump to 0"),
        pytest.param("d9eb 0f0b", "not modelled", 1, id="x87 is used"),
        pytest.param("0f77 0f0b", "not modelled", 1, id="mmx is used"),
        pytest.param("4040 90", "not modelled", 0, id="two REX"),
        pytest.param("c5f9f7ef", "not modelled", 0, id="a store to RDI"),
        pytest.param("f0 90", "not modelled", 0, id="lock nop"),
        pytest.param("0f31", "not modelled", 0, id="rdtsc"),
        pytest.param("0fa2", "not modelled", 0, id="cpuid"),
        pytest.param("0f05", "system call", 0, id="syscall"),
        pytest.param("0faeb8 00000000 0fae3c25 00000000 eb01 90 90 0f0b", "not modelled", 4, id="cache lines"),
        pytest.param("f3480f1ec8 0f0b", "not modelled", 1, id="no shadow stack"),
        pytest.param("fd 9c 58 fc 0f0b", "not modelled", 4, id="direction flag"),
        pytest.param("fd 31c9 f7f1", "fault", 2, id="fault with the direction flag"),
    ],
)
def test_faults_end_the_run_and_leave_us_as_we_were(
    bench: Bench, ahead: Ahead, code: str, why: str, executed: int
) -> None:
    before = of_this_process()
    assert ran(bench, ahead, bytes.fromhex(code)) == why
    assert ahead.run.executed == executed
    assert of_this_process() == before


def test_handlers_of_faults_are_those_from_before(bench: Bench, ahead: Ahead) -> None:
    """A fault of our own, afterwards, goes where it went before."""
    seen = []
    former = signal.signal(signal.SIGFPE, lambda number, frame: seen.append(number))
    try:
        assert ran(bench, ahead, bytes.fromhex("31c9f7f1")) == "fault"
        os.kill(os.getpid(), signal.SIGFPE)
    finally:
        signal.signal(signal.SIGFPE, former)
    assert seen == [signal.SIGFPE]


def test_our_rounding_is_as_before(bench: Bench, ahead: Ahead) -> None:
    """The thread's controls of x87 and SSE are in force while its instructions are executed, and ours afterwards."""
    libc, downward = ctypes.CDLL(None), 0x400
    assert not libc.fesetround(downward)
    try:
        before = of_this_process()
        assert ran(bench, ahead, bytes.fromhex("d9eb 0f58c0 31c9 f7f1")) == "fault"
        after = of_this_process()
    finally:
        assert not libc.fesetround(0)
    assert after == before


def test_stack_pointers_to_where_our_signals_are_taken_do_no_harm(bench: Bench, ahead: Ahead) -> None:
    """Whatever the stack pointer of a thread is, a fault of its code is taken on a stack of our own."""
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    guards = [tuple(int(end, 16) for end in line[0].split("-")) for line in maps if line[1] == "---p"]
    around = 0x11000  # what is mapped next to the memory that cannot be read is the stack
    for begin, end in guards:
        if end - begin == 0x8000:
            for address in (*range(begin - around, begin, 1024), *range(end, end + around, 1024)):
                assert ran(bench, ahead, bytes.fromhex("31c9f7f1"), {RSP: address}) == "fault"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        pytest.param("d9eb d933", "not modelled", id="fnstenv"),
        pytest.param("d9eb dd33", "not modelled", id="fnsave"),
        pytest.param("d9eb 0fae03 488b4308", "fault", id="fxsave, and a load"),
        pytest.param("d9eb 480fae03 488b4308", "fault", id="fxsave64, and a load"),
        pytest.param("d9eb 0fae03 0f104310", "fault", id="fxsave, and a load of more"),
        pytest.param("d9eb 0fae03 b920000000 488d7b40 f3a4", "fault", id="fxsave, and a copy"),
        pytest.param("d9eb 31d2 b807000000 0fae23 488b4308", "fault", id="xsave, and a load"),
        pytest.param("d9eb 31d2 b807000000 0fc723 488b4308", "fault", id="xsavec, and a load"),
        pytest.param("d9eb 0fae03 ff7308", "fault", id="fxsave, and a push"),
        pytest.param("0fae03 0fae0b", "system call", id="fxsave and fxrstor"),
        pytest.param("31d2 b807000000 0fae23 0fae2b", "system call", id="xsave and xrstor"),
        pytest.param("0fae03 c60300 0fae0b", "not modelled", id="what is restored was written"),
        pytest.param("0fae03 c64308aa 8a4308", "fault", id="a part of a word is known"),
        pytest.param("0f104310 0fae03 0f114310 0f104310", "system call", id="a vector was stored there"),
        pytest.param("0f104310 0fae03 0f114310 0fae0b", "not modelled", id="a vector that was there is restored"),
        pytest.param("0f104310 0fae03 f30f114310 488b4310", "fault", id="a part of it was stored"),
        pytest.param("0f104310 0fae03 f20f114310 488b4310", "system call", id="half of it was stored"),
        pytest.param("0f104310 0fae03 f20f114310 488b4318", "fault", id="the other half was not"),
        pytest.param("0fae03 48894308 488b4308 0fb64309", "system call", id="what was stored since is known"),
        pytest.param("0fae03 488b83ff010000", "fault", id="the last byte"),
        pytest.param("0fae03 488b8300020000 488b43f8", "system call", id="what is next to it"),
        pytest.param("31d2 b803000000 0fae23 488b8340020000", "system call", id="what is behind an xsave of two parts"),
        pytest.param("31d2 b807000000 0fae23 488b8340020000", "fault", id="behind, where a third is"),
    ],
)
def test_where_the_last_x87_instruction_was_is_not_told(bench: Bench, ahead: Ahead, code: str, why: str) -> None:
    """It was executed here, and not where the thread has it."""
    if why == "fault" and code.startswith("31d2") and bench.lanes < 32:
        pytest.skip("this processor saves two parts only")
    assert ran(bench, ahead, bytes.fromhex(code) + b"\x0f\x05", {RBX: DATA, RSI: DATA, RDI: DATA}) == why


@pytest.mark.parametrize(
    ("flags", "control", "x87", "code", "why"),
    [
        pytest.param(0x40202, 0x1F80, 0x37F, "90", "not modelled", id="alignment is checked"),
        pytest.param(0x202, 0x1F00, 0x37F, "0f57c0", "not modelled", id="exceptions of SSE"),
        pytest.param(0x202, 0x1F80, 0x37E, "0f57c0", "not modelled", id="exceptions of x87"),
        pytest.param(0x202, 0x1F80, 0x37F, "0f57c0 0f05", "system call", id="none"),
        pytest.param(0x202, 0x1F00, 0x37F, "90 0f05", "system call", id="nothing that may raise them"),
        pytest.param(0x202, 0x1F80, 0x37F, "9c 800c2440 9d 0f05", "system call", id="flags kept"),
        pytest.param(0x202, 0x1F80, 0x37F, "9c 814c2400 00000400 9d 0f05", "not modelled", id="alignment from now on"),
    ],
)
def test_threads_that_trap_where_others_compute(
    bench: Bench, ahead: Ahead, flags: int, control: int, x87: int, code: str, why: str
) -> None:
    generator = Generator(1)
    state = bytearray(generator.state())
    state[2200:2204] = control.to_bytes(4, "little")
    bench.write(STATE, bytes(state))
    bench.write(STATE + 2204, struct.pack("<H", x87))
    bench.load_vectors()
    bench.write(CODE, bytes.fromhex("d92c25") + struct.pack("<I", STATE + 2204) + b"\xcc")
    bench.set({RIP: CODE})
    bench.go_on()
    assert ran(bench, ahead, bytes.fromhex(code), {EFLAGS: flags}) == why
    bench.write(STATE, generator.state())
    bench.load_vectors()


# -- rights of pages

NONE, READ, WRITE, EXECUTE = 0, mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC
_MMAP, _MPROTECT, _MUNMAP, _OPEN, _MADVISE, _IOCTL, _CLOSE, _USERFAULTFD = 9, 10, 11, 2, 28, 16, 3, 323
FIXED_PRIVATE, ANONYMOUS = 0x12, 0x20
PLACE = 0x4000_0000
"""Where the bench maps pages of other rights, between two that may be read and written."""


@pytest.fixture(params=["as the kernel answers", "as text"])
def pages(bench: Bench, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[int], MemoryFiles]]:
    """A function that maps a page with the given rights at `PLACE`: the files of memory to run with."""
    text, opened = request.param == "as text", []

    def mapped(rights: int) -> MemoryFiles:
        bench.call(_MMAP, PLACE - PAGE, 3 * PAGE, READ | WRITE, FIXED_PRIVATE | ANONYMOUS, (1 << 64) - 1, 0)
        bench.write(PLACE - PAGE, bytes(range(256)) * (3 * PAGE // 256))
        bench.write(PLACE, b"\x0f\x05" * (PAGE // 2))
        bench.call(_MPROTECT, PLACE, PAGE, rights)
        found = files(bench, tmp_path, text=text)
        opened.append(found.maps)
        return found

    yield mapped
    for descriptor in set(opened) - {bench.memory.maps}:
        os.close(descriptor)
    bench.call(_MUNMAP, PLACE - PAGE, 3 * PAGE)


def files(bench: Bench, folder: Path, *, text: bool) -> MemoryFiles:
    """Those of the bench; a copy of its maps answers no questions, as the file itself before Linux 6.11."""
    if not text:
        return bench.memory
    copy = folder / "maps"
    copy.write_bytes(Path(f"/proc/{bench.pid}/maps").read_bytes())
    return bench.memory._replace(maps=os.open(copy, os.O_RDONLY))


def ran_at(
    bench: Bench, ahead: Ahead, code: str, memory: MemoryFiles, *, rbx: int = PLACE, alone: bool = True, **values: int
) -> str:
    """Why a run of ``code``, then a system call, ends, with a pointer in RBX, RSI and RDI."""
    bench.write(CODE, bytes.fromhex(code) + b"\x0f\x05")
    more = {{"rax": RAX, "rcx": RCX, "rdx": RDX, "rsp": RSP}[name]: value for name, value in values.items()}
    bench.set({RIP: CODE, RSP: STACK_TOP, RBX: rbx, RSI: rbx, RDI: rbx, **more})
    ptrace.registers(bench.pid, ahead.registers)
    return ahead.go(bench.pid, memory, 1000, alone=alone)


LOADS = {
    "mov": "8a03", "add": "0303", "compare": "803b00", "vector": "0f1003", "pop": "4889dc 58", "return": "4889dc c3",
    "lods": "f348ad", "scas": "f2ae", "movs from": "488d3b 4881c700100000 f3a4", "bit string": "480fa303",
    "load of all controls": "0fae13",
}  # fmt: skip
STORES = {
    "mov": "c60301", "mov of what is there": "8a03 8803", "mov of a register": "8903", "add 0": "800300",
    "or of what is there": "830b00", "exchange": "8603", "compare and exchange": "0fb00b", "set": "0f9403",
    "vector": "0f1103", "vector that is there": "0f1003 0f1103", "push": "488d6308 50", "call": "488d6308 e800000000",
    "stos": "f3aa", "movs to": "488d7301 4881ee00100000 f3a4", "stos downwards": "fd f3aa", "bit string": "480fab03",
    "bit string that is set": "480fba2b00", "controls": "0fae1b", "state": "0fae03", "x87": "d91b", "pop": "8f03",
}  # fmt: skip


@pytest.mark.parametrize("what", LOADS)
def test_what_the_thread_may_not_read_ends_the_run(
    what: str, bench: Bench, ahead: Ahead, pages: Callable[[int], MemoryFiles]
) -> None:
    for rights, why in ((NONE, "fault"), (READ, "system call")):
        memory = pages(rights)
        if what == "load of all controls":  # 0x1F80
            bench.write(PLACE, b"\x80\x1f\0\0")
        if what == "return":
            bench.write(PLACE, CODE.to_bytes(8, "little"))
            why = why if rights == NONE else "instructions"
        assert ran_at(bench, ahead, LOADS[what], memory, rcx=5) == why


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("what", STORES)
def test_what_the_thread_may_not_write_ends_the_run(
    what: str, alone: bool, bench: Bench, ahead: Ahead, pages: Callable[[int], MemoryFiles]
) -> None:
    """Also where the bytes would stay the same: a write barrier is for these, too."""
    for rights, why in ((READ, "fault"), (READ | WRITE, "system call")):
        memory = pages(rights)
        values = {"rcx": 5, "rax": 0x90, "rdx": 0}
        assert ran_at(bench, ahead, STORES[what], memory, alone=alone, **values) == why, rights


def test_only_what_may_be_executed_is(bench: Bench, ahead: Ahead, pages: Callable[[int], MemoryFiles]) -> None:
    for rights, why in ((READ, "fault"), (READ | WRITE, "fault"), (READ | EXECUTE, "system call")):
        assert ran_at(bench, ahead, "ffe3", pages(rights)) == why
        assert ahead.run.address == PLACE
    assert ran_at(bench, ahead, "ffe3", pages(READ | EXECUTE)) == "system call"
    assert ran_at(bench, ahead, "ffe3", pages(READ)) == "fault", "code that was executed before, too"
    assert ran_at(bench, ahead, "8a03", pages(EXECUTE)) == "fault", "it has a protection key, if there are any"


def test_operands_in_two_pages_need_the_rights_in_both(
    bench: Bench, ahead: Ahead, pages: Callable[[int], MemoryFiles]
) -> None:
    for at in (PLACE - 4, PLACE + PAGE - 4):
        for code, rights in (("488b03", NONE), ("0f1003", NONE), ("488903", READ), ("48830301", READ)):
            assert ran_at(bench, ahead, code, pages(rights), rbx=at) == "fault"
            assert ran_at(bench, ahead, code, pages(READ | WRITE), rbx=at) == "system call"
    memory = pages(NONE)
    assert ran_at(bench, ahead, "f30f1003 f30f1103", memory, rbx=PLACE - 4) == "system call", "only 4 bytes"


def test_stores_in_masks_need_the_rights_where_they_store(
    bench: Bench, ahead: Ahead, pages: Callable[[int], MemoryFiles]
) -> None:
    """vpmaskmovd [rbx], ymm0, ymm0."""
    if bench.lanes < 32:
        pytest.skip("this processor has none")
    memory = pages(READ)
    assert ran_at(bench, ahead, "c5f9efc0 c4e27d8e03", memory) == "system call", "no element is stored"
    assert ran_at(bench, ahead, "c5fd76c0 c4e27d8e03", memory) == "fault"


def test_pages_behind_the_end_of_a_file_fault(bench: Bench, ahead: Ahead, tmp_path: Path) -> None:
    """Those of a mapping that was longer when it was made (SIGBUS)."""
    path = tmp_path / "file"
    path.write_bytes(b"1" * 3 * PAGE)
    bench.write(DATA, bytes(path) + b"\0")
    opened = bench.call(_OPEN, DATA, os.O_RDWR)
    for shared in (0x11, 0x12):
        bench.call(_MMAP, PLACE, 3 * PAGE, READ | WRITE, shared, opened, 0)
        bench.write(PLACE + PAGE, b"2" * PAGE)
    os.truncate(path, 100)
    try:
        assert ran_at(bench, ahead, "8a03 8803", bench.memory) == "system call"
        for code in ("8a03", "8803", "f3a4", "f3aa"):
            assert ran_at(bench, ahead, code, bench.memory, rbx=PLACE + PAGE, rcx=9) == "fault"
    finally:
        bench.call(_MUNMAP, PLACE, 3 * PAGE)
        bench.call(_CLOSE, opened)


def test_pages_that_userfaultfd_watches_are_left_to_the_thread(bench: Bench, ahead: Ahead) -> None:
    """One that is not there, and one that is write-protected, as in a heap that is compacted or copied meanwhile."""
    try:
        watch = bench.call(_USERFAULTFD, 1)
    except OSError as error:
        pytest.skip(f"userfaultfd: {error}")
    bench.call(_MMAP, PLACE, 3 * PAGE, READ | WRITE, FIXED_PRIVATE | ANONYMOUS, (1 << 64) - 1, 0)
    bench.write(PLACE, bytes(2 * PAGE))

    def asked(request: int, *words: int) -> None:
        bench.write(DATA, struct.pack(f"<{len(words)}Q", *words))
        bench.call(_IOCTL, watch, request, DATA)

    try:
        try:
            asked(0xC018AA3F, 0xAA, 1, 0)  # UFFDIO_API, of UFFD_FEATURE_PAGEFAULT_FLAG_WP
            asked(0xC020AA00, PLACE, 3 * PAGE, 3, 0)  # UFFDIO_REGISTER, of what is missing and of stores
            asked(0xC018AA06, PLACE, PAGE, 1)  # UFFDIO_WRITEPROTECT
        except OSError as error:
            pytest.skip(f"userfaultfd: {error}")
        for code in ("8803", "800300", "f3aa"):
            assert ran_at(bench, ahead, code, bench.memory, rcx=9) == "fault"
            assert ran_at(bench, ahead, code, bench.memory, rbx=PLACE + PAGE, rcx=9) == "system call"
        assert ran_at(bench, ahead, "8a03 0303", bench.memory) == "system call"
        assert ran_at(bench, ahead, "8a03", bench.memory, rbx=PLACE + 2 * PAGE) == "fault"
    finally:
        bench.call(_CLOSE, watch)
        bench.call(_MUNMAP, PLACE, 3 * PAGE)


def test_guard_pages_fault(bench: Bench, ahead: Ahead) -> None:
    """MADV_GUARD_INSTALL, of Linux 6.13."""
    bench.call(_MMAP, PLACE, PAGE, READ | WRITE, FIXED_PRIVATE | ANONYMOUS, (1 << 64) - 1, 0)
    try:
        bench.call(_MADVISE, PLACE, PAGE, 102)
        assert ran_at(bench, ahead, "8a03", bench.memory) == "fault"
        assert ran_at(bench, ahead, "8803", bench.memory) == "fault"
    except OSError as error:
        pytest.skip(f"guard pages: {error}")
    finally:
        bench.call(_MUNMAP, PLACE, PAGE)


def test_without_the_maps_nothing_is_executed(bench: Bench, ahead: Ahead) -> None:
    bench.write(CODE, b"\x90\x0f\x05")
    bench.set({RIP: CODE})
    ptrace.registers(bench.pid, ahead.registers)
    assert ahead.go(bench.pid, bench.memory._replace(maps=-1), 100) == "unreadable code"


# -- code that changes


def test_code_written_by_the_run_is_executed_as_written(bench: Bench, ahead: Ahead) -> None:
    """mov dword [rbx], "mov al, 7; ret"; call rbx; syscall. The page of RBX held other code in the run before."""
    for value in (7, 9):
        bench.write(DATA, b"\xb0\x01\xc3\x90")
        assert ran(bench, ahead, b"\xff\xd3\x0f\x05", {RBX: DATA}) == "system call"
        assert ahead.registers[RAX] & 0xFF == 1
        code = b"\xc7\x03\xb0" + bytes((value,)) + b"\xc3\x90\xff\xd3\x0f\x05"
        assert ran(bench, ahead, code, {RBX: DATA}) == "system call"
        assert ahead.registers[RAX] & 0xFF == value


def test_code_that_was_executed_may_be_written(bench: Bench, ahead: Ahead) -> None:
    """inc byte [rbx + 6]; ...; mov al, N; add ecx, eax; cmp al, 40; jnz back: each round changes the next one's N."""
    code = bytes.fromhex("fe4306 83c200 b000 0fb6c0 01c1 3c28 75ef")
    generator = Generator(1)
    for seed in range(4):
        at = CODE + (0, 4096 - 7, 4096 - 6, 4096 - 3)[seed]  # the instruction is in both pages, too
        values = {RBX: at + 1, RCX: 0, RDX: 0, RAX: 0, RSP: STACK_TOP}
        found = compare(bench, ahead, code, values, generator.data(), generator.state(), at=at, alone=seed % 2 == 0)
        assert not found.differ
        assert found.executed > 7 * 40
        assert ahead.registers[RCX] == sum(range(41))


def test_code_is_read_again_in_each_run(bench: Bench, ahead: Ahead) -> None:
    for value in range(20):
        assert ran(bench, ahead, b"\xb0" + bytes((value,)) + b"\x0f\x05") == "system call"
        assert ahead.registers[RAX] & 0xFF == value


def test_instructions_across_pages(bench: Bench, ahead: Ahead) -> None:
    code = b"\x48\xb8" + bytes(range(1, 9)) + b"\x0f\x05"
    for before in range(1, 12):
        at = DATA + 0x1000 - before
        bench.write(at, code)
        bench.set({RIP: at})
        ptrace.registers(bench.pid, ahead.registers)
        assert ahead.go(bench.pid, bench.memory, 10) == "system call"
        assert ahead.registers[RAX] == 0x0807060504030201
    end = BASE + SIZE  # nothing is mapped behind it
    for last in (code[:9], b"\x90\x90"):
        bench.write(end - len(last), last)
        bench.set({RIP: end - len(last)})
        ptrace.registers(bench.pid, ahead.registers)
        assert ahead.go(bench.pid, bench.memory, 10) == "unreadable code"


def test_operands_at_the_end_of_memory(bench: Bench, ahead: Ahead) -> None:
    """A move of 4 bytes by a vector register is one of 4 bytes, also where 16 would not fit; one of 16 is not."""
    end = BASE + SIZE
    bench.write(end - 16, bytes(range(16)))
    code = "f30f1043fc f30f1143f8 660f7ec0 0f05"  # movss xmm0, [rbx - 4]; movss [rbx - 8], xmm0; movd eax, xmm0
    assert ran(bench, ahead, bytes.fromhex(code), {RBX: end}) == "system call"
    assert ahead.registers[RAX] == 0x0F0E0D0C
    left = ahead.bytes(end - 16, 16)
    assert left == bytes((*range(8), 12, 13, 14, 15, 12, 13, 14, 15))
    assert ran(bench, ahead, bytes.fromhex("8b03"), {RBX: end - 3}) == "fault"
    assert ran(bench, ahead, bytes.fromhex("8903"), {RBX: end - 3}) == "fault"


# -- limits


def test_more_pages_than_are_kept_end_the_run(bench: Bench, ahead: Ahead) -> None:
    code = bytes.fromhex("488903 4881c300100000 ebf4")
    assert ran(bench, ahead, code, {RBX: DATA + 0x20000}, most=50000) == "instructions"
    assert 3 * 2000 < ahead.run.executed < 3 * 2049
    assert ran(bench, ahead, bytes.fromhex("f3aa"), {RDI: DATA + 0x20000, RCX: 16 << 20}, most=50) == "instructions"
    assert ran(bench, ahead, b"\xb0\x05\x0f\x05") == "system call"


def test_more_instructions_than_are_kept_end_the_run(bench: Bench, ahead: Ahead) -> None:
    """The next run begins anew."""
    at = DATA + 0x40000
    bench.write(at, b"\x90" * 140000 + b"\x0f\x05")
    ends = []
    for _ in range(2):
        bench.set({RIP: at})
        ptrace.registers(bench.pid, ahead.registers)
        ends.append(ahead.go(bench.pid, bench.memory, 1 << 20))
        assert ran(bench, ahead, b"\xb0\x05\x0f\x05") == "system call"
    assert ends == ["instructions"] * 2
    assert ahead.run.executed > 1 << 16 or ahead.run.executed == 1


def test_the_number_of_instructions_asked_for(bench: Bench, ahead: Ahead) -> None:
    for most in (0, 1, 7):
        assert ran(bench, ahead, b"\x90" * 20, most=most) == "instructions"
        assert (ahead.run.executed, ahead.registers[RIP]) == (most, CODE + most)


# -- several threads


def test_loops_that_wait_repeat_themselves(bench: Bench, ahead: Ahead) -> None:
    """cmp dword [rbx], 0; jz back: it waits for another thread, which a thread that is alone does not have."""
    bench.write(DATA, bytes(64))
    code = bytes.fromhex("f390 833b00 74f9 0f05")
    assert ran(bench, ahead, code, {RBX: DATA}, alone=False) == "repeats itself"
    assert ahead.run.count <= 3
    assert ran(bench, ahead, code, {RBX: DATA}, alone=True) == "instructions"


def test_branches_after_memory_that_others_changed_are_not_given(bench: Bench, ahead: Ahead) -> None:
    """A loop reads [rbx], which is written meanwhile: all branches from the first read on are doubtful."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            bench.write(DATA, number.to_bytes(8, "little"))

    writer = threading.Thread(target=write)
    code = bytes.fromhex("eb00 48ffc9 480333 4885c9 75f5 0f05")
    writer.start()
    try:
        for _ in range(200):
            why = ran(bench, ahead, code, {RBX: DATA, RCX: 5000, RSI: 0, RDX: 0}, most=100000, alone=False)
            if why == "memory changed":
                break
    finally:
        stop.set()
        writer.join()
    assert (why, ahead.run.count) == ("memory changed", 1)
    assert ran(bench, ahead, code, {RBX: DATA, RCX: 5000, RSI: 0}, most=100000, alone=False) == "system call"
    assert ahead.run.count == 5000


_STRING = {"movs": 0xA4, "cmps": 0xA6, "stos": 0xAA, "lods": 0xAC, "scas": 0xAE}


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("what", _STRING)
def test_repetitions_do_what_the_processor_does(bench: Bench, ahead: Ahead, what: str, down: bool) -> None:
    """Over the ends of pages, of all sizes, over each other and until what is looked for is found."""
    for seed, size in enumerate((b"", b"\x66", b"", b"\x48")):
        generator = Generator(seed)
        opcode = _STRING[what] | (seed > 0)
        repeat = b"\xf2" if seed % 2 else b"\xf3"
        rex = size if size == b"\x48" else b""
        code = (b"\xfd" if down else b"") + (size if not rex else b"") + repeat + rex + bytes((opcode,)) + b"\xfc"
        step = 1 if not seed else 2 << seed - 1
        values = generator.values() | {
            RCX: 700 // step,
            RSI: DATA + PAGE + (300 if down else -300) + seed,
            RDX: 0,
            RDI: DATA + PAGE + (320 if down else -320) + 3 * (seed & 1),
            EFLAGS: 0x202,
        }
        data = bytes(3 * PAGE) if seed % 2 == 0 else b"\1" * (PAGE - 77) + bytes(400) + b"\1" * (2 * PAGE - 323)
        found = compare(bench, ahead, code, values | {RAX: 1}, data, generator.state(), alone=down)
        assert not found.differ, (seed, code.hex(), found)


@pytest.mark.parametrize(
    ("code", "most_at_once"),
    [
        pytest.param("fd f3a4", 64, id="rep movsb, backwards"),
        pytest.param("f3a4", 64, id="rep movsb"),
        pytest.param("f348a5", 64, id="rep movsq"),
        pytest.param("f3aa", 64, id="rep stosb"),
        pytest.param("f2ae", 16, id="repne scasb"),
        pytest.param("fd f2ae", 16, id="repne scasb, backwards"),
        pytest.param("f3a6", 16, id="repe cmpsb"),
        pytest.param("f3ac", 64, id="rep lodsb"),
    ],
)
def test_what_repetitions_do_is_work(bench: Bench, ahead: Ahead, code: str, most_at_once: int) -> None:
    """Not how long it takes, which differs between machines."""
    middle, count = DATA + 0x100000, 1 << 19
    size = 8 if "48a5" in code else 1
    bench.write(CODE, bytes.fromhex(code) + b"\x0f\x05")
    bench.set({RIP: CODE, RCX: count, RSI: middle, RDI: middle + 0x100000, RAX: 7, RSP: STACK_TOP})
    ptrace.registers(bench.pid, ahead.registers)
    left, runs = count, 0
    while ahead.go(bench.pid, bench.memory, 1000) == "instructions":
        done = left - ahead.registers[RCX]
        assert 0 < done * size <= (1000 + 64) * most_at_once
        assert ahead.run.work < 1000 + 65
        left, runs = ahead.registers[RCX], runs + 1
        if runs == 3:
            break
    assert runs == 3
    assert ahead.registers[RIP] == CODE + code.startswith("fd")


def test_a_run_has_a_deadline(bench: Bench, ahead: Ahead) -> None:
    """In our own processor time, looked at after some work: in the midst of repetitions, too."""
    for code in ("f3aa 0f05", "fd f2ae 0f05"):
        bench.write(CODE, bytes.fromhex(code))
        bench.set({RIP: CODE, RCX: 7 << 20, RDI: DATA + 0x900000, RAX: 7})
        ptrace.registers(bench.pid, ahead.registers)
        assert ahead.go(bench.pid, bench.memory, 1 << 30, time=200_000) == "time"
        assert ahead.registers[RCX] > 0


def test_a_long_search_ends_the_run(bench: Bench, ahead: Ahead) -> None:
    """Of one instruction with millions of repetitions, too, we do not wait for the end."""
    values = {RDI: DATA + 0x100000, RCX: 4 << 20, RAX: 0xFF}
    assert ran(bench, ahead, bytes.fromhex("f2ae 0f05"), values) == "instructions"
    assert ran(bench, ahead, bytes.fromhex("f3ae 0f05"), values) == "system call"
