"""Rows by lane in a temporary file: formats that go thread by thread are written from samples in time order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import TracebackType

import numpy as np

from ..model import Array
from ..model.output import temporary_file

__all__ = ["Spool"]

_WAITING = 1 << 16
"""Rows in memory before they are put away: enough that a lane's next ones are read in one go."""


class Spool:
    """Rows of a structured dtype with a column ``lane``. First all are added, then each lane is read, in any order."""

    def __init__(self) -> None:
        self._file = temporary_file()
        self._waiting: list[Array] = []
        self._count = 0
        self._where: dict[int, list[tuple[int, int]]] = {}
        self._dtype = np.dtype([])

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, rows: Array) -> None:
        """Put ``rows`` behind those of their lanes."""
        self._dtype = rows.dtype
        self._waiting.append(rows)
        self._count += len(rows)
        if self._count > _WAITING:
            self._put_away()

    def lanes(self) -> list[int]:
        """The lanes that have rows, in order."""
        self._put_away()
        return sorted(self._where)

    def of(self, lane: int) -> Iterator[Array]:
        """The rows of a lane, piece by piece, as they were added."""
        self._put_away()
        for offset, count in self._where.get(lane, []):
            self._file.seek(offset)
            yield np.frombuffer(self._file.read(count * self._dtype.itemsize), self._dtype)

    def _put_away(self) -> None:
        if not self._count:
            return
        rows = np.concatenate(self._waiting)
        rows = rows[np.argsort(rows["lane"], kind="stable")]
        lanes, first = np.unique(rows["lane"], return_index=True)
        at = self._file.seek(0, 2)
        bounds = pairwise([*first.tolist(), len(rows)])
        for lane, (lo, hi) in zip(lanes.tolist(), bounds, strict=True):
            self._where.setdefault(lane, []).append((at + lo * self._dtype.itemsize, hi - lo))
        self._file.write(rows.tobytes())
        self._waiting, self._count = [], 0
