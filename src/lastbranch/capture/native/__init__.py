"""Machine code for x86-64 Linux, compiled from walk.c ahead of time: users need no compiler.

``walk.bin`` is one line of text (the offset of each function, then the compiler), followed by the instructions.
``make walk`` writes it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from functools import cache

__all__ = ["function", "read_code"]

_FILE = os.path.join(os.path.dirname(__file__), "walk.bin")
_MEMFD_CREATE, _CLOSE_ON_EXEC = 319, 1
"""memfd_create(2) on x86-64: not every Python has it."""
_FAILED = ctypes.c_void_p(-1).value


def read_code() -> tuple[dict[str, int], bytes]:
    """The offsets of the functions ``calls`` and ``walk``, and the instructions."""
    with open(_FILE, "rb") as file:
        _, calls, _, walk = file.readline().split()[:4]
        return {"calls": int(calls, 16), "walk": int(walk, 16)}, file.read()


def function(name: str) -> Callable[..., int]:
    """The function ``calls`` or ``walk`` of walk.c. Raises `OSError` where the system allows no executable memory."""
    base, offsets = _loaded()
    return ctypes.CFUNCTYPE(ctypes.c_long)(base + offsets[name])


@cache
def _loaded() -> tuple[int, dict[str, int]]:
    """The address of the instructions, and the offsets of the functions. They are mapped from a file without a name
    and stay: systems refuse memory that is both writable and executable more often."""
    offsets, code = read_code()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    fd = libc.syscall(_MEMFD_CREATE, b"lastbranch", _CLOSE_ON_EXEC)
    base: int | None = None
    if fd >= 0:
        os.write(fd, code)
        base = libc.mmap(None, len(code), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, fd, 0)
        os.close(fd)
    if base is None or base == _FAILED:
        raise OSError(ctypes.get_errno(), "no memory may be executed")
    return base, offsets
