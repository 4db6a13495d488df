"""What a branch record means: flag words, filters, register formats, the ring, call stacks. Loaded at first use: a
recording starts without NumPy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callstacks import call_frames, no_call_stacks_because, open_calls
    from .filters import NOTATIONS, Conversion, bit_names, convert, records, validate
    from .flags import branch_type, flag, flag_known, flags_of_kinds, repack_big_endian
    from .info import flags_from_info
    from .processors import PROCESSORS, Processor
    from .registers import FORMATS, Decoded, RegisterFormat, decode
    from .ring import Record, Ring, held
    from .selection import ETW_NEAR_BRANCHES, PERF_SELECT, call_stack_mode, describe_perf, no_ranges_because
    from .stitching import Links, joined, stitch
    from .words import BRANCH_TYPES, FLAG_FIELDS, KIND, NEW_TYPES, SPEC, type_name

_WHERE = {
    "BRANCH_TYPES": "words",
    "Conversion": "filters",
    "Decoded": "registers",
    "ETW_NEAR_BRANCHES": "selection",
    "FLAG_FIELDS": "words",
    "FORMATS": "registers",
    "KIND": "words",
    "Links": "stitching",
    "NEW_TYPES": "words",
    "NOTATIONS": "filters",
    "PERF_SELECT": "selection",
    "PROCESSORS": "processors",
    "Processor": "processors",
    "Record": "ring",
    "RegisterFormat": "registers",
    "Ring": "ring",
    "SPEC": "words",
    "bit_names": "filters",
    "branch_type": "flags",
    "call_frames": "callstacks",
    "call_stack_mode": "selection",
    "convert": "filters",
    "decode": "registers",
    "describe_perf": "selection",
    "flag": "flags",
    "flag_known": "flags",
    "flags_from_info": "info",
    "flags_of_kinds": "flags",
    "held": "ring",
    "joined": "stitching",
    "no_call_stacks_because": "callstacks",
    "no_ranges_because": "selection",
    "open_calls": "callstacks",
    "records": "filters",
    "repack_big_endian": "flags",
    "stitch": "stitching",
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
