"""TB5 files, the native format: our own container for the model of the TBRW guide (docs/reference/tb5-format.md).

Everything but `is_tb5` is loaded at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names
from .magic import is_tb5

if TYPE_CHECKING:
    from .descriptors import check_descriptors
    from .layout import NEVER, STRUCTS, Entry, Field, Scope, Struct, Table, struct_of
    from .profile_reader import read_tb5
    from .profile_writer import ProfileWriter, write_profile
    from .reader import Tb5File
    from .verification import verify
    from .writer import TableWriter, Tb5Writer, compact

__all__ = [
    "NEVER",
    "STRUCTS",
    "Entry",
    "Field",
    "ProfileWriter",
    "Scope",
    "Struct",
    "Table",
    "TableWriter",
    "Tb5File",
    "Tb5Writer",
    "check_descriptors",
    "compact",
    "is_tb5",
    "read_tb5",
    "struct_of",
    "verify",
    "write_profile",
]

__getattr__ = lazy_names(__name__, {
    "descriptors": "check_descriptors",
    "layout": "Entry Field NEVER STRUCTS Scope Struct Table struct_of",
    "profile_reader": "read_tb5",
    "profile_writer": "ProfileWriter write_profile",
    "reader": "Tb5File",
    "verification": "verify",
    "writer": "TableWriter Tb5Writer compact",
})  # fmt: skip
