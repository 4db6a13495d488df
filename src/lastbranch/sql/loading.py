"""The contents of the tables: columns by name, in chunks, and only the requested ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis import (
    TYPE_NAMES,
    BoundRows,
    CallStacks,
    Estimate,
    Namer,
    StackCounts,
    call_stacks,
    count_stacks,
    how_to_record,
    recorded_address,
    why_no_stacks,
)
from ..arrays import positions
from ..errors import NotRecordedError
from ..lbr import branch_type, flag, flag_known
from ..model import BRANCH, FRAME, Array, Profile, column, visible
from .database import Chunk
from .schema import GROUPS, TABLES, UNKNOWN

if TYPE_CHECKING:
    from ..symbols import Symbolizer

__all__ = ["TableLoader", "count_request"]


# -- Samples and what they hold, batch after batch


_CONTENTS = {
    BRANCH: "branch stacks",
    FRAME: "call chains",
    "read": "counter values",
    "user_regs": "user registers",
    "intr_regs": "registers",
}
_FLAGS = ("mispredicted", "predicted", "in_tx", "abort", "cycles", "type")


def _samples(loading: TableLoader, table: str, wanted: Wanted) -> Iterator[Chunk]:
    """Samples, or what they hold several of. Raises `NotRecordedError` where no sample can have any."""
    profile, group = loading.profile, GROUPS[table]
    if group == BRANCH and (reason := why_no_stacks(profile)):
        raise NotRecordedError(reason, hint=how_to_record(profile))
    own = {c for stream in profile.streams for c in stream.columns if column(c).group == group}
    if not own and group in _CONTENTS:
        raise NotRecordedError(f"the table {table} is empty: the samples have no {_CONTENTS[group]}")
    needed = {_recorded_column(group, name) for name in wanted} & own
    if group in _CONTENTS and not needed:
        needed = {min(own)}  # to count rows
    first = 0
    for stream in profile.streams:
        mine = needed & set(stream.columns)
        if group in _CONTENTS and not mine:
            first += stream.samples
            continue
        for batch in stream.batches({*mine, *(stream.for_depth if "depth" in wanted else ())}):
            rows = BoundRows(profile, batch, first)
            first += len(batch)
            if group in _CONTENTS:
                if group not in batch.offsets or not batch.offsets[group][-1]:
                    continue
                rows = rows.entries(group)
            values = {name: _value(loading, rows, name, stream.number) for name in wanted or {"sample"}}
            found = {name: value for name, value in values.items() if value is not None}
            yield found or {"sample": np.arange(len(rows))}  # to count rows


def _recorded_column(group: str, name: str) -> str:
    """The recorded column that a column is made from: itself, if nothing else is."""
    end, _, part = name.rpartition("_")
    if part in ("module", "address", "function"):
        return recorded_address(group, end)
    return "branch_flags" if group == BRANCH and name in _FLAGS else name


def _value(loading: TableLoader, rows: BoundRows, name: str, stream: int) -> Array | None:
    """A column; ``None`` where the batch does not have it."""
    end, _, part = name.rpartition("_")
    if part == "function":
        place, process = rows.place(end), rows.column("process")
        return None if place is None or process is None else loading.functions(process, *place)
    if name == "stream":
        return np.full(len(rows), stream)
    if name in _FLAGS:
        return _flag_column(name, rows.batch["branch_flags"]) if "branch_flags" in rows.batch else None
    return rows.column(name)


def _flag_column(name: str, flags: Array) -> Array:
    match name:
        case "mispredicted" | "predicted":
            field = "mispred" if name == "mispredicted" else name
            return np.where(flag_known(flags, field), flag(flags, field), UNKNOWN).astype(np.uint8)
        case "cycles":
            return flag(flags, "cycles").view(np.int64)
        case "type":
            return np.asarray(TYPE_NAMES[branch_type(flags)])
        case _:
            return flag(flags, name).astype(bool)


Wanted = frozenset[str]


class TableLoader:
    """Loads the ``wanted`` columns of tables of ``profile``, with executions where an ``estimate`` replaces counts.
    ``notes`` is what the user should know of names."""

    def __init__(
        self,
        profile: Profile,
        symbols: Symbolizer | None,
        wanted: Mapping[str, Collection[str]],
        estimate: Estimate | None = None,
    ) -> None:
        self.profile, self._symbols, self._estimate = profile, symbols, estimate
        self._wanted = {table: frozenset(columns) for table, columns in wanted.items()}

    @cached_property
    def namer(self) -> Namer:
        """Made when the first function is requested: looking for symbol files takes time."""
        from ..symbols import Symbolizer

        self._symbols = self._symbols or Symbolizer(self.profile)
        return Namer(self.profile, self._symbols)

    @property
    def notes(self) -> list[str]:
        return self._symbols.notes if self._symbols and "namer" in self.__dict__ else []

    def chunks(self, table: str) -> Iterator[Chunk]:
        """The wanted columns of a table; a chunk has at most what one batch holds."""
        return _LOADERS[table](self, table, self._wanted[table])

    def labels(self) -> Chunk:
        """``id`` and ``text`` of every function that was met; code without a name has no row."""
        known = self.namer.labels if "namer" in self.__dict__ else []
        rows = [(i, label.function) for i, label in enumerate(known) if label.function]
        return {"id": np.array([i for i, _ in rows], np.int64), "text": _objects([visible(text) for _, text in rows])}

    def functions(self, process: Array, module: Array, address: Array) -> Array:
        """int64: label of the function at each place."""
        return self.namer.rows(process, module, address)

    @cached_property
    def stacks(self) -> CallStacks:
        return call_stacks(self.profile)

    @cached_property
    def counted(self) -> StackCounts:
        """The source of all tables of counts: one pass of counting."""
        wanted = count_request(self._wanted)
        assert wanted is not None
        return count_stacks(self.profile, ranges=wanted["ranges"], details=wanted["details"], estimate=self._estimate)


def _objects(values: Sequence[object]) -> Array:
    out = np.empty(len(values), object)
    out[:] = values
    return out


# -- tables of the model


def _row_values(table: str, row: Any) -> dict[str, Any]:
    """Columns of a row that are not its fields as they are."""
    values: dict[str, Any] = {}
    if table == "modules":
        values = {"short": row.short, "kind": row.kind.value, "build_id": row.build_id.hex() or None}
        values["pdb_guid"] = str(row.pdb_guid) if row.pdb_guid else None
    if table in ("processes", "threads"):
        values = {"start_time": row.start, "end_time": row.end}
    return values


def _model(loading: TableLoader, table: str, wanted: Wanted) -> Iterator[Chunk]:
    rows = getattr(loading.profile, table)
    columns: dict[str, list[Any]] = {name: [] for name in wanted | {"id"}}
    for i, row in enumerate(rows):
        values = {"id": i, **_row_values(table, row)}
        for name, cells in columns.items():
            value = values[name] if name in values else getattr(row, name)
            cells.append(None if value == "" else value)
    if rows:
        yield {name: _column(table, name, values) for name, values in columns.items()}


def _column(table: str, name: str, values: list[Any]) -> Array:
    """The column in its declared type; as text if the column has NULLs, which the database reads."""
    kind = next(c.kind for c in TABLES[table].columns if c.name == name)
    if kind == "text":
        return _objects([None if v is None else visible(v) for v in values])
    if None in values:
        return _objects([None if v is None else str(v) for v in values])
    return np.array(values, kind)


# -- what is counted


def count_request(wanted: Mapping[str, Collection[str]]) -> dict[str, bool] | None:
    """The single request to `analysis.count_stacks` for the ``wanted`` columns of tables; ``None`` for nothing."""
    if not wanted.keys() & {"edges", "ranges"}:
        return None
    return {"ranges": "ranges" in wanted, "details": not _DETAILS.isdisjoint(wanted.get("edges", ()))}


def _edges(loading: TableLoader, _table: str, wanted: Wanted) -> Iterator[Chunk]:
    found = loading.counted.branches
    recorded = found.take((found.a != 0) | (found.b != 0) | (found.a_module >= 0))
    known = recorded.mispredicted + recorded.predicted > 0
    chunk = {
        "process": recorded.process,
        "from_module": recorded.a_module,
        "from_address": recorded.a,
        "to_module": recorded.b_module,
        "to_address": recorded.b,
        "count": recorded.count,
        "mispredicted": np.where(known, recorded.mispredicted, -1),
        "predicted": np.where(known, recorded.predicted, -1),
    }
    if recorded.values:
        low, high = recorded.values["type_low"], recorded.values["type_high"]
        chunk["type"] = TYPE_NAMES[np.where(low == high, low, 0)]
        chunk |= {name: recorded.values[of] for name, of in _GATHERED.items()}
    for name, of in (("from_function", "from"), ("to_function", "to")):
        if name in wanted:
            chunk[name] = loading.functions(recorded.process, chunk[f"{of}_module"], chunk[f"{of}_address"])
    yield chunk


_GATHERED = {"cycles": "cycles", "timed": "timed", "in_tx": "in_tx", "aborts": "abort"}
_DETAILS = frozenset([*_GATHERED, "type"])


def _ranges(loading: TableLoader, _table: str, wanted: Wanted) -> Iterator[Chunk]:
    found = loading.counted.ranges
    assert found is not None
    chunk = {
        "process": found.process,
        "module": found.a_module,
        "start_address": found.a,
        "end_address": found.b,
        "count": found.count,
    }
    if "function" in wanted:
        chunk["function"] = loading.functions(found.process, found.a_module, found.a)
    yield chunk


def _stacks(loading: TableLoader, _table: str, wanted: Wanted) -> Iterator[Chunk]:
    found = loading.stacks
    yield {
        "id": np.arange(len(found)),
        "event": found.event,
        "process": found.process,
        "samples": found.samples,
        "period": found.period,
        "depth": np.diff(found.offsets),
    }


def _stack_frames(loading: TableLoader, _table: str, wanted: Wanted) -> Iterator[Chunk]:
    found = loading.stacks
    sizes = np.diff(found.offsets)
    stack = np.repeat(np.arange(len(found)), sizes)
    module, address = found.module[found.frame], found.address[found.frame]
    chunk = {
        "stack": stack,
        "position": positions(found.offsets),
        "module": module,
        "address": address,
    }
    if "function" in wanted:
        chunk["function"] = loading.functions(found.process[stack], module, address)
    yield chunk


_LOADERS: dict[str, Callable[[TableLoader, str, Wanted], Iterator[Chunk]]] = {
    **dict.fromkeys(("captures", "modules", "processes", "threads", "events"), _model),
    **dict.fromkeys(GROUPS, _samples),
    "edges": _edges,
    "ranges": _ranges,
    "stacks": _stacks,
    "stack_frames": _stack_frames,
}
assert set(_LOADERS) == set(TABLES)
