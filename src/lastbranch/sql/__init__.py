"""SQL over a profile: tables are loaded as a query needs them, into a database without access to the outside."""

from ..lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "result": "Result count_request_of query",
        "schema": "SqlColumn SqlTable TABLES",
    },
)
