"""What a branch record means: flag words, filters, register formats, the ring, call stacks. Loaded at first use: a
recording starts without NumPy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callstacks import Links, call_frames, joined, no_call_stacks_because, open_calls, stitch
    from .filters import (
        ETW_NEAR_BRANCHES,
        NOTATIONS,
        PERF_SELECT,
        Conversion,
        bit_names,
        call_stack_mode,
        convert,
        describe_perf,
        no_ranges_because,
        records,
        validate,
    )
    from .flags import branch_type, flag, flag_known, flags_from_info, flags_of_kinds, repack_big_endian
    from .registers import FORMATS, PROCESSORS, Decoded, Processor, RegisterFormat, decode
    from .ring import Record, Ring, held
    from .words import BRANCH_TYPES, FLAG_FIELDS, KIND, NEW_TYPES, SPEC, type_name

_WHERE = {
    "BRANCH_TYPES": "words",
    "Conversion": "filters",
    "Decoded": "registers",
    "ETW_NEAR_BRANCHES": "filters",
    "FLAG_FIELDS": "words",
    "FORMATS": "registers",
    "KIND": "words",
    "Links": "callstacks",
    "NEW_TYPES": "words",
    "NOTATIONS": "filters",
    "PERF_SELECT": "filters",
    "PROCESSORS": "registers",
    "Processor": "registers",
    "Record": "ring",
    "RegisterFormat": "registers",
    "Ring": "ring",
    "SPEC": "words",
    "bit_names": "filters",
    "branch_type": "flags",
    "call_frames": "callstacks",
    "call_stack_mode": "filters",
    "convert": "filters",
    "decode": "registers",
    "describe_perf": "filters",
    "flag": "flags",
    "flag_known": "flags",
    "flags_from_info": "flags",
    "flags_of_kinds": "flags",
    "held": "ring",
    "joined": "callstacks",
    "no_call_stacks_because": "callstacks",
    "no_ranges_because": "filters",
    "open_calls": "callstacks",
    "records": "filters",
    "repack_big_endian": "flags",
    "stitch": "callstacks",
    "type_name": "words",
    "validate": "filters",
}

__all__ = [
    "BRANCH_TYPES",
    "ETW_NEAR_BRANCHES",
    "FLAG_FIELDS",
    "FORMATS",
    "KIND",
    "NEW_TYPES",
    "NOTATIONS",
    "PERF_SELECT",
    "PROCESSORS",
    "SPEC",
    "Conversion",
    "Decoded",
    "Links",
    "Processor",
    "Record",
    "RegisterFormat",
    "Ring",
    "bit_names",
    "branch_type",
    "call_frames",
    "call_stack_mode",
    "convert",
    "decode",
    "describe_perf",
    "flag",
    "flag_known",
    "flags_from_info",
    "flags_of_kinds",
    "held",
    "joined",
    "no_call_stacks_because",
    "no_ranges_because",
    "open_calls",
    "records",
    "repack_big_endian",
    "stitch",
    "type_name",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    return value
