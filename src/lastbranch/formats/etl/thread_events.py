"""Starts and ends of threads, and the lists of those that are there at begin and end of a log, kept as columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...model import Array, Change, Timeline
from .batches import batches_of
from .columns import EventBlock
from .decode import Decoder
from .kernel_process import THREAD

__all__ = ["ThreadEvents"]

_START, _END, _DC_START, _DC_END = 1, 2, 3, 4
_HOOKS = [THREAD << 8 | kind for kind in (_START, _END, _DC_START, _DC_END)]
_ROW = np.dtype([("time", "<i8"), ("tid", "<u4"), ("pid", "<u4"), ("kind", "u1")])
_MANY = 1 << 17  # rows from which on it is seen whether fewer would do


class ThreadEvents:
    """The thread events of a log, in file order."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self._held, self._limit = 0, _MANY
        self._names: list[tuple[int, int, int, int, str]] = []

    def __len__(self) -> int:
        return self._held

    def gather(self, block: EventBlock, decoder: Decoder) -> None:
        """Take those of ``block``. Those whose ids are cut off tell nothing."""
        part = block.take(np.flatnonzero(np.isin(block.kernel_hook, _HOOKS)))
        rows = np.zeros(len(part), _ROW)
        for batch in batches_of(part, decoder):
            if batch.kind != "kernel" or not batch.columns.keys() >= {"ProcessID", "ThreadID"}:
                continue
            for name, field in (("pid", "ProcessID"), ("tid", "ThreadID")):
                rows[name][batch.rows] = batch.columns[field].tolist()
            rows["kind"][batch.rows] = part.kernel_hook[batch.rows] & 0xFF
            if "ThreadName" in batch.columns:
                self._name(part, batch.rows, batch.columns["ThreadName"].tolist(), rows)
        rows["time"] = np.where(rows["kind"] >= _DC_START, 0, part.time)
        self._parts.append(rows[rows["kind"] > 0])
        self._held += len(self._parts[-1])
        if self._held > self._limit:
            self._parts = [_without_repeated(np.concatenate(self._parts))]
            self._held = len(self._parts[0])
            self._limit = 2 * self._held + _MANY

    def _name(self, part: EventBlock, which: NDArray[np.int64], names: list[str], rows: Array) -> None:
        for i, name in zip(which.tolist(), names, strict=True):
            kind, time = int(rows["kind"][i]), int(part.time[i])
            if name and kind != _END:
                started = time if kind == _START else 0
                self._names.append((kind, started, int(rows["pid"][i]), int(rows["tid"][i]), str(name)))

    def finish(self, timeline: Timeline) -> NDArray[np.int64]:
        """Add the changes to ``timeline``; (tid, time it is known from, pid) of every start, (n, 3)."""
        rows = np.concatenate([np.empty(0, _ROW), *self._parts])
        self._parts = []
        # The list at the end tells only of threads that nothing told of before.
        keep = rows["kind"] != _DC_END
        keep[_first_starts(rows)] = True
        rows = rows[keep]
        ends = rows["kind"] == _END
        pid, zero = rows["pid"].astype(np.int64), np.zeros(len(rows), np.uint64)
        timeline.extend({
            "kind": np.where(ends, Change.EXIT, Change.FORK), "time": rows["time"], "pid": pid, "tid": rows["tid"],
            "parent": np.where(ends, -1, pid), "module": np.full(len(rows), -1),
            "start": zero, "end": zero, "offset": zero,
        })  # fmt: skip
        listed = set(rows["tid"][rows["kind"] == _DC_END].tolist())
        for kind, time, process, thread, name in self._names:
            if kind != _DC_END or thread in listed:
                timeline.name(time, process, thread, name)
        return np.column_stack([rows[name][~ends].astype(np.int64) for name in ("tid", "time", "pid")])


def _first_starts(rows: Array) -> NDArray[np.int64]:
    """What tells of each thread first, its end apart."""
    began = np.flatnonzero(rows["kind"] != _END)
    return began[np.unique(rows["tid"][began], return_index=True)[1]]


def _without_repeated(rows: Array) -> Array:
    """Without starts of a thread that lives already, but for two: the last one, whose end may come later in the file,
    and the first one in the file, behind which a list at the end tells nothing.

    A start of another process's thread of that id, between them in time, must not come as late as this in the file.
    """
    order = np.lexsort((rows["time"], rows["tid"]))
    sorted_ = rows[["tid", "pid", "kind"]][order]
    same = (sorted_[1:] == sorted_[:-1]) & (sorted_["kind"][1:] == _START)
    repeated = np.zeros(len(rows), bool)
    repeated[order[1:-1]] = same[1:] & same[:-1]
    repeated[_first_starts(rows)] = False
    return rows[~repeated]
