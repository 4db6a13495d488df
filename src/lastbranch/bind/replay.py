"""Process lives and their address spaces, by replaying a `Timeline` in time order.

A *moment* is a number of changes that have happened: 0 before the first, ``i`` after the ``i``-th in time order. It
replaces time in every lookup, so changes with equal time stamps keep the order of the file. An *epoch* is an interval
of moments in which the mappings of one process do not change; a forked child shares its parent's pieces until
it maps something itself, so a fork costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ..model import Change, Process, Thread, Timeline
from .index import KERNEL_HALF
from .space import Space

__all__ = ["Epoch", "Replay", "replay"]

FOREVER = (1 << 62) - 1
Placement = Callable[[int, int, int, int], Iterable[tuple[int, int, int]]]
"""(module, start, end, file offset) -> (start, end, bias) pieces: cut where the bias to module addresses changes."""


@dataclass(slots=True)
class Epoch:
    """From moment ``first`` on (until the pid's next epoch) ``process`` sees ``space`` as it was at ``moment``."""

    pid: int
    first: int
    process: int
    space: int
    moment: int


@dataclass(slots=True)
class _Life:
    row: int
    pid: int
    space: Space
    owner: bool
    epoch: Epoch


class Replay:
    """Result of `replay`: tables of processes and threads, epochs, mappings and the pieces of all spaces."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.threads: list[Thread] = []
        self.thread_first: list[int] = []
        self.epochs: list[Epoch] = []
        self.kernel_changes: list[int] = []
        self.mapping_module: list[int] = []
        self.mapping_bias: list[int] = []
        self.pieces: list[tuple[int, int, int, int, int, int]] = []
        self.times = np.empty(0, np.int64)
        self._kernel = Space(0)
        self._spaces: list[Space] = [self._kernel]
        self._made = 1
        self._lives: dict[int, _Life] = {}
        self._thread_rows: dict[tuple[int, int], int] = {}
        self._mappings: dict[tuple[int, int], int] = {}

    # -- lives

    def life(self, pid: int, moment: int = 0) -> _Life:
        """The life of ``pid`` that goes on; one that was always there where nothing told of its start."""
        found = self._lives.get(pid)
        return found if found is not None else self._begin(pid, moment, None, None)

    def thread(self, pid: int, tid: int) -> Thread:
        """The row of thread ``tid`` of the current life of ``pid``, made if need be."""
        life = self.life(pid)
        row = self._thread_rows.get((life.row, tid))
        if row is None:
            row = self._add_thread(life, tid, 0, None, self.processes[life.row].name)
        return self.threads[row]

    def _begin(self, pid: int, moment: int, time: int | None, parent: _Life | None, *, copies: bool = True) -> _Life:
        row = len(self.processes)
        process = Process(pid, start=time or None)
        if parent is not None:
            process.parent, process.name = parent.pid, self.processes[parent.row].name
        self.processes.append(process)
        if parent is not None and copies:
            space, owner = parent.space, False
            space.shared = True
            seen = parent.epoch.space, (moment if parent.owner else parent.epoch.moment)
        else:
            space, owner = self._new_space(), True
            seen = space.number, moment
        epoch = Epoch(pid, 0 if time is None else moment, row, *seen)
        life = _Life(row, pid, space, owner, epoch)
        self.epochs.append(epoch)
        self._lives[pid] = life
        return life

    def _add_thread(self, life: _Life, tid: int, moment: int, time: int | None, name: str) -> int:
        row = self._thread_rows[life.row, tid] = len(self.threads)
        self.threads.append(Thread(tid, life.row, name, time))
        self.thread_first.append(moment)
        return row

    # -- changes, one method each

    def fork(self, moment: int, time: int, pid: int, tid: int, parent: int, copies: bool) -> None:
        if pid == parent:
            life = self.life(pid)
        else:
            life = self._begin(pid, moment, time, self.life(parent) if parent >= 0 else None, copies=copies)
        row, began = self._thread_rows.get((life.row, tid)), time or None
        if row is None or self.threads[row].start != began:  # its process's start, or its name, may have said it
            self._add_thread(life, tid, moment, began, self.processes[life.row].name)

    def exec(self, moment: int, time: int, pid: int) -> None:
        life = self.life(pid)
        life.space, life.owner = self._new_space(), True
        self._open(life, moment)

    def exit(self, time: int, pid: int, tid: int) -> None:
        process = self.processes[self.life(pid).row]
        process.end = time if process.end is None else max(process.end, time)
        self.thread(pid, tid).end = time

    def name(self, pid: int, tid: int, name: str) -> None:
        self.thread(pid, tid).name = name
        if pid == tid:
            self.processes[self.life(pid).row].name = name

    def map(self, moment: int, pid: int, start: int, end: int, module: int, offset: int, place: Placement) -> None:
        if start >= KERNEL_HALF or pid == -1:
            start = max(start, KERNEL_HALF)  # old recorders' kernel map covers user space too
            changed = False
            for lo, hi, bias in place(module, start, end, offset):
                changed |= self._put(self._kernel, moment, lo, hi, self._mapping(module, bias))
            if changed:
                self.kernel_changes.append(moment)
            return
        life = self.life(pid)
        for lo, hi, bias in place(module, start, end, offset):
            mapping = self._mapping(module, bias)
            if not life.space.holds(lo, hi, mapping):
                self._put(self._writable(life, moment), moment, lo, hi, mapping)
                self._open(life, moment)

    def unmap(self, moment: int, pid: int, start: int, end: int) -> None:
        if start >= KERNEL_HALF or pid == -1:
            if self._put(self._kernel, moment, max(start, KERNEL_HALF), end, -1):
                self.kernel_changes.append(moment)
            return
        life = self.life(pid)
        if start < end:
            self._put(self._writable(life, moment), moment, start, end, -1)
            self._open(life, moment)

    # -- spaces

    def _new_space(self) -> Space:
        space = Space(self._made)
        self._made += 1
        self._spaces.append(space)
        return space

    def _writable(self, life: _Life, moment: int) -> Space:
        """The life's space, made its own first: what a forked child shares must stay as it was at the fork."""
        if not life.space.shared and life.owner:
            return life.space
        copy = life.space.copy()
        if not life.owner:
            copy.number, copy.since = self._made, [moment] * len(copy.starts)
            self._made += 1
        self._spaces = [s for s in self._spaces if s is not life.space] if life.owner else self._spaces
        self._spaces.append(copy)
        life.space, life.owner = copy, True
        return copy

    def _open(self, life: _Life, moment: int) -> None:
        last = life.epoch
        if last.first != moment and self.times[last.first - 1] != self.times[moment - 1]:
            last = life.epoch = Epoch(life.pid, moment, life.row, life.space.number, moment)
            self.epochs.append(last)
        last.first, last.space, last.moment = moment, life.space.number, moment

    def _mapping(self, module: int, bias: int) -> int:
        key = (module, bias)
        row = self._mappings.get(key)
        if row is None:
            row = self._mappings[key] = len(self.mapping_module)
            self.mapping_module.append(module)
            self.mapping_bias.append(bias)
        return row

    def _put(self, space: Space, moment: int, start: int, end: int, mapping: int) -> bool:
        """Give ``start:end`` to ``mapping`` (-1: to nobody); what was there before ends at this moment."""
        if start >= end or (mapping >= 0 and space.holds(start, end, mapping)):
            return False
        i = bisect_right(space.ends, start)
        j = bisect_left(space.starts, end)
        keep: list[tuple[int, int, int, int]] = []
        for k in range(i, j):
            lo, hi, owner, since = space.starts[k], space.ends[k], space.owners[k], space.since[k]
            if since < moment:
                self.pieces.append((space.number, max(lo, start), min(hi, end), since, moment, owner))
            if lo < start:
                keep.append((lo, start, owner, since))
            if hi > end:
                keep.append((end, hi, owner, since))
        if mapping >= 0:
            keep.append((start, end, mapping, moment))
        keep.sort()
        space.starts[i:j] = [k[0] for k in keep]
        space.ends[i:j] = [k[1] for k in keep]
        space.owners[i:j] = [k[2] for k in keep]
        space.since[i:j] = [k[3] for k in keep]
        return True

    def finish(self) -> None:
        for space in self._spaces:
            rows = zip(space.starts, space.ends, space.since, space.owners, strict=True)
            self.pieces.extend((space.number, lo, hi, since, FOREVER, owner) for lo, hi, since, owner in rows)


def replay(timeline: Timeline, place: Placement) -> Replay:
    """Work off ``timeline`` in time order (equal times: file order)."""
    columns = timeline.columns()
    order = np.argsort(columns["time"], kind="stable")
    out = Replay()
    out.times = columns["time"][order]
    rows = zip(*(columns[n][order].tolist() for n in columns), strict=True)
    for moment, (kind, time, pid, tid, parent, module, start, end, offset) in enumerate(rows, 1):
        match kind:
            case Change.MAP:
                out.map(moment, pid, start, end, module, offset, place)
            case Change.UNMAP:
                out.unmap(moment, pid, start, end)
            case Change.FORK:
                out.fork(moment, time, pid, tid, parent, copies=not offset)
            case Change.EXEC:
                out.exec(moment, time, pid)
            case Change.EXIT:
                out.exit(time, pid, tid)
            case Change.NAME:
                out.name(pid, tid, timeline.names[module])
    out.finish()
    return out
