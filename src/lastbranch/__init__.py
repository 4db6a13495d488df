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
    from .errors import Damage, FormatError, LastbranchError, NotRecordedError, UnavailableError
    from .model import Limits, Profile, SampleBatch, SampleFilter
    from .opening import open_profile as open
    from .sql import query

__version__ = "0.1.0"

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
    "branches": "analysis",
    "open": "opening",
    "query": "sql",
    "ranges": "analysis",
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
    "open",
    "query",
    "ranges",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_WHERE[name]}", __name__), _OTHER_NAME.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
