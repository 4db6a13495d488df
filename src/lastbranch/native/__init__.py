"""The compiled library: plain C next to this file, loaded through ctypes. Without it, NumPy and Python do the same
work.

``build.py`` compiles it at installation where there is a C compiler, and by hand as a module.
Each function that the library exports has a row in `SIGNATURES`; `ABI` and LASTBRANCH_ABI of lastbranch.h grow together
whenever a signature or a structure changes, and a library of another number is not used.

``LASTBRANCH_NATIVE=0`` does without the library, ``LASTBRANCH_NATIVE=1`` insists on it.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import UnavailableError

if TYPE_CHECKING:
    import ctypes

__all__ = ["ABI", "FILE", "SIGNATURES", "address", "describe", "library"]

ABI = 1
ENDING = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
FILE = os.path.join(os.path.dirname(__file__), f"_lastbranch{ENDING}")

SIGNATURES: dict[str, str] = {
    "lb_abi": "int",
    "lb_compiler": "text",
    # branch_walk.c
    "lb_system_calls": "int pointer int",
    "lb_branch_walk": "int pointer",
    # count_stacks.c
    "lb_counter_new": "pointer u64 int int int",
    "lb_counter_free": "nothing pointer",
    "lb_counter_add": "int pointer pointer pointer i64 pointer i64 pointer i64 pointer i64",
    "lb_counter_gather": "int pointer int pointer pointer i64 pointer i64 pointer i64 pointer i64",
    "lb_counter_full": "int pointer int",
    "lb_counter_count": "int pointer int",
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
    # format_lists.c
    "lb_format_hex_lists": "i64 pointer i64 pointer i64 int text i64 pointer i64 pointer",
    # near_entries.c
    "lb_near_entries": f"nothing pointer i64 pointer i64 pointer i64 pointer i64 u64 {'pointer ' * 5}",
    # perf_records.c
    "lb_records_chase": "i64 pointer i64 int i64 pointer pointer i64 pointer",
    "lb_samples_check": "int pointer i64 int pointer i64 i64 pointer i64 i64 i64 pointer pointer",
    # runs.c
    "lb_take_runs": "int pointer i64 i64 pointer pointer i64 pointer i64",
    # walk_events.c
    "lb_walk_events": f"int pointer pointer i64 pointer pointer pointer i64 pointer i64 pointer i64 {'pointer ' * 3}",
}
"""Function -> its result, then its arguments: ``int`` (C int), ``i64``, ``u64``, ``f64``, ``text``, ``pointer``,
``nothing``."""


def library() -> ctypes.CDLL | None:
    """The library with all signatures declared, or ``None`` where it is missing or switched off.

    Raises `UnavailableError` where ``LASTBRANCH_NATIVE=1`` insists on one that is missing or has another ABI.
    """
    return _load(os.environ.get("LASTBRANCH_NATIVE", ""), FILE)[0]


def describe() -> str:
    """Which form is in use, for `doctor` and ``--version -v``: the library and its compiler, or why there is none."""
    loaded, reason = _load(os.environ.get("LASTBRANCH_NATIVE", ""), FILE)
    if loaded is None:
        return f"NumPy: {reason}"
    return f"{FILE}, ABI {ABI}, compiled by {loaded.lb_compiler().decode().strip()}"


def address(array: Any) -> int:
    """The address of the first element of a NumPy array: what a ``pointer`` argument takes.

    The function must also get the strides of an array that is not contiguous.
    """
    return int(array.__array_interface__["data"][0])


@cache
def _load(switch: str, file: str) -> tuple[ctypes.CDLL | None, str]:
    if switch == "0":
        return None, "LASTBRANCH_NATIVE=0"
    import ctypes

    try:
        found = ctypes.CDLL(file)
        found.lb_abi.restype = ctypes.c_int
        number = found.lb_abi()
    except (OSError, AttributeError) as error:
        reason = "not compiled" if not os.path.exists(file) else str(error)
        return _refused(switch, f"{reason} ({file})")
    if number != ABI:
        return _refused(switch, f"{file} has ABI {number}, this version needs {ABI}")
    kinds = {"int": ctypes.c_int, "i64": ctypes.c_int64, "u64": ctypes.c_uint64, "f64": ctypes.c_double,
             "text": ctypes.c_char_p, "pointer": ctypes.c_void_p, "nothing": None}  # fmt: skip
    for name, signature in SIGNATURES.items():
        result, *arguments = (kinds[word] for word in signature.split())
        if not hasattr(found, name):  # of a checkout whose sources are newer
            return _refused(switch, f"{file} has no {name}")
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found, ""


def _refused(switch: str, reason: str) -> tuple[None, str]:
    if switch == "1":
        hint = "install a C compiler and reinstall lastbranch, or unset LASTBRANCH_NATIVE"
        raise UnavailableError(f"no compiled library: {reason}", hint=hint)
    return None, reason
