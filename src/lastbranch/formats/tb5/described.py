"""What a data descriptor says of the records of a stream, as NumPy dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...model import BRANCH, COLUMNS
from .columns import PC
from .constants import DescSubtype as Sst
from .constants import DescType as St
from .constants import StreamSection
from .layout import Scope, Table
from .reading import Tb5File

__all__ = ["described_dtype", "described_group_dtype"]

_PC = {f.name: f for f in PC.fields if not f.overlay}
_BY_TYPE: dict[tuple[int, int], str] = {
    (St.IP, Sst.IIP): "iip", (St.IP, Sst.NONE): "iip", (St.PROCESSOR_STATUS, Sst.IPSR): "ipsr",
    (St.TID, Sst.NONE): "tid", (St.PID, Sst.NONE): "pidRecIndex", (St.PROCESSOR_NUMBER, Sst.NONE): "cpu",
    (St.BRANCH_TRACE, Sst.LBR_TOS): "hw_idx",
}  # fmt: skip
"""Fields that need no name to be known."""
_WIDTHS = {1, 2, 4, 8}
"""Bytes that another writer's address, id or number may have; of an id the low four count."""
_COLUMNS = {c.name: c for c in COLUMNS}
_USER = int(St.START_USER_DEFINED)
_OURS = {_USER + i: c.name for i, c in enumerate(COLUMNS)} | {_USER + 0x100: "branch count"}
"""User-defined types that lastbranch gives its fields; each counts only with this name."""
_OF_GROUPS = {_USER + 0x200: "first", _USER + 0x300: "count"}
"""The first of 256 types each, one for each group."""
_GROUP_COLUMNS = _USER + 0x400


def described_dtype(file: Tb5File, stream: int) -> np.dtype[Any]:
    """The records of samples of ``stream`` with the fields that are known.

    Those of the guide's sample record, ``time``, ``branch`` (depth, 2), ``branch count``, ``GROUP first``, ``GROUP
    count``, and the model's columns by their names.
    """
    fields: dict[str, tuple[Any, int]] = {}
    for entry in file.descriptors(stream):
        for name, code, offset in _fields(entry, file.text(int(entry["desc_name"]))):
            fields.setdefault(name, (code, offset))
    return _dtype(fields, file, stream)


def described_group_dtype(file: Tb5File, stream: int, group: str) -> np.dtype[Any]:
    """The rows of a custom stream, with the columns of ``group`` that they have."""
    fields: dict[str, tuple[Any, int]] = {}
    for entry in file.descriptors(stream):
        name = file.text(int(entry["desc_name"]))
        found = _COLUMNS.get(name)
        if found is not None and found.group == group and int(entry["desc_type"]) >> 8 == _GROUP_COLUMNS >> 8:
            one = np.dtype(found.dtype).newbyteorder("<")
            if one.itemsize == int(entry["desc_data_size"]):
                fields[name] = one, int(entry["desc_offset"])
    return _dtype(fields, file, stream)


def _dtype(fields: dict[str, tuple[Any, int]], file: Tb5File, stream: int) -> np.dtype[Any]:
    formats, offsets = ([f[i] for f in fields.values()] for i in range(2))
    size = file.record_size(Table(Scope.STREAM, stream, StreamSection.DATA))
    return np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": size})


def _fields(entry: Any, name: str) -> Iterator[tuple[str, Any, int]]:
    """(name, format, offset) of what one entry, called ``name``, describes."""
    kind, subtype = int(entry["desc_type"]), int(entry["desc_subtype"])
    at, size = int(entry["desc_offset"]), int(entry["desc_data_size"])
    if kind == St.LEGACY_SAMPLE_RECORD and size == PC.size:
        yield from ((f.name, f"<{f.code}", at + f.offset) for f in _PC.values())
    elif kind == St.TIME_STAMP and size in (4, 8):
        yield "time", "<i8" if size == 8 else "<u4", at
    elif (kind, subtype) == (St.BRANCH_TRACE, Sst.LBR_FROM_TO) and size % 16 == 0:
        yield "branch", ("<u8", (size // 16, 2)), at
    elif not St.START_USER_DEFINED <= kind <= St.END_USER_DEFINED or _is_ours(kind, name):
        known = _BY_TYPE.get((kind, subtype), name)
        code = _code(known, size)
        if code is None and (kind, subtype) in _BY_TYPE and size in _WIDTHS:
            code = f"<u{size}"
        if code is not None:
            yield known, code, at


def _is_ours(kind: int, name: str) -> bool:
    """Whether a user-defined type is one that lastbranch writes: those of other users mean nothing to it."""
    ending = _OF_GROUPS.get(kind & ~0xFF)
    return _OURS.get(kind) == name or (ending is not None and name.endswith(f" {ending}"))


def _code(name: str, size: int) -> Any:
    """The format of a field that is known by name, ``None`` for any other and for one of another size."""
    if name in _PC:
        return f"<{_PC[name].code}" if size == _PC[name].size else None
    if name == "branch count" or name.endswith(" count"):
        return "<u4" if size == 4 else None
    if name.endswith(" first"):
        return "<u8" if size == 8 else None
    found = _COLUMNS.get(name)
    if found is None:
        return None
    one = np.dtype(found.dtype).newbyteorder("<")
    if found.group == BRANCH:
        return (one, (size // one.itemsize,)) if size % one.itemsize == 0 else None
    return one if size == one.itemsize and found.group == "sample" else None
