"""Call stacks by call frame information against programs that know their own stack, and against elfutils' libdwfl."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import random
import shutil
import signal
import subprocess
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from capture_tools import PROGRAMS, needs_ptrace, needs_walk
from lastbranch import native
from lastbranch.binaries import read_image
from lastbranch.capture import ptrace
from lastbranch.capture.software.control_flow import memory_of
from lastbranch.capture.software.unwinder import ENDS, FRAMES, AddressSpace, Stack, Unwinder
from lastbranch.isa import Decoder
from lastbranch.lbr import KIND
from lastbranch.model import BytesSource

pytestmark = needs_ptrace

SHADOWED = (
    "main", "recurse", "even", "odd", "compare", "sort", "tail", "last", "room", "big", "many", "handler", "signals",
    "throws", "catches", "jumps", "lands", "leaf",
)  # fmt: skip
"""The functions of stacks.cpp, by their numbers."""
WHOLE = "whole"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unwinder")


def compiled(folder: Path, compiler: str, *options: str) -> Path:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    path = folder / "".join([compiler, *options])
    if not path.exists():
        command = [compiler, "-w", *options, str(PROGRAMS / "stacks.cpp"), "-o", str(path)]
        subprocess.run(command, check=True)
    return path


class Stopped:
    """A program that is stopped wherever we like."""

    def __init__(self, program: Path, *words: str) -> None:
        self.program = program
        self.pid = os.fork()
        if self.pid == 0:
            with suppress(OSError):
                os.kill(os.getpid(), signal.SIGSTOP)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.execv(program, [str(program), *words])
            os._exit(127)
        os.waitpid(self.pid, os.WUNTRACED)
        ptrace.seize(self.pid, ptrace.FOLLOW | ptrace.EXITKILL)
        os.kill(self.pid, signal.SIGCONT)
        while ptrace.event_of(status := ptrace.wait(self.pid)[1]) != ptrace.EVENT_EXEC:
            self._pass(status)
        self.descriptor = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
        self.memory = memory_of(self.descriptor)
        self.space = AddressSpace(self.pid, self.memory, self.descriptor)
        self.registers = ptrace.Registers()
        self._symbols = symbols(program)
        self._starts = [start for start, _, _ in self._symbols]
        maps = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        begin = next(int(line.split("-")[0], 16) for line in maps if line.endswith(str(program)))
        is_moved = read_image(BytesSource(program.read_bytes())).kind == "shared object"
        self.base = begin if is_moved else 0

    def _pass(self, status: int) -> None:
        ptrace.cont(self.pid, 0 if ptrace.event_of(status) else ptrace.signal_of(status))

    def run(self, seconds: float) -> None:
        """Run for a moment, and stop."""
        ptrace.cont(self.pid)
        time.sleep(seconds)
        ptrace.interrupt(self.pid)
        while ptrace.event_of(status := ptrace.wait(self.pid)[1]) != ptrace.EVENT_STOP:
            self._pass(status)
        ptrace.registers(self.pid, self.registers)
        self.space.forget()  # as a recording does when the kernel says that code was mapped

    def go(self) -> None:
        """Run to a breakpoint."""
        ptrace.cont(self.pid)
        while ptrace.signal_of(status := ptrace.wait(self.pid)[1]) != signal.SIGTRAP:
            self._pass(status)
        ptrace.registers(self.pid, self.registers)

    def step(self) -> None:
        """Execute one instruction; signals arrive."""
        deliver = 0
        while True:
            ptrace.single_step(self.pid, deliver)
            deliver = ptrace.signal_of(ptrace.wait(self.pid)[1])
            if deliver == signal.SIGTRAP:
                break
        ptrace.registers(self.pid, self.registers)

    def words(self, name: str, count: int) -> list[int]:
        """``count`` integers of the program's variable."""
        at = self.base + next(start for start, _, known in self._symbols if known == name)
        return memoryview(self.memory(at, 4 * count)).cast("i").tolist() if count else []

    def names(self, stack: Stack) -> list[str]:
        """The program's own functions on the stack, outermost first."""
        found = []
        for number, frame in enumerate(stack.frames):
            at = frame - (number > 0) - self.base
            row = bisect_right(self._starts, at) - 1
            if row >= 0 and at < self._symbols[row][1] and self._symbols[row][2] in SHADOWED:
                found.append(self._symbols[row][2])
        return found[::-1]

    def shadow(self) -> list[str]:
        """The functions that it has entered and not left, as it noted itself."""
        return [SHADOWED[number] for number in self.words("shadow", self.words("depth", 1)[0])]


def symbols(program: Path) -> list[tuple[int, int, str]]:
    """(start, end, name without its suffixes) by nm."""
    listed = subprocess.run(["nm", "-S", program], check=True, capture_output=True, text=True).stdout
    fields = [line.split() for line in listed.splitlines()]
    return sorted(
        (int(f[0], 16), int(f[0], 16) + int(f[1], 16), f[3].split(".")[0] if f[2] in "tT" else f[3])
        for f in fields
        if len(f) == 4
    )


@contextmanager
def stopped(program: Path, *words: str) -> Iterator[Stopped]:
    with ptrace.ticking():  # as in a recording: a wait that does not end does not hang
        signal.setitimer(signal.ITIMER_REAL, 0)
        one = Stopped(program, *words)
        try:
            yield one
        finally:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
            os.close(one.descriptor)


VARIANTS = [
    ("g++", "-O1", "-static"),
    ("g++", "-O2", "-no-pie", "-fcf-protection=full"),
    ("clang++-19", "-O2", "-fno-omit-frame-pointer"),
    pytest.param(("g++", "-O2"), marks=pytest.mark.thorough),
    pytest.param(("g++", "-O0"), marks=pytest.mark.thorough),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=" ".join)
def test_stacks_are_those_that_the_program_noted(folder: Path, variant: tuple[str, ...]) -> None:
    """At each instruction of stretches of the run: in prologues and epilogues, libc, the dynamic linker, handlers.

    A function notes itself once it has run some instructions, and strikes itself off before its last ones: the
    innermost one may be missing in its notes. The C library's start-up code has parts without information."""
    ends, seen, wrong = Counter[str](), set[str](), []
    with stopped(compiled(folder, *variant), "1000000", "30") as one:
        unwinder = Unwinder()
        dice = random.Random(1)
        for _ in range(25):
            one.run(dice.uniform(0.0001, 0.002))
            for _ in range(60):
                stack = unwinder.stack(one.space, one.registers)
                ends[ENDS[stack.end]] += 1
                names, noted = one.names(stack), one.shadow()
                seen |= {*names}
                expected = noted, [*noted, *names[-1:]]
                if stack.end:
                    expected = tuple(part[len(part) - len(names) :] for part in expected)
                if names not in expected:
                    wrong.append((names, noted))
                one.step()
    assert wrong == []
    assert ends[WHOLE] >= 0.99 * 1500, ends
    assert {"recurse", "handler", "signals"} < seen


def test_a_stack_that_is_being_left_for_a_handler_is_not_followed(folder: Path) -> None:
    """From the call that writes the handler's registers into the frame until it is in the handler."""
    program = compiled(folder, "g++", "-O1", "-static")
    start, end = max((s[:2] for s in symbols(program) if s[2] == "_Unwind_RaiseException"), key=lambda s: s[1] - s[0])
    with stopped(program, "1000000", "30") as one:
        unwinder = Unwinder()
        leaving = list(Decoder().lines(one.memory(start, end - start), start))
        last = next(i for i, found in enumerate(leaving) if found.text == "mov rsp, rcx")
        call = [found.address for found in leaving[:last] if found.kind == KIND["call"]][-2]
        for slot, value in ((0, call), (7, 1)):
            ptrace.poke_user(one.pid, ptrace.DEBUG_REGISTER + slot * 8, value)
        one.go()
        ptrace.poke_user(one.pid, ptrace.DEBUG_REGISTER + 7 * 8, 0)
        assert one.registers[ptrace.RIP] == call
        ends = []
        for _ in range(2000):
            stack = unwinder.stack(one.space, one.registers)
            if one.names(stack)[-1:] == ["catches"] and not stack.end:
                break
            ends.append(ENDS[stack.end])
            one.step()
    assert stack.frames[0] == one.registers[ptrace.RIP]
    assert ends.count("going to an exception handler") > 20
    assert ends[1:] == ["going to an exception handler"] * (len(ends) - 1)


@needs_walk
def test_both_forms_of_the_walk_agree(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_walk = Unwinder()
    monkeypatch.setattr(native, "library", lambda: None)
    plain = Unwinder()
    with stopped(compiled(folder, "g++", "-O2"), "1000000", "4000", "deep") as one:
        ends = Counter[int]()
        for _ in range(60):
            one.run(0.0005)
            stack = compiled_walk.stack(one.space, one.registers)
            assert stack == plain.stack(one.space, one.registers)
            ends[stack.end] += 1
    assert len(ends) > 1, "some are whole and some are cut off"


def test_deep_recursion_is_cut_off(folder: Path) -> None:
    with stopped(compiled(folder, "g++", "-O0"), "1000000", "4000", "deep") as one:
        cut = None
        unwinder = Unwinder()
        for _ in range(200):
            one.run(0.0003)
            stack = unwinder.stack(one.space, one.registers)
            if len(stack.frames) == FRAMES:
                cut = stack
                break
    assert cut is not None
    assert ENDS[cut.end] == f"cut off at {FRAMES} frames"
    assert set(one.names(cut)) <= {"recurse", "leaf"}


# -- libdwfl, which unwinds any process that its caller has stopped


@pytest.mark.parametrize("variant", VARIANTS[:2], ids=" ".join)
def test_frames_are_those_of_libdwfl(folder: Path, variant: tuple[str, ...]) -> None:
    name = ctypes.util.find_library("dw")
    if name is None:
        pytest.skip("libdw is not installed")
    oracle = Libdwfl(ctypes.CDLL(name))
    compared = 0
    with stopped(compiled(folder, *variant), "1000000", "30") as one:
        unwinder = Unwinder()
        for _ in range(40):
            one.run(0.0007)
            stack = unwinder.stack(one.space, one.registers)
            expected = oracle.frames(one.pid)
            # It says of each frame whether a call led from there; a call chain has one more where none did.
            assert stack.frames == [pc + (number > 0 and exact) for number, (pc, exact) in enumerate(expected)]
            compared += len(expected)
    assert compared > 200


class Libdwfl:
    """Functions of elfutils/libdwfl.h."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._lib = library
        for function in ("dwfl_begin", "dwfl_pid"):
            getattr(library, function).restype = ctypes.c_void_p
        find_elf, find_debug = (
            ctypes.cast(getattr(library, n), ctypes.c_void_p)
            for n in ("dwfl_linux_proc_find_elf", "dwfl_standard_find_debuginfo")
        )
        self._callbacks = (ctypes.c_void_p * 4)(find_elf, find_debug, None, None)

    def frames(self, pid: int) -> list[tuple[int, bool]]:
        """(address, whether it is that of an instruction that was interrupted), innermost first."""
        lib, found = self._lib, list[tuple[int, bool]]()
        dwfl = ctypes.c_void_p(lib.dwfl_begin(ctypes.byref(self._callbacks)))
        assert lib.dwfl_linux_proc_report(dwfl, pid) == 0
        assert lib.dwfl_report_end(dwfl, None, None) == 0
        assert lib.dwfl_linux_proc_attach(dwfl, pid, True) == 0

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        def take(state: int, _: int) -> int:
            pc, exact = ctypes.c_uint64(), ctypes.c_bool()
            lib.dwfl_frame_pc(ctypes.c_void_p(state), ctypes.byref(pc), ctypes.byref(exact))
            found.append((pc.value, exact.value))
            return 0

        lib.dwfl_getthread_frames(dwfl, pid, take, None)
        lib.dwfl_end(dwfl)
        return found
