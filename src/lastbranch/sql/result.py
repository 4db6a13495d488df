"""Run a query, and its rows."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import SelectionError
from ..model import Array, Profile
from .database import Database, failures, statement_of, unplanned, wanted_columns
from .loading import Loading
from .schema import TABLES

if TYPE_CHECKING:
    from ..symbols import Symbolizer

__all__ = ["MEMORY", "Result", "query"]

MEMORY = 128 << 20
"""Bytes that DuckDB keeps in memory before it spills to its folder."""
_ROWS = 4096


def query(profile: Profile, sql: str, *, symbols: Symbolizer | None = None, memory: int = MEMORY) -> Result:
    """Run one SELECT statement over ``profile``; the tables are those of `lastbranch.query.TABLES` (docs: SQL).

    Only the columns that the statement reads are loaded, and functions are named (by ``symbols``; ``None``: the
    defaults) only if it asks for them. The database is in memory, spills to a private folder past ``memory`` bytes, and
    can neither read files, variables or networks nor load extensions.

    Raises `SelectionError` for wrong SQL, `NotRecordedError` where a table needs what the capture lacks, and
    `UnavailableError` where DuckDB, memory or room on disk is missing.
    """
    statement = statement_of(sql)
    wanted: dict[str, Collection[str]] = dict(wanted_columns(statement))
    while True:
        try:
            return _run(profile, statement, wanted, symbols, memory)
        except SelectionError as error:
            table = unplanned(error)
            if table is None:
                raise
            wanted[table] = [c.name for c in TABLES[table].columns]


def _run(
    profile: Profile, sql: str, wanted: dict[str, Collection[str]], symbols: Symbolizer | None, memory: int
) -> Result:
    database = Database(memory)
    try:
        loading = Loading(profile, symbols)
        with failures():
            for name in wanted:
                database.fill(TABLES[name], wanted[name], loading.chunks(name, frozenset(wanted[name])))
            database.show(loading.labels())
            database.connection.execute(sql)
        return Result(database, loading.notes)
    except BaseException:
        database.close()
        raise


class Result:
    """The rows of a query: iterate over them once, as tuples, or take `arrays`.

    ``columns`` are their names; ``notes`` what the user should be told. `close`, or leaving it as a context manager,
    frees the database.
    """

    def __init__(self, database: Database, notes: list[str]) -> None:
        self._connection = database.connection
        self.columns: list[str] = [str(column[0]) for column in self._connection.description or ()]
        self.notes = notes
        self.close = weakref.finalize(self, database.close)

    def __enter__(self) -> Result:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while rows := self._fetch():
            yield from rows

    def arrays(self) -> dict[str, Array]:
        """The rows that are left as NumPy arrays by column, masked where there are NULLs."""
        with failures():
            return dict(self._connection.fetchnumpy())

    def _fetch(self) -> list[tuple[Any, ...]]:
        with failures():
            return self._connection.fetchmany(_ROWS)
