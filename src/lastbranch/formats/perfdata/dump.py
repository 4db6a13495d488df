"""A perf.data as rows for `dump`: every record in time order, with the names of the kernel ABI.

The samples come from the profile's batches, the other records from a walk of their own, sorted in bounded memory. A
record without a time stamp (perf's own records, and records of tasks and mappings from before the recording) is placed
at the newest time before the record in the file.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from ...model import Progress, SampleBatch, Source, temporary_file
from ..dump import Cells, Dump, EventRow, Form, Placed, Wanted, cells_of, sample_rows
from ..fields import Hex, decode
from .layout import RECORD, RECORDS, SAMPLE, USER_RECORDS
from .reader import Reader
from .records import fields_of, trailer_of
from .state import IndexState

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


class _Other(NamedTuple):
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
    profile, sorter = reader.profile, _Sorter()
    for record in _other_records(reader):
        if wanted.named(_name(record.kind)):
            sorter.add(record)
    others = ((record.time, record.position, _row(reader.state, record)) for record in sorter)
    names = [event.name for event in profile.events]
    some = wanted.named("SAMPLE", *names, *(f"SAMPLE/{name}" for name in names))
    batches = profile.batches(ordered=True) if some else iter(())
    return cells_of(profile, wanted, form, others, (one for batch in batches for one in _samples(batch, names, wanted)))


def _name(kind: int) -> str:
    return RECORDS.get(kind, f"TYPE_{kind}")


# -- records other than samples


def _other_records(reader: Reader) -> Iterator[_Other]:
    """All records in file order, each with the time of its place."""
    state, newest = reader.state, 0
    has_time = any(attr.sample_type & SAMPLE.TIME for attr in state.attrs)
    for block in reader.blocks():
        is_sample = block.types == _SAMPLE
        times: list[tuple[int, int]] = []
        for which, part, _ in reader.by_layout(block, block.at[is_sample]):
            stamps = reader.layouts[which].layout.times(block, part)
            times += zip(part.tolist(), stamps.tolist(), strict=True)
        times.sort(reverse=True)
        others = block.at[~is_sample]
        columns = (block.types[~is_sample], block.misc(others), others, block.sizes(others))
        for kind, misc, at, size in zip(*(c.tolist() for c in columns), strict=True):
            while times and times[-1][0] < at:
                newest = max(newest, times.pop()[1])
            body = block.body(at, size)
            time = _stamp(state, kind, body) if has_time else block.base + at * 8
            stamped = bool(time)
            if stamped:
                newest = max(newest, time)
            yield _Other(
                time or (newest if kind >= USER_RECORDS else 0), block.base + at * 8, stamped, kind, misc, body
            )
        newest = max([newest, *(time for _, time in times)])


def _stamp(state: IndexState, kind: int, body: bytes) -> int:
    """The time in the trailer of a record; 0 without one, and in records of what was there before."""
    return int(trailer_of(state, kind, body)[0].get("time", 0))


def _row(state: IndexState, record: _Other) -> EventRow:
    trailer, size = trailer_of(state, record.kind, record.body)
    fields: dict[str, Any] = {"misc": Hex(record.misc)} if record.misc else {}
    declared = fields_of(record.kind, record.misc, _UNKNOWN)
    fields |= decode(declared, record.body[: len(record.body) - size], state.order, Hex, cut=True)
    pid, tid, cpu = (int(fields.get(name, trailer.get(name, -1))) for name in ("pid", "tid", "cpu"))
    time = record.time if record.stamped else None
    return EventRow(time, pid, tid, cpu, _name(record.kind), len(record.body), fields)


class _Sorter:
    """Records in time order, those of equal time in file order; what does not fit in memory is spilled, sorted."""

    def __init__(self) -> None:
        self._waiting: list[_Other] = []
        self._bytes = 0
        self._runs: list[IO[bytes]] = []

    def add(self, record: _Other) -> None:
        self._waiting.append(record)
        self._bytes += _RECORD_COST + len(record.body)
        if self._bytes > _SPILL_BYTES:
            run = temporary_file()  # lives until the merge has read it
            for one in sorted(self._waiting):
                pickle.dump(tuple(one), run, protocol=5)
            self._runs.append(run)
            self._waiting, self._bytes = [], 0

    def __iter__(self) -> Iterator[_Other]:
        yield from heapq.merge(*(_read_back(run) for run in self._runs), sorted(self._waiting))


def _read_back(run: IO[bytes]) -> Iterator[_Other]:
    with run:
        end = run.tell()
        run.seek(0)
        while run.tell() < end:
            yield _Other(*pickle.load(run))


# -- samples


def _samples(batch: SampleBatch, names: list[str], wanted: Wanted) -> Iterator[Placed]:
    places = batch["position"].tolist()
    return sample_rows(batch, names, wanted, places, "cpumode", _SAMPLE_NAMES, _HEX_COLUMNS)
