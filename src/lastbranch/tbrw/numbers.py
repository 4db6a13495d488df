"""The guide's named numbers, under its names, and the types it has for them."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

from ..formats.tb5.layout import (
    AccessMethod,
    ArchType,
    CpuArchitecture,
    CpuMode,
    DescSubtype,
    DescType,
    EventFlag,
    ModuleFlag,
    OsFamily,
    Section,
    StreamSection,
    StreamType,
)
from .rules import FileMode
from .status import Status

__all__ = ["ENUMERATIONS", "NUMBERS", "TYPES", "ComputedType"]


class ComputedType(IntEnum):
    """ST_* from 0x2000 (8.11): computed for display, never part of a record. The text of the guide has lost the name of
    the second; numbers from there on moved between releases, so nothing should keep them."""

    PROCESS, _LOST, THREAD, MODULE_SEGMENT_NAME, SEG_NUM, SEG_OFFSET, SEG_TYPE = range(0x2000, 0x2007)
    MODULE_LOAD_ADDRESS, MODULE, MODULE_PATH, EVENT_ID, EVENT, HARDWARE_THREAD, CORE = range(0x2007, 0x200E)
    PACKAGE, SAMPLES, EVENT_COUNTS, FUNCTION, FUNCTION_FULL_NAME, CLASS, FN_SIZE, RVA = range(0x200E, 0x2016)
    FN_SEG_OFFSET, FN_RVA, WALL_CLOCK, FNID_SUM, FNID_AVG, FNID_MIN, FNID_MAX = range(0x2016, 0x201D)
    PROCESS_IDX, THREAD_IDX, MODULE_IDX, EVENT_IDX, SAMPLE_IDX = range(0x201D, 0x2022)
    PERCENTAGE_TOTAL, PERCENTAGE_SEL, MODULE_IDX_FOR_PROCESS_NAME, ANNOTATION, POST_PROCESS_LAST = range(0x2022, 0x2027)


ENUMERATIONS: dict[str, type[IntEnum]] = {
    "TBRW_SECTION_IDENTIFIER": Section,
    "TBRW_STREAM_SECTION_IDENTIFIER": StreamSection,
    "TBRW_STREAM_TYPE": StreamType,
    "TBRW_DESC_TYPE": DescType,
    "TBRW_DESC_SUBTYPE": DescSubtype,
    "TBRW_ACCESS_METHOD": AccessMethod,
    "TBRW_GEN_ENTRY_SUBTYPES": ArchType,
}
"""Enumeration types that the guide names."""

_PATTERNS: list[tuple[str, Any]] = [
    ("TBRW_FILE_{}", FileMode), ("TBRW_{}_SECTION", Section), ("TBRW_{}_SECTION", StreamSection),
    ("TBRW_{}_STREAM", StreamType), ("TBRW_OSFAMILY_{}", OsFamily), ("TBRW_MODE_{}", CpuMode),
    ("TBRW_GST_{}", ArchType), ("CPU_ARCHITECTURE_{}", CpuArchitecture), ("TBRW_MODULE_{}", ModuleFlag),
    ("TBRW_EVENT_{}", EventFlag), ("TBRW_{}", AccessMethod), ("ST_{}", DescType), ("ST_{}", ComputedType),
    ("SST_{}", DescSubtype), ("TBRW_{}", Status),
]  # fmt: skip
_SPELLED = {
    "BITS16": "16BIT", "BITS32": "32BIT", "BITS64": "64BIT",
    "FIRST_MODULE_REC_IN_PROCESS": "1ST_MODULE_REC_IN_PROCESS", "USER_DEFINED_STREAM": "USER_DEFINED_STREAM",
}  # fmt: skip
"""Names that are no Python names."""

NUMBERS: dict[str, int] = {
    pattern.format(_SPELLED.get(name, name)): value
    for pattern, numbers in _PATTERNS
    for name, value in numbers.__members__.items()
    if not name.startswith("_")
}
"""Name in the guide -> member of an enumeration."""
NUMBERS["VT_SUCCESS"] = Status.SUCCESS
NUMBERS["ST_TIMESTAMP"] = DescType.TIME_STAMP  # so called in 6.9

TYPES: dict[str, Any] = {
    "TBRW_CHAR": ctypes.c_wchar, "TBRW_U8": ctypes.c_uint8, "TBRW_U16": ctypes.c_uint16, "TBRW_U32": ctypes.c_uint32,
    "TBRW_U64": ctypes.c_uint64, "TBRW_S32": ctypes.c_int32, "TBRW_S64": ctypes.c_int64,
}  # fmt: skip
"""Basic types (8.1)."""
