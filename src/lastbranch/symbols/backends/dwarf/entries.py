"""Debugging information entries: which have code, how they nest (DWARF 5, 2.3), and their attributes as columns.

Entries have no length, so the walk passes each to find the next. All else is done in columns afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from struct import Struct
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ....arrays import Ints, offsets_of
from ....binaries.dwarf import DW_FORM, DW_TAG, uleb
from ....binaries.files import Space, Words, strings_at
from ....errors import FormatError
from .units import (
    BLOCK,
    INDEXED,
    LEB,
    NO_BASE,
    REFERENCES,
    STRINGS,
    TEXT,
    Format,
    Info,
    Shape,
    size_of,
)

__all__ = ["AttributeColumn", "EntryKind", "Tree", "read_attributes", "texts", "walk"]


DEPTH_LIMIT = 4096
"""Deepest nesting that is followed. Compilers come to about a hundred."""


@dataclass(slots=True)
class Tree:
    """Functions and inlined calls of some units, in the order of the file: a row each."""

    offset: Ints
    unit: Ints
    inlined: NDArray[np.bool_]
    up: Ints
    """Row of the function or inlined call around it, or -1."""
    level: Ints
    """How many inlined calls deep it is in its function, which has 0."""

    def __len__(self) -> int:
        return len(self.offset)

    def join(self, other: Tree) -> Tree:
        """The rows of ``self``, then those of ``other``."""
        up = np.where(other.up >= 0, other.up + len(self), -1)
        pairs = [(getattr(self, f.name), up if f.name == "up" else getattr(other, f.name)) for f in fields(self)]
        return Tree(*(np.concatenate(pair) for pair in pairs))


def walk(info: Info, units: Ints, *, whole: bool) -> Tree:
    """The functions and inlined calls of ``units``; a unit with a code that has no abbreviation gets a note instead.

    Unless ``whole``, types and functions without code of their own are skipped where entries have the offset of their
    next sibling. This halves the work and rarely misses anything: only GCC puts code there, the bodies of functions
    that belong to a function, such as lambdas and the members of local classes.
    """
    places = [np.array(_of_unit(info, row, whole), np.int64) for row in units.tolist()]
    offset = np.concatenate([*places, np.empty(0, np.int64)])
    unit = np.repeat(units, [len(p) for p in places])
    shape, _ = info.shapes_of(offset, unit)
    tag, change = (np.append(column, -1)[shape] for column in info.shapes.columns())  # -1: the end of children
    depth = np.cumsum(change) - change
    sizes = np.array([len(p) for p in places], np.int64)
    depth -= np.repeat(np.append(depth, 0)[offsets_of(sizes)[:-1]], sizes)
    return _tree(offset, unit, tag, np.clip(depth, 0, DEPTH_LIMIT))


def _tree(offset: Ints, unit: Ints, tag: Ints, depth: Ints) -> Tree:
    """Link each routine to the enclosing routine: the parent of an entry is the last entry of the level above before
    this entry."""
    routine = (tag == DW_TAG.subprogram) | (tag == DW_TAG.inlined_subroutine)
    around = np.full(len(offset), -1, np.int64)  # the innermost routine around an entry, or itself
    up = np.full(len(offset), -1, np.int64)
    level = np.zeros(len(offset), np.int64)
    order = np.lexsort((np.arange(len(offset)), depth))
    order = order[tag[order] >= 0]
    cuts = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    above = order[:0]
    for first, last in pairwise(cuts):
        here = order[first:last]
        place = np.searchsorted(above, here) - 1
        parent = np.where(place >= 0, above[np.maximum(place, 0)] if len(above) else -1, -1)
        parent = np.where((parent >= 0) & (unit[parent] == unit[here]), parent, -1)
        outer = np.where(parent >= 0, around[parent], -1)
        up[here] = outer
        level[here] = np.where((outer >= 0) & (tag[here] != DW_TAG.subprogram), level[outer] + 1, 0)
        around[here] = np.where(routine[here], here, outer)
        above = here
    rows = np.flatnonzero(routine)
    number = np.full(len(offset) + 1, -1, np.int64)
    number[rows] = np.arange(len(rows))
    return Tree(offset[rows], unit[rows], tag[rows] == DW_TAG.inlined_subroutine, number[up[rows]], level[rows])


def _of_unit(info: Info, row: int, whole: bool) -> list[int]:
    try:
        return _walk(info, row, whole) if info.codes(row) else []
    except FormatError as error:
        info.notes.append(f"{error} (the unit at {info.units[row].offset:#x} is skipped)")
        return []


def _walk(info: Info, row: int, whole: bool) -> list[int]:
    """Offsets of the entries of a unit that have code or children, and of the zeros that end children."""
    unit, space = info.units[row], info.space
    codes = {code: info.shapes.shapes[number] for code, number in info.codes(row).items()}
    if whole:
        codes = {code: shape._replace(sibling=-1) for code, shape in codes.items()}
    quick = _quick(codes)
    word = Struct(space.order + "I").unpack_from
    raw, at, end = space.raw, unit.entry, unit.end
    found: list[int] = []
    record = found.append
    while at < end:
        code = raw[at]
        if code > 0x7F:
            code = code & 0x7F | raw[at + 1] << 7
        size = quick[code]
        if size > 0:
            at += size
        elif size:
            record(at)
            at -= size
        else:
            known = codes.get(code)
            if known is None:
                raise space.bad("an entry without an abbreviation", at, "abbreviation code", code)
            past = at + (1 if code < 0x80 else 2)
            if known.sibling >= 0 and past + known.sibling < end:
                target = unit.offset + word(raw, past + known.sibling)[0]
                if past < target <= end:
                    at = target
                    continue
            if known.recorded:
                record(at)
            at = past + known.size if known.size >= 0 else _end_of(space, known, past)
    return found


def _quick(codes: dict[int, Shape]) -> list[int]:
    """Code -> bytes of an entry to pass, negative for one to record; 0 for one without a fixed size.

    The table has a row for any two bytes at the begin of an entry, so no bounds need to be checked.
    """
    quick = [0] * (1 << 15)
    quick[0] = -1  # the end of children
    for code, shape in codes.items():
        if code and shape.size >= 0 and shape.sibling < 0:
            size = shape.size + (1 if code < 0x80 else 2)
            quick[code] = -size if shape.recorded else size
    return quick


_ORDERS: dict[str, Literal["little", "big"]] = {"<": "little", ">": "big"}


def _end_of(space: Space, shape: Shape, at: int) -> int:
    """The end of an entry whose attributes begin at ``at`` and have no fixed size."""
    raw = space.raw
    for skip, kind in shape.steps:
        at += skip
        if at >= space.size:
            return space.size
        if kind == LEB:
            while raw[at] > 0x7F:
                at += 1
            at += 1
        elif kind == BLOCK or kind == BLOCK - 1:
            length = raw[at]
            if length < 0x80 or kind == BLOCK - 1:
                at += length + 1
            else:
                length, at = uleb(raw, at)
                at += length
        elif kind == TEXT:
            at = raw.find(b"\0", at) + 1 or space.size
        else:
            width = BLOCK - kind
            at += width + int.from_bytes(raw[at : at + width], _ORDERS[space.order])
    return at + shape.tail


# -- Attributes of many entries at once, as columns


class EntryKind:
    """Kinds of attribute values."""

    ABSENT, NUMBER, ADDRESS, STR, LINE_STR, INLINE, REFERENCE, OFFSET, INDEX, OTHER = range(10)


@dataclass(slots=True)
class AttributeColumn:
    """One attribute of n entries: its `EntryKind` and its value in each.

    References are offsets in ``.debug_info``; strings are offsets in ``.debug_str``, ``.debug_line_str`` or (INLINE)
    ``.debug_info``; OFFSET is one in the section that the attribute belongs to, INDEX a row of a table there.
    """

    kind: NDArray[np.uint8]
    value: Words

    @classmethod
    def absent(cls, count: int) -> AttributeColumn:
        return cls(np.zeros(count, np.uint8), np.zeros(count, np.uint64))

    @property
    def there(self) -> NDArray[np.bool_]:
        there: NDArray[np.bool_] = self.kind != EntryKind.ABSENT
        return there


_NUMBERS = (
    DW_FORM.data1, DW_FORM.data2, DW_FORM.data4, DW_FORM.data8, DW_FORM.udata, DW_FORM.sdata, DW_FORM.implicit_const,
    DW_FORM.flag, DW_FORM.flag_present,
)  # fmt: skip
KINDS = {
    **dict.fromkeys(REFERENCES | {DW_FORM.ref_addr}, EntryKind.REFERENCE),
    **dict.fromkeys(INDEXED | {DW_FORM.addr}, EntryKind.ADDRESS),
    **dict.fromkeys(STRINGS | {DW_FORM.strp}, EntryKind.STR),
    DW_FORM.line_strp: EntryKind.LINE_STR,
    DW_FORM.string: EntryKind.INLINE,
    DW_FORM.sec_offset: EntryKind.OFFSET,
    DW_FORM.rnglistx: EntryKind.INDEX,
    **dict.fromkeys(_NUMBERS, EntryKind.NUMBER),
}
"""Form -> kind of its values; others are OTHER: present, but not used here."""


def read_attributes(
    info: Info, offset: Ints, wanted: tuple[int, ...], unit: Ints | None = None
) -> dict[int, AttributeColumn]:
    """The ``wanted`` attributes of the entries at ``offset``; they are absent where no entry is."""
    unit = info.unit_of(offset) if unit is None else unit
    shape, at = info.shapes_of(offset, unit)
    columns = {name: AttributeColumn.absent(len(offset)) for name in wanted}
    order = np.argsort(shape, kind="stable")
    cuts = np.flatnonzero(np.diff(shape[order], prepend=-2))
    for first, last in zip(cuts, np.append(cuts[1:], len(order)), strict=False):
        number = int(shape[order[first]])
        if number >= 0:
            rows = order[first:last]
            _read_shape(info, info.shapes.shapes[number], rows, at[rows], unit[rows], columns)
    return columns


def _read_shape(
    info: Info, shape: Shape, rows: Ints, at: Ints, unit: Ints, columns: dict[int, AttributeColumn]
) -> None:
    left = sum(attribute in columns for attribute, _, _ in shape.attributes)
    for attribute, form, constant in shape.attributes:
        if not left:
            return
        column = columns.get(attribute)
        if column is None:
            at = _past(info.space, form, shape.format, at)
            continue
        left -= 1
        value, at = _value(info.space, form, constant, shape.format, at)
        kind = KINDS.get(form, EntryKind.OTHER)
        if form in REFERENCES:
            value = value + info.start[unit].astype(np.uint64)
        elif form in INDEXED:
            value = _word(info.sections("addr"), info.address_base[unit], value, shape.format.address_size)
        elif form in STRINGS:
            value = _word(info.sections("str_offsets"), info.string_base[unit], value, shape.format.offset_size)
        elif shape.format.version < 4 and form in (DW_FORM.data4, DW_FORM.data8):
            kind = EntryKind.NUMBER  # an offset for some attributes, a number for others: their readers know
        column.kind[rows], column.value[rows] = kind, value


def _word(space: Space, base: Ints, index: Words, width: int) -> Words:
    """Row ``index`` of a table at ``base``; 0 outside of the section."""
    index = np.minimum(index, np.uint64(NO_BASE >> 4)).astype(np.int64)
    return space.read(np.minimum(base, NO_BASE) + index * width, width)


def _value(space: Space, form: int, constant: int, sizes: Format, at: Ints) -> tuple[Words, Ints]:
    if form == DW_FORM.implicit_const:
        return np.full(len(at), constant & 0xFFFFFFFFFFFFFFFF, np.uint64), at
    if form == DW_FORM.flag_present:
        return np.ones(len(at), np.uint64), at
    if form == DW_FORM.sdata:
        signed, past = space.sleb(at)
        return signed.view(np.uint64), past
    length = size_of(form, sizes)
    if length == LEB:
        return space.uleb(at)
    if length in (1, 2, 3, 4, 8):
        return space.read(at, length), at + length
    return at.astype(np.uint64), _past(space, form, sizes, at)


def _past(space: Space, form: int, sizes: Format, at: Ints) -> Ints:
    """The offsets after values of ``form``."""
    length = size_of(form, sizes)
    assert length is not None  # a shape has known forms only
    if length >= 0:
        return at + length
    if form == DW_FORM.string:
        return np.array([space.raw.find(b"\0", a) + 1 or space.size for a in space.clip(at).tolist()], np.int64)
    if length == LEB:
        return space.uleb(at)[1]
    width = BLOCK - length
    count, past = (space.read(at, width), at + width) if width else space.uleb(at)
    return past + np.minimum(count, np.uint64(space.size)).astype(np.int64)


def texts(info: Info, column: AttributeColumn) -> list[str]:
    """The strings of ``column``, empty where there is none; equal offsets are read once."""
    found: list[str] = [""] * len(column.kind)
    for kind, name in ((EntryKind.STR, "str"), (EntryKind.LINE_STR, "line_str"), (EntryKind.INLINE, "info")):
        rows = np.flatnonzero(column.kind == kind)
        if not len(rows):
            continue
        space = info.sections(name)
        places, inverse = np.unique(
            space.clip(np.minimum(column.value[rows], np.uint64(NO_BASE)).astype(np.int64)), return_inverse=True
        )
        read = strings_at(space.raw, places.tolist())
        for row, i in zip(rows.tolist(), inverse.tolist(), strict=True):
            found[row] = read[i]
    return found
