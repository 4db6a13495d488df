"""The TBRW reader/writer API, call for call, over TB5 files.

It has the names of chapters 8 and 9 of the guide: functions (``TBRW_open``...), structures, numbers. OUT parameters are
returned after the status::

    status, ptr = TBRW_open("run.tb5", TBRW_FILE_READ)
    status, streams = TBRW_get_number_data_streams(ptr)

`open_file` offers the same in Python's terms, with context managers, exceptions and arrays. The types are in the stub,
which docs/generate.py makes from the same tables.
"""

from __future__ import annotations

from typing import Any

from ..formats.tb5.layout import Section as Section
from ..formats.tb5.layout import StreamSection as StreamSection
from .calls import FUNCTIONS
from .files import SectionReader as SectionReader
from .files import SectionWriter as SectionWriter
from .files import Stream as Stream
from .files import Tb5 as Tb5
from .files import open_file as open_file
from .status import Status as Status
from .status import TbrwError as TbrwError
from .structures import ENUMERATIONS, NUMBERS, PAIRS, RECORDS, TBRW_STRING_OR_ID, TYPES

_NAMES: dict[str, Any] = {
    **{name: function for name, (_, function) in FUNCTIONS.items()},
    **{name: kind for name, kind in RECORDS.items() if name != "PID_BIND_STRUCT"},
    **PAIRS, **ENUMERATIONS, **NUMBERS, **TYPES,
    "Section": Section, "SectionReader": SectionReader, "SectionWriter": SectionWriter, "Stream": Stream,
    "StreamSection": StreamSection, "Tb5": Tb5, "open_file": open_file,
    "Status": Status, "TBRW_STRING_OR_ID": TBRW_STRING_OR_ID, "TbrwError": TbrwError,
}  # fmt: skip
globals().update(_NAMES)

__all__ = sorted(_NAMES)
