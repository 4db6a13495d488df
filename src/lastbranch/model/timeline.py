"""What happened to processes and their address spaces, in the order of the file.

A reader appends, `lastbranch.bind` works it off in time order. Columns are arrays: a system-wide capture has
hundreds of thousands of these.
"""

from __future__ import annotations

from array import array
from enum import IntEnum

import numpy as np

from .batch import Array

__all__ = ["Change", "Timeline"]


class Change(IntEnum):
    """Kinds of changes."""

    MAP = 0
    """``module`` appeared at ``start:end`` with file offset ``offset``; pid -1 maps it into every process's kernel."""
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


_FIELDS = {"kind": "b", "time": "q", "pid": "q", "tid": "q", "parent": "q", "module": "q"}
_WIDE = {"start": "Q", "end": "Q", "offset": "Q"}


class Timeline:
    """A growing table of changes. ``columns()`` gives NumPy views of equal length."""

    def __init__(self) -> None:
        self._columns = {name: array(code) for name, code in (_FIELDS | _WIDE).items()}
        self.names: list[str] = []
        self._name_index: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._columns["kind"])

    def add(
        self,
        kind: Change,
        time: int,
        pid: int,
        *,
        tid: int = -1,
        parent: int = -1,
        module: int = -1,
        start: int = 0,
        end: int = 0,
        offset: int = 0,
    ) -> None:
        """Append one change. Addresses are ``start`` (first) and ``end`` (one past the last), 64-bit unsigned."""
        c = self._columns
        c["kind"].append(kind)
        c["time"].append(time)
        c["pid"].append(pid)
        c["tid"].append(tid)
        c["parent"].append(parent)
        c["module"].append(module)
        c["start"].append(start)
        c["end"].append(end)
        c["offset"].append(offset)

    def name(self, time: int, pid: int, tid: int, name: str) -> None:
        """Append a NAME change."""
        index = self._name_index.setdefault(name, len(self.names))
        if index == len(self.names):
            self.names.append(name)
        self.add(Change.NAME, time, pid, tid=tid, module=index)

    def extend(self, columns: dict[str, Array]) -> None:
        """Append changes given as columns of equal length, named as those of `columns`."""
        for name, values in self._columns.items():
            values.frombytes(np.ascontiguousarray(columns[name], values.typecode).tobytes())

    def earliest(self) -> int | None:
        """Time of the first change on the clock; those of what was there before the recording have time 0."""
        times = np.array(self._columns["time"], np.int64)
        return int(times[times > 0].min()) if (times > 0).any() else None

    def columns(self) -> dict[str, Array]:
        """``kind`` int8, ``start``/``end``/``offset`` uint64, the others int64; in file order."""
        return {n: np.array(a, dtype={"b": "i1", "q": "i8", "Q": "u8"}[a.typecode]) for n, a in self._columns.items()}
