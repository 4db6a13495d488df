"""Straight-line code of a traced program: from an address to the first branch.

Nothing is ever taken for unchanged: the bytes are read again in each burst, and what they decode to is remembered by
the bytes themselves. That holds for JIT code, for libraries that come and go, and for all processes at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from ...isa import NOT_A_BRANCH, UNDECODABLE, Decoder
from ...lbr import KIND
from ..ptrace import RCX, RIP, RSP
from .branching import Branch, Evaluation, Memory, evaluation_of, register_of
from .effects import ANYWHERE, Store, moved, stored, written

__all__ = ["Code", "Effects", "Line", "Nearby", "memory_of"]

_WINDOW = 64
_BLOCK = 512
_LONGEST = 15
_REMEMBERED = 1 << 16
_ADDRESSES = (1 << 64) - 1
_BASE = 1 << 32
"""Windows are decoded as if they lay here, so that no direct branch has the target 0."""


class _Block(NamedTuple):
    """A window up to its first branch; ``offset``, ``target`` and stores by `RIP` count from its start.

    ``kind`` `NOT_A_BRANCH`: the window ended first, the line goes on at ``offset``. ``target`` is ``None`` where the
    instruction does not tell it.
    """

    offset: int
    length: int
    kind: int
    target: int | None
    goes: Evaluation | None
    reads: int | None
    effects: Effects


class Effects(NamedTuple):
    """What a straight line does. Places on the stack count from where the stack pointer stands at its start."""

    moved: int | None = 0
    """By how much it moves the stack pointer, ``None`` if not by a constant."""
    stores: tuple[Store, ...] = ()
    """What it writes to memory, oldest first, with registers as they are at its start."""
    written: Mapping[int, int | None] = MappingProxyType({})
    """Registers that it may change, with the places of the words that they are loaded from, ``None`` for others."""

    def then(self, other: Effects) -> Effects:
        """One after the other. The short ways are for time: a line is a chain of many."""
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
        """With `RIP` in stores, which counts from ``address``, resolved."""
        if not self.stores or not any(store.terms == _BY_CODE for store in self.stores):
            return self
        stores = (s._replace(terms=(), displacement=s.displacement + address) if s.terms == _BY_CODE else s
                  for s in self.stores)  # fmt: skip
        return self._replace(stores=tuple(stores))

    def _from_start(self, store: Store) -> Store:
        """A store behind this line, with registers as they are before it."""
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


class Line(NamedTuple):
    """A straight line to its first branch; ``None`` where code cannot be read or decoded."""

    branch: Branch | None
    effects: Effects


class Code:
    """Decodes for all traced processes of one collector."""

    def __init__(self) -> None:
        self._decoder = Decoder("x86_64")
        self._blocks: dict[bytes, _Block] = {}

    def line(self, read: Memory, address: int) -> Line:
        """The straight line from ``address`` to the first branch."""
        effects = Effects()
        while True:
            window = read(address, _WINDOW)
            block = self._blocks.get(window)
            if block is None:
                if len(self._blocks) >= _REMEMBERED:
                    self._blocks.clear()
                block = self._blocks[window] = self._decode(window)
            at = address + block.offset & _ADDRESSES
            if block.kind == UNDECODABLE:
                return Line(None, effects)
            effects = effects.then(block.effects.at(address))
            if block.kind != NOT_A_BRANCH:
                target = 0 if block.target is None else address + block.target & _ADDRESSES
                return Line(Branch(at, block.length, block.kind, target, block.goes, block.reads), effects)
            address = at

    def _decode(self, window: bytes) -> _Block:
        offset, effects = 0, Effects()
        for found in self._decoder.lines(window, _BASE):
            if found.kind == UNDECODABLE or found.text.startswith(_TRANSACTION):
                break
            if found.kind != NOT_A_BRANCH:
                code = window[offset : offset + found.length]
                target = found.target - _BASE if found.target else None
                goes = evaluation_of(code)
                reads = goes and register_of(code)
                if reads == RIP:
                    target = offset + found.length + int.from_bytes(code[-4:], "little", signed=True)
                if reads == RCX and found.kind == KIND["cond"]:
                    effects = effects.then(_COUNTED)
                return _Block(offset, found.length, found.kind, target, goes, reads, effects)
            offset += found.length
            effects = effects.then(_effects(found.text, window[offset - found.length :], offset))
        cut_off = offset > 0 and len(window) - offset < _LONGEST
        kind = NOT_A_BRANCH if cut_off else UNDECODABLE
        return _Block(offset, 0, kind, None, None, None, effects)


_TRANSACTION = "xbegin"
"""From here to its end a transaction may be undone, and go on elsewhere."""
_COUNTED = Effects(written={RCX: None})
"""LOOP counts before it branches."""


def _effects(text: str, code: bytes, end: int) -> Effects:
    """Of one instruction, whose end is ``end`` behind the start of its window."""
    effects = _by_text(text, code[:1])
    if not effects.stores or effects.stores[0].terms != _BY_CODE:
        return effects
    (store,) = effects.stores
    return effects._replace(stores=(store._replace(displacement=store.displacement + end),))


@lru_cache(maxsize=1 << 14)
def _by_text(text: str, first: bytes) -> Effects:
    """Of the instruction ``text``, whose first byte is ``first``; `RIP` in stores counts from its end."""
    store = stored(text)
    if store is not None and store.terms and store.terms != _BY_CODE and any(r == RIP for r, _ in store.terms):
        store = ANYWHERE
    loaded = {register: None if at is None or at < 0 else at for register, at in written(text).items()}
    return Effects(moved(text, first), () if store is None else (store,), loaded)


class Nearby:
    """Memory of a stopped thread. Words that branches read lie side by side, mostly: one read gets many."""

    def __init__(self, read: Memory) -> None:
        self._read = read
        self._blocks: dict[int, bytes] = {}

    def moved(self) -> None:
        """The program ran: what was read may be old."""
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
