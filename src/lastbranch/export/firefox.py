"""``--to firefox``: the Firefox Profiler's processed profile format, as profiler.firefox.com opens it.

Fields are those of src/types/profile.ts in github.com/firefox-devtools/profiler, at `VERSION` of its changelog
(docs-developer/CHANGELOG-formats.md). Each sample has the weight one; times are milliseconds since the first event.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

import numpy as np

from ..model import Array, Profile, visible
from ..symbols import Symbolizer
from . import Exported, ExportOptions
from .firefox_tables import CATEGORIES, SharedTables
from .json_stream import text, write_array
from .spool import Spool
from .stack_names import process_name, thread_name
from .stack_pass import Lane, StackPass, names_of

__all__ = ["VERSION", "export"]

VERSION = 70
_MARKER_COLUMNS = ("data", "name", "startTime", "endTime", "phase", "category")
_NS_PER_MS = 1_000_000


def export(profile: Profile, out: IO[bytes], options: ExportOptions) -> Exported:
    """Write the samples of ``profile``, a thread for each of its threads and events.

    Raises `NotRecordedError` where there are no samples.
    """
    done = StackPass(profile, options)
    with Spool() as spool, Symbolizer(profile, options.symbols) as symbols:
        events = len(profile.events)
        for rows in done.rows(ordered=True):
            rows["lane"] = rows["lane"] * events + rows["event"]
            spool.add(rows)
        shared = SharedTables(done, names_of(profile, done.frames, symbols))
        threads, clock = _Threads(profile, done, spool.lanes()), _Clock(profile)
        out.write(b'{"meta":' + text(_meta(profile, clock, spool)))
        out.write(b',"libs":' + text(shared.libs) + b',"shared":' + text(shared.tables()))
        out.write(b',"threads":[')
        for i, number in enumerate(threads.numbers):
            out.write(b"," * bool(i) + text(threads.known(number, clock))[:-1] + b',"samples":{"stack":')
            write_array(out, (shared.stacks[rows["stack"]].tolist() for rows in spool.of(number)))
            out.write(b',"time":')
            write_array(out, (clock.ms(rows["time"]) for rows in spool.of(number)))
            count = sum(len(rows) for rows in spool.of(number))
            out.write(b',"weight":null,"weightType":"samples","length":%d}}' % count)
        out.write(b"]}")
        return done.exported(symbols.notes)


class _Clock:
    """Milliseconds since the first event; where the source has no time, since the first record, each taking one."""

    def __init__(self, profile: Profile) -> None:
        self._clock = profile.clock
        zero = profile.start if profile.start is not None else profile.first_time
        self.zero = zero or 0

    def ms(self, ticks: Array) -> list[float]:
        since = ticks - self.zero
        if not self._clock.has_time:
            return [float(t) for t in since.tolist()]
        found: list[float] = (self._clock.to_ns_array(since) / _NS_PER_MS).tolist()
        return found

    def one(self, tick: int | None) -> float | None:
        return None if tick is None else self.ms(np.array([tick], np.int64))[0]


class _Threads:
    """What is known of each thread; its number is lane * events + event. ``numbers`` are those that have samples,
    process by process, the main thread first."""

    def __init__(self, profile: Profile, done: StackPass, numbers: list[int]) -> None:
        self._profile, self._lanes, self._events = profile, list(done.lanes), len(profile.events)
        self._pids = _unique([(lane.pid, lane.process) for lane in self._lanes])
        self._tids = _unique([(lane.tid, number) for number, lane in enumerate(self._lanes)])
        self._used = {number % self._events for number in numbers}
        self.numbers = sorted(numbers, key=self._order)

    def _order(self, number: int) -> tuple[int, int, bool, int, int]:
        lane, event = self._of(number)
        return lane.pid, lane.process, lane.tid != lane.pid, lane.tid, event

    def known(self, number: int, clock: _Clock) -> dict[str, object]:
        """``RawThread`` but for its samples."""
        lane, event = self._of(number)
        process = self._profile.processes[lane.process] if lane.process >= 0 else None
        thread = self._profile.threads[lane.thread] if lane.thread >= 0 else None
        behind = f": {visible(self._profile.events[event].name)}" if len(self._used) > 1 else ""
        tid = self._tids[number // self._events]
        return {
            "processType": "default",
            "processName": process_name(self._profile, lane),
            "processStartupTime": (clock.one(process.start) if process else None) or 0.0,
            "processShutdownTime": clock.one(process.end) if process else None,
            "registerTime": (clock.one(thread.start) if thread else None) or 0.0,
            "unregisterTime": clock.one(thread.end) if thread else None,
            "pausedRanges": [],
            "name": thread_name(self._profile, lane) + behind,
            "isMainThread": lane.tid == lane.pid and event == min(self._used),
            "pid": self._pids[number // self._events],
            "tid": f"{tid}-{event}" if len(self._used) > 1 else tid,
            "markers": {"length": 0, **{column: [] for column in _MARKER_COLUMNS}},
        }

    def _of(self, number: int) -> tuple[Lane, int]:
        lane, event = divmod(number, self._events)
        return self._lanes[lane], event


def _unique(ids: list[tuple[int, int]]) -> list[str]:
    """The text of each id; of one that is used again (another row stands behind it) with a number."""
    lives: dict[int, list[int]] = {}
    for number, row in ids:
        if row not in lives.setdefault(number, []):
            lives[number].append(row)
    places = ((number, lives[number].index(row)) for number, row in ids)
    return [f"{number}.{life}" if life else str(number) for number, life in places]


def _meta(profile: Profile, clock: _Clock, spool: Spool) -> dict[str, object]:
    machine = profile.machine
    wall = profile.clock.wall_ns(clock.zero)
    known = {
        "oscpu": f"{machine.os} {machine.os_release}".strip(), "abi": machine.arch, "CPUName": machine.cpu_description,
        "logicalCPUs": machine.cpus_online, "mainMemory": machine.memory,
    }  # fmt: skip
    return {
        "interval": _interval(profile, clock, spool),
        "startTime": wall / _NS_PER_MS if wall is not None else 0,
        "processType": 0, "product": visible(os.path.basename(profile.name)), "importedFrom": "lastbranch",
        "stackwalk": 1, "debug": False, "version": 24, "preprocessedProfileVersion": VERSION,
        "categories": CATEGORIES, "markerSchema": [], "symbolicated": True, "usesOnlyOneStackType": True,
        "sourceCodeIsNotOnSearchfox": True, **{name: value for name, value in known.items() if value},
    }  # fmt: skip


def _interval(profile: Profile, clock: _Clock, spool: Spool) -> float:
    """Milliseconds between two samples: as asked for, or the mean of the thread that has most of them."""
    frequency = max((event.frequency for event in profile.events), default=0)
    if frequency:
        return 1000 / frequency
    busiest = max(spool.lanes(), key=lambda lane: sum(map(len, spool.of(lane))), default=0)
    times = [t for rows in _ends(spool.of(busiest)) for t in clock.ms(rows)]
    count = sum(map(len, spool.of(busiest)))
    return max((times[-1] - times[0]) / (count - 1), 1e-6) if count > 1 else 1.0


def _ends(pieces: Iterator[Array]) -> Iterator[Array]:
    return (rows["time"][[0, -1]] for rows in pieces)
