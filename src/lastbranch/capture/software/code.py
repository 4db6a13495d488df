"""Straight-line code of a traced program: from an address to the first branch.

Nothing is ever taken for unchanged: the bytes are read again in each burst, and what they decode to is remembered by
the bytes themselves. That holds for JIT code, for libraries that come and go, and for all processes at once.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from ...isa import NOT_A_BRANCH, UNDECODABLE, Decoder
from .branching import Branch, Evaluation, Memory, evaluation_of

__all__ = ["Code", "memory_of"]

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


class Code:
    """Decodes for all traced processes of one collector."""

    def __init__(self) -> None:
        self._decoder = Decoder("x86_64")
        self._blocks: dict[bytes, _Block] = {}

    def next_branch(self, read: Memory, address: int) -> Branch | None:
        """The first branch on the straight line from ``address``; ``None`` where code cannot be read or decoded."""
        while True:
            window = read(address, _WINDOW)
            block = self._blocks.get(window)
            if block is None:
                if len(self._blocks) >= _REMEMBERED:
                    self._blocks.clear()
                block = self._blocks[window] = self._decode(window)
            at = address + block.offset & _ADDRESSES
            if block.kind == UNDECODABLE:
                return None
            if block.kind != NOT_A_BRANCH:
                target = 0 if block.target is None else address + block.target & _ADDRESSES
                return Branch(at, block.length, block.kind, target, block.goes)
            address = at

    def _decode(self, window: bytes) -> _Block:
        offset = 0
        for found in self._decoder.lines(window, _BASE):
            if found.kind == UNDECODABLE:
                break
            if found.kind != NOT_A_BRANCH:
                goes = evaluation_of(window[offset : offset + found.length])
                target = found.target - _BASE if found.target else None
                return _Block(offset, found.length, found.kind, target, goes)
            offset += found.length
        cut_off = offset > 0 and len(window) - offset < _LONGEST
        return _Block(offset, 0, NOT_A_BRANCH if cut_off else UNDECODABLE, None, None)


def memory_of(fd: int) -> Memory:
    """Reads an open ``/proc/PID/mem``."""

    def read(address: int, length: int) -> bytes:
        try:
            return os.pread(fd, length, address)
        except (OSError, OverflowError):  # not mapped, or beyond what an offset can be
            return b""

    return read
