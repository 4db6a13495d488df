"""Events in the lives of processes and their address spaces, in file order.

A reader appends, `lastbranch.bind` works it off in time order. Columns are arrays: a system-wide capture has
hundreds of thousands of these.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from .batch import Array

__all__ = ["Change", "Details", "KERNEL", "Load", "Timeline"]


KERNEL = -1
"""The ``pid`` of what is mapped in the kernel, for all processes. Lower ones are guests (see `address_spaces`)."""


class Change(IntEnum):
    """Kinds of changes."""

    MAP = 0
    """``module`` appeared at ``start:end`` with file offset ``offset``; ``pid`` may be `KERNEL`."""
    UNMAP = 1
    """``start:end`` is gone."""
    FORK = 2
    """Process ``pid`` (thread ``tid``) was made by process ``parent``; ``offset`` = 1: it starts without a copy."""
    EXEC = 3
    """``pid`` replaced its program: its old mappings are gone."""
    EXIT = 4
    """Thread ``tid`` of ``pid`` ended."""
    NAME = 5
    """Thread ``tid`` of ``pid`` is called ``names[module]`` from now on."""
    RAN = 6
    """Thread ``tid`` of ``pid`` has used ``start`` more ns of CPU time; its end may come before."""


class Details(TypedDict, total=False):
    """The fields of a change that only some kinds have. A process, thread or module that is not given is -1."""

    tid: int
    parent: int
    module: int
    start: int
    """The first address: 64 bits, unsigned, like the next two."""
    end: int
    """The address past the last one."""
    offset: int


_FIELDS = {"kind": "b", "time": "q", "pid": "q", "tid": "q", "parent": "q", "module": "q"}
_WIDE = {"start": "Q", "end": "Q", "offset": "Q"}
_AT_ONCE = 1 << 15


class Timeline:
    """A growing table of changes. ``columns()`` gives NumPy views of equal length."""

    def __init__(self) -> None:
        self._columns = {name: array(code) for name, code in (_FIELDS | _WIDE).items()}
        self.names: list[str] = []
        self._places: tuple[list[int], list[int]] = [], []
        self._name_index: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._columns["kind"])

    def add(self, kind: Change, time: int, pid: int, **details: Unpack[Details]) -> None:
        """Append one change."""
        c = self._columns
        c["kind"].append(kind)
        c["time"].append(time)
        c["pid"].append(pid)
        c["tid"].append(details.get("tid", -1))
        c["parent"].append(details.get("parent", -1))
        c["module"].append(details.get("module", -1))
        c["start"].append(details.get("start", 0))
        c["end"].append(details.get("end", 0))
        c["offset"].append(details.get("offset", 0))

    def name(self, time: int, pid: int, tid: int, name: str) -> None:
        """Append a NAME change."""
        index = self._name_index.setdefault(name, len(self.names))
        if index == len(self.names):
            self.names.append(name)
        self.add(Change.NAME, time, pid, tid=tid, module=index)

    def place(self, offset: int) -> None:
        """The next changes were read from ``offset`` of the file on."""
        rows, offsets = self._places
        if rows and rows[-1] == len(self):
            offsets[-1] = offset
        else:
            rows.append(len(self))
            offsets.append(offset)

    def offset_of(self, row: int) -> int:
        """The offset in the file of ``row``, as exactly as `place` recorded it; 0 if not recorded."""
        rows, offsets = self._places
        at = bisect_right(rows, row) - 1
        return offsets[at] if at >= 0 else 0

    def extend(self, columns: dict[str, Array]) -> None:
        """Append changes given as columns of equal length, named as those of `columns`."""
        for name, values in self._columns.items():
            values.frombytes(np.ascontiguousarray(columns[name], values.typecode).tobytes())

    def earliest(self) -> int | None:
        """Time of the first change on the clock; those of what was there before the recording have time 0."""
        times = np.array(self._columns["time"], np.int64)
        return int(times[times > 0].min()) if (times > 0).any() else None

    def order(self) -> NDArray[np.int64]:
        """Rows in time order, those of equal time in file order."""
        return np.argsort(np.array(self._columns["time"], np.int64), kind="stable")

    def in_time_order(self) -> tuple[NDArray[np.int64], Iterator[tuple[int, ...]]]:
        """(times, rows in the order of the columns), both in time order, some rows at a time in memory."""
        order = self.order()

        def rows() -> Iterator[tuple[int, ...]]:
            for lo in range(0, len(order), _AT_ONCE):
                part = order[lo : lo + _AT_ONCE]
                yield from zip(
                    *(np.frombuffer(c, c.typecode)[part].tolist() for c in self._columns.values()), strict=True
                )

        return np.array(self._columns["time"], np.int64)[order], rows()

    def since(self, row: int) -> Iterator[tuple[int, ...]]:
        """The rows from ``row`` on in file order, in the order of the columns."""
        return zip(*(column[row:] for column in self._columns.values()), strict=True)

    def columns(self) -> dict[str, Array]:
        """``kind`` int8, ``start``/``end``/``offset`` uint64, the others int64; in file order."""
        return {n: np.array(a, dtype={"b": "i1", "q": "i8", "Q": "u8"}[a.typecode]) for n, a in self._columns.items()}


# -- A mapping in one process, with its life


class Load(NamedTuple):
    """``module`` (row) at ``start:end`` of process ``pid``, -1 in the kernel, from clock tick ``first`` (``None``: ever
    since) until ``last`` (``None``: for good)."""

    pid: int
    module: int
    start: int
    end: int
    first: int | None
    last: int | None
