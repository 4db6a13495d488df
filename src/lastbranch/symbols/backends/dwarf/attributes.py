"""Attributes of many entries at once, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....binaries.files import Space, strings_at
from .abbreviations import Format, Shape, size_of
from .constants import BLOCKS, FORM, INDEXED, REFERENCES, STRINGS
from .units import NO_BASE, Info

__all__ = ["Column", "Kind", "read_attributes", "texts"]


class Kind:
    """What a value is."""

    ABSENT, NUMBER, ADDRESS, STR, LINE_STR, INLINE, REFERENCE, OFFSET, INDEX, OTHER = range(10)


@dataclass(slots=True)
class Column:
    """One attribute of n entries: what it is (`Kind`), and its value.

    References are offsets in ``.debug_info``; strings are offsets in ``.debug_str``, ``.debug_line_str`` or (INLINE)
    ``.debug_info``; OFFSET is one in the section that the attribute belongs to, INDEX a row of a table there.
    """

    kind: NDArray[np.uint8]
    value: NDArray[np.uint64]

    @classmethod
    def absent(cls, count: int) -> Column:
        return cls(np.zeros(count, np.uint8), np.zeros(count, np.uint64))

    @property
    def there(self) -> NDArray[np.bool_]:
        there: NDArray[np.bool_] = self.kind != Kind.ABSENT
        return there


KINDS = {
    **dict.fromkeys(REFERENCES | {FORM.REF_ADDR}, Kind.REFERENCE), **dict.fromkeys(INDEXED | {FORM.ADDR}, Kind.ADDRESS),
    **dict.fromkeys(STRINGS | {FORM.STRP}, Kind.STR), FORM.LINE_STRP: Kind.LINE_STR, FORM.STRING: Kind.INLINE,
    FORM.SEC_OFFSET: Kind.OFFSET, FORM.RNGLISTX: Kind.INDEX,
    **dict.fromkeys((FORM.DATA1, FORM.DATA2, FORM.DATA4, FORM.DATA8, FORM.UDATA, FORM.SDATA, FORM.IMPLICIT_CONST,
                     FORM.FLAG, FORM.FLAG_PRESENT), Kind.NUMBER),
}  # fmt: skip
"""Form -> what its values are; others are OTHER: there, but of no use here."""


def read_attributes(
    info: Info, offset: NDArray[np.int64], wanted: tuple[int, ...], unit: NDArray[np.int64] | None = None
) -> dict[int, Column]:
    """The ``wanted`` attributes of the entries at ``offset``; nothing is there for offsets without an entry."""
    unit = info.unit_of(offset) if unit is None else unit
    shape, at = info.shapes_of(offset, unit)
    columns = {name: Column.absent(len(offset)) for name in wanted}
    order = np.argsort(shape, kind="stable")
    cuts = np.flatnonzero(np.diff(shape[order], prepend=-2))
    for first, last in zip(cuts, np.append(cuts[1:], len(order)), strict=False):
        number = int(shape[order[first]])
        if number >= 0:
            rows = order[first:last]
            _read_shape(info, info.shapes.shapes[number], rows, at[rows], unit[rows], columns)
    return columns


def _read_shape(
    info: Info,
    shape: Shape,
    rows: NDArray[np.int64],
    at: NDArray[np.int64],
    unit: NDArray[np.int64],
    columns: dict[int, Column],
) -> None:
    left = sum(attribute in columns for attribute, _, _ in shape.attributes)
    for attribute, form, constant in shape.attributes:
        if not left:
            return
        column = columns.get(attribute)
        if column is None:
            at = _behind(info.space, form, shape.format, at)
            continue
        left -= 1
        value, at = _value(info.space, form, constant, shape.format, at)
        kind = KINDS.get(form, Kind.OTHER)
        if form in REFERENCES:
            value = value + info.start[unit].astype(np.uint64)
        elif form in INDEXED:
            value = _word(info.sections("addr"), info.address_base[unit], value, shape.format.address_size)
        elif form in STRINGS:
            value = _word(info.sections("str_offsets"), info.string_base[unit], value, shape.format.offset_size)
        elif shape.format.version < 4 and form in (FORM.DATA4, FORM.DATA8):
            kind = Kind.NUMBER  # the class depends on the attribute, and is told apart there
        column.kind[rows], column.value[rows] = kind, value


def _word(space: Space, base: NDArray[np.int64], index: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """Row ``index`` of a table at ``base``. Rows outside of the section are zero."""
    index = np.minimum(index, np.uint64(NO_BASE >> 4)).astype(np.int64)
    return space.read(np.minimum(base, NO_BASE) + index * width, width)


def _value(
    space: Space, form: int, constant: int, sizes: Format, at: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    if form == FORM.IMPLICIT_CONST:
        return np.full(len(at), constant & 0xFFFFFFFFFFFFFFFF, np.uint64), at
    if form == FORM.FLAG_PRESENT:
        return np.ones(len(at), np.uint64), at
    if form == FORM.SDATA:
        signed, behind = space.sleb(at)
        return signed.view(np.uint64), behind
    length = size_of(form, sizes)
    if length == -3:
        return space.uleb(at)
    if length in (1, 2, 3, 4, 8):
        return space.read(at, length), at + length
    return at.astype(np.uint64), _behind(space, form, sizes, at)


def _behind(space: Space, form: int, sizes: Format, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """The offsets behind values of ``form``."""
    length = size_of(form, sizes)
    assert length is not None  # a shape has known forms only
    if length >= 0:
        return at + length
    if form == FORM.STRING:
        return np.array([space.raw.find(b"\0", a) + 1 or space.size for a in space.clip(at).tolist()], np.int64)
    if form not in BLOCKS:
        return space.uleb(at)[1]
    width = -9 - length
    count, behind = (space.read(at, width), at + width) if width else space.uleb(at)
    return behind + np.minimum(count, np.uint64(space.size)).astype(np.int64)


def texts(info: Info, column: Column) -> list[str]:
    """The strings of ``column``, empty where there is none; equal offsets are read once."""
    found: list[str] = [""] * len(column.kind)
    for kind, name in ((Kind.STR, "str"), (Kind.LINE_STR, "line_str"), (Kind.INLINE, "info")):
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
