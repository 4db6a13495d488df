"""Recording: the software branch record and perf events. Loaded at first use: some of it needs Linux."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .options import Options, Summary
    from .recording import record
    from .traceable import CollectorError, RunError

_WHERE = {
    "CollectorError": "traceable",
    "Options": "options",
    "RunError": "traceable",
    "Summary": "options",
    "record": "recording",
}

__all__ = ["CollectorError", "Options", "RunError", "Summary", "record"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    return value
