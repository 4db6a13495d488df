"""Linux perf.data: file and pipe mode, both byte orders, compressed or not. Loaded at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .header import is_perfdata
    from .reader import read_perfdata

__all__ = ["is_perfdata", "read_perfdata"]

__getattr__ = lazy_names(__name__, {
    "header": "is_perfdata",
    "reader": "read_perfdata",
})  # fmt: skip
