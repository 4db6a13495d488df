"""The records in what a recorder has copied from the rings of perf events, header by header.

struct perf_event_header {u32 type; u16 misc; u16 size} (include/uapi/linux/perf_event.h), in this machine's byte order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["HEAD", "records_in"]

HEAD = struct.Struct("=IHH")
"""The header: type, misc, size in bytes with the header."""


def records_in(records: bytes) -> Iterator[tuple[int, int, int]]:
    """(offset, type, size) of each record, from its header. Nothing says that a body has the size of its type."""
    at = 0
    while at + HEAD.size <= len(records):
        kind, _, size = HEAD.unpack_from(records, at)
        yield at, kind, size
        at += max(size, HEAD.size)
