"""``--to firefox``: the Firefox Profiler's processed profile format, as profiler.firefox.com opens it.

Fields are those of src/types/profile.ts in github.com/firefox-devtools/profiler, at `VERSION` of its changelog
(docs-developer/CHANGELOG-formats.md). Each sample has the weight one; times are milliseconds since the first event.
"""

from __future__ import annotations

import os
from typing import IO
from uuid import UUID

import numpy as np

from ..model import Array, Module, ModuleKind, Process, Profile, Thread, visible
from ..symbols import Function, Names
from .interface import ExportOptions, ExportResult
from .stack_pass import (
    FrameNames,
    Lane,
    RowSpool,
    StackPass,
    StackTree,
    elapsed_time,
    json_text,
    names_of,
    process_name,
    spooled,
    start_of,
    thread_name,
    write_array,
)

__all__ = ["export"]


# -- The tables that all threads of a Firefox Profiler profile share, made from the stacks of a pass
#
# Columns and their meaning: ``RawProfileSharedData`` in src/types/profile.ts of github.com/firefox-devtools/profiler.


CATEGORIES = [
    {"name": "Other", "color": "grey", "subcategories": ["Other"]},
    {"name": "User", "color": "yellow", "subcategories": ["Other"]},
    {"name": "Kernel", "color": "orange", "subcategories": ["Other"]},
]
_USER, _KERNEL = 1, 2

_COLUMNS = {
    "stackTable": ("prefixOffset", "frame"),
    "frameTable": (
        "address", "lib", "inlineDepth", "category", "subcategory", "func", "nativeSymbol", "innerWindowID", "line",
        "column", "originalLocation",
    ),
    "funcTable": (
        "name", "isJS", "relevantForJS", "resource", "source", "lineNumber", "columnNumber", "originalLocation",
    ),
    "resourceTable": ("name", "host", "type"),
    "nativeSymbols": ("libIndex", "address", "name", "functionSize"),
    "sources": ("id", "filename", "startLine", "startColumn", "sourceMapURL", "content"),
    "sourceLocationTable": ("source", "line", "column"),
}  # fmt: skip
_LIBRARY = 1
"""``ResourceType.Library``."""

Row = tuple[object, ...]


class SharedTables:
    """Rows are met in the order of the stacks. ``stacks`` has the row of the stack table for each stack of the pass,
    ``None`` for the empty one; ``libs`` is the profile's list of libraries."""

    def __init__(self, done: StackPass, names: Names) -> None:
        self._profile, self._names = done.profile, names
        self._rows: dict[str, dict[Row, int]] = {table: {} for table in _COLUMNS}
        self._strings: dict[str, int] = {}
        self._libs: dict[int, int] = {}
        frames = done.frames
        rows = [self._frames_of(frames, f) for f in range(len(frames))]
        tree = StackTree()
        nodes = [tree.add([row for f in reversed(stack) for row in rows[f]]) for stack in done.stacks]
        self.stacks = np.array([None if node < 0 else node for node in nodes], object)
        for i, (parent, frame) in enumerate(tree.nodes):
            self._rows["stackTable"][i - parent if parent >= 0 else 0, frame, i] = i
        self.libs = [_library(self._profile, self._profile.modules[module]) for module in self._libs]

    def tables(self) -> dict[str, object]:
        """``Profile.shared``."""
        out: dict[str, object] = {}
        for table, columns in _COLUMNS.items():
            rows = list(self._rows[table])
            out[table] = {"length": len(rows), **{c: [row[i] for row in rows] for i, c in enumerate(columns)}}
        return {**out, "stringArray": list(self._strings)}

    def _row(self, table: str, *row: object) -> int:
        """The row of ``table``, new or known."""
        rows = self._rows[table]
        return rows.setdefault(row, len(rows))

    def _string(self, text: str) -> int:
        return self._strings.setdefault(visible(text), len(self._strings))

    def _frames_of(self, frames: FrameNames, f: int) -> list[int]:
        """Rows of the frame table for a frame of the pass: its inlined functions after the one they are in."""
        names, module = self._names, int(frames.module[f])
        in_file = module >= 0 and self._profile.modules[module].kind is not ModuleKind.ANONYMOUS
        lib = self._libs.setdefault(module, len(self._libs)) if in_file else -1
        base = _base(self._profile.modules[module]) if in_file else 0
        address = int(frames.address[f]) - base if in_file else -1
        category = _KERNEL if frames.kernel[f] else _USER
        owner = int(names.function[f])
        symbol = self._symbol(lib, base, names.functions[owner]) if in_file and owner >= 0 else None
        chain = names.frames(f)[::-1]
        if not chain:
            func = self._func(f"[{self._short(module)}]", module, lib, "", 0)
            return [self._frame(address, lib, 0, category, func, None, 0, 0)]
        rows = []
        for depth, (function, file, line, column, _) in enumerate(chain):
            func = self._func(function.shown, module, lib, file or function.file, function.line)
            rows.append(self._frame(address, lib, depth, category, func, symbol, line, column))
        return rows

    def _frame(
        self, address: int, lib: int, depth: int, category: int, func: int, symbol: int | None, line: int, column: int
    ) -> int:
        return self._row(
            "frameTable", address, lib, depth, category, 0, func, symbol, None, line or None, column or None, None
        )

    def _func(self, name: str, module: int, lib: int, file: str, line: int) -> int:
        resource, source = -1, None
        if lib >= 0:
            resource = self._row("resourceTable", self._string(self._short(module)), None, _LIBRARY)
        if file:
            source = self._row("sources", None, self._string(file), 1, 1, None, None)
        return self._row("funcTable", self._string(name), False, False, resource, source, line or None, None, None)

    def _symbol(self, lib: int, base: int, function: Function) -> int:
        start = function.start - base
        return self._row("nativeSymbols", lib, start, self._string(function.shown), function.size or None)

    def _short(self, module: int) -> str:
        return self._profile.modules[module].short.strip("[]") if module >= 0 else "unknown"


def _base(module: Module) -> int:
    """The module address of the first byte of a library's image; the addresses of frames are relative to this byte."""
    lowest = min((s.address for s in module.segments), default=0)
    # The headers of a PE file come before its first section; images begin at multiples of 64 KiB.
    return lowest & (~0xFFFF if module.is_pe else ~0xFFF)


def _library(profile: Profile, module: Module) -> dict[str, object]:
    name, path = visible(module.short), visible(module.name)
    debug = visible(module.pdb_name) or path
    code_id = module.build_id.hex() or (f"{module.timestamp:08X}{module.size:x}" if module.timestamp else None)
    return {
        "arch": profile.machine.arch,
        "name": name,
        "path": path,
        "debugName": debug.replace("\\", "/").rpartition("/")[2] or name,
        "debugPath": debug,
        "breakpadId": _breakpad_id(module),
        "codeId": code_id,
    }


def _breakpad_id(module: Module) -> str:
    """GUID and age; an ELF file's GUID is made of its build id (Breakpad, docs/symbol_files.md)."""
    guid = module.pdb_guid or UUID(bytes_le=module.build_id[:16].ljust(16, b"\0"))
    return f"{guid.hex}{module.pdb_age:x}".upper()


VERSION = 70
_MARKER_COLUMNS = ("data", "name", "startTime", "endTime", "phase", "category")
_NS_PER_MS = 1_000_000


def export(profile: Profile, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the samples of ``profile``, a thread for each of its threads and events.

    Raises `NotRecordedError` where there are no samples.
    """
    with spooled(profile, options, by_event=True) as (done, spool, symbols):
        shared = SharedTables(done, names_of(profile, done.frames, symbols))
        threads = _Threads(profile, done, spool.lanes())
        out.write(b'{"meta":' + json_text(_meta(profile, spool)))
        out.write(b',"libs":' + json_text(shared.libs) + b',"shared":' + json_text(shared.tables()))
        out.write(b',"threads":[')
        for i, number in enumerate(threads.numbers):
            out.write(b"," * bool(i) + json_text(threads.known(number))[:-1] + b',"samples":{"stack":')
            write_array(out, (shared.stacks[rows["stack"]].tolist() for rows in spool.of(number)))
            out.write(b',"time":')
            write_array(out, (_ms(profile, rows["time"]) for rows in spool.of(number)))
            count = sum(len(rows) for rows in spool.of(number))
            out.write(b',"weight":null,"weightType":"samples","length":%d}}' % count)
        out.write(b"]}")
        return done.exported(symbols.notes)


def _ms(profile: Profile, ticks: Array) -> list[float]:
    found: list[float] = elapsed_time(profile, ticks, _NS_PER_MS).tolist()
    return found


class _Threads:
    """The state of each thread, by number: lane * events + event. ``numbers`` are those that have samples, process by
    process, the main thread first."""

    def __init__(self, profile: Profile, done: StackPass, numbers: list[int]) -> None:
        self._profile, self._lanes, self._events = profile, done.lanes, len(profile.events)
        self._pids = _unique([(lane.pid, lane.process) for lane in self._lanes])
        self._tids = _unique([(lane.tid, number) for number, lane in enumerate(self._lanes)])
        self._used = {number % self._events for number in numbers}
        self.numbers = sorted(numbers, key=self._order)

    def _order(self, number: int) -> tuple[int, int, bool, int, int]:
        lane, event = self._of(number)
        return lane.pid, lane.process, lane.tid != lane.pid, lane.tid, event

    def _life(self, one: Process | Thread | None) -> tuple[float | None, float | None]:
        """When a process or thread began and ended."""
        ticks = (None, None) if one is None else (one.start, one.end)
        began, ended = (None if tick is None else _ms(self._profile, np.array([tick]))[0] for tick in ticks)
        return began, ended

    def known(self, number: int) -> dict[str, object]:
        """``RawThread`` but for its samples."""
        lane, event = self._of(number)
        began, ended = self._life(self._profile.processes[lane.process] if lane.process >= 0 else None)
        registered, unregistered = self._life(self._profile.threads[lane.thread] if lane.thread >= 0 else None)
        suffix = f": {visible(self._profile.events[event].name)}" if len(self._used) > 1 else ""
        tid = self._tids[number // self._events]
        return {
            "processType": "default",
            "processName": process_name(self._profile, lane),
            "processStartupTime": began or 0.0,
            "processShutdownTime": ended,
            "registerTime": registered or 0.0,
            "unregisterTime": unregistered,
            "pausedRanges": [],
            "name": thread_name(self._profile, lane) + suffix,
            "isMainThread": lane.tid == lane.pid and event == min(self._used),
            "pid": self._pids[number // self._events],
            "tid": f"{tid}-{event}" if len(self._used) > 1 else tid,
            "markers": {"length": 0, **{column: [] for column in _MARKER_COLUMNS}},
        }

    def _of(self, number: int) -> tuple[Lane, int]:
        lane, event = divmod(number, self._events)
        return self._lanes[lane], event


def _unique(ids: list[tuple[int, int]]) -> list[str]:
    """The text of each id; an id that is used again, for another row, has a number."""
    lives: dict[int, list[int]] = {}
    for number, row in ids:
        if row not in lives.setdefault(number, []):
            lives[number].append(row)
    places = ((number, lives[number].index(row)) for number, row in ids)
    return [f"{number}.{life}" if life else str(number) for number, life in places]


def _meta(profile: Profile, spool: RowSpool) -> dict[str, object]:
    machine = profile.machine
    wall = profile.clock.wall_ns(start_of(profile))
    known = {
        "oscpu": f"{machine.os} {machine.os_release}".strip(),
        "abi": machine.arch,
        "CPUName": machine.cpu_description,
        "logicalCPUs": machine.cpus_online,
        "mainMemory": machine.memory,
    }
    return {
        "interval": _interval(profile, spool),
        "startTime": wall / _NS_PER_MS if wall is not None else 0,
        "processType": 0,
        "product": visible(os.path.basename(profile.name)),
        "importedFrom": "lastbranch",
        "stackwalk": 1,
        "debug": False,
        "version": 24,
        "preprocessedProfileVersion": VERSION,
        "categories": CATEGORIES,
        "markerSchema": [],
        "symbolicated": True,
        "usesOnlyOneStackType": True,
        "sourceCodeIsNotOnSearchfox": True,
        **{name: value for name, value in known.items() if value},
    }


def _interval(profile: Profile, spool: RowSpool) -> float:
    """Milliseconds between two samples: as asked for, or the mean of the thread that has most of them."""
    frequency = max((event.frequency for event in profile.events), default=0)
    if frequency:
        return 1000 / frequency
    busiest = max(spool.lanes(), key=lambda lane: sum(map(len, spool.of(lane))), default=0)
    times = [t for rows in spool.of(busiest) for t in _ms(profile, rows["time"][[0, -1]])]
    count = sum(map(len, spool.of(busiest)))
    return max((times[-1] - times[0]) / (count - 1), 1e-6) if count > 1 else 1.0
