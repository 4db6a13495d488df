"""SQL over a profile: tables are loaded as a query needs them, into a database without access to the outside."""

from .result import Result, counted_by, query
from .schema import TABLES, SqlColumn, SqlTable

__all__ = ["TABLES", "Result", "SqlColumn", "SqlTable", "counted_by", "query"]
