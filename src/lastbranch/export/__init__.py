"""What people take away: one module a format. `EXPORTS` names them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from ..model import Profile, SampleFilter

__all__ = ["EXPORTS", "Exporter", "exporter"]

Exporter = Callable[["Profile", IO[bytes], "SampleFilter | None"], list[str]]
"""Writes a profile; what it returns are notes for the user."""

EXPORTS = {"counts": "counts", "brstack": "brstack"}
"""Name on the command line -> module of this package, each with a function ``export``."""


def exporter(name: str) -> Exporter:
    """The exporter called ``name``; `KeyError` for another."""
    export: Exporter = import_module(f".{EXPORTS[name]}", __name__).export
    return export
