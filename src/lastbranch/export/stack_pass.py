"""One pass over the samples by thread, with numbered call stacks: the basis of the viewer formats."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, NamedTuple

import numpy as np

from ..analysis import Label, Namer, filtered_batches, period_of
from ..analysis.stacks.call_stacks import StackedSamples, StackMaker
from ..arrays import Table, distinct_rows, number_rows
from ..errors import NotRecordedError
from ..model import Array, ModuleKind, Profile, temporary_file, visible
from ..symbols import Names, Symbolizer
from .binary_choice import limit_to_binary
from .interface import ExportOptions, ExportResult

__all__ = [
    "FrameNames",
    "Lane",
    "NamedStacks",
    "ROW",
    "RowSpool",
    "StackPass",
    "StackTree",
    "elapsed_time",
    "lane_name",
    "names_of",
    "process_name",
    "spooled",
    "start_of",
    "json_text",
    "thread_name",
    "write_array",
    "write_joined",
]


ROW = np.dtype(
    [("lane", "i8"), ("stack", "i8"), ("event", "i8"), ("time", "i8"), ("period", "u8"), ("cpu", "i8"),
     ("weight", "i8")]
)  # fmt: skip
"""A sample: rows of the pass's lanes and stacks, row of the events table, clock ticks, events, processor,
and how often it counts."""


class Lane(NamedTuple):
    """A thread as its samples name it: rows of the processes and threads tables (-1 unknown), and the ids."""

    process: int
    thread: int
    pid: int
    tid: int


@dataclass(slots=True)
class FrameNames(Table):
    """Distinct frames. Equal-length arrays: ``address`` uint64 module address; ``module`` int64 row, -1 nothing mapped;
    ``owner`` int64 row of the process where names depend on it (memory without a file), else -1; ``kernel`` bool."""

    address: Array
    module: Array
    owner: Array
    kernel: Array


class StackPass:
    """Reads the samples that the options ask for. The tables that they refer to grow meanwhile: ``lanes``, and
    ``stacks``, each the numbers of its frames, leaf first; a sample without any address has the empty stack.

    ``first`` and ``last`` are the clock ticks between which the samples lie, ``None`` before there are any.
    """

    def __init__(self, profile: Profile, options: ExportOptions) -> None:
        self.profile = profile
        self._lanes: dict[tuple[int, ...], int] = {}
        self._stacks: dict[bytes, int] = {}
        self._frames: dict[tuple[int, ...], int] = {}
        self.first: int | None = None
        self.last: int | None = None
        self.samples = 0
        self._binder = profile.binder
        self._filter = limit_to_binary(profile, options)
        self._maker = StackMaker(profile, leaves=True)
        # Row -1 is unmapped memory, which is unknown in every process.
        self._own = np.array([m.kind is ModuleKind.ANONYMOUS for m in profile.modules] + [False], bool)

    def rows(self, *, ordered: bool = False) -> Iterator[Array]:
        """The samples as arrays of `ROW`, in file order or by time.

        Raises `NotRecordedError` where the capture has no samples.
        """
        if not self.profile.samples:
            raise NotRecordedError("the capture has no samples")
        batches = self.profile.batches(StackMaker.COLUMNS, ordered=ordered)
        for batch in filtered_batches(self.profile, batches, self._filter):
            rows = np.concatenate([np.empty(0, ROW), *(self._rows_of(stacked) for stacked in self._maker.of(batch))])
            first, last = int(rows["time"].min()), int(rows["time"].max())
            self.first = first if self.first is None else min(first, self.first)
            self.last = last if self.last is None else max(last, self.last)
            self.samples += len(rows)
            yield rows[np.argsort(rows["time"], kind="stable")] if ordered else rows

    @property
    def lanes(self) -> list[Lane]:
        """The threads by number."""
        return [Lane(*lane) for lane in self._lanes]

    @property
    def stacks(self) -> Iterator[list[int]]:
        """The distinct stacks: the numbers of their frames, leaf first."""
        return (np.frombuffer(key, np.int32).tolist() for key in self._stacks)

    @property
    def frames(self) -> FrameNames:
        """The distinct frames by number."""
        columns = zip(*self._frames, strict=True) if self._frames else [()] * 4
        return FrameNames(*map(np.array, columns, (np.uint64, np.int64, np.int64, np.bool_)))

    @property
    def notes(self) -> list[str]:
        """The source of the stacks, and what is missing."""
        notes = [f"stacks: {source}" for source in sorted(self._maker.sources)]
        if self._maker.unknown_calls:
            notes.append(
                "no callers: branches have no types, and none of their binaries is available to decode (--symfs)"
            )
        return notes

    def exported(self, notes: list[str]) -> ExportResult:
        """The result of an export that wrote every row; ``notes`` come after those of the stacks."""
        return ExportResult([*self.notes, *notes], self.samples, self.samples)

    def _rows_of(self, stacked: StackedSamples) -> Array:
        batch, scope, frame, offsets = stacked
        process, sizes = self._binder.process_of(scope), np.diff(offsets)
        rows = np.empty(len(batch), ROW)
        rows["lane"] = number_rows(self._lanes, process, self._binder.threads_of(batch, scope), batch.pid, batch.tid)
        numbers = self._numbers(np.repeat(process, sizes), np.repeat(scope, sizes), frame)
        rows["stack"] = [
            self._stacks.setdefault(numbers[lo:hi].tobytes(), len(self._stacks))
            for lo, hi in pairwise(offsets.tolist())
        ]
        rows["event"], rows["time"], rows["cpu"] = batch.event, batch.time, batch.cpu
        rows["period"], rows["weight"] = period_of(self.profile, batch), self.profile.weight_of(batch)
        return rows

    def _numbers(self, process: Array, scope: Array, frame: Array) -> Array:
        """int32: the number of each frame, the same wherever it occurs."""
        module, address = self._binder.locate(scope, frame)
        owner = np.where(self._own[module], process, -1)
        kernel = self._binder.in_kernel(scope, frame)
        return number_rows(self._frames, address, module, owner, kernel).astype(np.int32)


# -- Rows by lane in a temporary file: formats that go thread by thread are written from samples in time order


_WAITING = 1 << 16
"""Rows in memory before they are written: enough that a lane's next ones are read at once."""


class RowSpool:
    """Rows of a structured dtype with a column ``lane``. First all are added, then each lane is read, in any order."""

    def __init__(self) -> None:
        self._file = temporary_file()
        self._waiting: list[Array] = []
        self._count = 0
        self._where: dict[int, list[tuple[int, int]]] = {}
        self._dtype = np.dtype([])

    def __enter__(self) -> RowSpool:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def add(self, rows: Array) -> None:
        """Append ``rows`` to those of their lanes."""
        self._dtype = rows.dtype
        self._waiting.append(rows)
        self._count += len(rows)
        if self._count > _WAITING:
            self._write()

    def lanes(self) -> list[int]:
        """The lanes that have rows, in order."""
        self._write()
        return sorted(self._where)

    def of(self, lane: int) -> Iterator[Array]:
        """The rows of a lane, piece by piece, as they were added."""
        self._write()
        for offset, count in self._where.get(lane, []):
            self._file.seek(offset)
            yield np.frombuffer(self._file.read(count * self._dtype.itemsize), self._dtype)

    def _write(self) -> None:
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


@contextmanager
def spooled(
    profile: Profile, options: ExportOptions, *, by_event: bool = False
) -> Iterator[tuple[StackPass, RowSpool, Symbolizer]]:
    """A pass in time order that is finished, its rows by lane, and what names its frames.

    ``by_event``: each event of a thread has a lane of its own, ``lane * events + event``. Raises `NotRecordedError`
    where there are no samples.
    """
    done = StackPass(profile, options)
    with RowSpool() as spool, Symbolizer(profile, options.symbols) as symbols:
        for rows in done.rows(ordered=True):
            if by_event:
                rows["lane"] = rows["lane"] * len(profile.events) + rows["event"]
            spool.add(rows)
        yield done, spool, symbols


def start_of(profile: Profile) -> int:
    """Clock tick from which exported times count: the first event, or the first sample."""
    return profile.start if profile.start is not None else profile.first_time or 0


def elapsed_time(profile: Profile, ticks: Array, unit: int) -> Array:
    """float64 time since `start_of` in units of ``unit`` nanoseconds; without time stamps, the number of the record."""
    since = ticks - start_of(profile)
    return profile.clock.to_ns_array(since) / unit if profile.clock.has_time else since.astype(np.float64)


def names_of(profile: Profile, frames: FrameNames, symbols: Symbolizer) -> Names:
    """The inline chains of ``frames``, with their lines."""
    rows, which = distinct_rows(frames.module, frames.owner)
    parts, order = [Names.unknown(0)], [np.empty(0, np.int64)]
    for i, row in enumerate(rows.tolist()):
        mine = np.flatnonzero(which == i)
        order.append(mine)
        module, owner, address = int(frames.module[row]), int(frames.owner[row]), frames.address[mine]
        parts.append(symbols.names_at(owner, address) if owner >= 0 else symbols.names(module, address))
    return Names.join(parts).take(np.argsort(np.concatenate(order)))


# -- Call stacks by name, inlined functions included, for formats whose frames are functions and not addresses


class NamedStacks:
    """The stacks of a finished pass. ``labels`` are the functions; see `Namer`."""

    def __init__(self, done: StackPass, symbols: Symbolizer) -> None:
        frames, namer = done.frames, Namer(done.profile, symbols)
        rows, offsets = namer.chains("inline", frames.owner, frames.module, frames.address)
        self._profile, self._done = done.profile, done
        self._rows, self._offsets = rows.tolist(), offsets.tolist()
        self.labels = namer.labels

    def shown(self, label: Label) -> str:
        """The name of a function, safe to print; ``[module]`` for code without one."""
        return visible(label.shown(self._profile))

    def stacks(self) -> Iterator[list[int]]:
        """Rows of ``labels`` for each stack of the pass in its order, root first."""
        for stack in self._done.stacks:
            leaf_first = [row for f in stack for row in self._rows[self._offsets[f] : self._offsets[f + 1]]]
            yield leaf_first[::-1]


class StackTree:
    """Stacks that share their roots: ``nodes[i]`` is (the parent of node ``i`` or -1, the node's content)."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def add(self, root_first: Sequence[int]) -> int:
        """The node of a stack, new or known; -1 of the empty one. A parent comes before its children."""
        node = -1
        for item in root_first:
            node = self._known.setdefault((node, item), len(self._known))
        return node

    @property
    def nodes(self) -> list[tuple[int, int]]:
        return list(self._known)


def process_name(profile: Profile, lane: Lane) -> str:
    """The process of a lane, safe to print."""
    return visible(profile.processes[lane.process].name if lane.process >= 0 else "") or "[unknown]"


def thread_name(profile: Profile, lane: Lane) -> str:
    """The thread of a lane, or its process where it has no name of its own."""
    return visible(profile.threads[lane.thread].name if lane.thread >= 0 else "") or process_name(profile, lane)


def lane_name(profile: Profile, lane: Lane) -> str:
    """``process (pid 1) / thread (tid 2)``."""
    return f"{process_name(profile, lane)} (pid {lane.pid}) / {thread_name(profile, lane)} (tid {lane.tid})"


# -- JSON written piece by piece, so that long arrays are never whole in memory


def json_text(value: object) -> bytes:
    """``value`` as JSON without blanks, in ASCII."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def write_array(out: IO[bytes], pieces: Iterable[Sequence[object]]) -> None:
    """One array of the elements of all ``pieces``."""
    out.write(b"[")
    write_joined(out, (json_text(piece)[1:-1] for piece in pieces if piece))
    out.write(b"]")


def write_joined(out: IO[bytes], items: Iterable[bytes], before: bytes = b"") -> None:
    """``items``, which are JSON, with commas between them, and ``before`` before each."""
    for i, item in enumerate(items):
        out.write(b"," * bool(i) + before + item)
