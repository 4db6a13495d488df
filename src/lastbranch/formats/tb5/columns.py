"""Where each column of the model stands in a record, and the data descriptor that says so.

A record starts with the guide's sample record (32 bytes) and its time stamp (8); what those cannot hold follows, the
widest fields first, and at the end the branch stack: the *head* of a record is all before it. Ragged columns other than
branch entries stand in a custom stream, one for each group; a record has the first row and the number of rows that are
its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...model import BRANCH, COLUMNS, GROUPS
from .constants import DescSubtype as Sst
from .constants import DescType as St
from .records import STRUCTS

__all__ = ["PC", "Piece", "RecordLayout", "group_dtype"]

PC = STRUCTS["TBRW_SampleRecordPC"]
_TIME_OFFSET = PC.size
_START = PC.size + STRUCTS["TBRW_SampleRecordTSC"].size
_USER = int(St.START_USER_DEFINED)
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
    ("iip", St.IP, Sst.IIP), ("ipsr", St.PROCESSOR_STATUS, Sst.IPSR), ("cs", St.NONE, Sst.NONE),
    ("cpuAndOS", St.NONE, Sst.NONE), ("tid", St.TID, Sst.NONE), ("pidRecIndex", St.PID, Sst.NONE),
    ("bitFields2", St.NONE, Sst.NONE),
)  # fmt: skip
"""How the sample record is described in streams from 1 on, where the guide allows no legacy sample record."""


@dataclass(frozen=True, slots=True)
class Piece:
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
                for name in self.branches if name not in ("branch_from", "branch_to")
            ]  # fmt: skip
        if self.branches:
            fields.append(("branch count", "uint32", (), _USER + 0x100, Sst.NONE))
        for i, group in enumerate(self.groups):
            fields.append((f"{group} first", "uint64", (), _USER + 0x200 + i, Sst.NONE))
            fields.append((f"{group} count", "uint32", (), _USER + 0x300 + i, Sst.NONE))
        fields.sort(key=lambda f: (len(f[2]), -np.dtype(f[1]).itemsize))
        at, self.pieces, self.head = _START, [], 0
        names = [f.name for f in PC.fields] + ["time"]
        formats: list[Any] = [PC.dtype.fields[f.name][0] for f in PC.fields] + ["<i8"]  # type: ignore[index]
        offsets = [f.offset for f in PC.fields] + [_TIME_OFFSET]
        for name, code, shape, kind, subtype in fields:
            kept = np.dtype((np.dtype(code).newbyteorder("<"), shape)) if shape else np.dtype(code).newbyteorder("<")
            if shape and not self.head:
                at = self.head = self._padded(at)
            names.append(name)
            formats.append(kept)
            offsets.append(at)
            self.pieces.append(Piece(_PAIR if name == "branch" else name, kind, subtype, at, kept.itemsize))
            at += kept.itemsize
        size = self._padded(at)
        self.head = self.head or size
        self.dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})

    def _padded(self, at: int) -> int:
        """The next multiple of 8, with an entry for the bytes between: the descriptor says how large a record is."""
        if at % 8:
            self.pieces.append(Piece("", int(St.NONE), int(Sst.BLANK_SPACE), at, -at % 8))
        return at + -at % 8

    def descriptor(self, stream: int, time: int, branches: str) -> list[Piece]:
        """All entries for ``stream``; ``time`` is the SST_ of its clock, ``branches`` says which were recorded."""
        if stream == 0:
            start = [Piece("SampleRecord", St.LEGACY_SAMPLE_RECORD, Sst.NONE, 0, PC.size)]
        else:
            at = {f.name: f for f in PC.fields}
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
