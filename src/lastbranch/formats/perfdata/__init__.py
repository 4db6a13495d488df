"""Linux perf.data: file and pipe mode, both byte orders, compressed or not. Loaded at first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .header import is_perfdata
    from .reader import read_perfdata

_WHERE = {"is_perfdata": "header", "read_perfdata": "reader"}

__all__ = ["is_perfdata", "read_perfdata"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    return value
