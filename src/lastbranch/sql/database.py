"""The database of one query: no access to the outside, limited memory, and only the data that the query reads.

A table is loaded, or stays where it is and is read while the query runs (`arrow_stream`), which takes a quarter of the
time and no memory. DuckDB reads a stream anew for each scan of it, so that is for tables that a query scans once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..closed_database import closed_database, first_line
from ..errors import LastbranchError, SelectionError, UnavailableError
from ..model import Array, check_utf8, temporary_folder
from .arrow_stream import FORMATS, ChunkStream
from .schema import GROUPS, TABLES, SqlColumn, SqlTable

if TYPE_CHECKING:
    import duckdb

__all__ = ["Chunk", "Database", "Plan", "failures", "plan_of", "is_scanned_again", "statement_of", "unplanned_table"]

Chunk = dict[str, Array]
"""Columns of equal length by name; those that are missing are NULL."""

_OBJECTS = {"pandas_analyze_sample": "0"}
"""Objects are texts: DuckDB before 2.0 fails to guess at columns without any."""
_THREADS = 4


class Database:
    """A database in memory that spills to a private folder past ``memory`` bytes; the folder goes when it is closed."""

    def __init__(self, memory: int) -> None:
        self._folder = temporary_folder("lastbranch-sql")
        limits = {
            "memory_limit": f"{memory >> 20}MiB",
            "threads": str(min(_THREADS, os.cpu_count() or 1)),
            "temp_directory": self._folder.path,
        }
        self.connection = closed_database({**_OBJECTS, **limits})
        self.connection.execute("CREATE SCHEMA loaded")
        self._loaded: dict[str, set[str]] = {}
        self._streams: dict[str, ChunkStream] = {}

    def close(self) -> None:
        self.connection.close()
        self._folder.discard()

    @contextmanager
    def failures(self) -> Iterator[None]:
        """`failures` of running the query: where a table could not be read, that is what is raised."""
        try:
            with failures():
                yield
        except LastbranchError:
            for stream in self._streams.values():
                if stream.error is not None:
                    raise stream.error from None
            raise

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """One more connection, for another query."""
        cursor = self.connection.cursor()
        self._register(cursor)
        return cursor

    def _register(self, connection: duckdb.DuckDBPyConnection) -> None:
        for name, stream in self._streams.items():
            connection.register(_STREAM.format(name), stream)

    def stream(self, table: SqlTable, wanted: Collection[str], chunks: Callable[[], Iterator[Chunk]]) -> None:
        """Have ``table`` read by the query, which gets the ``wanted`` columns of ``chunks()``. Not for text."""
        columns = _columns(table, wanted)
        self._streams[table.name] = ChunkStream([(c.name, c.kind) for c in columns], chunks)
        self._loaded[table.name] = {c.name for c in columns}

    def fill(self, table: SqlTable, wanted: Collection[str], chunks: Iterable[Chunk]) -> None:
        """Load the ``wanted`` columns of ``table``."""
        columns = _columns(table, wanted)
        stored = ", ".join(f'"{c.name}" {c.stored}' for c in columns)
        self.connection.execute(f'CREATE TABLE loaded."{table.name}" ({stored})')
        for chunk in _join_chunks(chunks, [c.name for c in columns]):
            values = ", ".join(_value(f'"{c.name}"', c.none) if c.name in chunk else "NULL" for c in columns)
            self._insert(f'INSERT INTO loaded."{table.name}" SELECT {values} FROM chunk', chunk)
        self._loaded[table.name] = {c.name for c in columns}

    def show(self, labels: Chunk) -> None:
        """Give what was loaded the names and columns that are declared; ``labels``: their ``id`` and ``text``."""
        self.connection.execute("CREATE TABLE loaded.labels (id INTEGER, text VARCHAR)")
        self._insert("INSERT INTO loaded.labels SELECT id, text FROM chunk", labels)
        self._register(self.connection)
        for table in TABLES.values():
            shown = self._view(table) if table.name in self._loaded else _closed_view(table)
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
        streamed = table.name in self._streams
        source = f'"{_STREAM.format(table.name)}"' if streamed else f'loaded."{table.name}"'
        guard = _unplanned_error(table, f'data."{min(loaded)}"')
        for i, c in enumerate(table.columns):
            if c.name not in loaded:
                columns.append(f'CAST({guard} AS {c.type}) AS "{c.name}"')
            elif c.kind == "label":
                columns.append(f'l{i}.text AS "{c.name}"')
                joins += f' LEFT JOIN loaded.labels l{i} ON l{i}.id = data."{c.name}"'
            else:
                value = _value(f'data."{c.name}"', c.none if streamed else None)
                columns.append(f'CAST({value} AS {c.type}) AS "{c.name}"')
        return f"SELECT {', '.join(columns)} FROM {source} data{joins}"


_STREAM = "{} as they are read"


def _columns(table: SqlTable, wanted: Collection[str]) -> list[SqlColumn]:
    """The ``wanted`` columns of ``table``, or its first one if nothing but the rows matters."""
    return [c for c in table.columns if c.name in wanted] or [table.columns[0]]


def _closed_view(table: SqlTable) -> str:
    """A table that can be described, but to read any of it is an error."""
    guard = _unplanned_error(table, "data.row")
    columns = ", ".join(f'CAST({guard} AS {c.type}) AS "{c.name}"' for c in table.columns)
    return f"SELECT {columns} FROM range(1) data(row) WHERE CAST({guard} AS BOOLEAN)"


def _unplanned_error(table: SqlTable, row: str) -> str:
    return f"error(concat('{_UNPLANNED}{table.name}', CAST({row} AS VARCHAR)[:0]))"  # no constant: raised if it is read


_UNPLANNED = "not loaded: "


def _join_chunks(chunks: Iterable[Chunk], names: Collection[str]) -> Iterator[Chunk]:
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


def _value(value: str, none: int | None) -> str:
    return value if none is None else f"nullif({value}, {none})"


@contextmanager
def failures() -> Iterator[None]:
    """DuckDB's errors as ours, in one line."""
    import duckdb

    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.IOException, duckdb.InternalException) as error:
        raise UnavailableError(
            first_line(error), hint="give the query more with --memory, or select fewer columns"
        ) from None
    except duckdb.CatalogException as error:
        raise SelectionError(first_line(error), hint=f"the tables are {', '.join(TABLES)}") from None
    except duckdb.Error as error:
        if package := _PACKAGE.search(str(error)):
            needed = UnavailableError(
                f"values of this type need the Python package {package[1]}",
                hint=f"pip install {package[1]}, or cast them in the query: ::TIMESTAMP, ::VARCHAR",
            )
            raise needed from None
        raise SelectionError(first_line(error)) from None


_PACKAGE = re.compile(r"Required module '(\w+)' failed to import")


def statement_of(sql: str) -> str:
    """``sql`` if it is one statement that reads. Raises `SelectionError` for anything else."""
    check_utf8(sql, "the statement")
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
    connection = closed_database({**_OBJECTS, "threads": "1"}, lock=False)
    rows = connection.execute("SELECT DISTINCT name FROM duckdb_optimizers()").fetchall()
    # Others look at the rows: of empty tables nothing would be read.
    others = ",".join(name for (name,) in rows if name != "unused_columns")
    connection.execute(f"SET disabled_optimizers = '{others}'")
    connection.execute("SET lock_configuration = true")
    for table in TABLES.values():
        columns = ", ".join(f'"{c.name}" {c.type}' for c in table.columns)
        connection.execute(f'CREATE TABLE "{table.name}" ({columns})')
    return connection


class Plan(NamedTuple):
    """The tables and columns that a query reads: ``wanted`` columns by table, and which of the tables can be streamed
    (`Database.stream`)."""

    wanted: dict[str, set[str]]
    streamed: frozenset[str] = frozenset()


def plan_of(sql: str) -> Plan:
    """The tables and columns that ``sql`` reads, from DuckDB's plan of the query over empty tables.

    Raises `SelectionError` for SQL that DuckDB rejects.
    """
    with failures():
        rows = _planner().cursor().execute(f"EXPLAIN (FORMAT json) {sql}").fetchall()
    wanted: dict[str, set[str]] = {}
    todo, again = list(json.loads(rows[0][1])), set[str]()
    while todo:
        node = todo.pop()
        todo += node.get("children", [])
        about = node.get("extra_info", {})
        name = str(about.get("Table", "")).rpartition(".")[2]
        if str(node.get("name", "")).startswith("REC"):  # a recursion scans its tables any number of times
            again |= TABLES.keys()
        if name in TABLES:
            again |= wanted.keys() & {name}
            read = about.get("Projections", [])
            columns = [read] if isinstance(read, str) else read
            wanted.setdefault(name, set()).update(filter(None, columns))
    numbers = {
        name
        for name, columns in wanted.items()
        if name in GROUPS and all(c.kind in FORMATS for c in _columns(TABLES[name], columns))
    }
    return Plan(wanted, frozenset(numbers - again))


def unplanned_table(error: LastbranchError) -> str | None:
    """The table that a query read more of than `plan_of` foresaw, if that is what ``error`` says."""
    _, found, table = str(error).partition(_UNPLANNED)
    return table.split()[0] if found else None


def is_scanned_again(error: LastbranchError) -> bool:
    """Whether ``error`` says that a query scanned a stream more often than `plan_of` foresaw, which DuckDB before 2.0
    cannot do."""
    return "ArrowArrayStream was" in str(error)  # released by another thread, or already
