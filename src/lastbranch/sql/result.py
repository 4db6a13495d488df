"""Running a query, and its rows."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import LastbranchError
from ..model import SHOWN, Array, Profile, frame_library, html_table, text_table, visible
from .database import Database, Plan, is_scanned_again, plan_of, statement_of, unplanned_table
from .loading import TableLoader, count_request
from .schema import TABLES

if TYPE_CHECKING:
    from ..analysis import Estimate
    from ..symbols import Symbolizer

__all__ = ["MEMORY", "Result", "count_request_of", "query"]

MEMORY = 128 << 20
"""Bytes that DuckDB keeps in memory before it spills to its folder."""
_ROWS = 4096


def count_request_of(sql: str) -> dict[str, bool] | None:
    """The request to `analysis.count_stacks` that the SELECT statement ``sql`` makes, so that counting runs while the
    capture is opened; ``None`` where it needs no counts. Raises `SelectionError` for wrong SQL."""
    return count_request(plan_of(statement_of(sql)).wanted)


def query(
    profile: Profile,
    sql: str,
    *,
    symbols: Symbolizer | None = None,
    memory: int = MEMORY,
    estimate: Estimate | None = None,
) -> Result:
    """Run one SELECT statement over ``profile``; the tables are those of `lastbranch.query.TABLES` (docs: SQL).

    Only the columns that the statement reads are loaded, and functions are named (by ``symbols``; ``None``: the
    defaults) only if it asks for them. The database is in memory, spills to a private folder past ``memory`` bytes, and
    can neither read files, variables or networks nor load extensions. With an ``estimate``
    (`analysis.estimate_executions`) edges and ranges are counted by executions.

    Raises `SelectionError` for wrong SQL, `NotRecordedError` where a table needs what the capture lacks, and
    `UnavailableError` where DuckDB, memory or room on disk is missing.
    """
    statement = statement_of(sql)
    plan = plan_of(statement)
    while True:
        try:
            return _run(profile, statement, plan, symbols, memory, estimate)
        except LastbranchError as error:
            if table := unplanned_table(error):
                every = {c.name for c in TABLES[table].columns}
                plan = Plan({**plan.wanted, table: every}, plan.streamed - {table})
            elif plan.streamed and is_scanned_again(error):
                plan = Plan(plan.wanted)
            else:
                raise


def _run(
    profile: Profile, sql: str, plan: Plan, symbols: Symbolizer | None, memory: int, estimate: Estimate | None
) -> Result:
    database = Database(memory)
    try:
        loading = TableLoader(profile, symbols, plan.wanted, estimate)
        with database.failures():
            for name, wanted in plan.wanted.items():
                if name in plan.streamed:
                    database.stream(TABLES[name], wanted, partial(loading.chunks, name))
                else:
                    database.fill(TABLES[name], wanted, loading.chunks(name))
            database.show(loading.labels())
            database.connection.execute(sql)
        return Result(database, sql, loading.notes)
    except BaseException:
        database.close()
        raise


class Result:
    """The rows of a query: iterate over them once, as tuples, or take `arrays`, `df`, `pl` or `arrow`.

    ``repr`` and notebooks show the first rows.

    ``columns`` are their names; ``notes`` what the user should know. `close`, or leaving it as a context manager,
    frees the database.
    """

    def __init__(self, database: Database, sql: str, notes: list[str]) -> None:
        self._database, self._connection, self._sql = database, database.connection, sql
        self.columns: list[str] = [str(column[0]) for column in self._connection.description or ()]
        self.notes = notes
        self.close = weakref.finalize(self, database.close)

    def __enter__(self) -> Result:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while rows := self._fetch():
            yield from rows

    def arrays(self) -> dict[str, Array]:
        """The rows that are left as NumPy arrays by column, masked where there are NULLs."""
        with self._database.failures():
            return dict(self._connection.fetchnumpy())

    def df(self) -> Any:
        """The rows that are left as a pandas ``DataFrame``. Raises `UnavailableError` where pandas is not installed."""
        frame_library("pandas")
        with self._database.failures():
            return self._connection.df()

    def pl(self) -> Any:
        """The rows that are left as a Polars ``DataFrame``. Raises `UnavailableError` without Polars and pyarrow."""
        return frame_library("polars").from_arrow(self.arrow())

    def arrow(self) -> Any:
        """The rows that are left as a pyarrow ``Table``. Raises `UnavailableError` where pyarrow is not installed."""
        frame_library("pyarrow")
        with self._database.failures(), warnings.catch_warnings():
            # DuckDB 2 would rather run the query anew, without a copy of its rows: some may have been read already.
            warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning)
            connection: Any = self._connection
            named = hasattr(connection, "to_arrow_table")  # since DuckDB 2.0
            return connection.to_arrow_table() if named else connection.fetch_arrow_table()

    def __repr__(self) -> str:
        return text_table("Result", None, self.columns, self._first())

    def _repr_html_(self) -> str:
        return html_table("Result", None, self.columns, self._first())

    def _first(self) -> list[list[str]]:
        """The first rows as text, by a query of their own: nothing is taken from what the caller has still to read."""
        if not self.close.alive:
            return []
        with self._database.failures():
            rows = self._database.cursor().execute(f"SELECT * FROM ({self._sql}) LIMIT {SHOWN + 1}").fetchall()
        return [["" if value is None else visible(str(value)) for value in row] for row in rows]

    def _fetch(self) -> list[tuple[Any, ...]]:
        with self._database.failures():
            return self._connection.fetchmany(_ROWS)
