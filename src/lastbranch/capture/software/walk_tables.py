"""Forks as machine code reads them: the tables of native/walk.c, of one address space.

A fork is put in when it is made, in the place of the one before. Pages of code go with it as they were: the walk
compares them with memory once in each burst, before it takes a fork that was found in them.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Sequence

from ..ptrace import RIP
from .control_flow import CALLS, RETURN, End, Fork, Told, freed, goes_on
from .instructions import ADDRESSES, Branch, Condition, InMemory, InRegister, direct, returns

__all__ = ["ROOTS", "Tables"]


ROOTS = 1
"""The family of forks by where they begin; any other is a fork's ``further``. 0 is none."""
_PAGE = 4096
_NONE = 0xFF
_TERMS = 3
_STORE = 2 + _TERMS + 1 + _TERMS
"""Fields of a store."""
_VISITS = 12
"""The field of a node."""
_SPREAD = 0x9E3779B97F4A7C15
"""2 to the power of 64, over the golden ratio (Knuth, The Art of Computer Programming, volume 3, 6.4)."""
_NO_RESERVE = 0x4000
"""MAP_NORESERVE: most of the room is never used."""

_LEFT, _GOES_ON, _DIRECT, _CONDITION, _RETURN, _REGISTER, _MEMORY = range(7)
_NOT_TOLD, _BY_REGISTER, _BY_WORD = range(3)
_ON_STACK, _HAS_VALUE = 1, 2

_LAYOUT = {
    "nodes": ("=14I3Q", 1 << 15),
    "ends": ("=2Q2q2I8B4B4x", 1 << 16),
    "path": ("=2Q", 1 << 18),
    "lines": ("=2Q", 1 << 18),
    "stores": ("=qI3BB3Bx4x", 1 << 16),
    "page_lists": ("=I", 1 << 17),
    "pages": ("=3Q", 1 << 11),
    "entries": ("=QII", 1 << 16),
    "code": (f"={_PAGE}s", 1 << 11),
}
"""Formats of the structures of walk.c, and how many there is room for. ``code``: the bytes of ``pages``."""


class _Full(Exception):
    """There is no room for a fork, or no form."""


class _Column:
    """Room for structures of one kind, the first of which is not used."""

    def __init__(self, form: str, memory: mmap.mmap, offset: int, capacity: int) -> None:
        self._one, self._form, self._memory, self._capacity = struct.Struct(form), form[1:], memory, capacity
        self._size, self._offset = self._one.size, offset
        self._fields = len(self._one.unpack(bytes(self._size)))
        self.used = 1

    def add(self, values: Sequence[int]) -> int:
        """Where structures of ``values`` are; they lie side by side."""
        first, count = self.used, len(values) // self._fields
        if first + count > self._capacity:
            raise _Full
        self.used += count
        if values:
            struct.pack_into("=" + self._form * count, self._memory, self._offset + first * self._size, *values)
        return first

    def set(self, index: int, *values: int) -> None:
        self._one.pack_into(self._memory, self._offset + index * self._size, *values)

    def get(self, index: int) -> tuple[int, ...]:
        return self._one.unpack_from(self._memory, self._offset + index * self._size)


class Tables:
    """Of the address space whose ``/proc/PID/mem`` is ``fd``."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.full = False
        """There was no room any more: they should be made anew."""
        self.forks: dict[int, Fork] = {}
        self.ends: list[End] = []
        """Of all forks; `_Column.add` counts from 1, and so does `end`."""
        sizes = {name: struct.calcsize(form) * capacity for name, (form, capacity) in _LAYOUT.items()}
        memory = mmap.mmap(-1, sum(sizes.values()), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.at: dict[str, int] = {}
        """Addresses of the tables."""
        self._columns: dict[str, _Column] = {}
        offset = 0
        for name, (form, capacity) in _LAYOUT.items():
            self.at[name] = base + offset
            self._columns[name] = _Column(form, memory, offset, capacity)
            offset += sizes[name]
        self._memory = memory
        self.mask = _LAYOUT["entries"][1] - 1
        """Of the places of entries, which are found by a hash."""
        self._entries: dict[tuple[int, int], int] = {}
        self._taken: set[int] = set()
        self._pages: dict[int, tuple[bytes, int]] = {}

    def put(self, family: int, key: int, fork: Fork) -> None:
        """``fork`` is the one of ``family`` for ``key`` from now on. The walk is to ask where it has no form here."""
        entry = self._entries.get((family, key))
        try:
            node = self._node(fork)
        except _Full:
            node = 0
        if entry is None:
            if 2 * len(self._taken) > self.mask:
                self.full = True
                return
            entry = ((key ^ (family << 48 & ADDRESSES)) * _SPREAD & ADDRESSES) >> 32 & self.mask
            while entry in self._taken:
                entry = entry + 1 & self.mask
            self._entries[family, key] = entry
            self._taken.add(entry)
        self._columns["entries"].set(entry, key, family, node)

    # -- pages of code

    def compared(self, number: int, page: bytes, burst: int) -> bool:
        """Whether the walk found this page of code unchanged in ``burst``."""
        kept, index = self._pages.get(number, (b"", 0))
        return kept is page and self._columns["pages"].get(index)[1] == burst

    def compare(self, number: int, page: bytes, burst: int) -> None:
        """It was found unchanged in ``burst``: the walk need not look."""
        kept, index = self._pages.get(number, (b"", 0))
        if kept is page:
            self._compared(index, number, burst)

    def _compared(self, index: int, number: int, burst: int) -> None:
        self._columns["pages"].set(index, number * _PAGE, burst, self.at["code"] + index * _PAGE)

    def _page(self, number: int, page: bytes) -> int:
        """Each content of a page has a place of its own: a fork is of one."""
        kept, index = self._pages.get(number, (b"", 0))
        if kept is page:
            return index
        if len(page) != _PAGE:
            raise _Full
        index = self._add("pages", (number * _PAGE, 0, 0))
        start = self.at["code"] - self.at["nodes"] + index * _PAGE
        self._memory[start : start + _PAGE] = page
        self._compared(index, number, 0)
        self._pages[number] = page, index
        return index

    # -- forks

    def _add(self, name: str, values: Sequence[int]) -> int:
        try:
            return self._columns[name].add(values)
        except _Full:
            self.full = True
            raise

    def _node(self, fork: Fork) -> int:
        if not fork.ends:
            raise _Full
        told, stores = _told(fork.told)
        pages = [self._page(number, page) for number, page in fork.pages]
        ends = fork.ends.values()
        rows: list[int] = []
        for end in ends:
            row = _end(end)
            path = self._add("path", [word for source, _, kind in end.path for word in (source, kind)])
            rows += (*row[:4], path, *row[4:])
        first = self._add("ends", rows)
        self.ends += ends
        node = self._add("nodes", [
            self._add("page_lists", pages), len(pages),
            self._add("lines", [word for line in fork.lines for word in line]), len(fork.lines),
            first, len(ends),
            self._add("stores", stores), len(stores) // _STORE,
            *told[:3], fork.family, 0, 0, *told[3:],
        ])  # fmt: skip
        fork.node = node
        self.forks[node] = fork
        return node

    def visits(self, fork: Fork) -> int:
        """How often the walk came to it."""
        return self._columns["nodes"].get(fork.node)[_VISITS] if fork.node else 0

    def end(self, index: int) -> End:
        return self.ends[index - 1]


def _end(end: End) -> tuple[int, ...]:
    """`struct end`, without where its path is."""
    branch, moved = end.branch, end.state.effects.moved
    how, code, base, index, scale, segment, narrow, displacement = _evaluation(branch)
    returning = branch.kind == RETURN
    return (
        branch.address, branch.target, _signed(moved or 0), displacement,
        len(end.path), how, code, base, index, scale, segment, narrow, branch.length,
        branch.kind & 0xFF, branch.kind in CALLS, moved is not None, (returning and freed(branch)) or 0,
    )  # fmt: skip


def _evaluation(branch: Branch) -> tuple[int, ...]:
    """How it is evaluated: how, code, base, index, scale, segment, narrow, displacement."""
    goes = branch.goes
    if goes is direct:
        return _DIRECT, 0, 0, 0, 0, 0, 0, 0
    if goes is goes_on:
        return _GOES_ON, 0, 0, 0, 0, 0, 0, 0
    if goes is returns:
        return _RETURN, 0, 0, 0, 0, 0, 0, 0
    if isinstance(goes, Condition):
        return _CONDITION, goes.code, 0, 0, 0, 0, 0, 0
    if isinstance(goes, InRegister):
        return _REGISTER, 0, goes.register, 0, 0, 0, 0, 0
    if isinstance(goes, InMemory):
        base, index, segment = (_NONE if r is None else r for r in (goes.base, goes.index, goes.segment))
        displacement = goes.displacement + (branch.address + branch.length if goes.relative else 0)
        return _MEMORY, 0, base, index, goes.scale, segment, goes.mask != ADDRESSES, _signed(displacement)
    return _LEFT, 0, 0, 0, 0, 0, 0, 0


def _told(told: Told | None) -> tuple[tuple[int, ...], list[int]]:
    """How, register, flags, branch, at, value; and the stores that must miss the word."""
    if told is None:
        return (_NOT_TOLD, 0, 0, 0, 0, 0), []
    branch, word = told
    if word is None:
        if branch.reads is None or branch.reads == RIP:
            raise _Full
        return (_BY_REGISTER, branch.reads, 0, branch.address, 0, 0), []
    if any(store.terms is None for store in word.stores):
        return (_NOT_TOLD, 0, 0, 0, 0, 0), []  # it never can
    stores: list[int] = []
    for store in word.stores:
        terms = store.terms or ()
        if len(terms) > _TERMS:
            raise _Full
        registers, scales = ([*of, 0, 0, 0][:_TERMS] for of in ([t[0] for t in terms], [t[1] for t in terms]))
        stores += (_signed(store.displacement), store.size, *registers, len(terms), *scales)
    flags = (_ON_STACK if word.on_stack else 0) | (0 if word.value is None else _HAS_VALUE)
    return (_BY_WORD, 0, flags, branch.address, word.at & ADDRESSES, (word.value or 0) & ADDRESSES), stores


def _signed(value: int) -> int:
    value &= ADDRESSES
    return value - (1 << 64) if value >> 63 else value
