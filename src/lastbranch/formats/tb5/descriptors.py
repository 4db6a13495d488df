"""Data descriptors: what the records of a stream hold, in the guide's terms (8.11), written, read and checked.

A record of samples starts with the guide's sample record (32 bytes) and its time stamp (8); fields that fit in neither
follow, the widest first, and the branch stack is at the end: the *head* of a record is everything before the branch
stack. Ragged columns other than branch entries are in a custom stream, one for each group; a record has the first row
and the number of rows that are its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...model import BRANCH, COLUMNS, GROUPS, Array
from .layout import STRUCTS, record_dtype
from .layout import DescSubtype as Sst
from .layout import DescType as St

__all__ = [
    "Described",
    "Piece",
    "RecordLayout",
    "check_descriptors",
    "described_dtype",
    "described_group_dtype",
    "group_dtype",
    "group_pieces",
]


# -- records of our own: the place of each column of the model, and the descriptor that says so

_RECORD = STRUCTS["TBRW_SampleRecordPC"]
_TIME_OFFSET = _RECORD.size
_START = _RECORD.size + STRUCTS["TBRW_SampleRecordTSC"].size
_USER = int(St.START_USER_DEFINED)
_BRANCH_COUNT, _GROUP_FIRST, _GROUP_COUNT, _GROUP_COLUMNS = (_USER + n for n in (0x100, 0x200, 0x300, 0x400))
"""User-defined types of what is no column of a sample; those of groups are the first of 256."""
_OF_SAMPLE_RECORD = ("time", "ip", "pid", "tid")
_PLACES: dict[str, tuple[int, int]] = {
    "cpu": (St.PROCESSOR_NUMBER, Sst.NONE),
    "hw_idx": (St.BRANCH_TRACE, Sst.LBR_TOS),
    "branch_flags": (St.BRANCH_TRACE, Sst.LBR_OTHER),
    "branch_counters": (St.BRANCH_TRACE, Sst.LBR_OTHER),
    "branch_info": (St.BRANCH_TRACE, Sst.LBR_OTHER),
    "addr": (St.DEAR, Sst.DEAR_DATA_ADDR),
    "weight": (St.DEAR, Sst.DEAR_LATENCY),
    "phys_addr": (St.DEAR_PHYSICAL, Sst.DEAR_DATA_ADDR),
}
"""Columns that the guide has a type for; any other is user-defined: 0x4000 + its number in the model's list."""
_PAIR = "branch_from, branch_to"

_PC_FIELDS: tuple[tuple[str, int, int], ...] = (
    ("iip", St.IP, Sst.IIP),
    ("ipsr", St.PROCESSOR_STATUS, Sst.IPSR),
    ("cs", St.NONE, Sst.NONE),
    ("cpuAndOS", St.NONE, Sst.NONE),
    ("tid", St.TID, Sst.NONE),
    ("pidRecIndex", St.PID, Sst.NONE),
    ("bitFields2", St.NONE, Sst.NONE),
)
"""How the sample record is described in streams from 1 on, where the guide allows no legacy sample record."""


class Piece(NamedTuple):
    """One entry of a data descriptor."""

    name: str
    type: int
    subtype: int
    offset: int
    size: int


class RecordLayout:
    """Records of samples with ``columns`` (names of model columns) and up to ``depth`` branch entries.

    ``dtype`` has the columns by their names, ``branch`` (depth, 2) for from and to, other branch columns (depth,),
    ``branch count``, and ``GROUP first`` and ``GROUP count`` for each other ragged group. ``head`` is the offset of the
    branch stack, or the size of a record without one.
    """

    def __init__(self, columns: Collection[str], depth: int) -> None:
        known = [c for c in COLUMNS if c.name in columns]
        self.columns = tuple(c.name for c in known)
        self.depth = depth
        self.groups = tuple(g for g in GROUPS if g != BRANCH and any(c.group == g for c in known))
        self.branches = tuple(c.name for c in known if c.group == BRANCH)
        self.alone = tuple(c.name for c in known if c.group == "sample" and c.name not in _OF_SAMPLE_RECORD)
        """Columns that have one field of their own."""
        kinds = {c.name: c.dtype for c in known}
        fields: list[tuple[str, str, tuple[int, ...], int, int]] = []
        fields += [(name, kinds[name], (), *_place(name)) for name in self.alone]
        if depth:
            if "branch_from" in self.branches:
                fields.append(("branch", "uint64", (depth, 2), St.BRANCH_TRACE, Sst.LBR_FROM_TO))
            fields += [
                (name, "uint64", (depth,), *_place(name))
                for name in self.branches
                if name not in ("branch_from", "branch_to")
            ]
        if self.branches:
            fields.append(("branch count", "uint32", (), _BRANCH_COUNT, Sst.NONE))
        for i, group in enumerate(self.groups):
            fields.append((f"{group} first", "uint64", (), _GROUP_FIRST + i, Sst.NONE))
            fields.append((f"{group} count", "uint32", (), _GROUP_COUNT + i, Sst.NONE))
        fields.sort(key=lambda f: (len(f[2]), -np.dtype(f[1]).itemsize))
        at, self.pieces, self.head = _START, [], 0
        places: dict[str, tuple[Any, int]] = {f.name: (_RECORD.dtype[f.name], f.offset) for f in _RECORD.fields}
        places["time"] = "<i8", _TIME_OFFSET
        for name, code, shape, kind, subtype in fields:
            kept = np.dtype((np.dtype(code).newbyteorder("<"), shape)) if shape else np.dtype(code).newbyteorder("<")
            if shape and not self.head:
                at = self.head = self._pad(at)
            places[name] = kept, at
            self.pieces.append(Piece(_PAIR if name == "branch" else name, kind, subtype, at, kept.itemsize))
            at += kept.itemsize
        size = self._pad(at)
        self.head = self.head or size
        self.dtype = record_dtype(places, size)

    def _pad(self, at: int) -> int:
        """The next multiple of 8, with an entry for the bytes between: the descriptor says how large a record is."""
        if at % 8:
            self.pieces.append(Piece("", int(St.NONE), int(Sst.BLANK_SPACE), at, -at % 8))
        return at + -at % 8

    def descriptor(self, stream: int, time: int, branches: str) -> list[Piece]:
        """All entries for ``stream``; ``time`` is the SST_ of its clock, ``branches`` says which were recorded."""
        if stream == 0:
            start = [Piece("SampleRecord", St.LEGACY_SAMPLE_RECORD, Sst.NONE, 0, _RECORD.size)]
        else:
            at = {f.name: f for f in _RECORD.fields}
            start = [Piece(name, kind, sub, at[name].offset, at[name].size) for name, kind, sub in _PC_FIELDS]
        start.append(Piece("TimeStamp", St.TIME_STAMP, time, _TIME_OFFSET, 8))
        rest = [
            Piece(f"{_PAIR}: {branches}", p.type, p.subtype, p.offset, p.size) if p.name == _PAIR else p
            for p in self.pieces
        ]
        return start + rest


def _place(name: str) -> tuple[int, int]:
    number = next(i for i, c in enumerate(COLUMNS) if c.name == name)
    kind, subtype = _PLACES.get(name, (_USER + number, Sst.NONE))
    return int(kind), int(subtype)


def group_dtype(group: str, columns: Collection[str]) -> np.dtype[Any]:
    """Records of the custom stream of a ragged group: its columns one after the other."""
    inside = [c for c in COLUMNS if c.group == group and c.name in columns]
    return np.dtype([(c.name, np.dtype(c.dtype).newbyteorder("<")) for c in inside])


def group_pieces(dtype: np.dtype[Any]) -> list[Piece]:
    """The descriptor of records of `group_dtype`."""
    return [
        Piece(name, _GROUP_COLUMNS + i, 0, int(at), int(kind.itemsize))
        for i, (name, (kind, at)) in enumerate((n, (f[0], f[1])) for n, f in (dtype.fields or {}).items())
    ]


# -- records of any writer, as NumPy dtypes

_PC = {f.name: f for f in _RECORD.fields if not f.overlay}
_BY_TYPE: dict[tuple[int, int], str] = {
    (St.IP, Sst.IIP): "iip",
    (St.IP, Sst.EIP): "iip",
    (St.IP, Sst.NONE): "iip",
    (St.PROCESSOR_STATUS, Sst.IPSR): "ipsr",
    (St.TID, Sst.NONE): "tid",
    (St.PID, Sst.NONE): "pidRecIndex",
    (St.PROCESSOR_NUMBER, Sst.NONE): "cpu",
    (St.BRANCH_TRACE, Sst.LBR_TOS): "hw_idx",
}
"""Fields that need no name to be known."""
_WIDTHS = {1, 2, 4, 8}
"""Bytes that another writer's address, id or number may have; of an id the low four count."""
_COLUMNS = {c.name: c for c in COLUMNS}
_OURS = {_USER + i: c.name for i, c in enumerate(COLUMNS)} | {_BRANCH_COUNT: "branch count"}
"""User-defined types that lastbranch gives its fields; each counts only with this name."""
_OF_GROUPS = {_GROUP_FIRST: "first", _GROUP_COUNT: "count"}


Described = tuple[Array, list[str], int]
"""TBRW_SAMPREC_DESC_ENTRY records, the name of each, and the size of the records that they describe."""


def described_dtype(described: Described) -> np.dtype[Any]:
    """Records of samples with the fields that are known.

    Those of the guide's sample record, ``time``, ``branch`` (depth, 2), ``branch count``, ``GROUP first``, ``GROUP
    count``, and the model's columns by their names.
    """
    entries, names, size = described
    fields: dict[str, tuple[Any, int]] = {}
    for entry, called in zip(entries, names, strict=True):
        for name, code, offset in _fields(entry, called):
            fields.setdefault(name, (code, offset))
    return record_dtype(fields, size)


def described_group_dtype(described: Described, group: str) -> np.dtype[Any]:
    """The rows of a custom stream, with the columns of ``group`` that they have."""
    entries, names, size = described
    fields: dict[str, tuple[Any, int]] = {}
    for entry, name in zip(entries, names, strict=True):
        found = _COLUMNS.get(name)
        if found is not None and found.group == group and int(entry["desc_type"]) >> 8 == _GROUP_COLUMNS >> 8:
            one = np.dtype(found.dtype).newbyteorder("<")
            if one.itemsize == int(entry["desc_data_size"]):
                fields[name] = one, int(entry["desc_offset"])
    return record_dtype(fields, size)


def _fields(entry: Any, name: str) -> Iterator[tuple[str, Any, int]]:
    """(name, format, offset) of what one entry, called ``name``, describes."""
    kind, subtype = int(entry["desc_type"]), int(entry["desc_subtype"])
    at, size = int(entry["desc_offset"]), int(entry["desc_data_size"])
    if kind == St.LEGACY_SAMPLE_RECORD and size == _RECORD.size:
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
    """Whether lastbranch writes a user-defined type: the types of other users are not known."""
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


# -- rules: the entries of a descriptor describe disjoint fields of a record


def check_descriptors(entries: Array, record_size: int) -> tuple[str, str, int] | None:
    """(what is wrong, field, value) with TBRW_SAMPREC_DESC_ENTRY records for records of ``record_size`` bytes, or
    ``None``.

    An entry is inside the record and overlaps no other, unless it names a field of a legacy sample record.
    """
    spans: list[tuple[int, int, int]] = []
    for i, entry in enumerate(entries):
        kind, subtype = int(entry["desc_type"]), int(entry["desc_subtype"])
        start, size = int(entry["desc_offset"]), int(entry["desc_data_size"])
        if kind >= St.RESERVED_START:
            return f"descriptor entry {i} has a reserved type", "desc_type", kind
        if subtype >= Sst.RESERVED_START:
            return f"descriptor entry {i} has a reserved subtype", "desc_subtype", subtype
        if St.START_EXT_SAMPLE_REC_ENTRIES <= kind <= St.END_EXT_SAMPLE_REC_ENTRIES:
            return f"descriptor entry {i} has a computed type, which records cannot hold", "desc_type", kind
        if size == 0:
            return f"descriptor entry {i} describes no bytes", "desc_data_size", size
        if start + size > record_size:
            return f"descriptor entry {i} exceeds the record of {record_size} bytes", "desc_offset", start
        spans.append((start, start + size, i))
    legacy = [(lo, hi) for lo, hi, i in spans if int(entries[i]["desc_type"]) == St.LEGACY_SAMPLE_RECORD]
    alone = [s for s in spans if not any(lo <= s[0] and s[1] <= hi and (lo, hi) != s[:2] for lo, hi in legacy)]
    alone.sort()
    for (_, end, first), (start, _, second) in pairwise(alone):
        if start < end:
            return f"descriptor entries {first} and {second} overlap", "desc_offset", start
    return None
