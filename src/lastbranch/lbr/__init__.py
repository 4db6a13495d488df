"""What a branch record means: flag words, filters, register formats, the ring, call stacks."""

from .callstacks import call_frames, no_call_stacks_because, open_calls
from .filters import NOTATIONS, Conversion, bit_names, convert, records, validate
from .flags import (
    BRANCH_TYPES,
    FLAG_FIELDS,
    KIND,
    NEW_TYPES,
    SPEC,
    branch_type,
    flag,
    flags_of_kinds,
    repack_big_endian,
    type_name,
)
from .info import flags_from_info
from .processors import PROCESSORS, Processor
from .registers import FORMATS, Decoded, RegisterFormat, decode
from .ring import Record, Ring, held
from .selection import ETW_NEAR_BRANCHES, PERF_SELECT, call_stack_mode, describe_perf, no_ranges_because
from .stitching import Links, joined, stitch

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
