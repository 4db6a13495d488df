"""Inline chains: the function and the inlined calls that hold an address, and what they are called.

Built as llvm-symbolizer builds them (LLVM ``DWARFUnit::getInlinedChainForAddress``): the innermost entry whose ranges
hold the address, then the entries around it up to its function.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .attributes import Column, Kind, read_attributes, texts
from .constants import AT
from .entries import Tree
from .ranges import Ranges
from .units import Info

__all__ = ["Chains", "Origins", "chains_of", "innermost", "origins_of"]

HOPS = 8
"""Most references from an entry to the one that has its name; three are usual."""


@dataclass(slots=True)
class Chains:
    """Frames, in no order: each of one address."""

    owner: NDArray[np.int64]
    """Row of the address."""
    step: NDArray[np.int64]
    """0 is the innermost."""
    entry: NDArray[np.int64]
    """Row of the `Tree`."""
    caller: NDArray[np.int64]
    """The inlined entry (row of the tree) whose call is the place of this frame; -1 for the innermost."""


@dataclass(slots=True)
class Origins:
    """What entries are called, and where they are declared."""

    name: list[str]
    """Linkage name, else the plain one."""
    unit: NDArray[np.int64]
    """Of ``file``."""
    file: NDArray[np.int64]
    """Number in the line table of its unit; -1 unknown."""
    line: NDArray[np.int64]


def innermost(tree: Tree, ranges: Ranges, address: NDArray[np.uint64], *, nested: bool) -> NDArray[np.int64]:
    """The deepest row of ``tree`` whose ranges hold each address (ascending), or -1.

    Functions that the linker folded into one, of the same unit: the last one counts, as it does in LLVM. ``nested``:
    the ranges of what is inlined lie within those of what it is inlined in. DWARF 2 has no range lists: a call whose
    code is in pieces names one of them, or none.
    """
    found = np.full(len(address), -1, np.int64)
    level = tree.level[ranges.row]
    left = np.arange(len(address))
    for depth in range(int(level.max(initial=-1)) + 1):
        mine = np.flatnonzero(level == depth)
        mine = mine[np.argsort(ranges.low[mine], kind="stable")]
        if not len(mine):
            continue
        low, high, row = ranges.low[mine], ranges.high[mine], ranges.row[mine]
        place = np.searchsorted(low, address[left], side="right") - 1
        inside = (place >= 0) & (address[left] < high[place])
        found[left[inside]] = row[place[inside]]
        if nested:
            left = left[inside]
            if not len(left):
                break
    return found


def chains_of(tree: Tree, entry: NDArray[np.int64]) -> Chains:
    """The chains from each ``entry`` (row of the tree, -1: none) up to its function."""
    owner = np.flatnonzero(entry >= 0)
    current, caller = entry[owner], np.full(len(owner), -1, np.int64)
    parts: list[tuple[NDArray[np.int64], ...]] = []
    while len(owner):
        parts.append((owner, np.full(len(owner), len(parts)), current, caller))
        goes_on = tree.inlined[current] & (tree.up[current] >= 0)
        owner, caller = owner[goes_on], current[goes_on]
        current = tree.up[caller]
    none = np.empty(0, np.int64)
    return Chains(*(np.concatenate([none, *column]) for column in (zip(*parts, strict=True) if parts else [()] * 4)))


NAMES = AT.LINKAGE_NAME, AT.MIPS_LINKAGE_NAME, AT.NAME, AT.DECL_FILE, AT.DECL_LINE
REFERENCES = AT.ABSTRACT_ORIGIN, AT.SPECIFICATION


def origins_of(info: Info, offset: NDArray[np.int64], inlined: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Origins]:
    """(row of the origins for each entry at ``offset``, the origins): inlined calls of one function share its row."""
    following, refers = _referred(read_attributes(info, offset, REFERENCES))
    places, inverse = np.unique(np.where(refers & inlined, following, offset), return_inverse=True)
    columns = {name: Column.absent(len(places)) for name in NAMES}
    file_unit = np.zeros(len(places), np.int64)
    rows, at = np.arange(len(places)), places
    for _ in range(HOPS):
        asked, back = np.unique(at, return_inverse=True)
        unit = info.unit_of(asked)
        found = read_attributes(info, asked, NAMES + REFERENCES, unit)
        for name, column in columns.items():
            new = found[name].there[back] & ~column.there[rows]
            column.kind[rows[new]] = found[name].kind[back][new]
            column.value[rows[new]] = found[name].value[back][new]
            if name == AT.DECL_FILE:
                file_unit[rows[new]] = unit[back][new]
        following, goes_on = _referred(found)
        complete = columns[AT.LINKAGE_NAME].there & columns[AT.DECL_LINE].there & columns[AT.DECL_FILE].there
        goes_on = goes_on[back] & ~complete[rows]
        rows, at = rows[goes_on], following[back][goes_on]
        if not len(rows):
            break
    plain, linkage, mips = (texts(info, columns[n]) for n in (AT.NAME, AT.LINKAGE_NAME, AT.MIPS_LINKAGE_NAME))
    shown = [a or b or c for a, b, c in zip(linkage, mips, plain, strict=True)]
    file = np.where(columns[AT.DECL_FILE].there, numbers(columns[AT.DECL_FILE]), -1)
    return inverse, Origins(shown, file_unit, file, numbers(columns[AT.DECL_LINE]))


def _referred(found: dict[int, Column]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(offset of the entry that is referred to, whether there is one)."""
    origin, specification = (found[name] for name in REFERENCES)
    use = origin.kind == Kind.REFERENCE
    there = use | (specification.kind == Kind.REFERENCE)
    value = np.where(use, origin.value, specification.value)
    return np.minimum(value, np.uint64(1 << 62)).astype(np.int64), there


def numbers(column: Column) -> NDArray[np.int64]:
    """Values of ``column`` as numbers of files, lines and columns; what is no number or too large is 0."""
    fits = (column.kind == Kind.NUMBER) & (column.value < np.uint64(1 << 32))
    return np.where(fits, column.value, np.uint64(0)).astype(np.int64)
