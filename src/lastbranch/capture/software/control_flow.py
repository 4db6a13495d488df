"""Control flow of a traced program from one address: straight lines, targets known before the branch executes, forks.

Code is never assumed to be unchanged: each burst reads the bytes again, and decoded lines are cached by their bytes. So
JIT code and libraries that come and go are decoded correctly, and all processes share one cache.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from ...isa import NOT_A_BRANCH, UNDECODABLE, Decoder
from ...lbr import KIND
from ..architectures import HERE
from ..ptrace import RCX, RIP, RSP
from . import instructions_a64
from .instructions import (
    ADDRESSES,
    ANYWHERE,
    LONGEST,
    NOT_TAKEN,
    WORD,
    Branch,
    Evaluation,
    InMemory,
    Memory,
    Registers,
    Store,
    evaluation_of,
    moved,
    register_of,
    step_refusal,
    stored,
    written,
)

__all__ = [
    "CALLS",
    "Code",
    "Edge",
    "Effects",
    "End",
    "Fork",
    "Line",
    "Nearby",
    "Placed",
    "RETURN",
    "State",
    "KnownTarget",
    "Word",
    "freed",
    "goes_on",
    "joined",
    "lines",
    "memory_of",
]


_WINDOW = 64
_FEW = 4
"""Instructions decoded at once: a line has fewer than five on average."""
_BLOCK = 512
_REMEMBERED = 1 << 16
_BASE = 1 << 32
"""Windows are decoded as if they were at this address, so that no direct branch has the target 0."""


@dataclass(slots=True)
class _Block:
    """A window up to its first branch; ``offset`` and ``target`` are relative to its start.

    ``kind`` `NOT_A_BRANCH`: the window ended first, and the line continues at ``offset``. ``target`` is ``None`` where
    the instruction does not contain it.
    """

    window: bytes
    before: tuple[tuple[str, int, int], ...]
    """The instructions before the branch: text, start and end."""
    offset: int
    length: int = 0
    kind: int = UNDECODABLE
    target: int | None = None
    goes: Evaluation | None = None
    reads: int | None = None
    awaits_store: bool | None = None
    """Whether an exclusive store is awaited at its end; ``None``: as at its start."""
    _effects: Effects | None = None

    @property
    def effects(self) -> Effects:
        """Of the instructions; stores by `RIP` are relative to the window's start."""
        if self._effects is None:
            effects = Effects()
            for text, start, end in self.before:
                effects = effects.then(_effects(text, self.window[start:], end))
            if self.reads == RCX and self.kind == KIND["cond"]:
                effects = effects.then(_COUNTED)
            self._effects = effects
        return self._effects


class Effects(NamedTuple):
    """The changes that a straight line makes. Stack offsets are relative to the stack pointer at its start."""

    moved: int | None = 0
    """The change of the stack pointer, ``None`` if it is not a constant."""
    stores: tuple[Store, ...] = ()
    """Its stores to memory, oldest first, in terms of the registers at its start."""
    written: Mapping[int, int | None] = MappingProxyType({})
    """Registers that it may change, with the stack offset of the word that each is loaded from, ``None`` for others."""

    def then(self, other: Effects) -> Effects:
        """This, followed by ``other``. The shortcuts save time: a line is a chain of many instructions."""
        if self.moved == 0 and not self.stores and not self.written:
            return other
        if not other.stores and not other.written:
            return self if other.moved == 0 else self._replace(moved=_sum(self.moved, other.moved))
        written = dict(self.written)
        for register, at in other.written.items():
            place = _sum(self.moved, at)
            kept = place is not None and place >= 0 and not any(s.never_misses(place) for s in self.stores)
            written[register] = place if kept else None
        stores = self.stores + tuple(map(self._from_start, other.stores)) if other.stores else self.stores
        return Effects(_sum(self.moved, other.moved), stores, written)

    def at(self, address: int) -> Effects:
        """The same with `RIP`-relative stores, which are relative to ``address``, made absolute."""
        if not self.stores or not any(store.terms == _BY_CODE for store in self.stores):
            return self
        stores = (
            s._replace(terms=(), displacement=s.displacement + address) if s.terms == _BY_CODE else s
            for s in self.stores
        )
        return self._replace(stores=tuple(stores))

    def _from_start(self, store: Store) -> Store:
        """A store after this line, in terms of the registers before it."""
        moved = 0
        for register, scale in store.terms or ():
            if register in self.written or (register == RSP and self.moved is None):
                return ANYWHERE
            if register == RSP and self.moved is not None:
                moved += self.moved * scale
        return store._replace(displacement=store.displacement + moved)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


_BY_CODE = ((RIP, 1),)


@dataclass(slots=True)
class Line:
    """A straight line to its first branch, which is ``None`` where code cannot be read or decoded."""

    branch: Branch | None
    _blocks: list[tuple[int, _Block]]
    awaits_store: bool | None = None
    """Whether an exclusive store is awaited at the branch (`instructions_a64`); ``None``: as at the start."""
    _effects: Effects | None = None

    @property
    def effects(self) -> Effects:
        """What it changes. To find out takes longer than a stop of a traced thread."""
        if self._effects is None:
            effects = Effects()
            for address, block in self._blocks:
                effects = effects.then(block.effects.at(address))
            self._effects = effects
        return self._effects


class Code:
    """The decoder and its cache, for all traced processes of one collector."""

    def __init__(self, architecture: str = HERE.name) -> None:
        self._decoder = Decoder(architecture)
        self._blocks: dict[bytes, _Block] = {}
        self._decode, self.step_refusal = _DECODERS[architecture], _STEP_REFUSALS[architecture]
        self.follows_data = architecture == "x86_64"
        """Whether it knows what instructions change, so that targets are known before a branch executes."""

    def line(self, read: Memory, address: int) -> Line:
        """The straight line from ``address`` to the first branch."""
        blocks: list[tuple[int, _Block]] = []
        awaits: bool | None = None
        while True:
            window = read(address, _WINDOW)
            block = self._blocks.get(window)
            if block is None:
                if len(self._blocks) >= _REMEMBERED:
                    self._blocks.clear()
                block = self._blocks[window] = self._decode(self._decoder, window)
            at = address + block.offset & ADDRESSES
            if block.kind == UNDECODABLE:
                return Line(None, blocks)
            blocks.append((address, block))
            if block.awaits_store is not None:
                awaits = block.awaits_store
            if block.kind != NOT_A_BRANCH:
                target = 0 if block.target is None else address + block.target & ADDRESSES
                return Line(Branch(at, block.length, block.kind, target, block.goes, block.reads), blocks, awaits)
            address = at


def _decode_x86(decoder: Decoder, window: bytes) -> _Block:
    offset, before = 0, list[tuple[str, int, int]]()
    for found in decoder.lines(window, _BASE, _FEW):
        if found.kind == UNDECODABLE or found.text.startswith(_TRANSACTION):
            break
        if found.kind != NOT_A_BRANCH:
            code = window[offset : offset + found.length]
            target = found.target - _BASE if found.target else None
            goes = evaluation_of(code)
            reads = register_of(goes)
            if isinstance(goes, InMemory) and reads == RIP:
                target = offset + found.length + goes.displacement
            return _Block(window, tuple(before), offset, found.length, found.kind, target, goes, reads)
        before.append((found.text, offset, offset + found.length))
        offset += found.length
    cut_off = offset > 0 and len(window) - offset < LONGEST
    return _Block(window, tuple(before), offset, kind=NOT_A_BRANCH if cut_off else UNDECODABLE)


def _decode_a64(decoder: Decoder, window: bytes) -> _Block:
    """Only what may be a branch is decoded: an instruction that the decoder does not know yet may be any other."""
    awaits: bool | None = None
    for offset in range(0, len(window) - instructions_a64.LENGTH + 1, instructions_a64.LENGTH):
        code = window[offset : offset + instructions_a64.LENGTH]
        word = int.from_bytes(code, "little")
        changed = instructions_a64.monitor_after(word)
        awaits = awaits if changed is None else changed
        if not instructions_a64.is_code(word):
            return _Block(window, (), offset)
        if not instructions_a64.is_branch_group(word):
            continue
        found = decoder.one(code, _BASE + offset)
        if found.kind == UNDECODABLE or (found.kind == NOT_A_BRANCH and not instructions_a64.is_system(word)):
            return _Block(window, (), offset)
        if found.kind != NOT_A_BRANCH:
            target = found.target - _BASE if found.target else None
            goes = instructions_a64.evaluation_of(code)
            return _Block(window, (), offset, found.length, found.kind, target, goes, awaits_store=awaits)
    whole = len(window) // instructions_a64.LENGTH * instructions_a64.LENGTH
    return _Block(window, (), whole, kind=NOT_A_BRANCH if whole else UNDECODABLE, awaits_store=awaits)


_DECODERS = {"x86_64": _decode_x86, "aarch64": _decode_a64}
_STEP_REFUSALS = {"x86_64": step_refusal, "aarch64": instructions_a64.step_refusal}

_TRANSACTION = "xbegin"
"""From here on the processor may abort the transaction and continue elsewhere."""
_COUNTED = Effects(written={RCX: None})
"""LOOP decrements RCX before it branches."""


def _effects(text: str, code: bytes, end: int) -> Effects:
    """Of one instruction, which ends ``end`` bytes after the start of its window."""
    effects = _by_text(text, code[:1])
    if not effects.stores or effects.stores[0].terms != _BY_CODE:
        return effects
    (store,) = effects.stores
    return effects._replace(stores=(store._replace(displacement=store.displacement + end),))


@lru_cache(maxsize=1 << 14)
def _by_text(text: str, first: bytes) -> Effects:
    """Of the instruction ``text``, whose first byte is ``first``; `RIP` in stores is its end."""
    store = stored(text)
    if store is not None and store.terms and store.terms != _BY_CODE and any(r == RIP for r, _ in store.terms):
        store = ANYWHERE
    loaded = {register: None if at is None or at < 0 else at for register, at in written(text).items()}
    return Effects(moved(text, first), () if store is None else (store,), loaded)


class Nearby:
    """Memory of a stopped thread, read in blocks: branches mostly read neighbouring words."""

    def __init__(self, read: Memory) -> None:
        self._read = read
        self._blocks: dict[int, bytes] = {}

    def aim(self, read: Memory) -> None:
        """Read that memory from now on."""
        self._read = read
        self._blocks.clear()

    def moved(self) -> None:
        """Forget the blocks, since the program ran."""
        self._blocks.clear()

    def __call__(self, address: int, length: int) -> bytes:
        offset = address & _BLOCK - 1
        if offset + length > _BLOCK:
            return self._read(address, length)
        block = self._blocks.get(address - offset)
        if block is None:
            block = self._blocks[address - offset] = self._read(address - offset, _BLOCK)
        return block[offset : offset + length]


def memory_of(fd: int) -> Memory:
    """Reads an open ``/proc/PID/mem``."""

    def read(address: int, length: int) -> bytes:
        try:
            return os.pread(fd, length, address)
        except (OSError, OverflowError):  # not mapped, or beyond what an offset can be
            return b""

    return read


# -- targets known before the branch executes: nothing between the start and the branch changes what it reads
#
# For one thread this is proven: the branch reads a register that no instruction on the path writes, or a word of memory
# that no store on the path hits. The address of a store is known if its registers are unchanged since the start; after
# any other store the path ends at the branch, and the program stops there. Other threads may write to words outside the
# stack: these are compared again at the next stop.


RETURN = KIND["ret"]
CALLS = frozenset((KIND["call"], KIND["ind_call"]))
_RETURN_AND_FREE = 3
"""Bytes of RET imm16, which moves the stack pointer further than RET."""
_UNCHANGED = -1


def freed(branch: Branch) -> int | None:
    """The change of the stack pointer by the return ``branch``, ``None`` for RET imm16, which is not modelled."""
    return WORD if branch.length < _RETURN_AND_FREE else None


class Word(NamedTuple):
    """A word that holds the target of a branch, if no store hits it before."""

    at: int
    """Its address, or its offset from the stack pointer at the start."""
    on_stack: bool
    value: int | None
    """The return address that a call on the path pushed there; ``None``: its value at the start counts."""
    stores: tuple[Store, ...]
    """Stores on the path that may hit it, depending on registers."""


class KnownTarget(NamedTuple):
    """A branch whose target is known before it executes, from ``word`` or (``None``) from an unchanged register."""

    branch: Branch
    word: Word | None

    def static(self) -> int | None:
        """The target, if it is known without registers and memory."""
        return self.word.value if self.word is not None and not self.word.stores else None

    def target(self, registers: Registers, stack: int | None, pushed: int | None, read: Memory) -> int | None:
        """The target; ``None`` where a store may hit the word after all.

        ``registers`` are those at the start, except RSP, which is ``stack``. ``pushed`` is the word at the stack
        pointer that is not in memory yet.
        """
        word = self.word
        if word is None:
            return self.branch.goes(registers, self.branch, read) if self.branch.goes else None
        if word.on_stack and stack is None:
            return None
        at = word.at + (stack or 0) if word.on_stack else word.at
        for store in word.stores:
            if store.hits(at, registers, stack):
                return None
        if word.value is not None:
            return word.value
        if pushed is not None and stack is not None and stack - WORD < at < stack + WORD:
            return pushed if at == stack else None
        found = read(at, WORD)
        return int.from_bytes(found, "little") if len(found) == WORD else None


class State(NamedTuple):
    """The known state of stack, registers and memory on a path, relative to the path's start."""

    effects: Effects = Effects()
    pushed: tuple[tuple[int, int, int], ...] = ()
    """For each call: the stack offset of the return address, the return address, and the number of stores before the
    call."""

    @property
    def stack(self) -> int | None:
        return self.effects.moved

    def after(self, effects: Effects) -> State:
        """After a straight line."""
        return State(self.effects.then(effects), self.pushed)

    def called(self, back: int) -> State:
        effects = self.effects.then(_PUSHED)
        if self.stack is None:
            return State(effects, self.pushed)
        return State(effects, (*self.pushed, (self.stack - WORD, back, len(effects.stores))))

    def returned(self, branch: Branch) -> State:
        return self.after(Effects(freed(branch)))

    def known_target(self, branch: Branch) -> KnownTarget | None:
        """The target of ``branch``, which comes now, if it is known at the start; else ``None``."""
        if branch.goes is None:
            return None
        if branch.kind == RETURN:
            if self.stack is None:
                return None
            for at, back, stores in reversed(self.pushed):
                if at == self.stack:
                    return self._by_word(branch, at, back, self.effects.stores[stores:])
            return None if self.stack < 0 else self._by_word(branch, self.stack, None, self.effects.stores)
        if branch.reads is None or branch.reads == RSP or branch.kind == KIND["cond"]:
            return None
        if branch.reads == RIP:
            known = all(store.terms is not None for store in self.effects.stores)
            return KnownTarget(branch, Word(branch.target, False, None, self.effects.stores)) if known else None
        at_word = self.effects.written.get(branch.reads, _UNCHANGED)
        if at_word == _UNCHANGED:
            return KnownTarget(branch, None)
        return None if at_word is None else self._by_word(branch, at_word, None, self.effects.stores)

    def _by_word(self, branch: Branch, at: int, value: int | None, stores: tuple[Store, ...]) -> KnownTarget | None:
        if any(store.never_misses(at) for store in stores):
            return None
        return KnownTarget(branch, Word(at, True, value, tuple(store for store in stores if not store.misses(at))))


_PUSHED = Effects(-WORD, (Store(((RSP, 1),), -WORD, WORD),))


# -- forks: the branches that a program can reach from a start, so that breakpoints on them reveal the path it took
#
# A conditional branch has two successors. If different branches end the two lines after it, a stop at those is enough:
#
#                       ┌─ taken ────── line ── end 1
#    start ── line ── cond
#                       └─ not taken ── line ── end 2
#
# Ends must differ, and none may be on the path to another: it would stop too early, or leave the path ambiguous.


Edge = tuple[int, int, int]
"""A taken branch: from, to, perf's branch type."""
Placed = tuple[tuple[tuple[int, int], ...], tuple[int, ...]]
"""``(slot, address)`` of the breakpoints to move, and the addresses of all of them afterwards."""


class End(NamedTuple):
    """A branch that can be reached, the branches taken before it, oldest first, and what is known there."""

    branch: Branch
    path: tuple[Edge, ...]
    state: State = State()
    awaits_store: bool = False
    """It is between an exclusive load and its store, where a stop would make the store fail."""


Side = tuple[int, End]
"""One side of a conditional branch: the address of its first instruction, and its end with the path from the branch."""


@dataclass(slots=True)
class Fork:
    """The ends that can be reached, by address; none where code cannot be read.

    ``passed`` are the addresses of all branches on the paths, ``lines`` their straight lines, from first address to
    last.
    """

    ends: dict[int, End]
    passed: frozenset[int]
    lines: tuple[tuple[int, int], ...] = ()
    why: str = "unreadable code"
    """Why it has no ends."""
    known_target: KnownTarget | None = None
    """The target of one end, if it is known at the start: with it the fork reaches further."""
    pages: tuple[tuple[int, bytes], ...] = ()
    """The pages of code that it is in, with their numbers."""
    further: dict[int, Fork] = field(default_factory=dict)
    """The fork that reaches further, by the value of ``known_target``."""
    family: int = 0
    """The id of ``further``."""
    node: int = 0
    """The fork's index in `walk_tables`; 0 if the tables do not have the fork."""
    most: int = 0
    """The limit of ends with which it was made."""
    visits: int = 0
    """How often the program started here before the fork had all its ends."""
    burst: int = 0
    """The newest burst in which the pages were found unchanged."""
    placed: dict[tuple[int, ...], Placed] = field(default_factory=dict)
    """How to move breakpoints to the ends, by their present addresses."""

    def passes(self, address: int) -> bool:
        """Whether a breakpoint at ``address`` could stop the program on a path."""
        return any(first <= address <= last for first, last in self.lines)


def joined(fork: Fork, end: End, taken: Side, other: Side) -> Fork | None:
    """``fork`` with ``end`` replaced by the ends of its two sides; ``None`` where those would not reveal the path.

    Where both sides have the same end, a breakpoint on the first instruction of one of them reveals it.
    """
    marked = () if end.awaits_store else ((taken, _mark(other)), (_mark(taken), other))
    for sides in ((taken, other), *marked):
        found = _join_sides(fork, end, sides)
        if found is not None:
            return found
    return None


def _mark(side: Side) -> Side:
    """``side`` up to its first instruction only."""
    place, end = side
    into = tuple(edge for edge in end.path[:1] if edge[1] == place)
    return place, End(Branch(place, 0, NOT_A_BRANCH, 0, goes_on), into, State(Effects(None)))


def goes_on(registers: Registers, branch: Branch, read: Memory) -> int:
    return NOT_TAKEN


def _join_sides(fork: Fork, end: End, sides: tuple[Side, Side]) -> Fork | None:
    """``None`` where a breakpoint on one end would stop the program on the path to another."""
    others = {address: other for address, other in fork.ends.items() if address != end.branch.address}
    reached = {side.branch.address for _, side in sides}
    if len(reached) != len(sides) or not reached.isdisjoint(others):
        return None
    passed = fork.passed.union({end.branch.address}, *((edge[0] for edge in side.path) for _, side in sides))
    on_paths = fork.lines + tuple(line for place, side in sides for line in lines(place, side))
    ends = {**others, **{side.branch.address: side._replace(path=(*end.path, *side.path)) for _, side in sides}}
    markers = [address for address, e in ends.items() if e.branch.kind == NOT_A_BRANCH]
    if not passed.isdisjoint(ends) or any(a <= marker <= b and a != b for marker in markers for a, b in on_paths):
        return None
    return Fork(ends, passed, on_paths)


def lines(place: int, end: End) -> tuple[tuple[int, int], ...]:
    """The straight lines from ``place`` to ``end``; if it ends right there, that address alone."""
    path = [edge for edge in end.path if edge[1] != place or edge is not end.path[0]]
    starts = [place, *(edge[1] for edge in path)]
    return tuple(zip(starts, [*(edge[0] for edge in path), end.branch.address], strict=True))
