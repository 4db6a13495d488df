"""Read, bind, analyse and export hardware-sampled profiles with last branch records.

    import lastbranch

    profile = lastbranch.open("perf.data")
    for batch in profile.batches():
        print(batch.time, batch["branch_from"])

Everything is loaded at first use: importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .lazy import lazy_face, provide

if TYPE_CHECKING:
    from .model import Profile

_named, __dir__, __all__ = lazy_face(
    __name__,
    {
        "analysis": "branches ranges weights",
        "analysis.checks": "check",
        "errors": "Damage FormatError LastbranchError NotRecordedError UnavailableError",
        "model": "Limits Profile SampleBatch SampleFilter",
        "opening": "open=open_profile reading_of",
        "recording.recorders": "record",
        "sql": "query",
        "verbs": "convert dump verify",
        "version": "__version__",
    },
)


def _query(profile: Profile, query: str) -> Any:
    """What `Profile.sql` calls, which cannot import it: SQL is far above the model."""
    from .sql import query as answer

    return answer(profile, query)


provide("query", _query)


def __getattr__(name: str) -> Any:
    value = _named(name)
    if name == "open":
        value.__name__ = value.__qualname__ = name  # what `help` calls it
    return value
