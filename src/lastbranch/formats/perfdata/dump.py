"""A perf.data as rows for `dump`: every record in time order, with the names of the kernel ABI.

The samples come through the profile's batches, the records beside them from a walk of their own, sorted in bounded
memory. A record without a time stamp (perf's own, and those that it makes of what was there before) stands where the
newest time before it in the file puts it.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from ...model import Mode, Progress, SampleBatch, Source, column
from ...model.output import temporary_file
from ..dump import Cells, Dump, Form, Row, Wanted, milliseconds
from ..fields import Hex, decode
from .layout import RECORD, RECORDS, SAMPLE, USER_RECORDS
from .reader import Reader
from .records import fields_of, trailer_of
from .state import State

_SAMPLE = RECORD["SAMPLE"]
_UNKNOWN = (("payload", "bytes"),)
_SPILL_BYTES = 32 << 20
_RECORD_COST = 300

_SAMPLE_NAMES = {  # column -> field of PERF_RECORD_SAMPLE; others have the same name
    "read_value": "values.value", "read_id": "values.id", "read_lost": "values.lost", "frame": "ips",
    "raw": "raw.data", "branch_from": "lbr.from", "branch_to": "lbr.to", "branch_flags": "lbr.flags",
    "branch_counters": "lbr.counters", "user_regs_abi": "user.abi", "user_reg": "user.regs", "user_stack": "stack.data",
    "user_stack_size": "stack.dyn_size", "intr_regs_abi": "intr.abi", "intr_reg": "intr.regs", "aux": "aux.data",
}  # fmt: skip
_HEX_COLUMNS = frozenset(
    ("ip", "addr", "phys_addr", "data_src", "transaction", "frame", "branch_from", "branch_to", "branch_flags",
     "branch_counters", "branch_info", "user_reg", "intr_reg")
)  # fmt: skip
_NOT_FIELDS = frozenset(("time", "pid", "tid", "cpu", "event", "mode", "position"))


class _Beside(NamedTuple):
    """A record that is not a sample; the first two fields order it."""

    time: int
    position: int
    stamped: bool
    kind: int
    misc: int
    body: bytes


def dump_perfdata(source: Source, wanted: Wanted, progress: Progress | None = None) -> Dump:
    """The wanted records of ``source`` in time order. Raises `FormatError` where nothing can be read of it."""
    reader = Reader(source)
    reader.index(progress)
    return Dump(
        source.name, reader.profile.clock, lambda form: _cells(reader, wanted, form), lambda: reader.profile.damage
    )


def _cells(reader: Reader, wanted: Wanted, form: Form) -> Iterator[Cells]:
    time = milliseconds(reader.profile.clock)
    return (form.row(row, time) for row in _rows(reader, wanted))


def _rows(reader: Reader, wanted: Wanted) -> Iterator[Row]:
    profile = reader.profile
    sorter, zero = _Sorter(), profile.start or 0
    for record in _beside(reader):
        if wanted.named(_name(record.kind)):
            sorter.add(record)
    first, last = wanted.ticks(profile.clock)
    names = [event.name for event in profile.events]
    if wanted.named("SAMPLE", *names, *(f"SAMPLE/{name}" for name in names)):
        batches = profile.batches(ordered=True)
    else:
        batches = iter(())
    samples = (one for batch in batches for one in _samples(batch, names, wanted))
    others = ((record.time, record.position, _row(reader.state, record)) for record in sorter)
    for time, _, row in heapq.merge(others, samples, key=lambda one: one[:2]):
        if last is not None and time - zero >= last:
            return
        if (first is not None and time - zero < first) or (wanted.pids and row.pid not in wanted.pids):
            continue
        row.time = None if row.time is None else time - zero
        yield row


def _name(kind: int) -> str:
    return RECORDS.get(kind, f"TYPE_{kind}")


# -- records beside the samples


def _beside(reader: Reader) -> Iterator[_Beside]:
    """All of them in file order, each with the time that places it."""
    state, newest = reader.state, 0
    has_time = any(attr.sample_type & SAMPLE.TIME for attr in state.attrs)
    for block in reader.blocks():
        is_sample = block.types == _SAMPLE
        times: list[tuple[int, int]] = []
        for which, part, _ in reader.by_layout(block, block.at[is_sample]):
            stamps = reader.times(block, reader.layouts[which].layout, part)
            times += zip(part.tolist(), stamps.tolist(), strict=True)
        times.sort(reverse=True)
        beside = block.at[~is_sample]
        columns = (block.types[~is_sample], block.misc(beside), beside, block.sizes(beside))
        for kind, misc, at, size in zip(*(c.tolist() for c in columns), strict=True):
            while times and times[-1][0] < at:
                newest = max(newest, times.pop()[1])
            body = block.body(at, size)
            time = _stamp(state, kind, body) if has_time else block.base + at * 8
            stamped = bool(time)
            if stamped:
                newest = max(newest, time)
            yield _Beside(
                time or (newest if kind >= USER_RECORDS else 0), block.base + at * 8, stamped, kind, misc, body
            )
        newest = max([newest, *(time for _, time in times)])


def _stamp(state: State, kind: int, body: bytes) -> int:
    """The time in the trailer of a record; 0 without one, and in records of what was there before."""
    return int(trailer_of(state, kind, body)[0].get("time", 0))


def _row(state: State, record: _Beside) -> Row:
    trailer, size = trailer_of(state, record.kind, record.body)
    fields: dict[str, Any] = {"misc": Hex(record.misc)} if record.misc else {}
    declared = fields_of(record.kind, record.misc, _UNKNOWN)
    fields |= decode(declared, record.body[: len(record.body) - size], state.order, Hex, cut=True)
    pid, tid, cpu = (int(fields.get(name, trailer.get(name, -1))) for name in ("pid", "tid", "cpu"))
    time = record.time if record.stamped else None
    return Row(time, pid, tid, cpu, _name(record.kind), len(record.body), fields)


class _Sorter:
    """Records in time order, those of equal time in file order; what does not fit in memory is spilled, sorted."""

    def __init__(self) -> None:
        self._waiting: list[_Beside] = []
        self._bytes = 0
        self._runs: list[IO[bytes]] = []

    def add(self, record: _Beside) -> None:
        self._waiting.append(record)
        self._bytes += _RECORD_COST + len(record.body)
        if self._bytes > _SPILL_BYTES:
            run = temporary_file()  # lives until the merge has read it
            for one in sorted(self._waiting):
                pickle.dump(tuple(one), run, protocol=5)
            self._runs.append(run)
            self._waiting, self._bytes = [], 0

    def __iter__(self) -> Iterator[_Beside]:
        yield from heapq.merge(*(_read_back(run) for run in self._runs), sorted(self._waiting))


def _read_back(run: IO[bytes]) -> Iterator[_Beside]:
    with run:
        end = run.tell()
        run.seek(0)
        while run.tell() < end:
            yield _Beside(*pickle.load(run))


# -- samples


def _samples(batch: SampleBatch, names: list[str], wanted: Wanted) -> Iterator[tuple[int, int, Row]]:
    columns = {_SAMPLE_NAMES.get(n, n): (_shown(n, c), _bounds(batch, n)) for n, c in batch.columns.items()
               if n not in _NOT_FIELDS}  # fmt: skip
    required = (batch.time, batch["position"], batch.pid, batch.tid, batch.cpu, batch.event, batch.mode)
    for i, (time, at, pid, tid, cpu, event, mode) in enumerate(zip(*(c.tolist() for c in required), strict=True)):
        if not wanted.named("SAMPLE", names[event], f"SAMPLE/{names[event]}"):
            continue
        fields: dict[str, Any] = {"event": names[event], "cpumode": _mode(mode)}
        for name, (values, bounds) in columns.items():
            if bounds is None:
                fields[name] = values[i]
            else:
                part = values[bounds[i] : bounds[i + 1]]
                fields[name] = bytes(part) if name.endswith(".data") else part
        yield time, at, Row(time, pid, tid, cpu, "SAMPLE", None, fields)


def _shown(name: str, column: Any) -> list[Any]:
    return [Hex(value) for value in column.tolist()] if name in _HEX_COLUMNS else column.tolist()


def _bounds(batch: SampleBatch, name: str) -> list[int] | None:
    group = column(name).group
    return None if group == "sample" else batch.offsets[group].tolist()


def _mode(mode: int) -> str:
    return Mode.NAMES[mode] if mode < len(Mode.NAMES) else str(mode)
