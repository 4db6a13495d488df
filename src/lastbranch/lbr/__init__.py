"""What a branch record means: flag words, filters, and when fall-through ranges exist."""

from .flags import BRANCH_TYPES, FLAG_FIELDS, NEW_TYPES, SPEC, branch_type, flag, repack_big_endian, type_name
from .info import flags_from_info
from .selection import ETW_NEAR_BRANCHES, PERF_SELECT, call_stack_mode, describe_perf, no_ranges_because

__all__ = [
    "BRANCH_TYPES",
    "ETW_NEAR_BRANCHES",
    "FLAG_FIELDS",
    "NEW_TYPES",
    "PERF_SELECT",
    "SPEC",
    "branch_type",
    "call_stack_mode",
    "describe_perf",
    "flag",
    "flags_from_info",
    "no_ranges_because",
    "repack_big_endian",
    "type_name",
]
