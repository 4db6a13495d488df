"""The only way to DuckDB: a database in memory that reaches the files that it is given, and nothing else.

SQL runs over foreign data (captures, stores) and runs the user's own statements. So a database is closed before any SQL
runs: no files, no networks, no variables of this program, no extensions, and no setting that would open the database
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .errors import UnavailableError
from .model import check_utf8

if TYPE_CHECKING:
    import duckdb

__all__ = ["closed_database", "first_line", "text"]

_SETTINGS = {
    "python_enable_replacements": "false",  # no variables of this program
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
}


def closed_database(
    settings: Mapping[str, str], *, files: Iterable[str] = (), folders: Iterable[str] = (), lock: bool = True
) -> duckdb.DuckDBPyConnection:
    """A database in memory with ``settings``, which can reach these ``files`` and what is in these ``folders``.

    Without ``lock`` the caller changes more settings, and then sets ``lock_configuration``. Raises `UnavailableError`
    where DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise UnavailableError("SQL needs DuckDB", hint="pip install duckdb") from None
    database = duckdb.connect(":memory:", config={**_SETTINGS, **settings})
    for setting, value in (
        ("allowed_directories", _texts(folders)),
        ("allowed_paths", _texts(files)),
        ("enable_external_access", "false"),
        *([("lock_configuration", "true")] if lock else []),
    ):
        if value != "[]":
            database.execute(f"SET {setting} = {value}")
    return database


def _texts(values: Iterable[str]) -> str:
    return f"[{', '.join(map(text, values))}]"


def text(value: str) -> str:
    """A text in SQL, whatever is in it. Raises `SelectionError` where it is not UTF-8."""
    check_utf8(value, "a name")
    parts = ["'" + part.replace("'", "''") + "'" for part in value.split("\0")]
    return parts[0] if len(parts) == 1 else f"concat({', chr(0), '.join(parts)})"  # SQL itself ends at a NUL


def first_line(error: Exception) -> str:
    """DuckDB's message, without the quoted statement."""
    return next(filter(None, map(str.strip, str(error).split("\n"))), type(error).__name__)
