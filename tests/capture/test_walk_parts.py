"""Parts of the walk's C against the Python that they stand for, on random values."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import subprocess
from collections.abc import Iterator

import pytest

from capture_tools import WALK, needs_ptrace
from lastbranch.capture import ptrace
from lastbranch.capture.ptrace import EFLAGS, FS_BASE, GENERAL, GS_BASE, RSP
from lastbranch.capture.software import walk_tables
from lastbranch.capture.software.control_flow import Code, Effects, End, Fork, KnownTarget, State, Word, memory_of
from lastbranch.capture.software.instructions import Branch, Condition, InMemory, InRegister, Store, direct, returns
from lastbranch.capture.software.successors import Expectation, Successors
from lastbranch.capture.software.walk_tables import Context, SharedWord
from lastbranch.lbr import KIND
from lastbranch.native.build import compiler

pytestmark = needs_ptrace
PLAIN = tuple(r for r in GENERAL if r != RSP)
_ADDRESSES = (1 << 64) - 1


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """branch_walk.c with all of its functions to be called."""
    path = tmp_path_factory.mktemp("parts") / "walk.so"
    flags = ["-std=c11", "-O2", "-shared", "-fPIC", "-fno-strict-aliasing", "-Dstatic=", "-Dinline="]
    subprocess.run([*compiler(), *flags, "-o", path, WALK], check=True)
    return ctypes.CDLL(str(path))


class Bench:
    """A context over tables of this process, and memory of it to read."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fd = os.open("/proc/self/mem", os.O_RDONLY)
        self.read = memory_of(self.fd)
        self.words = (ctypes.c_uint64 * 256)(*(self.chance.getrandbits(64) for _ in range(256)))
        self.at = ctypes.addressof(self.words)
        self.registers = ptrace.Registers()
        self.tables = walk_tables.Tables(self.fd)
        self.context = Context()
        self.context.registers = ctypes.addressof(self.registers)
        self.context.use(self.tables)

    def shake(self) -> int:
        """New registers that point into the words, mostly; what the stack pointer is."""
        self.context.blocks = 0
        for index in range(27):
            self.registers[index] = self.near() if self.chance.random() < 0.9 else self.chance.getrandbits(64)
        self.registers[EFLAGS] = self.chance.getrandbits(12)
        self.registers[RSP] = self.near()
        return self.registers[RSP]

    def near(self) -> int:
        return self.at + 1024 + self.chance.randrange(-64, 64)

    def put(self, fork: Fork) -> int:
        """The address of the node of ``fork``."""
        self.tables.put(walk_tables.ROOTS, self.chance.getrandbits(40), fork)
        assert fork.node
        return self.tables.at["nodes"] + fork.node * struct.calcsize(walk_tables._LAYOUT["nodes"][0])

    def put_end(self, end: End) -> int:
        self.put(Fork({end.branch.address: end}, frozenset()))
        return self.tables.at["ends"] + len(self.tables.ends) * struct.calcsize(walk_tables._LAYOUT["ends"][0])

    def at_context(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(self.context))


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench(1)
    yield found
    os.close(found.fd)


def some_end(branch: Branch | None = None) -> End:
    return End(branch or Branch(0x400000, 2, KIND["cond"], 0x400010, Condition(4)), ())


def test_all_conditions_hold_for_the_same_flags(parts: ctypes.CDLL) -> None:
    registers = ptrace.Registers()
    branch = Branch(0, 2, KIND["cond"], 77, None)
    for code in range(16):
        for bits in range(1 << 12):
            registers[EFLAGS] = bits
            assert bool(parts.holds(code, ctypes.c_uint64(bits))) == (Condition(code)(registers, branch, bytes) == 77)  # type: ignore[arg-type]


def test_branches_go_to_the_same_place(parts: ctypes.CDLL, bench: Bench) -> None:
    chance, found = bench.chance, 0
    for _ in range(3000):
        bench.shake()
        relative = chance.random() < 0.2
        memory = InMemory(
            displacement=chance.randrange(-64, 64),
            relative=relative,
            base=None if relative else chance.choice([*GENERAL, None]),
            index=None if relative else chance.choice([None, None, *PLAIN]),
            scale=chance.randrange(4),
            segment=chance.choice([None, None, None, FS_BASE, GS_BASE]),
            mask=chance.choice([_ADDRESSES, _ADDRESSES, _ADDRESSES, 0xFFFFFFFF]),
        )
        if memory.index is not None:
            bench.registers[memory.index] = chance.randrange(8)
        goes = chance.choice([memory, memory, memory, InRegister(chance.choice(GENERAL)), returns, direct])
        kind = KIND["ret"] if goes is returns else KIND["ind"]
        branch = Branch(bench.near(), chance.randrange(1, 15), kind, chance.getrandbits(64), goes)
        taken, target = ctypes.c_int(), ctypes.c_uint64()
        end = ctypes.c_void_p(bench.put_end(some_end(branch)))
        known = parts.goes(bench.at_context(), end, ctypes.byref(taken), ctypes.byref(target))
        assert (target.value if known else None) == goes(bench.registers, branch, bench.read)
        assert taken.value == 1
        found += bool(known)
    assert found > 1500


def test_known_targets_are_the_same(parts: ctypes.CDLL, bench: Bench) -> None:
    chance, found = bench.chance, 0
    for _ in range(4000):
        pointer = bench.shake()
        stores = tuple(
            Store(
                chance.choice([((RSP, 1),), ((chance.choice(PLAIN), 1),), ((RSP, 1), (chance.choice(PLAIN), 2)), ()]),
                chance.choice([chance.randrange(-40, 40), bench.near()]),
                chance.choice([1, 2, 4, 8, 16, 64]),
            )
            for _ in range(chance.choice([0, 0, 0, 1, 2, 3]))
        )
        on_stack = chance.random() < 0.7
        value = chance.choice([None, None, chance.getrandbits(48)]) if on_stack else None
        word = Word(chance.randrange(-24, 40) if on_stack else bench.near(), on_stack, value, stores)
        register = chance.choice(PLAIN)
        branch = Branch(0x400000, 2, KIND["ind"], 0, InRegister(register), register)
        known = KnownTarget(branch, chance.choice([word, word, word, None]))
        stack = chance.choice([None, pointer, pointer, pointer])
        pushed = chance.choice([None, chance.getrandbits(48)])
        fork = Fork({0x400000: some_end()}, frozenset(), known_target=known)
        node, at, target = ctypes.c_void_p(bench.put(fork)), ctypes.c_uint64(), ctypes.c_uint64()
        given = [None if v is None else ctypes.byref(ctypes.c_uint64(v)) for v in (stack, pushed)]
        is_known = parts.known_target(bench.at_context(), node, *given, ctypes.byref(at), ctypes.byref(target))
        expected = known.target(bench.registers, stack, pushed, bench.read)
        assert (target.value if is_known else None) == expected, (known, stack, pushed)
        found += bool(is_known)
    assert 1000 < found < 3500


def test_unexpected_paths_are_detected_alike(parts: ctypes.CDLL, bench: Bench) -> None:
    chance, answers = bench.chance, [0, 0]
    successors = Successors(Code(), bench.read, 4)
    for _ in range(3000):
        pointer = bench.shake()
        moved = chance.choice([None, 0, 8, -8])
        ahead_stack = chance.choice([None, pointer, pointer - (moved or 0) & _ADDRESSES])
        path = tuple((0x1000 + 16 * i, 0x1008 + 16 * i, KIND["ind"]) for i in range(chance.randrange(4)))
        end = End(some_end().branch, path, State(Effects(moved)))
        shared = []
        for _ in range(chance.randrange(4)):
            at = bench.near()
            held = int.from_bytes(bench.read(at, 8), "little") ^ chance.choice([0, 0, 0, 1 << chance.randrange(64)])
            shared.append((0x1000 + 16 * chance.randrange(5), at, held))
        c = bench.context
        c.stack, c.stack_known, c.shares = ahead_stack or 0, ahead_stack is not None, len(shared)
        for index, words in enumerate(shared):
            c.shared[index] = SharedWord(*words)
        successors.read.moved()
        found = bool(parts.astray(bench.at_context(), ctypes.c_void_p(bench.put_end(end))))
        assert found == successors.diverged(
            Expectation(Fork({}, frozenset()), ahead_stack, tuple(shared)), end, pointer
        )
        answers[found] += 1
    assert min(answers) > 300


def test_words_that_cannot_be_read_are_not_known(parts: ctypes.CDLL, bench: Bench) -> None:
    word = ctypes.c_uint64()
    for address in (0, 8, 0x1FF, 1 << 63, _ADDRESSES, _ADDRESSES - 6, 0xFFFFFFFFFF600000):
        assert not parts.word_at(bench.at_context(), ctypes.c_uint64(address), ctypes.byref(word)), hex(address)
    for index in range(250):  # over the end of blocks, too, and more blocks than are kept
        at = bench.at + index * 8 + 3
        assert parts.word_at(bench.at_context(), ctypes.c_uint64(at), ctypes.byref(word))
        assert word.value == int.from_bytes(bench.read(at, 8), "little")


def test_forks_are_found_by_family_and_key_until_they_are_taken_out(parts: ctypes.CDLL, bench: Bench) -> None:
    parts.found.restype = ctypes.c_void_p

    def found(family: int, key: int) -> int | None:
        return parts.found(bench.at_context(), ctypes.c_uint32(family), ctypes.c_uint64(key))  # type: ignore[no-any-return]

    nodes = {}
    for _ in range(2000):
        family, key = bench.chance.randrange(1, 5), bench.chance.choice([*range(40), bench.chance.getrandbits(64)])
        fork = Fork(bench.chance.choice([{}, {0x400000: some_end()}]), frozenset())
        bench.tables.put(family, key, fork)
        nodes[family, key] = fork
    size = struct.calcsize(walk_tables._LAYOUT["nodes"][0])
    for (family, key), fork in nodes.items():
        assert found(family, key) == (bench.tables.at["nodes"] + fork.node * size if fork.ends else None)
        assert found(family + 5, key) is None


def test_a_fork_is_not_found_where_its_code_has_changed(parts: ctypes.CDLL, bench: Bench) -> None:
    parts.found.restype = ctypes.c_void_p
    memory = ctypes.create_string_buffer(3 * 4096)
    number = ctypes.addressof(memory) // 4096 + 1
    page = bytes(4096)
    bench.tables.put(1, 5, Fork({0x400000: some_end()}, frozenset(), pages=((number, page),)))
    offset = number * 4096 - ctypes.addressof(memory)

    def found(burst: int) -> bool:
        bench.context.burst = burst
        return bool(parts.found(bench.at_context(), 1, ctypes.c_uint64(5)))

    assert found(1)
    assert bench.tables.is_unchanged(number, page, 1)
    memory[offset + 4095] = b"x"  # type: ignore[assignment]
    assert found(1), "once in a burst"
    assert not found(2)
    assert not bench.tables.is_unchanged(number, page, 2)
    memory[offset + 4095] = b"\0"  # type: ignore[assignment]
    assert found(3)
    bench.tables.mark_unchanged(number, page, 4)
    memory[offset] = b"x"  # type: ignore[assignment]
    assert found(4), "Python compared it"
    assert not found(5)
