"""What a window leaves to the next: the events that may have triggered a record which is still to come.

A last branch record has the time of its trigger, so of each processor only the events at its newest time count: the
newest sample among them, whose row is held back, and the hook of the newest event that is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model import BRANCH, SampleBatch, concatenate
from .columns import EventBlock
from .extents import Ints

__all__ = ["Carry", "Newest", "attach", "newest_events"]


@dataclass(slots=True)
class Newest:
    """The newest events of a processor in a block: all of time ``time``, newest first, as rows of the block.

    ``whole``: the processor has no others there.
    """

    time: int
    rows: list[int]
    whole: bool


def newest_events(block: EventBlock) -> dict[int, Newest]:
    """Of each processor that has events in ``block``."""
    if not len(block):
        return {}
    buffers = np.unique(block.buffer)
    first = np.searchsorted(block.buffer, buffers)
    past = np.append(first[1:], len(block))
    rows = block.window.buffers
    found: dict[int, Newest] = {}
    for i in np.lexsort((rows.sequence[buffers], rows.cpu[buffers]))[::-1].tolist():
        cpu, at = int(rows.cpu[buffers[i]]), int(past[i])
        newest = found.setdefault(cpu, Newest(int(block.time[at - 1]), [], True))
        while newest.whole and at > first[i]:
            at -= 1
            if block.time[at] == newest.time:
                newest.rows.append(at)
            else:
                newest.whole = False
    return found


def attach(batch: SampleBatch, owner: Ints, keep: NDArray[np.bool_]) -> SampleBatch:
    """Branch entries moved from each row to its ``owner``, in order; then only the rows ``keep``."""
    count = np.diff(batch.offsets[BRANCH])
    depth = np.zeros(len(batch), np.int64)
    np.add.at(depth, owner, count)
    order = np.argsort(np.repeat(owner, count), kind="stable")
    columns = {n: c[order] if n.startswith("branch_") else c for n, c in batch.columns.items()}
    moved = SampleBatch(columns, {BRANCH: np.concatenate([[0], np.cumsum(depth)])})
    return moved if keep.all() else moved.select(np.flatnonzero(keep))


class Carry:
    """Rows held back, and hooks, from one window to the next."""

    def __init__(self) -> None:
        self._time: dict[int, int] = {}
        self._hook: dict[int, int] = {}
        self._held: dict[int, SampleBatch] = {}

    def hook_at(self, cpu: int, time: int) -> int:
        """The hook of the newest event of the processor that is no sample, if it has that time; else -1."""
        return self._hook.get(cpu, -1) if self._time.get(cpu) == time else -1

    def holds(self, cpu: int, time: int) -> bool:
        """Whether a sample of the processor with that time waits for its record."""
        return self._time.get(cpu) == time and cpu in self._held

    def join(self, records: SampleBatch) -> None:
        """Give the entries of ``records``, for each of which `holds` is true, to their samples."""
        for i, cpu in enumerate(records.cpu.tolist()):
            both = concatenate([self._held[cpu], records.slice(i, i + 1)])
            self._held[cpu] = attach(both, np.zeros(2, np.int64), np.array([True, False]))

    def follow(
        self, newest: dict[int, Newest], hook: dict[int, int], held: dict[int, SampleBatch]
    ) -> Iterator[SampleBatch]:
        """Take in a window: ``hook`` and ``held`` where its newest events have them. Gives the rows that are done."""
        for cpu, now in newest.items():
            same = now.whole and self._time.get(cpu) == now.time
            if cpu in self._held and (cpu in held or not same):
                yield self._held.pop(cpu)
            if cpu in held:
                self._held[cpu] = held[cpu]
            self._hook[cpu] = hook.get(cpu, self._hook.get(cpu, -1) if same else -1)
            self._time[cpu] = now.time

    def rest(self) -> Iterator[SampleBatch]:
        """What is still held, when there are no more windows."""
        yield from self._held.values()
        self._held.clear()
