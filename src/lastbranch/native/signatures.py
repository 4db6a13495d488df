"""The contract of the package and its compiled library: the functions that the library exports.

The build (``build.py``, by path and without the package) and the loader both read this file.
"""

from __future__ import annotations

import os
import zlib

__all__ = ["SIGNATURES", "abi"]

SIGNATURES: dict[str, str] = {
    "lb_abi": "u32",
    "lb_compiler": "text",
    # branch_entries.c
    "lb_branch_entries": "int pointer i64 pointer pointer pointer i64 pointer i64",
    "lb_info_flags": "nothing pointer i64 pointer pointer",
    # burst_records.c
    "lb_burst_records": "i64 pointer i64 i64 int pointer i64 u64 u64 pointer i64 pointer pointer",
    # branch_walk.c
    "lb_system_calls": "int pointer int",
    "lb_branch_walk": "int pointer",
    "lb_watch_tracer": "nothing pointer u32 int i64",
    "lb_set_watch": "int pointer u32",
    # pass_signals.c
    "lb_wait_passing": "i64 pointer u64 pointer",
    # count_bound.c
    "lb_bound_count": f"i64 pointer i64 {'pointer ' * 4} i64 {'pointer i64 i64 ' * 3} pointer",
    "lb_bound_pages": f"i64 pointer i64 {'pointer ' * 3} i64 {'pointer i64 i64 ' * 2} pointer",
    "lb_bound_index": "nothing pointer int",
    # count_stacks.c
    "lb_counter_new": "pointer u64 int int int",
    "lb_counter_free": "nothing pointer",
    "lb_counter_add": f"i64 {'pointer ' * 4} i64 {'pointer i64 i64 ' * 3}",
    "lb_counter_full": "int pointer i64",
    "lb_counter_rows": "i64 pointer int",
    "lb_counter_take": "i64 pointer int i64 pointer pointer pointer pointer",
    "lb_counter_broken": "i64 pointer",
    "lb_counter_clear": "nothing pointer",
    # branch_kinds.c
    "lb_sites_new": "pointer u64",
    "lb_sites_free": "nothing pointer",
    "lb_sites_learn": "nothing pointer pointer pointer pointer i64",
    "lb_sites_kinds": f"i64 {'pointer ' * 3} i64 pointer i64 pointer i64 {'pointer ' * 3}",
    "lb_sites_resolve": f"i64 {'pointer ' * 3} i64 pointer i64 pointer pointer",
    # call_stacks.c
    "lb_call_stacks": "i64 pointer pointer i64 pointer i64 pointer i64 pointer pointer int pointer pointer",
    # compress.c
    "lb_compress_xpress": "i64 pointer i64 i64 pointer pointer pointer i64",
    # decompress.c
    "lb_decompress": "int int pointer i64 pointer i64",
    # decode.c
    "lb_decode": f"i64 pointer u64 pointer i64 i64 u64 {'pointer ' * 5} i64 i64 {'pointer ' * 5}",
    # distinct_stacks.c
    "lb_distinct_stacks": "i64 pointer i64 pointer i64 pointer i64 u64 pointer pointer",
    # find_mappings.c
    "lb_find_mappings": "int pointer pointer i64 pointer i64 i64 pointer",
    "lb_module_addresses": "int pointer i64 i64 pointer pointer i64 pointer pointer",
    # format_lists.c
    "lb_format_hex_lists": "i64 pointer i64 pointer i64 int text i64 pointer i64 pointer",
    # near_entries.c
    "lb_near_entries": f"nothing pointer i64 pointer i64 pointer i64 pointer i64 {'pointer ' * 5}",
    # perf_records.c
    "lb_records_chase": "i64 pointer i64 int i64 pointer pointer i64 pointer",
    "lb_samples_check": f"int pointer i64 int pointer i64 i64 pointer i64 i64 i64 {'pointer ' * 5}",
    # row_numbers.c
    "lb_numbers_new": "pointer u64 i64",
    "lb_numbers_free": "nothing pointer",
    "lb_numbers_add": "i64 pointer pointer i64 pointer pointer",
    # run_ahead.c
    "lb_ahead_new": "pointer",
    "lb_ahead_free": "nothing pointer",
    "lb_run_ahead": "int pointer pointer",
    "lb_ahead_vectors": "int pointer pointer pointer",
    "lb_ahead_memory": "int pointer u64 pointer u64",
    # runs.c
    "lb_take_runs": "int pointer i64 i64 pointer pointer i64 pointer i64",
    # sample_sums.c
    "lb_branch_sums_new": "pointer u64",
    "lb_branch_sums_free": "nothing pointer",
    "lb_branch_sums_add": f"i64 {'pointer ' * 4} i64 {'pointer i64 i64 ' * 3}",
    "lb_branch_sums_take": f"nothing {'pointer ' * 5}",
    # stationary.c
    "lb_elimination_new": "pointer i64 pointer pointer i64 i64 i64",
    "lb_elimination_free": "nothing pointer",
    "lb_elimination_run": "int pointer pointer pointer",
    "lb_strong_components": "int pointer i64 pointer pointer",
    # sum_stacks.c
    "lb_sums_new": "pointer u64 i64 i64 i64 i64",
    "lb_sums_free": "nothing pointer",
    "lb_sums_add": f"int {'pointer ' * 5} i64",
    "lb_sums_rows": "i64 pointer",
    "lb_sums_frames": "i64 pointer",
    "lb_sums_read": f"nothing {'pointer ' * 5}",
    "lb_sums_clear": "nothing pointer",
    # unwind_stack.c
    "lb_unwind_stack": "int pointer",
    # virtual_unwinding.c
    "lb_unwinder_new": "pointer u64",
    "lb_unwinder_free": "nothing pointer",
    "lb_unwinder_add": f"int pointer pointer i64 pointer pointer i64 pointer i64 {'pointer ' * 3} i64",
    "lb_unwinder_nodes": "i64 pointer",
    "lb_unwinder_events": "i64 pointer",
    "lb_unwinder_rows": f"nothing {'pointer ' * 7}",
    # walk_events.c
    "lb_walk_events": f"int pointer pointer i64 pointer pointer pointer i64 pointer i64 pointer i64 {'pointer ' * 3}",
}
"""Function -> its result, then its arguments: ``int`` (C int), ``u32``, ``i64``, ``u64``, ``f64``, ``text``,
``pointer``, ``nothing``."""


def abi(folder: str = os.path.dirname(__file__)) -> int:
    """The number of the library of these sources: a checksum of the sources and of this table.

    Nobody has to increase the number, and it differs even if only a structure or the meaning of an argument changed.
    """
    number = 0
    for name in sorted(os.listdir(folder)):  # without pathlib, which would have to be imported
        if name.endswith((".c", ".h")) or name == "signatures.py":
            with open(os.path.join(folder, name), "rb") as file:
                number = zlib.crc32(file.read(), number)
    return number
