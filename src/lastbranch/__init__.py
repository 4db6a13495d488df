"""Read, bind, analyse and export hardware-sampled profiles with last branch records.

    import lastbranch

    profile = lastbranch.open("perf.data")
    for batch in profile.batches():
        print(batch.time, batch["branch_from"])

Everything is loaded at first use: importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis import branches, ranges, weights
    from .analysis.checks import check
    from .errors import Damage, FormatError, LastbranchError, NotRecordedError, UnavailableError
    from .model import Limits, Profile, SampleBatch, SampleFilter
    from .opening import open_profile as open
    from .opening import reading_of
    from .sql import query
    from .verbs import convert, dump, verify
    from .version import __version__

_WHERE = {
    "Damage": "errors",
    "FormatError": "errors",
    "LastbranchError": "errors",
    "Limits": "model",
    "NotRecordedError": "errors",
    "Profile": "model",
    "SampleBatch": "model",
    "SampleFilter": "model",
    "UnavailableError": "errors",
    "__version__": "version",
    "branches": "analysis",
    "check": "analysis.checks",
    "convert": "verbs",
    "dump": "verbs",
    "open": "opening",
    "query": "sql",
    "ranges": "analysis",
    "reading_of": "opening",
    "verify": "verbs",
    "weights": "analysis",
}
_OTHER_NAME = {"open": "open_profile"}

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
    "reading_of",
    "verify",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_WHERE[name]}", __name__), _OTHER_NAME.get(name, name))
    if name in ("Profile", "open"):
        _attach()
    globals()[name] = value
    return value


def _attach() -> None:
    """Give profiles the methods of what stands above them."""
    from .model import Profile

    Profile.sql = _sql


def _sql(self: Profile, query: str) -> Any:
    """The `lastbranch.sql.Result` of a SELECT statement: ``lastbranch.query(profile, query)``, which says more."""
    from .sql import query as answer

    return answer(self, query)


def __dir__() -> list[str]:
    return __all__
