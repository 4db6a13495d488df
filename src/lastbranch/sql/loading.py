"""What the tables are made of: columns by name, in chunks, and only those that are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis import CallStacks, Namer, call_stacks, count_stacks
from ..arrays import positions
from ..bind import Binder, binder_of
from ..model import Array, Profile
from .database import Chunk
from .entries import GROUP_OF, TYPE_NAMES, entries, samples
from .schema import TABLES

if TYPE_CHECKING:
    from ..symbols import Symbolizer

__all__ = ["Loading"]

Wanted = frozenset[str]


class Loading:
    """Loads tables of ``profile``. ``notes`` is what the user should be told of names."""

    def __init__(self, profile: Profile, symbols: Symbolizer | None) -> None:
        self.profile, self._symbols = profile, symbols
        self.binder: Binder = binder_of(profile)

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
            for name, column in columns.items():
                value = values[name] if name in values else getattr(row, name)
                column.append(None if value == "" else value)
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
    recorded = found.only((found.a != 0) | (found.b != 0) | (found.a_module >= 0))
    told = recorded.mispredicted + recorded.predicted > 0
    chunk = {
        "process": recorded.process, "from_module": recorded.a_module, "from_address": recorded.a,
        "to_module": recorded.b_module, "to_address": recorded.b, "count": recorded.count,
        "mispredicted": np.where(told, recorded.mispredicted, -1), "predicted": np.where(told, recorded.predicted, -1),
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
