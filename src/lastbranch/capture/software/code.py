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
from .branching import Branch, Evaluation, Memory, evaluation_of, register_of
from .effects import moved, stored, written

__all__ = ["Code", "Effects", "Line", "memory_of"]

_WINDOW = 64
_LONGEST = 15
_REMEMBERED = 1 << 16
_ADDRESSES = (1 << 64) - 1
_BASE = 1 << 32
"""Windows are decoded as if they lay here, so that no direct branch has the target 0."""


class _Block(NamedTuple):
    """A window up to its first branch; ``offset`` and ``target`` count from its start.

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
    stores: tuple[int, ...] = ()
    """Where it writes with that as the base."""
    written: Mapping[int, int | None] = MappingProxyType({})
    """Registers that it may change, with the places of the words that they are loaded from, ``None`` for others."""

    def then(self, other: Effects) -> Effects:
        """One after the other."""
        if self.moved is None or other.moved is None:
            return Effects(None, (), {**self.written, **dict.fromkeys(other.written)})
        written = dict(self.written)
        for register, at in other.written.items():
            place = None if at is None else self.moved + at
            written[register] = None if place in self.stores or (place or 0) < 0 else place
        stores = self.stores + tuple(self.moved + offset for offset in other.stores)
        return Effects(self.moved + other.moved, stores, written)


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
            effects = effects.then(block.effects)
            if block.kind != NOT_A_BRANCH:
                target = 0 if block.target is None else address + block.target & _ADDRESSES
                return Line(Branch(at, block.length, block.kind, target, block.goes, block.reads), effects)
            address = at

    def _decode(self, window: bytes) -> _Block:
        offset, effects = 0, Effects()
        for found in self._decoder.lines(window, _BASE):
            if found.kind == UNDECODABLE:
                break
            if found.kind != NOT_A_BRANCH:
                code = window[offset : offset + found.length]
                target = found.target - _BASE if found.target else None
                goes = evaluation_of(code)
                return _Block(offset, found.length, found.kind, target, goes, goes and register_of(code), effects)
            store = stored(found.text)
            effects = effects.then(Effects(
                moved(found.text, window[offset:]), () if store is None else (store,), written(found.text)
            ))  # fmt: skip
            offset += found.length
        cut_off = offset > 0 and len(window) - offset < _LONGEST
        kind = NOT_A_BRANCH if cut_off else UNDECODABLE
        return _Block(offset, 0, kind, None, None, None, effects)


def memory_of(fd: int) -> Memory:
    """Reads an open ``/proc/PID/mem``."""

    def read(address: int, length: int) -> bytes:
        try:
            return os.pread(fd, length, address)
        except (OSError, OverflowError):  # not mapped, or beyond what an offset can be
            return b""

    return read
