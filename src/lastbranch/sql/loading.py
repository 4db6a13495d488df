"""What the tables are made of: columns by name, in chunks, and only those that are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..analysis import CallStacks, Namer, call_stacks, count_stacks, how_to_record, why_no_stacks
from ..arrays import positions
from ..errors import NotRecordedError
from ..lbr import branch_type, flag, flag_known, type_name
from ..model import BRANCH, FRAME, AddressSpaces, Array, Profile, SampleBatch, column
from .database import Chunk
from .schema import TABLES, UNKNOWN

if TYPE_CHECKING:
    from ..symbols import Symbolizer

__all__ = ["Loading"]


# -- Samples and what they hold, batch after batch


GROUP_OF = {
    "branches": BRANCH, "frames": FRAME, "counters": "read", "user_registers": "user_regs",
    "interrupt_registers": "intr_regs",
}  # fmt: skip
"""Table -> group of ragged columns that it shows."""

TYPE_NAMES = np.array([None, *(type_name(code) for code in range(1, 256))], object)
"""Names of the types of branches by their code; 0 is that of records that do not tell."""


def samples(loading: Loading, wanted: frozenset[str]) -> Iterator[Chunk]:
    """The table ``samples``."""
    profile = loading.profile
    first = 0
    for stream in profile.streams:
        needed = {name for name in wanted if name in stream.columns}
        if "depth" in wanted:
            needed.update(stream.for_depth)
        for batch in stream.batches(needed):
            made = _Samples(loading, batch, first, stream.number)
            yield {name: value for name in wanted | {"sample"} if (value := made.column(name)) is not None}
            first += len(batch)


def entries(loading: Loading, table: str, wanted: frozenset[str]) -> Iterator[Chunk]:
    """A table of what samples hold several of. Raises `NotRecordedError` where no sample can have any."""
    profile, group = loading.profile, GROUP_OF[table]
    if group == BRANCH and (reason := why_no_stacks(profile)):
        raise NotRecordedError(reason, hint=how_to_record(profile))
    own = {c for stream in profile.streams for c in stream.columns if column(c).group == group}
    if not own:
        raise NotRecordedError(f"there is nothing in the table {table}: the samples have no {_WHAT[table]}")
    needed = {_FROM.get(name, name) for name in wanted} & own or {min(own)}
    first = 0
    for stream in profile.streams:
        mine = needed & set(stream.columns)
        if not mine:
            first += stream.samples
            continue
        for batch in stream.batches(mine):
            if group in batch.offsets and batch.offsets[group][-1]:
                made = _Entries(loading, batch, first, stream.number, group)
                yield {name: value for name in wanted | {"sample"} if (value := made.column(name)) is not None}
            first += len(batch)


_WHAT = {
    "branches": "branch stacks", "frames": "call chains", "counters": "counter values",
    "user_registers": "user registers", "interrupt_registers": "registers",
}  # fmt: skip
_FROM = {
    **{f"from_{part}": "branch_from" for part in ("module", "address", "function")},
    **{f"to_{part}": "branch_to" for part in ("module", "address", "function")},
    **dict.fromkeys(("module", "address", "function"), "frame"),
    **dict.fromkeys(("mispredicted", "predicted", "in_tx", "abort", "cycles", "type"), "branch_flags"),
}
"""Column that is made here -> recorded column that it is made from."""


@dataclass
class _Samples:
    """Columns of a batch: the recorded ones, and those of `_MADE`."""

    loading: Loading
    batch: SampleBatch
    first: int
    stream: int

    def column(self, name: str) -> Array | None:
        """``None`` for what the batch does not have."""
        make = _MADE.get(name)
        return make(self) if make else self.batch.columns.get(name)

    @cached_property
    def scope(self) -> NDArray[np.int64]:
        return self.loading.binder.scopes(self.batch)

    @cached_property
    def process(self) -> NDArray[np.int64]:
        return self.loading.binder.process_of(self.scope)

    @cached_property
    def place(self) -> tuple[Array, Array]:
        return self.loading.binder.locate(self.scope, self.batch.ip)

    @property
    def time_ns(self) -> NDArray[np.int64]:
        profile = self.loading.profile
        return profile.clock.to_ns_array(self.batch.time - (profile.start or 0))


_MADE: dict[str, Callable[[_Samples], Array]] = {
    "sample": lambda s: np.arange(s.first, s.first + len(s.batch)),
    "stream": lambda s: np.full(len(s.batch), s.stream),
    "time_ns": lambda s: s.time_ns,
    "process": lambda s: s.process,
    "thread": lambda s: s.loading.binder.threads_of(s.batch, s.scope),
    "module": lambda s: s.place[0],
    "address": lambda s: s.place[1],
    "function": lambda s: s.loading.functions(s.process, *s.place),
    "depth": lambda s: s.batch.depth,
}


@dataclass
class _Entries:
    """Columns of the entries of a batch in ``group``."""

    loading: Loading
    batch: SampleBatch
    first: int
    stream: int
    group: str

    def column(self, name: str) -> Array | None:
        """``None`` for what the batch does not have."""
        if name in _OF_ENTRY:
            return _OF_ENTRY[name](self)
        source, _, part = _FROM.get(name, ""), *name.rpartition("_")[1:]
        if name in ("event", "process", "thread"):
            of_sample = self.samples.column(name) if name != "event" else self.batch.event
            assert of_sample is not None
            return np.asarray(of_sample[self.owner])
        if source == "branch_flags":
            return _flag_column(name, self.batch[source]) if source in self.batch else None
        if source:
            return self._place(source, part)
        return self.batch.columns.get(name)

    @cached_property
    def samples(self) -> _Samples:
        return _Samples(self.loading, self.batch, self.first, self.stream)

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """Sample of each entry, by its row in the batch."""
        return np.repeat(np.arange(len(self.batch)), np.diff(self.batch.offsets[self.group]))

    @cached_property
    def _places(self) -> dict[str, tuple[Array, Array]]:
        return {}

    def _place(self, source: str, part: str) -> Array | None:
        if source not in self.batch:
            return None
        if source not in self._places:
            self._places[source] = self.loading.binder.locate(self.samples.scope[self.owner], self.batch[source])
        module, address = self._places[source]
        if part == "function":
            return self.loading.functions(self.samples.process[self.owner], module, address)
        return module if part == "module" else address


_OF_ENTRY: dict[str, Callable[[_Entries], Array]] = {
    "sample": lambda e: e.owner + e.first,
    "position": lambda e: np.arange(len(e.owner)) - e.batch.offsets[e.group][e.owner],
}


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


class Loading:
    """Loads tables of ``profile``. ``notes`` is what the user should know of names."""

    def __init__(self, profile: Profile, symbols: Symbolizer | None) -> None:
        self.profile, self._symbols = profile, symbols
        self.binder: AddressSpaces = profile.binder

    @cached_property
    def namer(self) -> Namer:
        """Made when the first function is asked for: looking for symbol files takes time."""
        from ..symbols import Symbolizer

        self._symbols = self._symbols or Symbolizer(self.profile)
        return Namer(self.profile, self._symbols)

    @property
    def notes(self) -> list[str]:
        return self._symbols.notes if self._symbols and "namer" in self.__dict__ else []

    def chunks(self, table: str, wanted: Wanted) -> Iterator[Chunk]:
        """The ``wanted`` columns of a table; a chunk has at most what one batch holds."""
        load = _LOADERS.get(table)
        return load(self, wanted) if load else entries(self, table, wanted)

    def labels(self) -> Chunk:
        """``id`` and ``text`` of every function that was met; code without a name has no row."""
        known = self.namer.labels if "namer" in self.__dict__ else []
        rows = [(i, label.function) for i, label in enumerate(known) if label.function]
        return {"id": np.array([i for i, _ in rows], np.int64), "text": _objects([text for _, text in rows])}

    def functions(self, process: Array, module: Array, address: Array) -> Array:
        """int64: label of the function at each place."""
        return self.namer.rows(process, module, address)

    @cached_property
    def stacks(self) -> CallStacks:
        return call_stacks(self.profile)


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


def _model(table: str) -> Callable[[Loading, Wanted], Iterator[Chunk]]:
    def load(loading: Loading, wanted: Wanted) -> Iterator[Chunk]:
        rows = getattr(loading.profile, table)
        columns: dict[str, list[Any]] = {name: [] for name in wanted | {"id"}}
        for i, row in enumerate(rows):
            values = {"id": i, **_row_values(table, row)}
            for name, cells in columns.items():
                value = values[name] if name in values else getattr(row, name)
                cells.append(None if value == "" else value)
        if rows:
            yield {name: _column(table, name, values) for name, values in columns.items()}

    return load


def _column(table: str, name: str, values: list[Any]) -> Array:
    """Of the declared type; as text where there are NULLs, which the database reads."""
    kind = next(c.kind for c in TABLES[table].columns if c.name == name)
    if kind == "text":
        return _objects(values)
    if None in values:
        return _objects([None if v is None else str(v) for v in values])
    return np.array(values, kind)


# -- what is counted


def _edges(loading: Loading, wanted: Wanted) -> Iterator[Chunk]:
    found = count_stacks(loading.profile, ranges=False, details=bool(wanted & _DETAILS)).branches
    recorded = found.take((found.a != 0) | (found.b != 0) | (found.a_module >= 0))
    known = recorded.mispredicted + recorded.predicted > 0
    chunk = {
        "process": recorded.process, "from_module": recorded.a_module, "from_address": recorded.a,
        "to_module": recorded.b_module, "to_address": recorded.b, "count": recorded.count,
        "mispredicted": np.where(known, recorded.mispredicted, -1),
        "predicted": np.where(known, recorded.predicted, -1),
    }  # fmt: skip
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


def _ranges(loading: Loading, wanted: Wanted) -> Iterator[Chunk]:
    found = count_stacks(loading.profile, ranges=True, details=False).ranges
    assert found is not None
    chunk = {
        "process": found.process, "module": found.a_module, "start_address": found.a, "end_address": found.b,
        "count": found.count,
    }  # fmt: skip
    if "function" in wanted:
        chunk["function"] = loading.functions(found.process, found.a_module, found.a)
    yield chunk


def _stacks(loading: Loading, wanted: Wanted) -> Iterator[Chunk]:
    found = loading.stacks
    yield {
        "id": np.arange(len(found)), "event": found.event, "process": found.process, "samples": found.samples,
        "period": found.period, "depth": np.diff(found.offsets),
    }  # fmt: skip


def _stack_frames(loading: Loading, wanted: Wanted) -> Iterator[Chunk]:
    found = loading.stacks
    sizes = np.diff(found.offsets)
    stack = np.repeat(np.arange(len(found)), sizes)
    module, address = found.module[found.frame], found.address[found.frame]
    chunk = {
        "stack": stack, "position": positions(found.offsets),
        "module": module, "address": address,
    }  # fmt: skip
    if "function" in wanted:
        chunk["function"] = loading.functions(found.process[stack], module, address)
    yield chunk


_LOADERS: dict[str, Callable[[Loading, Wanted], Iterator[Chunk]]] = {
    **{name: _model(name) for name in ("modules", "processes", "threads", "events")},
    "samples": samples,
    "edges": _edges,
    "ranges": _ranges,
    "stacks": _stacks,
    "stack_frames": _stack_frames,
}
assert set(_LOADERS) | set(GROUP_OF) == set(TABLES)
