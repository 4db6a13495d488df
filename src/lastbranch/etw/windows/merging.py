"""CreateMergedTraceFile of KernelTraceControl.dll, which comes with the Windows Performance Toolkit."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ..status import EtwError, Status
from .libraries import Libraries, Loader, SystemLoader, wide

__all__ = ["create_merged_trace_file"]


def create_merged_trace_file(output: str, inputs: Sequence[str], flags: int, loader: Loader | None = None) -> None:
    """Merge ``inputs`` into ``output``; ``flags`` are EVENT_TRACE_MERGE_EXTENDED_DATA_* bits.

    Raises `EtwError`: 126 without the toolkit, 87 without inputs, else Windows' code.
    """
    call = "CreateMergedTraceFile"
    if not inputs:
        raise EtwError(call, Status.INVALID_PARAMETER, "there are no files to merge")
    names = [wide(call, name) for name in inputs]
    array = (ctypes.c_void_p * len(names))(*[ctypes.addressof(n) for n in names])
    Libraries(loader or SystemLoader()).status(call, wide(call, output), array, len(names), flags)
