"""What a trace file can be: sizes of buffers, and file modes that go together."""

from __future__ import annotations

from dataclasses import replace

from ...errors import FormatError
from .header import MAX_BUFFER, LogHeader
from .layout import LOG_FILE_MODE

__all__ = ["LEAST_BUFFER", "USE_KBYTES", "checked"]

LEAST_BUFFER = 1024
"""Bytes; sessions have 4 KiB or more, files that were written again have 1 KiB too."""

USE_KBYTES = 0x2000
"""EVENT_TRACE_USE_KBYTES_FOR_SIZE of LogFileMode: MaximumFileSize is in KiB."""

_EXCLUSIVE = (  # as documented of LogFileMode
    (LOG_FILE_MODE.CIRCULAR, LOG_FILE_MODE.APPEND | LOG_FILE_MODE.NEWFILE,
     "a ring cannot be appended to, or be a series"),
    (LOG_FILE_MODE.NEWFILE, LOG_FILE_MODE.PREALLOCATE, "a series of files cannot be preallocated"),
    (LOG_FILE_MODE.APPEND, LOG_FILE_MODE.NEWFILE, "a series of files cannot be appended to"),
)  # fmt: skip


def checked(header: LogHeader, path: str) -> LogHeader:
    """``header``, with the version that its compression or size of buffers needs. FormatError names what is wrong."""
    size, mode = header.buffer_size, header.mode
    if not LEAST_BUFFER <= size <= MAX_BUFFER or size % 1024:
        reason = f"buffers have {LEAST_BUFFER} to {MAX_BUFFER} bytes in steps of 1024"
        raise FormatError(reason, file=path, field="BufferSize", value=size)
    for one, other, reason in _EXCLUSIVE:
        if mode & one and mode & other:
            raise FormatError(reason, file=path, field="LogFileMode", value=mode)
    if mode & (LOG_FILE_MODE.CIRCULAR | LOG_FILE_MODE.PREALLOCATE) and not header.maximum_file_size:
        reason = "a circular or preallocated file needs a MaximumFileSize"
        raise FormatError(reason, file=path, field="LogFileMode", value=mode)
    if mode & LOG_FILE_MODE.NEWFILE and ("%d" not in path or not header.maximum_file_size):
        reason = "a series of files needs %d in its name and a MaximumFileSize"
        raise FormatError(reason, file=path, field="LogFileMode", value=mode)
    if header.compressed or size > 1 << 20:
        return replace(header, sub_version=2, sub_minor=0 if header.sub_version != 2 else header.sub_minor)
    return header
