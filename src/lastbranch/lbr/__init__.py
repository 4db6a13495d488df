"""The meaning of a branch record: flag words, filters, register formats, the ring, call stacks. Loaded on first use: a
recording starts without NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .callstacks import ACTIONS, Links, call_frames, joined, no_call_stacks_because, open_calls, stitch
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
        perf_select,
        recorded_classes,
        validate,
    )
    from .flags import branch_type, flag, flag_known, flags_from_info, flags_of_kinds, repack_big_endian
    from .registers import FORMATS, PROCESSORS, Decoded, Processor, RegisterFormat, decode
    from .ring import Record, Ring, ring_contents
    from .words import BRANCH_TYPES, FLAG_FIELDS, KIND, NEW_TYPES, SPEC, type_name

__all__ = [
    "ACTIONS",
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
    "joined",
    "no_call_stacks_because",
    "no_ranges_because",
    "open_calls",
    "perf_select",
    "recorded_classes",
    "repack_big_endian",
    "ring_contents",
    "stitch",
    "type_name",
    "validate",
]

__getattr__ = lazy_names(__name__, {
    "callstacks": "ACTIONS Links call_frames joined no_call_stacks_because open_calls stitch",
    "filters": (
        "Conversion ETW_NEAR_BRANCHES NOTATIONS PERF_SELECT bit_names call_stack_mode convert describe_perf "
        "no_ranges_because perf_select recorded_classes validate"
    ),
    "flags": "branch_type flag flag_known flags_from_info flags_of_kinds repack_big_endian",
    "registers": "Decoded FORMATS PROCESSORS Processor RegisterFormat decode",
    "ring": "Record Ring ring_contents",
    "words": "BRANCH_TYPES FLAG_FIELDS KIND NEW_TYPES SPEC type_name",
})  # fmt: skip
