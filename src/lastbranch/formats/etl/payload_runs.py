"""Payloads in bulk: where they are, and the fields of fixed size in them, which one gather reads for all events."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .field_columns import Blobs, Column, Floats, Ints, Numbers, gather, ragged
from .field_groups import Array, Bits
from .field_text import Fixed
from .fields import BOOL8, F32, Blob, FieldType, Scalar
from .payloads import Field

__all__ = ["Payloads", "Read", "Run", "code_of"]

_NUMPY = {"b": "i1", "h": "i2", "i": "i4", "q": "i8", "f": "f4", "d": "f8"}
_FLOAT, _BOOL = type(F32), type(BOOL8)
_LONGEST_ARRAY = 1024
_NEAR = 1 << 12  # bytes between payloads that are copied rather than looked over


@dataclass(slots=True)
class Payloads:
    """Payloads of events with one pointer size: bytes ``at`` (int64) to ``end`` of ``raw``, 8 bytes more behind.

    ``nuls`` is what `_next_nul` found in ``raw``.
    """

    raw: NDArray[np.uint8]
    at: Ints
    end: Ints
    pointer: int
    nuls: dict[tuple[int, int], Ints] = dataclass_field(default_factory=dict)

    def apart(self) -> Payloads:
        """A copy of their bytes and little else, each as far from a multiple of 8 as before, or at one."""
        size = self.end - self.at
        first, last = int(self.at.min()) & ~7, int(self.end.max())
        if last - first < 2 * int(size.sum()) + _NEAR:
            raw = np.zeros(last - first + 8, np.uint8)
            raw[:-8] = self.raw[first:last]
            return Payloads(raw, self.at - first, self.end - first, self.pointer)
        if (self.at & 7).any():
            room = (size + 7) & ~7
            at = np.cumsum(room) - room
            raw = np.zeros(int(room.sum()) + 8, np.uint8)
            index, offsets = ragged(self.at, size)
            raw[index + np.repeat(at - self.at, size)] = self.raw.take(index)
        else:
            words, offsets = gather(self.raw[: len(self.raw) & ~7].view(np.uint64), self.at >> 3, (size + 7) >> 3)
            raw, at = np.append(words, np.uint64(0)).view(np.uint8), offsets[:-1] * 8
        return Payloads(raw, at, at + size, self.pointer)

    def take(self, rows: Any) -> Payloads:
        return Payloads(self.raw, self.at[rows], self.end[rows], self.pointer, self.nuls)

    def moved(self, at: Ints) -> Payloads:
        """What follows from ``at`` on."""
        return Payloads(self.raw, at, self.end, self.pointer, self.nuls)


class Read(NamedTuple):
    """What a step made: its columns by name, where each event goes on, and which events it fits (None: all)."""

    columns: dict[str, Column]
    after: Ints
    good: NDArray[np.bool_] | None = None


class Run:
    """Fields of fixed size, read by one gather."""

    def __init__(self, fields: list[tuple[Field, str]], pointer: int) -> None:
        self.fields, self.pointer = fields, pointer
        self.dtype = np.dtype([(str(i), code) for i, (_, code) in enumerate(fields)])
        self.ends = [self.dtype.fields[str(i + 1)][1] for i in range(len(fields) - 1)] if self.dtype.fields else []
        self.ends.append(self.dtype.itemsize)
        self.least = self.dtype.itemsize

    def prefix(self, room: int) -> Run | None:
        """The fields that ``room`` bytes hold if it is exactly some of them, else None."""
        return Run(self.fields[: self.ends.index(room) + 1], self.pointer) if room in self.ends else None

    def read(self, payloads: Payloads) -> Read:
        raw, size = payloads.raw, self.least
        anywhere: NDArray[Any] = np.ndarray((max(0, len(raw) - size + 1),), f"V{size}", raw, 0, (1,))
        rows = anywhere[payloads.at].view(self.dtype)
        columns: dict[str, Column] = {}
        for i, (field, _) in enumerate(self.fields):
            columns |= _columns_of(field, rows[str(i)], self.pointer)
        return Read(columns, payloads.at + size)


def _columns_of(field: Field, values: NDArray[Any], pointer: int) -> dict[str, Column]:
    type_ = field.type
    if isinstance(type_, Bits):
        return {
            name: Numbers((values & mask) >> shift, None if make is int else make)
            for name, (mask, shift, make) in zip(type_.parts, type_.cuts, strict=True)
        }
    if type(type_) is Scalar:
        return {field.name: Numbers(values, type_.wrap)}
    if type(type_) is _FLOAT:
        return {field.name: Floats(values)}
    if type(type_) is _BOOL:
        return {field.name: Numbers(values, _truth)}
    return {field.name: Blobs(values, type_, pointer)}


def _truth(value: int) -> int:
    return bool(value) if value < 2 else value


def code_of(type_: FieldType, pointer: int) -> str:
    """The NumPy type of a field of fixed size, "" for others."""
    if isinstance(type_, Bits):
        return code_of(type_.base, pointer)
    if isinstance(type_, Scalar):
        code = type_.code_for(pointer)
        return type_.order + (_NUMPY.get(code) or _NUMPY[code.lower()].replace("i", "u"))
    if isinstance(type_, Blob | Fixed):
        return f"V{type_.size}" if type_.size else ""
    if isinstance(type_, Array) and isinstance(type_.count, int) and type(type_.item) is Scalar:
        size = struct.calcsize("<" + type_.item.code_for(pointer)) * type_.count
        return f"V{size}" if 0 < size <= _LONGEST_ARRAY else ""
    return ""
