"""The database of one query: no access to the outside, limited memory, and only the data that the query reads."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SelectionError, UnavailableError
from ..model import Array
from .schema import TABLES, SqlTable

if TYPE_CHECKING:
    import duckdb

__all__ = ["Chunk", "Database", "failures", "statement_of", "unplanned", "wanted_columns"]

Chunk = dict[str, Array]
"""Columns of equal length by name; those that are missing are NULL."""

_CLOSED = {
    "enable_external_access": "false",  # neither files nor networks
    "python_enable_replacements": "false",  # nor variables of this program
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
}
_THREADS = 4


class Database:
    """A database in memory that spills to a private folder past ``memory`` bytes; the folder goes when it is closed."""

    def __init__(self, memory: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lastbranch-sql-")  # mode 0700
        limits = {
            "memory_limit": f"{memory >> 20}MiB",
            "threads": str(min(_THREADS, os.cpu_count() or 1)),
            "temp_directory": self._folder.name,
        }
        self.connection = _connect(limits)
        self.connection.execute("SET lock_configuration = true")
        self.connection.execute("CREATE SCHEMA loaded")
        self._loaded: dict[str, set[str]] = {}

    def close(self) -> None:
        self.connection.close()
        self._folder.cleanup()

    def fill(self, table: SqlTable, wanted: Collection[str], chunks: Iterable[Chunk]) -> None:
        """Load the ``wanted`` columns of ``table``, or its first one if nothing but the rows matters."""
        columns = [c for c in table.columns if c.name in wanted] or [table.columns[0]]
        stored = ", ".join(f'"{c.name}" {c.stored}' for c in columns)
        self.connection.execute(f'CREATE TABLE loaded."{table.name}" ({stored})')
        for chunk in _joined(chunks, [c.name for c in columns]):
            values = ", ".join(_value(c.name, c.none) if c.name in chunk else "NULL" for c in columns)
            self._insert(f'INSERT INTO loaded."{table.name}" SELECT {values} FROM chunk', chunk)
        self._loaded[table.name] = {c.name for c in columns}

    def show(self, labels: Chunk) -> None:
        """Give what was loaded the names and columns that are declared; ``labels``: their ``id`` and ``text``."""
        self.connection.execute("CREATE TABLE loaded.labels (id INTEGER, text VARCHAR)")
        self._insert("INSERT INTO loaded.labels SELECT id, text FROM chunk", labels)
        for table in TABLES.values():
            shown = self._view(table) if table.name in self._loaded else _closed(table)
            self.connection.execute(f'CREATE VIEW "{table.name}" AS {shown}')

    def _insert(self, statement: str, chunk: Chunk) -> None:
        self.connection.register("chunk", chunk)
        try:
            self.connection.execute(statement)
        finally:
            self.connection.unregister("chunk")

    def _view(self, table: SqlTable) -> str:
        """The table as it is declared. To read a column that is not loaded is an error."""
        loaded, columns, joins = self._loaded[table.name], [], ""
        for i, c in enumerate(table.columns):
            if c.name not in loaded:
                columns.append(f'CAST({_unplanned(table, "data.rowid")} AS {c.type}) AS "{c.name}"')
            elif c.kind == "label":
                columns.append(f'l{i}.text AS "{c.name}"')
                joins += f' LEFT JOIN loaded.labels l{i} ON l{i}.id = data."{c.name}"'
            else:
                columns.append(f'CAST(data."{c.name}" AS {c.type}) AS "{c.name}"')
        return f'SELECT {", ".join(columns)} FROM loaded."{table.name}" data{joins}'


def _closed(table: SqlTable) -> str:
    """A table that can be described, but to read any of it is an error."""
    guard = _unplanned(table, "data.row")
    columns = ", ".join(f'CAST({guard} AS {c.type}) AS "{c.name}"' for c in table.columns)
    return f"SELECT {columns} FROM range(1) data(row) WHERE CAST({guard} AS BOOLEAN)"


def _unplanned(table: SqlTable, row: str) -> str:
    return f"error(concat('{_UNPLANNED}{table.name}', CAST({row} AS VARCHAR)[:0]))"  # no constant: raised if it is read


_UNPLANNED = "not loaded: "


def _joined(chunks: Iterable[Chunk], names: Collection[str]) -> Iterator[Chunk]:
    """The columns ``names`` of chunks that follow each other, together: many rows at once take half the time to insert.

    A chunk without any of them keeps another column, for its number of rows. Columns are copied: readers reuse memory.
    """
    waiting: list[Chunk] = []
    size = 0
    for chunk in chunks:
        needed = {name: chunk[name].copy() for name in chunk.keys() & {*names} or [*chunk][:1]}
        if waiting and (size > _INSERTED_BYTES or needed.keys() != waiting[0].keys()):
            yield _together(waiting)
            waiting, size = [], 0
        waiting.append(needed)
        size += sum(column.nbytes for column in needed.values())
    if waiting:
        yield _together(waiting)


def _together(chunks: list[Chunk]) -> Chunk:
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


_INSERTED_BYTES = 8 << 20
"""Columns that wait to be inserted. DuckDB stores 122,880 rows together."""


def _value(name: str, none: int | None) -> str:
    return f'"{name}"' if none is None else f'nullif("{name}", {none})'


def _connect(limits: dict[str, str]) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError:
        raise UnavailableError("SQL needs DuckDB", hint="pip install duckdb") from None
    return duckdb.connect(":memory:", config={**_CLOSED, **limits})


@contextmanager
def failures() -> Iterator[None]:
    """DuckDB's errors as ours, in one line."""
    import duckdb

    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.IOException, duckdb.InternalException) as error:
        raise UnavailableError(
            _line(error), hint="give the query more with --memory, or select fewer columns"
        ) from None
    except duckdb.CatalogException as error:
        raise SelectionError(_line(error), hint=f"the tables are {', '.join(TABLES)}") from None
    except duckdb.Error as error:
        if package := _PACKAGE.search(str(error)):
            needed = UnavailableError(
                f"values of this type need the Python package {package[1]}",
                hint=f"pip install {package[1]}, or cast them in the query: ::TIMESTAMP, ::VARCHAR",
            )
            raise needed from None
        raise SelectionError(_line(error)) from None


_PACKAGE = re.compile(r"Required module '(\w+)' failed to import")


def _line(error: Exception) -> str:
    return next(filter(None, map(str.strip, str(error).split("\n"))), type(error).__name__)


def statement_of(sql: str) -> str:
    """``sql`` if it is one statement that reads. Raises `SelectionError` for anything else."""
    with failures():
        statements: Sequence[Any] = _planner().cursor().extract_statements(sql)
    kinds = [s.type.name for s in statements]
    if kinds != ["SELECT"]:
        found = ", ".join(kind.lower() for kind in kinds) or "nothing"
        raise SelectionError(f"a query is one SELECT statement; this is {found}")
    query: str = statements[0].query
    return query


@cache
def _planner() -> duckdb.DuckDBPyConnection:
    """A database of empty tables, in which statements are planned and never run."""
    connection = _connect({"threads": "1"})
    rows = connection.execute("SELECT DISTINCT name FROM duckdb_optimizers()").fetchall()
    # Others look at the rows: of empty tables nothing would be read.
    others = ",".join(name for (name,) in rows if name != "unused_columns")
    connection.execute(f"SET disabled_optimizers = '{others}'")
    connection.execute("SET lock_configuration = true")
    for table in TABLES.values():
        columns = ", ".join(f'"{c.name}" {c.type}' for c in table.columns)
        connection.execute(f'CREATE TABLE "{table.name}" ({columns})')
    return connection


def wanted_columns(sql: str) -> dict[str, set[str]]:
    """Table -> columns of it that ``sql`` reads, by DuckDB's own plan over empty tables.

    Raises `SelectionError` for SQL that is wrong.
    """
    with failures():
        rows = _planner().cursor().execute(f"EXPLAIN (FORMAT json) {sql}").fetchall()
    plan = json.loads(rows[0][1])
    wanted: dict[str, set[str]] = {}
    todo = list(plan)
    while todo:
        node = todo.pop()
        todo += node.get("children", [])
        about = node.get("extra_info", {})
        name = str(about.get("Table", "")).rpartition(".")[2]
        if name in TABLES:
            read = about.get("Projections", [])
            columns = [read] if isinstance(read, str) else read
            wanted.setdefault(name, set()).update(filter(None, columns))
    return wanted


def unplanned(error: SelectionError) -> str | None:
    """The table that a query read more of than `wanted_columns` foresaw, if that is what ``error`` says."""
    _, found, table = str(error).partition(_UNPLANNED)
    return table.split()[0] if found else None
