"""TB5 files, the native store: a container of ours for the model of the TBRW guide (docs/reference/tb5-format.md).

Everything but `is_tb5` is loaded at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .magic import is_tb5

if TYPE_CHECKING:
    from .descriptors import check_descriptors
    from .layout import NEVER, STRUCTS, Entry, Field, Scope, Struct, Table, struct_of
    from .profile_reader import read_tb5
    from .profile_writer import write_profile
    from .reader import Tb5File
    from .writer import TableWriter, Tb5Writer

_WHERE = {
    name: module
    for module, names in {
        "layout": ("NEVER", "STRUCTS", "Entry", "Field", "Scope", "Struct", "Table", "struct_of"),
        "writer": ("TableWriter", "Tb5Writer"),
        "reader": ("Tb5File",),
        "descriptors": ("check_descriptors",),
        "profile_reader": ("read_tb5",),
        "profile_writer": ("write_profile",),
        "verification": ("verify",),
    }.items()
    for name in names
}

__all__ = [
    "NEVER",
    "STRUCTS",
    "Entry",
    "Field",
    "Scope",
    "Struct",
    "Table",
    "TableWriter",
    "Tb5File",
    "Tb5Writer",
    "check_descriptors",
    "is_tb5",
    "read_tb5",
    "struct_of",
    "verify",
    "write_profile",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value
