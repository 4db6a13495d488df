"""The guide's names: functions, structures and numbers, made from the tables of this package."""

from __future__ import annotations

from typing import Any

from .calls import FUNCTIONS
from .structures import ENUMERATIONS, NUMBERS, PAIRS, RECORDS, TBRW_STRING_OR_ID, TYPES

__all__ = ["NAMES"]

NAMES: dict[str, Any] = {
    **{name: function for name, (_, function) in FUNCTIONS.items()},
    **{name: kind for name, kind in RECORDS.items() if name != "PID_BIND_STRUCT"},
    **PAIRS,
    **ENUMERATIONS,
    **NUMBERS,
    **TYPES,
    "TBRW_STRING_OR_ID": TBRW_STRING_OR_ID,
}
"""What the guide defines, by the guide's names."""
