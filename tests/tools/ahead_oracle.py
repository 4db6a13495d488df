"""Running ahead held against the processor: what a run computes, and what single steps of the same code leave.

`Bench` is a program without a C library: this module writes code and data into the program, so a thousand pieces of
code cost one process.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lastbranch.capture import ptrace
from lastbranch.capture.ptrace import EFLAGS, GENERAL, R8, R9, R10, RAX, RDI, RDX, RIP, RSI, RSP, Registers
from lastbranch.capture.software.kept_file import MemoryFiles
from lastbranch.capture.software.run_ahead import WHY, _Run

ROOM = 1 << 14
FLAGS = 0xCD5
"""CF, PF, AF, ZF, SF, DF and OF."""


class Ahead:
    """run_ahead.c, of which each run is asked for a number of instructions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._ahead = library, ctypes.c_void_p(library.lb_ahead_new())
        if not self._ahead:
            raise OSError("no memory for code is granted")
        self.registers = Registers()
        self.edges = (ctypes.c_uint64 * (4 * ROOM))()
        self.run = _Run(
            room=ROOM,
            registers=ctypes.addressof(self.registers),
            edges=ctypes.addressof(self.edges),
            kinds=0xFFFF,
        )

    def go(
        self,
        tid: int,
        memory: MemoryFiles,
        most: int,
        *,
        wanted: int = ROOM,
        alone: bool = True,
        space: int = 1,
        time: int = 0,
    ) -> str:
        """Why the run of ``tid`` from `registers` ended."""
        self.run.memory, self.run.maps, self.run.pagemap = memory
        self.run.thread, self.run.most, self.run.time = tid, most, time
        self.run.wanted, self.run.alone, self.run.space = wanted, alone, space
        assert not self._library.lb_run_ahead(self._ahead, ctypes.addressof(self.run))
        return WHY[self.run.why]

    def bytes(self, address: int, size: int) -> bytes | None:
        """The memory at ``address`` after the last run; ``None`` for memory that the run did not use."""
        into = ctypes.create_string_buffer(size)
        return into.raw if self._library.lb_ahead_memory(self._ahead, address, into, size) else None

    def branches(self) -> list[tuple[int, int, int, int]]:
        """Source, target, perf's branch type and length of each branch of the last run."""
        words = self.edges[: 4 * self.run.count]
        return [(*words[n : n + 2], words[n + 2] & 0xFF, words[n + 2] >> 8 & 0xF) for n in range(0, len(words), 4)]

    def vectors(self) -> tuple[bytes, bytes] | None:
        """Vector registers (64 bytes each) and masks at the end of the last run; ``None`` where it needed none."""
        lanes, masks = ctypes.create_string_buffer(2048), ctypes.create_string_buffer(64)
        return (lanes.raw, masks.raw) if self._library.lb_ahead_vectors(self._ahead, lanes, masks) else None

    def close(self) -> None:
        self._library.lb_ahead_free(self._ahead)


# -- a program to write code into

CODE, DATA, STACK_TOP, SIZE = 0x401000, 0x411000, 0x42F000, 0x2000000
BASE = 0x400000
STATE = 0x430000
"""Vectors and x87 registers before and after a test: loaded from here, stored 8 KB above."""
KEPT = STATE + 0x2000
PAGE = 4096


def program() -> bytes:
    """An ELF file with a segment to read, write and execute, at `BASE`; the program waits in a loop."""
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, BASE + 0x200, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 7, 0, BASE, BASE, 0x1000, SIZE, 0x1000)
    return ((header + segment).ljust(0x200, b"\0") + b"\xeb\xfe").ljust(0x1000, b"\0")


def lanes_here() -> int:
    """Bytes of this machine's vector registers."""
    flags = Path("/proc/cpuinfo").read_text().split("\nflags", 1)[1].split("\n", 1)[0].split()
    return 64 if "avx512bw" in flags else 32 if "avx" in flags else 16


def _at(n: int, address: int) -> bytes:
    """ModRM, SIB and displacement of register ``n`` and the memory at ``address``."""
    return bytes((0x04 | (n & 7) << 3, 0x25)) + struct.pack("<I", address)


def vector_moves(lanes: int, *, store: bool) -> bytes:
    """Code that loads the vectors and masks from `STATE`, or stores them at `KEPT`."""
    base, code = KEPT if store else STATE, b""
    opcode = 0x7F if store else 0x6F
    for n in range(32 if lanes == 64 else 16):
        where = _at(n, base + 64 * n)
        if lanes == 64:
            code += bytes((0x62, 0xF1 ^ (n & 8) << 4 ^ (n & 16), 0xFE, 0x48, opcode)) + where
        elif lanes == 32:
            code += bytes((0xC5, 0x7E if n & 8 else 0xFE, opcode)) + where
        else:
            code += (b"\xf3\x44\x0f" if n & 8 else b"\xf3\x0f") + bytes((opcode,)) + where
    for n in range(8 if lanes == 64 else 0):
        code += bytes((0xC4, 0xE1, 0xF8, 0x91 if store else 0x90)) + _at(n, base + 2048 + 8 * n)
    return code


def x87_moves(*, store: bool) -> bytes:
    """The same for MXCSR and x87."""
    if not store:
        code = b"\x0f\xae" + _at(2, STATE + 2200) + b"\xdb\xe3"
        return code + b"".join(b"\xdb" + _at(5, STATE + 2304 + 16 * n) for n in range(5))
    code = b"\x0f\xae" + _at(3, KEPT + 2200) + b"\xdd" + _at(7, KEPT + 2208) + b"\xd9" + _at(7, KEPT + 2212)
    return code + b"".join(b"\xdb" + _at(7, KEPT + 2304 + 16 * n) for n in range(8))


class Stopped(Exception):
    """The thread stopped for a signal."""


class Bench:
    """The program, stopped: its memory, its registers, and single steps."""

    def __init__(self, folder: Path, name: str = "bench") -> None:
        path = folder / name
        path.write_bytes(program())
        path.chmod(0o755)
        self._process = subprocess.Popen([path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.pid = self._process.pid
        ptrace.seize(self.pid, ptrace.EXITKILL)
        ptrace.interrupt(self.pid)
        ptrace.wait(self.pid)
        self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR)
        self.memory = MemoryFiles.of(self.pid, self._memory)
        self.now = Registers()
        self.start = Registers()
        ptrace.registers(self.pid, self.start)
        self.lanes = lanes_here()
        self.write(BASE + 0x300, vector_moves(self.lanes, store=False) + x87_moves(store=False) + b"\xcc")

    def close(self) -> None:
        self.memory.close()
        os.close(self._memory)
        self._process.kill()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._process.returncode = 0

    def write(self, address: int, data: bytes) -> None:
        os.pwrite(self._memory, data, address)

    def read(self, address: int, size: int) -> bytes:
        try:
            return os.pread(self._memory, size, address)
        except (OSError, OverflowError):
            return b""

    def set(self, values: dict[int, int]) -> None:
        """Registers as at the start, but ``values``."""
        for n, value in enumerate(self.start):
            self.now[n] = value
        for n, value in values.items():
            self.now[n] = value
        ptrace._call(13, self.pid, 0, ctypes.addressof(self.now))

    def call(self, number: int, *arguments: int) -> int:
        """The result of a system call of the thread."""
        self.write(BASE + 0x2F0, b"\x0f\x05\xcc")
        order = (RDI, RSI, RDX, R10, R8, R9)
        self.set({RIP: BASE + 0x2F0, RAX: number, **dict(zip(order, arguments, strict=False))})
        self.go_on()
        found = ctypes.c_int64(self.now[RAX]).value
        if found < 0:
            raise OSError(-found, os.strerror(-found))
        return found

    def load_vectors(self) -> None:
        """Vectors, masks, MXCSR and x87 registers from `STATE`."""
        self.set({RIP: BASE + 0x300})
        self.go_on()

    def go_on(self) -> None:
        """Go on to the next INT3. Raises `Stopped`."""
        self.now[EFLAGS] &= ~0x100  # Linux takes it for the thread's after a step over POPF
        ptrace._call(13, self.pid, 0, ctypes.addressof(self.now))
        ptrace.cont(self.pid)
        self._stop()

    def _stop(self) -> None:
        _, status = ptrace.wait(self.pid)
        ptrace.registers(self.pid, self.now)
        if not os.WIFSTOPPED(status):
            raise EOFError("the program has ended")
        if os.WSTOPSIG(status) != signal.SIGTRAP:
            raise Stopped(signal.Signals(os.WSTOPSIG(status)).name)

    def step(self) -> None:
        """One whole instruction, with all its repetitions. Raises `Stopped`."""
        ptrace.registers(self.pid, self.now)
        before, code = self.now[RIP], self.read(self.now[RIP], 15)
        opcode = code.lstrip(b"\x66\x67\xf2\xf3\xf0\x2e\x36\x3e\x26\x64\x65")
        opcode = opcode[1:] if opcode[:1] and opcode[0] & 0xF0 == 0x40 else opcode
        strings = opcode[:1] and (0xA4 <= opcode[0] < 0xA8 or 0xAA <= opcode[0] < 0xB0)
        while True:
            ptrace.single_step(self.pid)
            self._stop()
            if not strings or self.now[RIP] != before:
                break
        if opcode[:1] == b"\x9c":  # the trap flag is not the thread's
            flags = int.from_bytes(self.read(self.now[RSP], 8), "little")
            self.write(self.now[RSP], (flags & ~0x100).to_bytes(8, "little"))


def register_differences(expected: ctypes.Array[ctypes.c_uint64], found: ctypes.Array[ctypes.c_uint64]) -> list[str]:
    """General registers, instruction pointer and flags that differ."""
    names = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{n}" for n in range(8, 16)))
    differ = [
        f"{name} {found[n]:#x} not {expected[n]:#x}"
        for name, n in (*zip(names, GENERAL, strict=True), ("rip", RIP))
        if found[n] != expected[n]
    ]
    if (found[EFLAGS] ^ expected[EFLAGS]) & FLAGS:
        differ.append(f"flags {found[EFLAGS] & FLAGS:#x} not {expected[EFLAGS] & FLAGS:#x}")
    return differ


def branch_differences(ways: list[tuple[int, int]], branches: list[tuple[int, int, int, int]]) -> list[str]:
    """Branches that were not taken as they were foreseen, and taken ones that were not foreseen."""
    differ, left = [], list(branches)
    for source, target in ways:
        if left and left[0][0] == source and left[0][1] == target:
            left.pop(0)
        elif not 0 < target - source <= 15:
            differ.append(f"branch {source:#x} to {target:#x} is missing")
    return differ + [f"branch {one[0]:#x} to {one[1]:#x} was not taken" for one in left]


@dataclass(slots=True)
class Outcome:
    """The outcome of one test: why the run ended, after how many instructions, where, and differences from the
    processor."""

    why: str
    executed: int
    at: int
    differ: list[str] = field(default_factory=list)
    signal: str = ""
    """The signal that the instruction at the end of the run raised in the thread; empty: none."""


def compare(
    bench: Bench,
    ahead: Ahead,
    code: bytes,
    values: dict[int, int],
    data: bytes,
    state: bytes,
    *,
    most: int = 400,
    alone: bool = True,
    at: int = CODE,
    data_at: int = DATA,
    step_all: bool = False,
) -> Outcome:
    """Run ``code`` ahead, then in the thread; added instructions store all state at the end, so that comparing memory
    compares all."""
    end = vector_moves(bench.lanes, store=True) + x87_moves(store=True)
    bench.write(STATE, state)
    bench.load_vectors()
    bench.write(at, code + end + b"\xcc")
    bench.write(data_at, data)
    bench.write(STACK_TOP - 2048, bytes(4096))
    bench.write(KEPT, bytes(3072))
    bench.set({RIP: at, **values})
    ptrace.registers(bench.pid, ahead.registers)
    why = ahead.go(bench.pid, bench.memory, most, alone=alone)
    found = Outcome(why, ahead.run.executed, ahead.run.address)
    end_at = at + len(code)
    count, ways = 0, []
    try:
        while count < found.executed:
            if not step_all and bench.now[RIP] == end_at:
                bench.go_on()  # to INT3, at which the run ends, too
                bench.now[RIP] -= 1
                break
            before = bench.now[RIP]
            bench.step()
            ways.append((before, bench.now[RIP]))
            count += 1
    except Stopped as stopped:
        if why == "fault" and bench.now[RIP] == found.at:  # in the end of the code
            found.signal = str(stopped)
        elif why != "unreadable code" or count != found.executed - 1:  # a branch to no address faults itself
            found.differ.append(f"{stopped} at {bench.now[RIP]:#x} after {count} instructions")
        return found
    found.differ += register_differences(bench.now, ahead.registers)
    found.differ += branch_differences(ways, ahead.branches())
    for begin, size in ((data_at, len(data)), (STACK_TOP - 2048, 4096), (KEPT, 3072)):
        for page in range(begin, begin + size, PAGE):
            part = min(PAGE, begin + size - page)
            expected, left = bench.read(page, part), ahead.bytes(page, part)
            if left is not None and left != expected:
                where = [n for n in range(part) if left[n] != expected[n]]
                n = where[0]
                both = f"{left[n : n + 16].hex()} not {expected[n : n + 16].hex()}"
                found.differ.append(f"{len(where)} bytes of memory, from {page + n:#x}: {both}")
    if why == "instructions" and found.executed < most:
        found.differ = []  # it is in the midst of many repetitions, which single steps go on with
    if why == "fault":
        try:
            bench.step()
        except Stopped as stopped:
            found.signal = str(stopped)
    return found


# -- random code

_PREFIXES = (b"", b"", b"", b"\x66", b"\xf2", b"\xf3", b"\xf0", b"\x66\xf2", b"\x66\xf3", b"\x2e", b"\x67")
_IMMEDIATE_8 = {0x80, 0x83, 0x6B, 0xC0, 0xC1, 0xC6, 0x6A, 0xA8, *range(0xB0, 0xB8), *range(0x04, 0x40, 8)}
_IMMEDIATE_32 = {0x81, 0x69, 0xC7, 0x68, 0xA9, *range(0x05, 0x40, 8)}
_IMMEDIATE_8_OF_2 = {0x70, 0x71, 0x72, 0x73, 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6}
_ONE_BYTE = (
    *(n for n in range(0x40) if n & 7 < 6), 0x63, 0x68, 0x69, 0x6A, 0x6B, 0x80, 0x81, 0x83, *range(0x84, 0x8E), 0x8F,
    *range(0x90, 0x9A), 0x9C, 0x9D, 0x9E, 0x9F, *range(0xA4, 0xC0), 0xC0, 0xC1, 0xC6, 0xC7, 0xC8, 0xC9,
    *range(0xD0, 0xD4), 0xD7, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFC, 0xFD, 0xFE, 0xFF, *range(0x50, 0x60),
    *range(0xD8, 0xE0),
)  # fmt: skip
_WITHOUT_MODRM = {
    0x68, 0x6A, *range(0x90, 0xA0), *range(0xA4, 0xC0), 0xC9, *range(0xF5, 0xF6), 0xF8, 0xF9, 0xFC, 0xFD,
    *range(0x50, 0x60), *(n for n in range(0x40) if n & 7 in (4, 5)), 0xC8, 0xD7,
}  # fmt: skip
_PADS = (0x90, 0x98, 0x99, 0xF5, 0xF8, 0xF9, 0x9E, 0x9F)
POINTERS = (3, 5, 6, 7, 12, 13)
"""RBX, RBP, RSI, RDI, R12 and R13 point into the data."""
SMALL = (1, 14, 15)
"""RCX, R14 and R15 are small numbers."""


class Generator:
    """Random instructions, most of them defined, whose operands are mostly in the data."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def memory(self, reg: int, at: int) -> tuple[bytes, int]:
        """ModRM and what follows for a memory operand, and the bits R, X and B of REX."""
        chance = self.chance
        form, rex = chance.randrange(12), (4 if reg & 8 else 0)
        low = (reg & 7) << 3
        if form == 0:
            target = DATA + PAGE + chance.randrange(PAGE)
            if chance.random() < 0.5:
                return bytes((low | 4, 0x25)) + struct.pack("<i", target), rex
            return bytes((low | 5,)) + struct.pack("<i", target - at), rex
        base = chance.choice(POINTERS)
        rex |= 1 if base & 8 else 0
        displacement = chance.choice(
            (0, 0, 8, 16, 64, -64, -8, chance.randrange(-128, 128), chance.randrange(-600, 600))
        )
        if -128 <= displacement < 128 and chance.random() < 0.9:
            mod, tail = (0, b"") if not displacement and base & 7 != 5 else (0x40, struct.pack("<b", displacement))
        else:
            mod, tail = 0x80, struct.pack("<i", displacement)
        if form < 4:
            index = chance.choice((*SMALL, 4))
            rex |= 2 if index & 8 else 0
            return bytes((mod | low | 4, chance.randrange(4) << 6 | (index & 7) << 3 | base & 7)) + tail, rex
        if base & 7 == 4:
            return bytes((mod | low | 4, 0x20 | 4)) + tail, rex
        return bytes((mod | low | base & 7,)) + tail, rex

    def operand(self, at: int) -> tuple[bytes, int]:
        """ModRM and what follows; bits R, X and B."""
        chance = self.chance
        reg = chance.randrange(16)
        if chance.random() < 0.35:
            rm = chance.randrange(16)
            return bytes((0xC0 | (reg & 7) << 3 | rm & 7,)), (4 if reg & 8 else 0) | (1 if rm & 8 else 0)
        return self.memory(reg, at)

    def _tail(self) -> bytes:
        return bytes((self.chance.choice(_PADS),)) + b"\x90" * 7

    def legacy(self, at: int) -> bytes:
        """An instruction of the maps without VEX."""
        chance = self.chance
        kind = chance.random()
        prefix = chance.choice(_PREFIXES)
        wide = 8 if chance.random() < 0.35 else 0
        if kind < 0.5:
            opcode = chance.choice(_ONE_BYTE)
            code, rex = (b"", chance.choice((0, 0, 1))) if opcode in _WITHOUT_MODRM else self.operand(at + 8)
            if 0xA4 <= opcode < 0xB0:
                prefix = chance.choice((b"", b"\xf3", b"\xf2", b"\x66", b"\x66\xf3"))
            if opcode in (0x9C, 0x9D, 0xF0, 0xC9) or 0x50 <= opcode < 0x60:
                prefix = b""
            immediate = b""
            if opcode in _IMMEDIATE_8 or opcode in (0xF6,):
                immediate = bytes((chance.randrange(256) if opcode not in (0xC0, 0xC1) else chance.randrange(70),))
            elif opcode in _IMMEDIATE_32:
                immediate = chance.randbytes(2 if b"\x66" in prefix and not wide else 4)
            elif opcode == 0xC8:
                immediate = struct.pack("<HB", chance.randrange(0, 512, 8), chance.choice((0, 0, 0, 1)))
            if opcode == 0xF6 and code and code[0] >> 3 & 7 > 1:
                immediate = b""
            rex |= wide
            head = bytes((0x40 | rex,)) if rex or chance.random() < 0.2 else b""
            return prefix + head + bytes((opcode,)) + code + immediate + self._tail()
        code, rex = self.operand(at + 8)
        rex |= wide
        head = bytes((0x40 | rex,)) if rex or chance.random() < 0.1 else b""
        if kind < 0.85:
            while True:
                opcode = chance.randrange(0x0D, 256)
                if opcode & 0xF0 != 0x80 and opcode not in (0x0F, 0x31, 0x34, 0x38, 0x3A, 0xAE, 0xC7):
                    break
            immediate = (
                bytes((chance.choice((chance.randrange(256), chance.randrange(8))),))
                if opcode in _IMMEDIATE_8_OF_2
                else b""
            )
            return prefix + head + bytes((0x0F, opcode)) + code + immediate + self._tail()
        if kind < 0.93:
            opcode = chance.choice((*range(0x42), *range(0xC8, 0xD0), *range(0xDB, 0xE0), 0xF0, 0xF1, 0xF5, 0xF6, 0xF6))
            return prefix + head + bytes((0x0F, 0x38, opcode)) + code + self._tail()
        opcode = chance.choice(
            (*range(0x08, 0x18), 0x20, 0x21, 0x22, 0x40, 0x41, 0x42, 0x44, *range(0x60, 0x64), 0xCC, 0xCE, 0xCF, 0xDF)
        )
        return prefix + head + bytes((0x0F, 0x3A, opcode)) + code + bytes((chance.randrange(256),)) + self._tail()

    def encoded(self, at: int) -> bytes:
        """An instruction of VEX or EVEX."""
        chance = self.chance
        code, rex = self.operand(at + 8)
        form, mandatory = chance.choice((2, 3, 3, 4, 4, 4)), chance.choice((0, 1, 1, 1, 2, 3))
        opcode, other = chance.randrange(256), chance.choice((0, 0, chance.randrange(16)))
        chosen = 1 if form == 2 else chance.choice((1, 1, 2, 2, 3))
        tail = self._tail()
        if chosen == 3 or opcode in _IMMEDIATE_8_OF_2:
            tail = bytes((chance.randrange(256),)) + tail
        inverted = (~rex & 7) << 5
        wide = chance.choice((0, 0x80))
        if form == 2:
            return (
                bytes((0xC5, (0 if rex & 4 else 0x80) | (~other & 15) << 3 | chance.choice((0, 4)) | mandatory, opcode))
                + code
                + tail
            )
        if form == 3:
            second = wide | (~other & 15) << 3 | chance.choice((0, 4)) | mandatory
            return bytes((0xC4, inverted | chosen, second, opcode)) + code + tail
        first = inverted | 0x10 | chosen
        third = chance.choice((0, 0x80)) & (0x80 if chance.random() < 0.3 else 0) | chance.randrange(3) << 5 | 8
        third |= 0x10 if chance.random() < 0.2 else 0
        third |= chance.randrange(8) if chance.random() < 0.5 else 0
        return bytes((0x62, first, wide | (~other & 15) << 3 | 4 | mandatory, third, opcode)) + code + tail

    def jump(self, at: int) -> bytes:
        """A branch of any kind over some bytes that do little."""
        chance = self.chance
        kind = chance.randrange(9)
        if kind == 0:
            return bytes((0x70 | chance.randrange(16), 3)) + b"\x90\x48\x99\x90"
        if kind == 1:
            return bytes((0x0F, 0x80 | chance.randrange(16), 2, 0, 0, 0)) + b"\x48\x98\x90"
        if kind == 2:
            return b"\xe8\x02\x00\x00\x00\xeb\x01\xc3\x90"
        if kind == 3:
            return b"\x67" * chance.randrange(2) + bytes((0xE0 | chance.randrange(4), 3)) + b"\x90\xf9\x90\x90"
        if kind == 4:  # push the address behind, ret 16
            return b"\x48\x8d\x05\x04\x00\x00\x00\x50\xc2\x10\x00"
        if kind == 5:  # lea r11, [rip]; mov [rsp - 40], r11; call [rsp - 40]; there: pop
            return b"\x4c\x8d\x1d\x09\x00\x00\x00\x4c\x89\x5c\x24\xd8\xff\x54\x24\xd8\x41\x5b"
        if kind == 6:  # lea r11; jmp r11
            return b"\x4c\x8d\x1d\x03\x00\x00\x00\x41\xff\xe3"
        if kind == 7:  # bit strings far from their operand
            number = chance.choice((-900, -65, -1, 0, 31, 32, 64, 700, chance.randrange(-3000, 3000)))
            size = chance.choice((b"\x66\x41", b"\x41", b"\x49"))
            rex = bytes((size[-1] & 0x48 | 4,)) if len(size) == 1 else b"\x44"
            prefix = chance.choice((b"", b"\xf0")) + (b"\x66" if len(size) == 2 else b"")
            opcode = chance.choice((0xA3, 0xAB, 0xB3, 0xBB))
            if opcode == 0xA3:
                prefix = prefix.replace(b"\xf0", b"")
            return b"\x49\xc7\xc3" + struct.pack("<i", number) + prefix + rex + bytes((0x0F, opcode, 0x1B))
        count = chance.randrange(40)  # rep movs of ranges that overlap
        lea = b"\x48\x8d\x7e" + struct.pack("<b", chance.randrange(-20, 20))
        size = chance.choice((b"\xa4", b"\x66\xa5", b"\xa5", b"\x48\xa5"))
        size = (b"\x66\xf3" + size[1:]) if size[0] == 0x66 else b"\xf3" + size
        return chance.choice((b"", b"\xfd")) + lea + b"\xb9" + struct.pack("<I", count) + size + b"\xfc"

    def sequence(self, length: int, kinds: str) -> bytes:
        """``length`` instructions of the ``kinds`` l (legacy), e (VEX and EVEX) and j (jumps)."""
        code = b""
        for _ in range(length):
            code += {"l": self.legacy, "e": self.encoded, "j": self.jump}[self.chance.choice(kinds)](CODE + len(code))
        return code

    def values(self) -> dict[int, int]:
        """Registers to begin with."""
        chance = self.chance
        values = {}
        for number, n in enumerate(GENERAL):
            if number in POINTERS:
                values[n] = (
                    DATA
                    + PAGE
                    + chance.choice((0, 64 * chance.randrange(64), 16 * chance.randrange(256), chance.randrange(PAGE)))
                )
            elif number in SMALL:
                values[n] = chance.randrange(48) if number == 1 else chance.randrange(-32, 64) & (1 << 64) - 1
            elif number == 4:
                values[n] = STACK_TOP + 8 * chance.randrange(-8, 8)
            else:
                values[n] = chance.choice(
                    (chance.getrandbits(64), chance.getrandbits(8), (1 << 64) - 1, 1 << 63, chance.getrandbits(32))
                )
        values[EFLAGS] = 0x202 | chance.getrandbits(12) & 0x8D5 | (0x400 if chance.random() < 0.1 else 0)
        return values

    def state(self) -> bytes:
        """Vectors, masks, MXCSR and x87 registers."""
        chance = self.chance
        lanes = b"".join(
            struct.pack("<8d", *(chance.choice((0.0, 1.5, -2.25, 1e300, chance.gauss(0, 9))) for _ in range(8)))
            if chance.random() < 0.4
            else chance.randbytes(64)
            for _ in range(32)
        )
        masks = b"".join(chance.choice((chance.randbytes(8), b"\xff" * 8, b"\x05" + bytes(7))) for _ in range(8))
        control = 0x1F80 | chance.choice((0, 0, 0x2000, 0x8040, 0x6000))
        x87 = b"".join(
            (chance.getrandbits(63) | 1 << 63).to_bytes(8, "little")
            + ((0x3FFF + chance.randrange(-40, 40)) | chance.choice((0, 0x8000))).to_bytes(2, "little")
            + bytes(6)
            for _ in range(5)
        )
        return (lanes + masks).ljust(2200, b"\0") + control.to_bytes(4, "little") + bytes(100) + x87

    def data(self) -> bytes:
        """Three pages."""
        chance = self.chance
        doubles = [struct.pack("<8d", *(chance.gauss(0, 99) for _ in range(8))) for _ in range(8)]
        return b"".join(
            chance.choice((chance.randbytes(64), chance.choice(doubles), bytes(64))) for _ in range(3 * PAGE // 64)
        )
