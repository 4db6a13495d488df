"""Which events of a trace belong to a time range or to processes, and which are needed to make sense of those.

Processes, threads, images, the configuration and the definitions of stacks say what the others mean, whenever they were
logged: a cut by time keeps all of them. A cut by process keeps those of its processes and of the kernel (process ids 0
and 4). Whose an event is says its payload where a layout declares a process id there, or the thread id there (by the
thread events of the trace), else its header. Events of nobody, as interrupts are, belong to no process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from .columns import EventBlock
from .kernel_config import SYS_CONFIG
from .kernel_process import IMAGE, PROCESS, THREAD
from .kernel_session import IMAGE_ID, META_DATA, SESSION, SYS_CONFIG_EX, WIN_SAT
from .kernel_tables import kernel_layout
from .manifest_xml import MANIFEST_ID
from .materialise import events_of
from .providers import Key, kernel_key

__all__ = ["Cut", "Kind", "Owners", "kinds_of"]

_LBR, _PERF_INFO, _STACK_WALK, _FILE_IO = 0x0C, 0x0F, 0x18, 0x04
_GROUPS = frozenset((SESSION, SYS_CONFIG, IMAGE_ID, META_DATA, SYS_CONFIG_EX, WIN_SAT))
_STATE = frozenset(
    [(PROCESS, type_) for type_ in (1, 2, 3, 4, 10, 11, 39)]
    + [(THREAD, type_) for type_ in (1, 2, 3, 4, 72)]
    + [(IMAGE, type_) for type_ in (2, 3, 4, 10, 33, 34)]
    + [(_PERF_INFO, type_) for type_ in (0x30, 0x48, 0x49, 0x4A)]  # counter names, intervals
    + [(_STACK_WALK, type_) for type_ in (0x22, 0x23, 0x24)]
    + [(_FILE_IO, type_) for type_ in (0, 32, 35, 36)]  # names of files
)
_STAMPED = frozenset(((_LBR, 0x20), (_STACK_WALK, 0x20), (_STACK_WALK, 0x25), (_STACK_WALK, 0x26)))
_THREAD_LIFE = frozenset((THREAD, type_) for type_ in (1, 2, 3, 4))
_THREADS = ("ThreadID", "NewThreadID", "OldThreadID", "IssuingThreadID")
_KERNEL = frozenset((0, 4))
_EVENT_HEADERS = (18, 19)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Kind:
    """What all events of a type, version and pointer size have in common. Places are byte offsets in the payload."""

    state: bool = False
    """Whether other events need it."""
    stamped: bool = False
    """Whether its payload begins with the time of the event that it belongs to."""
    process: int | None = None
    threads: tuple[int, ...] = ()
    begins: bool | None = None
    """Of an event about the life of a thread: whether the thread lives from then on, or up to then."""


_OTHER, _MANIFEST = Kind(), Kind(state=True)


def kinds_of(block: EventBlock) -> tuple[Ints, list[Kind]]:
    """The kind of each event: rows of the list."""
    kernel, manifest = block.is_kernel, np.isin(block.header, _EVENT_HEADERS)
    shape = block.version.astype(np.int64) << 16 | block.pointer_size.astype(np.int64) << 24
    code = np.where(kernel, block.hook | shape, 0)
    code[manifest] = (1 << 32) + (block.id[manifest] == MANIFEST_ID)
    rest = np.flatnonzero(~(kernel | manifest))
    if len(rest):  # by GUID, which is slow; there are few
        low = (block.opcode[rest] | shape[rest]).astype(np.uint64)
        keys = np.column_stack([block.provider[rest], low])
        _, number = np.unique(keys, axis=0, return_inverse=True)
        code[rest] = (2 << 32) + number.reshape(-1)
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    kinds = []
    for event in events_of(block.take(first)):
        key = kernel_key(event)
        if key is not None:
            kinds.append(_kind(key, event.version, event.pointer_size))
        else:
            kinds.append(_MANIFEST if event.header in _EVENT_HEADERS and event.id == MANIFEST_ID else _OTHER)
    return which, kinds


@lru_cache(maxsize=1024)
def _kind(key: Key, version: int, pointer: int) -> Kind:
    known = kernel_layout(key, version)
    places = {} if known is None else known.offsets(pointer)
    found = {name: at for name, (at, _) in places.items()}
    threads = tuple(found[name] for name in _THREADS if name in found)
    begins = key[1] in (1, 3) if key in _THREAD_LIFE else None
    return Kind(key in _STATE or key[0] in _GROUPS, key in _STAMPED, found.get("ProcessID"), threads, begins)


def _field(block: EventBlock, rows: Ints, place: int) -> Ints:
    """The u32 at byte ``place`` of the payloads, -1 where a payload is too short."""
    at = (block.payload[rows] + place)[:, None] + np.arange(4)
    value = np.ascontiguousarray(block.raw.take(at)).view("<u4")[:, 0].astype(np.int64)
    return np.where(block.payload_size[rows] >= place + 4, value, -1)


class Owners:
    """Which process a thread id belonged to at a time, by the thread events that `learn` has seen."""

    def __init__(self) -> None:
        self._seen: list[tuple[Ints, Ints, Ints, NDArray[np.bool_]]] = []

    def learn(self, block: EventBlock) -> None:
        """Take in the thread events of ``block``."""
        which, kinds = kinds_of(block)
        for number, kind in enumerate(kinds):
            if kind.begins is None or kind.process is None or not kind.threads:
                continue
            rows = np.flatnonzero(which == number)
            tids, pids = _field(block, rows, kind.threads[0]), _field(block, rows, kind.process)
            self._seen.append((tids, block.time[rows].copy(), pids, np.full(len(rows), kind.begins)))

    @cached_property
    def _lives(self) -> dict[int, tuple[Ints, Ints, Ints]]:
        """By thread id: times, the process from then on, the process up to then; in time order."""
        if not self._seen:
            return {}
        tid, time, pid, begins = (np.concatenate(part) for part in zip(*self._seen, strict=True))
        order = np.lexsort((time, tid))
        tid, time, pid, begins = tid[order], time[order], pid[order], begins[order]
        cuts = np.flatnonzero(np.diff(tid)) + 1
        lives = {}
        for rows in np.split(np.arange(len(tid)), cuts):
            lives[int(tid[rows[0]])] = (time[rows], np.where(begins[rows], pid[rows], -1), pid[rows])
        return lives

    def of(self, tids: Ints, times: Ints) -> Ints:
        """Process ids, -1 for threads of no known process."""
        result = np.where(tids == 0, 0, -1)
        for tid in np.unique(tids[tids > 0]).tolist():
            known = self._lives.get(tid)
            if known is None:
                continue
            rows = np.flatnonzero(tids == tid)
            time, after, before = known
            place = np.searchsorted(time, times[rows], "right")
            since = np.where(place > 0, after[np.maximum(place - 1, 0)], -1)
            until = np.where(place < len(time), before[np.minimum(place, len(time) - 1)], -1)
            last = np.where(place > 0, before[np.maximum(place - 1, 0)], -1)  # events just behind a thread's end
            result[rows] = np.where(since >= 0, since, np.where(until >= 0, until, last))
        return result


@dataclass(slots=True)
class Cut:
    """What to keep: times from ``first`` up to but without ``last``, in ticks of the log's clock, and ``pids``.

    None, and no pids: no limit.
    """

    first: int | None = None
    last: int | None = None
    pids: frozenset[int] = frozenset()
    owners: Owners | None = None

    def __bool__(self) -> bool:
        return self.first is not None or self.last is not None or bool(self.pids)

    def rows(self, block: EventBlock) -> NDArray[np.bool_]:
        """Which events of ``block`` to keep."""
        which, kinds = kinds_of(block)
        state = np.array([kind.state for kind in kinds], bool)[which]
        time = event_times(block, which, kinds)
        inside = np.ones(len(block), bool)
        if self.first is not None:
            inside &= time >= self.first
        if self.last is not None:
            inside &= time < self.last
        keep: NDArray[np.bool_] = inside | state
        if self.pids:
            keep &= self._of_pids(block, which, kinds, time)
        return keep

    def _of_pids(self, block: EventBlock, which: Ints, kinds: list[Kind], time: Ints) -> NDArray[np.bool_]:
        wanted = np.array(sorted(self.pids))
        with_kernel = np.array(sorted(self.pids | _KERNEL))
        keep = np.isin(block.pid, wanted)
        for number, kind in enumerate(kinds):
            if kind is _OTHER:
                continue
            rows = np.flatnonzero(which == number)
            if kind.process is not None:
                keep[rows] = np.isin(_field(block, rows, kind.process), with_kernel if kind.state else wanted)
            elif kind.state:
                keep[rows] = True
            elif kind.threads and self.owners is not None:
                mine = [self.owners.of(_field(block, rows, place), time[rows]) for place in kind.threads]
                keep[rows] = np.isin(np.stack(mine), wanted).any(axis=0)
        return keep


def event_times(block: EventBlock, which: Ints, kinds: list[Kind]) -> Ints:
    """The times of events; of stacks and branch records that of the event they belong to, which says where they go."""
    time: Ints = block.time.copy()
    for number, kind in enumerate(kinds):
        if kind.stamped:
            rows = np.flatnonzero((which == number) & (block.payload_size >= 8))
            stamp = stamps(block, rows)
            time[rows] = stamp if block.rules.to_log is None else block.rules.to_log(stamp)
    return time


def stamps(block: EventBlock, rows: Ints) -> Ints:
    """The i64 that begins the payloads, as it stands there."""
    at = block.payload[rows][:, None] + np.arange(8)
    found: Ints = np.ascontiguousarray(block.raw.take(at)).view("<i8")[:, 0].astype(np.int64)
    return found
