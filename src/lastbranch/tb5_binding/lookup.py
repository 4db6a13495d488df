"""Which module record, process and thread a sample belongs to, by the rules of the TBRW guide (3.3, 6.1, 6.6).

A module record owns addresses ``[load_address, load_address + length)`` of its process from module_event_when (0: since
before the start) until module_unload_tsc (all ones: for good) or a notice of unloading (`module_lives`). Its code
selector and segment type must be those of the sample, where both tell them. Records of the kernel, of process 0 and
global ones belong to every process, behind its own.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from ..arrays import ranges
from ..bind import Ids, SpaceIndex
from ..formats.tb5.layout import NEVER, CpuMode
from ..formats.tb5.module_lives import module_lives
from ..model import KERNEL_HALF, Array

__all__ = ["ModuleLookup", "TaskLookup"]


# -- rectangles of addresses by moments that may overlap, as disjoint pieces in which the newest owns its place


def paint(
    space: Array, lo: Array, hi: Array, first: Array, last: Array
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """(space, lo, hi, first, last, row) of disjoint pieces of rectangles ``lo <= address < hi``, ``first <= moment <
    last``.

    Of rectangles that overlap in a space the one with the larger ``first`` is on top, at equal ones the later row.
    ``space``, ``first``, ``last`` int64, ``lo``, ``hi`` uint64; ``row`` int64 says which rectangle a piece is of.
    """
    real = np.flatnonzero((lo < hi) & (first < last))
    space, lo, hi, first, last = (c[real] for c in (space, lo, hi, first, last))
    addresses = np.unique(np.concatenate([lo, hi]))
    width = len(addresses) + 1
    start = space * width + np.searchsorted(addresses, lo)
    end = space * width + np.searchsorted(addresses, hi)
    slabs = np.unique(np.concatenate([start, end]))
    one, past = np.searchsorted(slabs, start), np.searchsorted(slabs, end)
    count = past - one
    row = np.repeat(np.arange(len(real)), count)
    slab = ranges(one, count)
    order = np.lexsort((row, first[row], slab))
    row, slab = row[order], slab[order]
    since, until = first[row], last[row]
    clash = (slab[1:] == slab[:-1]) & (until[:-1] > since[1:])
    if clash.any():
        slab, row, since, until = _untangle(slab, row, since, until, np.unique(slab[1:][clash]))
    low, high = slabs[slab], slabs[np.minimum(slab + 1, len(slabs) - 1)]
    return low // width, addresses[low % width], addresses[high % width], since, until, real[row]


def _untangle(
    slab: Array, row: Array, since: Array, until: Array, tangled: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut what overlaps in the ``tangled`` slabs: rows of a slab stand in the order of what lies on what."""
    inside = np.isin(slab, tangled)
    cut: list[tuple[int, int, int, int]] = []
    bounds = np.flatnonzero(np.diff(slab[inside], prepend=-1, append=-1))
    columns = [c[inside].tolist() for c in (slab, row, since, until)]
    for lo, hi in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        here = [c[lo:hi] for c in columns]
        cut += [(here[0][0], here[1][k], a, b) for k, a, b in _on_top(here[2], here[3])]
    kept = [c[~inside] for c in (slab, row, since, until)]
    added = np.array(cut, np.int64).reshape(-1, 4).T
    out = [np.concatenate([a, b]) for a, b in zip(kept, added, strict=True)]
    return out[0], out[1], out[2], out[3]


def _on_top(since: list[int], until: list[int]) -> list[tuple[int, int, int]]:
    """(number, from, to) where interval ``number`` is the last of those that cover it; they are sorted by start."""
    out: list[tuple[int, int, int]] = []
    active: list[tuple[int, int]] = []
    at, arriving = since[0], 0
    while active or arriving < len(since):
        if not active:
            at = max(at, since[arriving])
        while arriving < len(since) and since[arriving] <= at:
            heapq.heappush(active, (-arriving, until[arriving]))
            arriving += 1
        while active and active[0][1] <= at:
            heapq.heappop(active)
        if active:
            following = since[arriving] if arriving < len(since) else active[0][1]
            past = min(active[0][1], following)
            if out and out[-1][0] == -active[0][0] and out[-1][2] == at:
                out[-1] = (out[-1][0], out[-1][1], past)
            else:
                out.append((-active[0][0], at, past))
            at = past
    return out


_KERNEL, _EVERYBODY, _FIRST_PROCESS = 0, 1, 2
_FOREVER = (1 << 62) - 1
_NEVER = np.uint64(NEVER)


class ModuleLookup:
    """Finds module records. ``modules`` are TBRW_MODULE records."""

    def __init__(self, modules: Array) -> None:
        self._modules, lives = modules, module_lives(modules)
        self._loads = np.flatnonzero(lives.loads)
        ends = lives.until[lives.until != _NEVER]
        self._times = np.unique(np.concatenate([lives.since[lives.since != 0], ends]))
        since = np.searchsorted(self._times, lives.since, side="right")
        self._first = np.where(lives.since == 0, 0, since).astype(np.int64)
        past = np.searchsorted(self._times, lives.until, side="right").astype(np.int64)
        self._last = np.where(lives.until == _NEVER, _FOREVER, past)
        self._start = modules["module_load_address"]
        self._end = self._start + modules["module_length"]
        self._end = np.where(self._end < self._start, _NEVER, self._end)
        pid, kernel = modules["module_associated_pid"], self._start >= np.uint64(KERNEL_HALF)
        pids = np.unique(pid[~lives.everybodys])
        self._space_of = Ids(pids, np.arange(len(pids)) + _FIRST_PROCESS, _FIRST_PROCESS + len(pids))
        shared = np.where(kernel, _KERNEL, _EVERYBODY)
        self._space = np.where(lives.everybodys, shared, self._space_of(pid))
        self._shared_user = bool((~kernel & lives.everybodys).any())
        self._indexes: dict[tuple[int, int], SpaceIndex] = {}
        self.by_kind = bool(modules["module_code_selector"].any() or (modules["module_segment_type_word"] & 3).any())
        """Whether any module tells its selector or mode: else those of samples do not matter."""

    def find(self, ip: Array, pid: Array, time: Array, selector: Array, mode: Array) -> NDArray[np.int64]:
        """int64 row of the module of each sample (ip uint64, pid uint32, time uint64, selector and mode integers), -1
        where there is none."""
        moment = self._moments(time)
        space = self._space_of(pid)
        if not self.by_kind:
            return self._find(0, 0, space, moment, ip)
        kinds = selector.astype(np.int64) << 2 | mode
        out = np.full(len(ip), -1, np.int64)
        distinct = np.flatnonzero(np.bincount(kinds, minlength=1)).tolist()
        for kind in distinct:
            if len(distinct) == 1:
                return self._find(kind >> 2, kind & 3, space, moment, ip)
            mine = np.flatnonzero(kinds == kind)
            out[mine] = self._find(kind >> 2, kind & 3, space[mine], moment[mine], ip[mine])
        return out

    def _moments(self, time: Array) -> NDArray[np.int64]:
        if len(time) > len(self._times) and bool((time[1:] >= time[:-1]).all()):
            # Samples in order: find the changes among them.
            changes = np.searchsorted(time, self._times, side="left")
            return np.repeat(np.arange(len(self._times) + 1), np.diff(changes, prepend=0, append=len(time)))
        return np.searchsorted(self._times, time, side="right")

    def _find(self, selector: int, mode: int, space: Array, moment: Array, ip: Array) -> NDArray[np.int64]:
        index = self._indexes.get((selector, mode))
        if index is None:
            index = self._indexes[selector, mode] = self._build(selector, mode)
        kernel = ip >= np.uint64(KERNEL_HALF)
        found = index.find(np.where(kernel, _KERNEL, space), moment, ip)
        if self._shared_user:
            rest = np.flatnonzero((found < 0) & ~kernel)
            found[rest] = index.find(np.full(len(rest), _EVERYBODY), moment[rest], ip[rest])
        return found

    def _build(self, selector: int, mode: int) -> SpaceIndex:
        theirs, kind = self._modules["module_code_selector"], self._modules["module_segment_type_word"] & 3
        fits = (theirs == selector) | (theirs == 0) | (selector == 0)
        fits &= (kind == mode) | (kind == CpuMode.V86) | (mode == CpuMode.V86)
        rows = self._loads[fits[self._loads]]
        columns = (self._space, self._start, self._end, self._first, self._last)
        space, lo, hi, first, last, which = paint(*(c[rows] for c in columns))
        return SpaceIndex(space, lo, hi, first, last, rows[which])


class TaskLookup:
    """Finds process and thread records (TBRW_PID, TBRW_TID) by id and time; a reused id has several."""

    def __init__(self, processes: Array, threads: Array) -> None:
        self._lives = _Lives(processes["pid_id"], processes["pid_event_when"])
        self.owner = self.process(threads["tid_associated_pid"], threads["tid_event_when"])
        """int64: row of the process of each thread."""
        self._belongs = _belongs(self.owner, threads["tid_associated_pid"])
        by_tid = np.argsort(threads["tid_id"], kind="stable")
        tids, count = np.unique(threads["tid_id"][by_tid], return_counts=True)
        single = np.where(count == 1, by_tid[np.cumsum(count) - count] if len(by_tid) else 0, -2)
        self._single = Ids(tids, single, -1)
        keys = zip(self._belongs.tolist(), threads["tid_id"].tolist(), threads["tid_event_when"].tolist(), strict=True)
        self._several: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row, (belongs, tid, when) in enumerate(keys):
            self._several.setdefault((belongs, tid), []).append((when, row))

    def process(self, pid: Array, time: Array) -> NDArray[np.int64]:
        """int64 row of the process of each (pid uint32, time uint64), -1 where there is none."""
        return self._lives.find(pid, time)

    def thread(self, process: NDArray[np.int64], pid: Array, tid: Array, time: Array) -> NDArray[np.int64]:
        """int64 row of the thread ``tid`` of ``process`` (row; of ``pid`` where that is -1) at each time, -1 where
        there is none."""
        out, belongs = self._single(tid), _belongs(process, pid)
        if len(self._belongs):
            out = np.where((out >= 0) & (self._belongs[np.maximum(out, 0)] != belongs), -1, out)
        again = np.flatnonzero(out == -2)
        if len(again):
            owners, owner = np.unique(belongs[again], return_inverse=True)
            distinct, back = np.unique(owner << 32 | tid[again].astype(np.int64), return_inverse=True)
            for i, pair in enumerate(distinct.tolist()):
                lives = sorted(self._several.get((int(owners[pair >> 32]), pair & 0xFFFFFFFF), []))
                rows = again[back == i]
                out[rows] = _alive(lives, time[rows]) if lives else -1
        return out


def _belongs(process: NDArray[np.int64], pid: Array) -> NDArray[np.int64]:
    """What tells processes apart: their row, or, where they have none, their id, as a negative number."""
    if len(process) == 0 or int(process.min()) >= 0:
        return process
    return np.where(process < 0, ~pid.astype(np.int64), process)


class _Lives:
    """Rows by id and time; at any time the one that began last, before all of them the first."""

    def __init__(self, ids: Array, when: Array) -> None:
        distinct, where, count = np.unique(ids, return_index=True, return_counts=True)
        self._row = Ids(distinct, np.where(count == 1, where, -2), -1)
        self._several = {
            int(i): sorted((int(when[r]), int(r)) for r in np.flatnonzero(ids == i)) for i in distinct[count > 1]
        }

    def find(self, ids: Array, time: Array) -> NDArray[np.int64]:
        out = self._row(ids)
        if self._several:
            again = np.flatnonzero(out == -2)
            for i in np.unique(ids[again]).tolist():
                rows = again[ids[again] == i]
                out[rows] = _alive(self._several[i], time[rows])
        return out


def _alive(lives: list[tuple[int, int]], time: Array) -> NDArray[np.int64]:
    starts = np.array([when for when, _ in lives], np.uint64)
    rows = np.array([row for _, row in lives], np.int64)
    found: NDArray[np.int64] = rows[np.maximum(np.searchsorted(starts, time, side="right") - 1, 0)]
    return found
