"""Straight-line code of a traced program: from an address to the first branch.

Nothing is ever taken for unchanged: the bytes are read again in each burst, and what they decode to is remembered by
the bytes themselves. That holds for JIT code, for libraries that come and go, and for all processes at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ...isa import NOT_A_BRANCH, UNDECODABLE, Decoder
from ...lbr import KIND
from ..ptrace import RCX, RIP, RSP
from .branching import Branch, Evaluation, Memory, evaluation_of, register_of
from .effects import ANYWHERE, Store, moved, stored, written

__all__ = ["Code", "Effects", "Line", "memory_of"]

_WINDOW = 64
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
        """One after the other."""
        written = dict(self.written)
        for register, at in other.written.items():
            place = None if at is None or self.moved is None else self.moved + at
            kept = place is not None and place >= 0 and not any(s.never_misses(place) for s in self.stores)
            written[register] = place if kept else None
        moved = None if self.moved is None or other.moved is None else self.moved + other.moved
        return Effects(moved, self.stores + tuple(map(self._from_start, other.stores)), written)

    def at(self, address: int) -> Effects:
        """With `RIP` in stores, which counts from ``address``, resolved."""
        if not any(store.terms == _BY_CODE for store in self.stores):
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
    store = stored(text)
    if store is None:
        return Effects(moved(text, code), (), written(text))
    if store.terms == _BY_CODE:
        store = store._replace(displacement=store.displacement + end)
    elif store.terms and any(register == RIP for register, _ in store.terms):
        store = ANYWHERE
    return Effects(moved(text, code), (store,), written(text))


def memory_of(fd: int) -> Memory:
    """Reads an open ``/proc/PID/mem``."""

    def read(address: int, length: int) -> bytes:
        try:
            return os.pread(fd, length, address)
        except (OSError, OverflowError):  # not mapped, or beyond what an offset can be
            return b""

    return read
