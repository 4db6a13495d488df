"""AArch64 on any machine: where branches go, and where a program may be stopped. `make arm64` records there."""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path

import pytest

from lastbranch.capture import ptrace, traceable
from lastbranch.capture.architectures import ARCHITECTURES
from lastbranch.capture.software import engines, recorder
from lastbranch.capture.software.bursts import BurstLimits
from lastbranch.capture.software.control_flow import Code, Fork
from lastbranch.capture.software.engines import PerfBreakpoints
from lastbranch.capture.software.instructions import NOT_TAKEN
from lastbranch.capture.software.self_check import KNOWN
from lastbranch.capture.software.successors import Successors
from lastbranch.errors import UnavailableError
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

LEFT = ("c85ffd20", "eb01001f", "54000061", "c803fd22", "35ffff83", "d65f03c0")
"""ldaxr; cmp; b.ne to ret; stlxr; cbnz to the first; ret: as GCC does it, without clrex."""
REJOINED = ("c87f8920", "36000040", "91000400", "91000c00", "c8238920", "35ffff63", "d65f03c0")
"""ldaxp; tbz to the second add; add; add; stlxp; cbnz to the first; ret."""


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


@pytest.mark.parametrize("words", [ADD_EXCLUSIVE, SWAP_EXCLUSIVE, LEFT, RAISE_PAIR, ONLY_LOAD, REJOINED])
@pytest.mark.parametrize("most", [1, 2, 4])
def test_no_stop_lies_between_an_exclusive_load_and_its_store(words: tuple[str, ...], most: int) -> None:
    """Otherwise the store would fail as often as the recorder stops there."""
    store = next((i for i, word in enumerate(words) if int(word, 16) >> 21 in (0x640, 0x641)), len(words) - 1)
    for start in (0, 4):  # a nop before the load, and the load
        found = fork(code("d503201f", *words), start, most)
        assert {BASE + 4 + 4 * i for i in range(1, store + 1)}.isdisjoint(found.ends)
        known = words is ADD_EXCLUSIVE or (words in (SWAP_EXCLUSIVE, LEFT) and most > 1)
        assert (found.ends != {}, found.why == "exclusive access") == (known, not known)


def test_a_way_out_between_load_and_store_needs_no_stop() -> None:
    ends = fork(code(*SWAP_EXCLUSIVE), 0, 2).ends
    assert {address - BASE: [(a - BASE, b - BASE) for a, b, _ in end.path] for address, end in ends.items()} == {
        0x10: [],
        0x1C: [(0x8, 0x18)],
    }


@pytest.mark.parametrize("most", [2, 3, 4])
def test_a_fork_that_reaches_an_exclusive_load_has_no_stop_behind_it_either(most: int) -> None:
    found = fork(code("b4000125", *SWAP_EXCLUSIVE, "d65f03c0"), 0, most)  # cbz to the last ret
    assert found.ends
    assert {BASE + 4 * i for i in (2, 3, 4)}.isdisjoint(found.ends)
    assert len(found.ends) <= most


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


def test_programs_of_other_machines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traceable, "HERE", ARCHITECTURES["aarch64"])
    program = tmp_path / "app"
    for machine, bits, said in ((62, 2, "a 64-bit x86"), (183, 1, "a 32-bit"), (40, 1, "an Arm"), (183, 2, "")):
        program.write_bytes(b"\x7fELF" + bytes([bits, 1, 1]) + bytes(11) + machine.to_bytes(2, "little") + bytes(44))
        if not said:
            traceable.check_program(str(program))
            continue
        with pytest.raises(UnavailableError, match=f"{said} program; only AArch64 code is recorded"):
            traceable.check_program(str(program))


def test_call_stacks_come_from_frame_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "HERE", ARCHITECTURES["aarch64"])
    assert recorder._call_graph("auto", 0) == "fp"
    with pytest.raises(UnavailableError, match="AArch64"):
        recorder._call_graph("dwarf", 0)


# -- engines, on a processor that knows just the instructions of the start-up test


LOOP = code("528000e9", "71000529", "54ffffe1", "17fffffd")
"""mov w9, #7; subs w9, w9, #1; b.ne to it; b to the first: a loop of one block."""


class Processor:
    """Executes such code, and stops as Linux does on AArch64: before an instruction with a breakpoint, each time."""

    def __init__(self, memory: bytes, *, perf: bool) -> None:
        self.memory, self.registers = memory, (ctypes.c_uint64 * 34)()
        self.registers[PC] = BASE
        self.breakpoints = set[int]()
        self.edges: list[tuple[int, int]] = []
        """What was taken."""
        self.code = 0
        """si_code of the last stop."""
        self._perf, self._off = perf, False

    def _execute(self) -> None:
        r, at = self.registers, self.registers[PC]
        word = int.from_bytes(self.memory[at - BASE :][:4], "little")
        goes = None
        match word:
            case 0x528000E9:
                r[9] = 7
            case 0x71000529:
                r[9] -= 1
                r[33] = (r[9] == 0) << 30
            case 0x1000008A:
                r[10] = at + 0x10
            case 0x36000069:
                goes = None if r[9] & 1 else at + 0xC
            case 0xD61F0140:
                goes = r[10]
            case 0xD65F03C0:
                goes = r[30]
            case 0xD503201F:
                pass
            case _ if word >> 24 == 0x54:
                goes = None if r[33] else at + ((word >> 5 & 0x7FFFF) - (1 << 19)) * 4
            case _:
                assert word & 0x7C000000 == 0x14000000, hex(word)
                goes = at + ((word & 0x3FFFFFF) - (word >> 25 & 1) * (1 << 26)) * 4
                r[30] = at + 4 if word >> 31 else r[30]
        r[PC] = at + 4 if goes is None else goes
        if goes is not None:
            self.edges.append((at, goes))

    def go(self, tid: int, pokes: object, seconds: float, *, step: bool = False) -> int:
        stops = step
        if step and self._perf and self._off:  # its breakpoints are off for one step, of which nobody hears
            self._off = stops = False
            self._execute()
        elif step:
            self._execute()
            self.code = 2
        while not stops:
            assert not self._off, "its breakpoints are off: it would never stop"
            if self.registers[PC] in self.breakpoints:
                self.code, self._off, stops = 4, self._perf, True
            else:
                self._execute()
        return (signal.SIGURG if self._perf and self.code == 4 else signal.SIGTRAP) << 8 | 0x7F

    def set(self, tid: int, number: int, words: ctypes.Array[ctypes.c_uint64]) -> None:
        """struct user_hwdebug_state."""
        self.breakpoints = {at for at, control in zip(words[1::2], words[2::2], strict=True) if control & 1}


class OfProcessor(PerfBreakpoints):
    def __init__(self, processor: Processor) -> None:
        super().__init__()
        self.processor = processor

    def place(self, fork: Fork) -> tuple[()]:
        self.processor.breakpoints = {*fork.ends}
        return ()

    def struck(self) -> bool:
        return self.processor.code == 4

    def disarm(self) -> None:
        self.processor.breakpoints = set()


PC = ARCHITECTURES["aarch64"].pc


@pytest.mark.parametrize("memory", [KNOWN["aarch64"].code, LOOP], ids=["start-up test", "loop"])
@pytest.mark.parametrize(("how", "ends"), [("ptrace", 4), ("ptrace", 2), ("perf", 4), ("steps", 1)])
def test_engines_see_just_the_branches_of_known_code(
    how: str, ends: int, memory: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, processor = ARCHITECTURES["aarch64"], Processor(memory, perf=how == "perf")
    if memory is LOOP:  # the trigger stops it at the branch
        processor.registers[PC], processor.registers[9] = BASE + 8, 3

    def read(tid: int, into: ctypes.Array[ctypes.c_uint64]) -> None:
        into[:] = processor.registers[:]

    def step(tid: int) -> None:
        processor.go(tid, (), 1, step=True)

    for name, value in {"PC": here.pc, "STACK": here.stack, "FLAGS": here.flags, "RESUME_FLAG": 0}.items():
        monkeypatch.setattr(engines, name, value)
    monkeypatch.setattr(ptrace, "Registers", ctypes.c_uint64 * here.words)
    for name, function in {
        "registers": read,
        "set_register_set": processor.set,
        "single_step": step,
        "siginfo": lambda tid: (processor.code, 0, 0),
    }.items():
        monkeypatch.setattr(ptrace, name, function)
    monkeypatch.setattr(engines, "next_stop", lambda tid, seconds, patient=True: signal.SIGTRAP << 8 | 0x7F)
    engine: engines.Engine = engines.SingleStep()
    if how != "steps":
        perf = engines.PerfBlocks(OfProcessor(processor))
        engine = perf if how == "perf" else engines.SteppedBlocks(engines.HardwareBreakpoints(ends))
        for name, value in {"_registers": processor.registers, "_resumer": processor}.items():
            monkeypatch.setattr(engine, name, value)
    known, seen = successors(memory, ends), list[tuple[int, int, int]]()
    for _ in range(4):  # a burst goes on where the last one ended
        burst = engine.burst(engines.Target(1, lambda status: False), known, BurstLimits(20, stops=2000))
        assert burst.why == "full"
        assert processor.breakpoints == set()
        seen += burst.edges
        known.widen()
        known.begin()
    assert len(seen) >= 80
    assert [edge[:2] for edge in seen] == processor.edges[: len(seen)]
    assert len(processor.edges) <= len(seen)
    if memory is not LOOP:
        assert seen == KNOWN["aarch64"].edges(BASE, len(seen))
