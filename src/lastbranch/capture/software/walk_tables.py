"""Forks as the compiled walk reads them: the tables of native/branch_walk.c for one address space.

A new fork replaces the one before it. Its pages of code are stored with it: the walk compares them with memory once in
each burst before it uses the fork.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Sequence

from ..ptrace import RIP, Registers
from .control_flow import CALLS, RETURN, End, Fork, KnownTarget, freed, goes_on
from .instructions import ADDRESSES, Branch, Condition, InMemory, InRegister, direct, returns

__all__ = ["ROOTS", "SLOTS", "Context", "SharedWord", "Tables"]


ROOTS = 1
"""The family of forks by their start; any other is the ``further`` of a fork. 0 is none."""
_PAGE = 4096
_NONE = 0xFF
_TERMS = 3
_STORE = 2 + _TERMS + 1 + _TERMS
"""Number of fields of a store."""
_VISITS = 12
"""Index of the field in a node."""
_SPREAD = 0x9E3779B97F4A7C15
"""2 to the power of 64, divided by the golden ratio (Knuth, The Art of Computer Programming, volume 3, 6.4)."""
_NO_RESERVE = 0x4000
"""MAP_NORESERVE: most of the room is never used."""

_LEFT, _GOES_ON, _DIRECT, _CONDITION, _RETURN, _REGISTER, _MEMORY = range(7)
_UNKNOWN, _BY_REGISTER, _BY_WORD = range(3)
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
"""Layouts of the structures of branch_walk.c, and capacities. ``code`` has the bytes of ``pages``."""


SLOTS = 4
"""Debug registers for breakpoints."""


def _words(names: str) -> list[tuple[str, type[ctypes.c_uint64]]]:
    return [(name, ctypes.c_uint64) for name in names.split()]


class SharedWord(ctypes.Structure):
    """`struct shared` of branch_walk.c."""

    _fields_ = _words("branch at was")
    branch: int
    at: int
    was: int


class _Block(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("length", ctypes.c_int64), ("bytes", ctypes.c_uint8 * 512)]


class Context(ctypes.Structure):
    """`struct context` of branch_walk.c, which explains the fields."""

    _fields_ = [
        *_words("tid memory struck alone burst counted_kinds registers nodes ends path lines stores page_lists pages"),
        *_words("entries mask stops wanted until room passed node stack stack_known pending slots_used"),
        ("slots", ctypes.c_uint64 * SLOTS), ("events", ctypes.c_uint64 * SLOTS), *_words("attribute shares"),
        ("shared", SharedWord * 3),
        *_words("ends_passed stops_made status error before again"),
        ("was", Registers), ("blocks", ctypes.c_uint64), ("block", _Block * 4), ("scratch", ctypes.c_uint8 * _PAGE),
    ]  # fmt: skip

    def use(self, tables: Tables) -> None:
        """Walk over ``tables``."""
        for name, address in tables.at.items():
            if name != "code":
                setattr(self, name, address)
        self.memory, self.mask = tables.fd, tables.mask


class _Full(Exception):
    """The tables have no room for a fork, or cannot express it."""


class _Array:
    """An array of structures of one kind, the first of which is not used."""

    def __init__(self, form: str, memory: mmap.mmap, offset: int, capacity: int) -> None:
        self._one, self._form, self._memory, self._capacity = struct.Struct(form), form[1:], memory, capacity
        self._size, self._offset = self._one.size, offset
        self._fields = len(self._one.unpack(bytes(self._size)))
        self.used = 1

    def add(self, values: Sequence[int]) -> int:
        """Append structures with the fields ``values``; the index of the first."""
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
    """Tables of the address space whose ``/proc/PID/mem`` is ``fd`` at present."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.full = False
        """There was no room left: new tables are needed."""
        self.forks: dict[int, Fork] = {}
        self.ends: list[End] = []
        """Of all forks; `_Array.add` and `end` count from 1."""
        sizes = {name: struct.calcsize(form) * capacity for name, (form, capacity) in _LAYOUT.items()}
        memory = mmap.mmap(-1, sum(sizes.values()), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.at: dict[str, int] = {}
        """Addresses of the tables."""
        self._arrays: dict[str, _Array] = {}
        offset = 0
        for name, (form, capacity) in _LAYOUT.items():
            self.at[name] = base + offset
            self._arrays[name] = _Array(form, memory, offset, capacity)
            offset += sizes[name]
        self._memory = memory
        self.mask = _LAYOUT["entries"][1] - 1
        """Of the hash table of entries."""
        self._entries: dict[tuple[int, int], int] = {}
        self._taken: set[int] = set()
        self._pages: dict[int, tuple[bytes, int]] = {}

    def put(self, family: int, key: int, fork: Fork) -> None:
        """Set the fork of ``family`` for ``key``. The walk returns to Python where the tables cannot express it."""
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
        self._arrays["entries"].set(entry, key, family, node)

    # -- pages of code

    def is_unchanged(self, number: int, page: bytes, burst: int) -> bool:
        """Whether the walk found this page of code unchanged in ``burst``."""
        index = self._index(number, page)
        return index > 0 and self._arrays["pages"].get(index)[1] == burst

    def mark_unchanged(self, number: int, page: bytes, burst: int) -> None:
        """Note that it is unchanged in ``burst``: the walk need not compare."""
        if index := self._index(number, page):
            self._set_page(index, number, burst)

    def _index(self, number: int, page: bytes) -> int:
        """The index of this content of the page, 0 where it has none."""
        kept, index = self._pages.get(number, (b"", 0))
        return index if kept is page else 0

    def _set_page(self, index: int, number: int, burst: int) -> None:
        self._arrays["pages"].set(index, number * _PAGE, burst, self.at["code"] + index * _PAGE)

    def _page(self, number: int, page: bytes) -> int:
        """The index of the page; each content of a page has its own, since a fork depends on one."""
        if index := self._index(number, page):
            return index
        if len(page) != _PAGE:
            raise _Full
        index = self._add("pages", (number * _PAGE, 0, 0))
        start = self.at["code"] - self.at["nodes"] + index * _PAGE
        self._memory[start : start + _PAGE] = page
        self._set_page(index, number, 0)
        self._pages[number] = page, index
        return index

    # -- forks

    def _add(self, name: str, values: Sequence[int]) -> int:
        try:
            return self._arrays[name].add(values)
        except _Full:
            self.full = True
            raise

    def _node(self, fork: Fork) -> int:
        if not fork.ends:
            raise _Full
        known, stores = _known_target(fork.known_target)
        pages = [self._page(number, page) for number, page in fork.pages]
        ends = fork.ends.values()
        rows: list[int] = []
        for end in ends:
            row = _end(end)
            path = self._add("path", [word for source, _, kind in end.path for word in (source, kind)])
            rows += (*row[:4], path, *row[4:])
        first = self._add("ends", rows)
        self.ends += ends
        node = self._add(
            "nodes",
            [
                self._add("page_lists", pages),
                len(pages),
                self._add("lines", [word for line in fork.lines for word in line]),
                len(fork.lines),
                first,
                len(ends),
                self._add("stores", stores),
                len(stores) // _STORE,
                *known[:3],
                fork.family,
                0,
                0,
                *known[3:],
            ],
        )
        fork.node = node
        self.forks[node] = fork
        return node

    def visits(self, fork: Fork) -> int:
        """How often the walk started at the fork."""
        return self._arrays["nodes"].get(fork.node)[_VISITS] if fork.node else 0

    def end(self, index: int) -> End:
        return self.ends[index - 1]


def _end(end: End) -> tuple[int, ...]:
    """Fields of `struct end`, without the index of its path."""
    branch, moved = end.branch, end.state.effects.moved
    how, code, base, index, scale, segment, narrow, displacement = _evaluation(branch)
    returning = branch.kind == RETURN
    return (
        branch.address,
        branch.target,
        _signed(moved or 0),
        displacement,
        len(end.path),
        how,
        code,
        base,
        index,
        scale,
        segment,
        narrow,
        branch.length,
        branch.kind & 0xFF,
        branch.kind in CALLS,
        moved is not None,
        (returning and freed(branch)) or 0,
    )


_UNPARAMETRIZED: dict[object, int] = {direct: _DIRECT, goes_on: _GOES_ON, returns: _RETURN}


def _evaluation(branch: Branch) -> tuple[int, ...]:
    """How to evaluate it: how, code, base, index, scale, segment, narrow, displacement."""
    match branch.goes:
        case Condition(code):
            return _CONDITION, code, 0, 0, 0, 0, 0, 0
        case InRegister(register):
            return _REGISTER, 0, register, 0, 0, 0, 0, 0
        case InMemory() as word:
            base, index, segment = (_NONE if r is None else r for r in (word.base, word.index, word.segment))
            displacement = word.displacement + (branch.address + branch.length if word.relative else 0)
            return _MEMORY, 0, base, index, word.scale, segment, word.mask != ADDRESSES, _signed(displacement)
        case goes:
            return _UNPARAMETRIZED.get(goes, _LEFT), 0, 0, 0, 0, 0, 0, 0


def _known_target(known: KnownTarget | None) -> tuple[tuple[int, ...], list[int]]:
    """Fields of `struct node`: how, register, flags, branch, at, value; and the stores that must miss the word."""
    if known is None:
        return (_UNKNOWN, 0, 0, 0, 0, 0), []
    branch, word = known
    if word is None:
        if branch.reads is None or branch.reads == RIP:
            raise _Full
        return (_BY_REGISTER, branch.reads, 0, branch.address, 0, 0), []
    if any(store.terms is None for store in word.stores):
        return (_UNKNOWN, 0, 0, 0, 0, 0), []  # never
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
