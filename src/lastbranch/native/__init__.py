"""The compiled library: plain C next to this file, loaded through ctypes. Without it, NumPy and Python do the same
work.

``build.py`` compiles it at installation where there is a C compiler, and by hand as a module.
Each function that the library exports has a row in `SIGNATURES`. A library that was compiled from other sources or for
another table than those beside this file is not used, and a warning says so.

``LASTBRANCH_NATIVE=0`` does without the library, ``LASTBRANCH_NATIVE=1`` insists on it.
"""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import UnavailableError
from .signatures import SIGNATURES, abi

if TYPE_CHECKING:
    import ctypes

__all__ = ["FILE", "address", "describe", "library"]

ENDING = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
FILE = os.path.join(os.path.dirname(__file__), f"_lastbranch{ENDING}")


def library() -> ctypes.CDLL | None:
    """The library with all signatures declared, or ``None`` where it is missing or switched off.

    Raises `UnavailableError` where ``LASTBRANCH_NATIVE=1`` insists on one that is missing or cannot be used.
    """
    return _load(os.environ.get("LASTBRANCH_NATIVE", ""), FILE)[0]


def describe() -> str:
    """Which form is in use, for `doctor` and ``--version -v``: the library and its compiler, or why there is none."""
    loaded, reason = _load(os.environ.get("LASTBRANCH_NATIVE", ""), FILE)
    if loaded is None:
        return f"NumPy: {reason}"
    return f"{FILE}, ABI {loaded.lb_abi():08x}, compiled by {loaded.lb_compiler().decode().strip()}"


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

    if not os.path.exists(file):
        return _refuse(switch, f"not compiled ({file})")
    kinds = {
        "int": ctypes.c_int,
        "u32": ctypes.c_uint32,
        "i64": ctypes.c_int64,
        "u64": ctypes.c_uint64,
        "f64": ctypes.c_double,
        "text": ctypes.c_char_p,
        "pointer": ctypes.c_void_p,
        "nothing": None,
    }
    try:
        found = ctypes.CDLL(file)
        found.lb_abi.restype = ctypes.c_uint32
        number, needed = found.lb_abi(), abi()
    except (OSError, AttributeError) as error:
        return _unusable(switch, f"{file}: {error}")
    if number != needed:
        return _unusable(switch, f"{file} was compiled from other sources (ABI {number:08x} instead of {needed:08x})")
    for name, signature in SIGNATURES.items():
        function, (result, *arguments) = getattr(found, name), (kinds[word] for word in signature.split())
        function.restype, function.argtypes = result, arguments
    return found, ""


def _unusable(switch: str, reason: str) -> tuple[None, str]:
    """Refuse a library that exists, with a warning: after changed sources without compiling, only slowness would
    show."""
    if switch != "1":
        again = f"{sys.executable} -m lastbranch.native.build compiles it again"
        warnings.warn(f"NumPy replaces the compiled library: {reason}; {again}", RuntimeWarning, stacklevel=2)
    return _refuse(switch, reason)


def _refuse(switch: str, reason: str) -> tuple[None, str]:
    if switch == "1":
        hint = "install a C compiler and reinstall lastbranch, or unset LASTBRANCH_NATIVE"
        raise UnavailableError(f"no compiled library: {reason}", hint=hint)
    return None, reason
