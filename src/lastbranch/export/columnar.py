"""``--to parquet`` and ``--to arrow``: the model as columns, a file for each table, in a folder.

The tables modules, processes, threads and events are there whole; samples, branches (branch entries) and frames (call
chains) are written in pieces while the capture is read. The columns are the ones of `lastbranch.model.COLUMNS` and the
binder's results: rows of the other tables, and module addresses. Needs pyarrow (``lastbranch[arrow]``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, fields
from importlib import import_module
from typing import Any

import numpy as np

from ..analysis import TYPE_NAMES, BoundRows, filtered_batches
from ..errors import UnavailableError
from ..lbr import FLAG_FIELDS, branch_type, flag, flag_known
from ..model import (
    BRANCH,
    COLUMNS,
    FRAME,
    REQUIRED,
    TABLES,
    Column,
    Module,
    PartFolder,
    Profile,
    SampleBatch,
    Segment,
    column,
    naming,
    visible,
)
from .binary_choice import limit_to_binary
from .folder import write_index, writing_folder
from .interface import ExportOptions, ExportResult

__all__ = ["arrow_type", "export_tables"]


# -- The tables of a profile in Arrow, whose types are those of the model's dataclasses


_UNSIGNED = {(Module, "size"), (Module, "image_base"), *((Segment, f.name) for f in fields(Segment))}
"""Numbers that can be addresses."""
_WORD = (1 << 64) - 1


def pyarrow(module: str = "pyarrow") -> Any:
    """The library, or a module of it. Raises `UnavailableError` where it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise UnavailableError("pyarrow is not installed", hint="pip install 'lastbranch[arrow]'") from None


def model_table(profile: Profile, name: str) -> Any:
    """The table ``name`` (one of `lastbranch.model.TABLES`) as a ``pyarrow.Table``; ``row`` is what others refer to."""
    pa = pyarrow()

    columns: dict[str, Any] = {"row": pa.array(range(len(getattr(profile, name))), pa.int64())}
    for field in fields(TABLES[name]):
        kind, convert = arrow_type(TABLES[name], field.name, str(field.type))
        columns[field.name] = pa.array([convert(getattr(row, field.name)) for row in getattr(profile, name)], kind)
    return pa.table(columns)


def arrow_type(owner: type, name: str, annotation: str) -> tuple[Any, Callable[[Any], Any]]:
    """The type of a field and what makes its values. Raises `KeyError` for an annotation that has none."""
    pa = pyarrow()

    number = pa.uint64() if (owner, name) in _UNSIGNED and annotation == "int" else pa.int64()
    segment = pa.struct([(f.name, pa.bool_() if f.type == "bool" else pa.uint64()) for f in fields(Segment)])
    known: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "int": (number, int),
        "int | None": (pa.int64(), lambda value: value),
        "bool": (pa.bool_(), bool),
        "str": (pa.string(), visible),
        "bytes": (pa.binary(), bytes),
        "ModuleKind": (pa.string(), str),
        "UUID | None": (pa.string(), lambda value: None if value is None else str(value)),
        "tuple[int, ...]": (pa.list_(pa.uint64()), lambda values: [v & _WORD for v in values]),
        "dict[str, int]": (pa.map_(pa.string(), pa.uint64()), lambda d: [(k, v & _WORD) for k, v in d.items()]),
        "tuple[Segment, ...]": (pa.list_(segment), lambda values: list(map(asdict, values))),
    }
    return known[annotation]


SAMPLES = (
    Column("time_ns", "int64", "ns", "when, since the first event of the capture"),
    Column("process", "int64", "row", "of the processes table; null: unknown"),
    Column("thread", "int64", "row", "of the threads table; null: unknown"),
    Column("module", "int64", "row", "of the modules table that ip is in; null: nothing mapped"),
    Column("address", "uint64", "address", "ip as address of its module"),
)
"""Columns of samples beside those of the model."""

LONG = {
    BRANCH: (
        Column("from_module", "int64", "row", "of the modules table; null: nothing mapped"),
        Column("from_address", "uint64", "address", "branch_from as address of its module"),
        Column("to_module", "int64", "row", "of the modules table; null: nothing mapped"),
        Column("to_address", "uint64", "address", "branch_to as address of its module"),
    ),
    FRAME: (
        Column("module", "int64", "row", "of the modules table; null: nothing mapped, or a marker"),
        Column("address", "uint64", "address", "frame as address of its module"),
    ),
}
"""Columns of branches and frames beside those of the model; each row has its ``sample`` and its ``index`` there."""

_FILES = {"samples": "sample", "branches": BRANCH, "frames": FRAME}
_ROW_COLUMNS = ("process", "thread", "module")
"""Endings of the columns that are rows of other tables."""
_FLAGS = tuple(name for name in FLAG_FIELDS if name not in ("type", "new_type", "reserved"))
_ROW_GROUP = 1 << 17
"""Rows that are written at once: they are in memory until then."""


def export_tables(profile: Profile, folder: str, form: str, options: ExportOptions) -> ExportResult:
    """Write every table of ``profile`` as ``parquet`` or ``arrow`` (IPC files) into ``folder``.

    Raises `UnavailableError` where pyarrow is not installed, `OutputError` where the folder cannot be written.
    """
    pa = pyarrow()
    chosen = limit_to_binary(profile, options)
    with writing_folder(folder) as place:
        model, long = {name: model_table(profile, name) for name in TABLES}, _Long(pa, profile)
        schemas = {name: table.schema for name, table in model.items()} | long.schemas
        with ExitStack() as open_files:
            writers = {
                name: open_files.enter_context(_TableWriter(pa, place, f"{name}.{form}", form, schema))
                for name, schema in schemas.items()
            }
            for name in TABLES:
                writers[name].write(model.pop(name))
            for batch in filtered_batches(profile, profile.batches(), chosen):
                for name, columns in long.of(batch):
                    writers[name].write(pa.table(columns, schema=schemas[name]))
        rows = {name: writer.rows for name, writer in writers.items()}
        write_index(place, "file\ttable\trows\n", (f"{name}.{form}\t{name}\t{n}\n" for name, n in rows.items()))
    return ExportResult([], rows["samples"], rows["samples"])


class _TableWriter:
    """A file of one table, written in row groups (Parquet) or record batches (Arrow IPC)."""

    def __init__(self, pa: Any, place: PartFolder, name: str, form: str, schema: Any) -> None:
        self._pa, self._count, self.rows = pa, 0, 0
        self._shown = place.shown(name)
        self._waiting: list[Any] = []
        with naming(self._shown):
            if form == "parquet":
                self._out = pyarrow("pyarrow.parquet").ParquetWriter(place.file(name), schema, compression="zstd")
            else:
                self._out = pa.ipc.new_file(place.file(name), schema)

    def __enter__(self) -> _TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._waiting and kind is None:
            self._put_out()
        with naming(self._shown) if kind is None else suppress(OSError):
            self._out.close()

    def write(self, table: Any) -> None:
        self._waiting.append(table)
        self._count += len(table)
        self.rows += len(table)
        if self._count >= _ROW_GROUP:
            self._put_out()

    def _put_out(self) -> None:
        with naming(self._shown):
            self._out.write_table(self._pa.concat_tables(self._waiting).combine_chunks())
        self._waiting, self._count = [], 0


class _Long:
    """The columns of the tables that grow with the capture."""

    def __init__(self, pa: Any, profile: Profile) -> None:
        self._pa, self._profile = pa, profile
        self._sample = 0
        there = {c.name for c in REQUIRED}.union(*(stream.columns for stream in profile.streams))
        self._columns = [c for c in COLUMNS if c.name in there]
        groups = {c.group for c in self._columns}
        self.schemas = {name: self._schema(name, group) for name, group in _FILES.items() if group in groups}

    def _schema(self, name: str, group: str) -> Any:
        pa = self._pa
        fields = [pa.field("sample", pa.int64(), metadata={"meaning": "number of the sample, from 0"})]
        if group == "sample":
            own = [c for c in self._columns if c.group not in (BRANCH, FRAME)]
            columns = [*own, *SAMPLES]
        else:
            fields.append(pa.field("index", pa.int32(), metadata={"meaning": "place in its stack, from 0"}))
            columns = [*(c for c in self._columns if c.group == group), *LONG[group]]
        for c in columns:
            kind = pa.from_numpy_dtype(np.dtype(c.dtype))
            kind = kind if c.group in ("sample", group) else pa.list_(kind)
            fields.append(pa.field(c.name, kind, metadata={"unit": c.unit, "meaning": c.meaning}))
        if group == BRANCH:
            fields.append(pa.field("type", pa.string(), metadata={"meaning": "kind of branch; null: not known"}))
            for flag in _FLAGS:
                kind = pa.bool_() if FLAG_FIELDS[flag][1] == 1 else pa.uint32()
                fields.append(pa.field(flag, kind, metadata={"unit": "branch_flags"}))
        clock = self._profile.clock
        known = {"clock": clock.name, "ticks_per_second": str(clock.frequency), "table": name}
        return pa.schema(fields, metadata=known)

    def of(self, batch: SampleBatch) -> Iterator[tuple[str, dict[str, Any]]]:
        """(table, its columns) of a batch."""
        samples = BoundRows(self._profile, batch, self._sample)
        self._sample += len(batch)
        for name, schema in self.schemas.items():
            group = _FILES[name]
            if group == "sample" or group in batch.offsets:
                rows = samples if group == "sample" else samples.entries(group)
                yield name, {field.name: self._array(rows, field) for field in schema}

    def _array(self, rows: BoundRows, field: Any) -> Any:
        """A column in Arrow; null where it has nothing, also for -1 in rows of other tables."""
        name, batch = field.name, rows.batch
        if name == "type" or name in _FLAGS:
            flags = batch["branch_flags"]
            decoded = TYPE_NAMES[branch_type(flags)] if name == "type" else flag(flags, name)
            if name in _FLAGS and FLAG_FIELDS[name][1] == 1:
                decoded = decoded.astype(bool)
            return self._pa.array(decoded, field.type, mask=~flag_known(flags, name))
        values = rows.column("position" if name == "index" else name)
        if values is None or (name == "time_ns" and not self._profile.clock.has_time):
            return self._pa.nulls(len(rows), field.type)
        if self._pa.types.is_list(field.type):
            offsets = self._pa.array(batch.offsets[column(name).group], self._pa.int32())
            return self._pa.ListArray.from_arrays(offsets, values)
        return self._pa.array(values, field.type, mask=values < 0 if name.endswith(_ROW_COLUMNS) else None)
