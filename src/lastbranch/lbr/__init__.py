"""The meaning of a branch record: flag words, filters, register formats, the ring, call stacks. Loaded on first use: a
recording starts without NumPy."""

from ..lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "callstacks": "ACTIONS Links call_frames follow_links no_call_stacks_because open_calls stitch",
        "filters": "CALL_STACK Conversion ETW_NEAR_BRANCHES NOTATIONS PERF_SELECT bit_names call_stack_mode convert "
        "describe_perf no_ranges_because perf_select recorded_classes validate",
        "flags": "branch_type flag flag_known flags_from_info flags_of_kinds repack_big_endian",
        "registers": "Decoded FORMATS PROCESSORS Processor RegisterFormat decode",
        "ring": "Record Ring ring_contents",
        "words": "BRANCH_TYPES FLAG_FIELDS KIND NEW_TYPES SPEC type_name",
    },
)
