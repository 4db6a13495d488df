"""Read, bind, analyse and export hardware-sampled profiles with last branch records.

    import lastbranch

    profile = lastbranch.open("perf.data")
    for batch in profile.batches():
        print(batch.time, batch["branch_from"])

Everything is loaded at first use: importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .lazy import lazy_names, provide

if TYPE_CHECKING:
    from .analysis import branches, ranges, weights
    from .analysis.checks import check
    from .errors import Damage, FormatError, LastbranchError, NotRecordedError, UnavailableError
    from .model import Limits, Profile, SampleBatch, SampleFilter
    from .opening import open_profile as open
    from .opening import reading_of
    from .recorders import record
    from .sql import query
    from .verbs import convert, dump, verify
    from .version import __version__

__all__ = [
    "Damage",
    "FormatError",
    "LastbranchError",
    "Limits",
    "NotRecordedError",
    "Profile",
    "SampleBatch",
    "SampleFilter",
    "UnavailableError",
    "__version__",
    "branches",
    "check",
    "convert",
    "dump",
    "open",
    "query",
    "ranges",
    "record",
    "reading_of",
    "verify",
    "weights",
]


_public = lazy_names(__name__, {
    "analysis": "branches ranges weights",
    "analysis.checks": "check",
    "errors": "Damage FormatError LastbranchError NotRecordedError UnavailableError",
    "model": "Limits Profile SampleBatch SampleFilter",
    "opening": "open=open_profile reading_of",
    "recorders": "record",
    "sql": "query",
    "verbs": "convert dump verify",
    "version": "__version__",
})  # fmt: skip


def _query(profile: Profile, query: str) -> Any:
    """The work of `Profile.sql`, which cannot import SQL: SQL is far above the model."""
    from .sql import query as answer

    return answer(profile, query)


provide("query", _query)


def __getattr__(name: str) -> Any:
    value = _public(name)
    if name == "open":
        value.__name__ = value.__qualname__ = name  # what `help` calls it
    return value


def __dir__() -> list[str]:
    return __all__
