"""Machine code for x86-64 Linux, compiled of walk.c ahead of time: no compiler is needed where it runs."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from functools import cache

from .code import CALLS, CODE, WALK

__all__ = ["CALLS", "WALK", "function"]

_MEMFD_CREATE, _CLOSE_ON_EXEC = 319, 1
"""memfd_create(2) on x86-64: not every Python has it."""
_FAILED = ctypes.c_void_p(-1).value


def function(at: int) -> Callable[..., int]:
    """The function `CALLS` or `WALK`. `OSError` where no memory may be executed."""
    return ctypes.CFUNCTYPE(ctypes.c_long)(_base() + at)


@cache
def _base() -> int:
    """Where the instructions lie, for good: in a file without a name, since memory that may be written and executed
    is refused more often."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    fd = libc.syscall(_MEMFD_CREATE, b"lastbranch", _CLOSE_ON_EXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "no memory may be executed")
    try:
        os.write(fd, CODE)
        base: int | None = libc.mmap(None, len(CODE), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, fd, 0)
    finally:
        os.close(fd)
    if base is None or base == _FAILED:
        raise OSError(ctypes.get_errno(), "no memory may be executed")
    return base
