"""What a record must hold to be taken: the rules on values in chapters 3, 6, 7 and 8 of the guide.

`CHECKS` has them by structure; each takes the record, how many of its kind the section holds already, and the number of
the stream, and raises `TbrwError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..formats.tb5 import check_descriptors
from ..formats.tb5.constants import SAMPLE_FILE_VERSION, DescType, OsFamily, StreamType
from ..formats.tb5.records import STRUCTS
from ..model import Array
from .status import Status, TbrwError

__all__ = ["CHECKS", "check_descriptor", "record_size_of"]

_FOREIGN_PLATFORMS = range(0x100, 0x200)
_USER_STREAMS = (StreamType.SAMPLING, StreamType.AGGREGATED, StreamType.BOOKMARK, StreamType.CUSTOM)
_ENTRY = STRUCTS["TBRW_SAMPREC_DESC_ENTRY"]
_LEGACY_SIZE = STRUCTS["TBRW_SampleRecordPC"].size
_LARGEST_RECORD = 1 << 26
_IN_LEGACY = {
    DescType.NONE, DescType.IP, DescType.PID, DescType.TID, DescType.PROCESSOR_NUMBER, DescType.PROCESSOR_STATUS
}  # fmt: skip
"""What a legacy sample record holds, so that an entry may name it inside one."""


def _os(record: Any, _before: int, _stream: int) -> None:
    platform = record.os_platform
    if platform and platform not in set(OsFamily) and platform not in _FOREIGN_PLATFORMS:
        raise TbrwError(
            Status.UNEXPECTED_VALUE,
            f"os_platform = {platform:#x} is reserved; 1 to 6 are TBRW_OSFAMILY_*, 0x100 to 0x1FF are free (7.1)",
        )


def _version(record: Any, _before: int, _stream: int) -> None:
    version = record.sample_file_version
    if version < SAMPLE_FILE_VERSION:
        raise TbrwError(
            Status.INCOMPATIBLE_VERSION, f"sample_file_version = {version}; 16 and higher are supported (1)"
        )


def _module(record: Any, _before: int, _stream: int) -> None:
    if record.module_load_address + record.module_length > 1 << 64:
        raise TbrwError(
            Status.BAD_MODULE,
            f"module_load_address = {record.module_load_address:#x} and module_length = {record.module_length:#x}"
            " leave the address space",
        )


def _stream_info(record: Any, _before: int, _stream: int) -> None:
    if record.stream_type not in _USER_STREAMS:
        raise TbrwError(
            Status.UNEXPECTED_VALUE, f"stream_type = {record.stream_type} is none that can be written (8.9)"
        )


def _event(record: Any, before: int, stream: int) -> None:
    if record.event_id != before:
        raise TbrwError(
            Status.UNEXPECTED_VALUE,
            f"event_id = {record.event_id} in stream {stream}; ids count from 0, the next is {before} (6.7)",
        )


CHECKS: dict[str, Callable[[Any, int, int], None]] = {
    "TBRW_OS": _os,
    "TBRW_VERSION_INFO": _version,
    "TBRW_MODULE": _module,
    "TBRW_STREAM_INFO": _stream_info,
    "TBRW_EVENT": _event,
}


def record_size_of(entries: Array) -> int:
    """Bytes of a record that TBRW_SAMPREC_DESC_ENTRY records describe: where the last entry ends."""
    return int((entries["desc_offset"].astype(np.int64) + entries["desc_data_size"]).max(initial=0))


def check_descriptor(entries: Array, stream: int) -> None:
    """The last of ``entries`` beside those before it. Raises `TbrwError` with the entry, field and value.

    Legacy sample records belong into stream 0 (3.2.2); reserved and computed types stand in no record (8.11); entries
    lie inside of the record and do not overlap, unless they name what a legacy sample record holds.
    """
    entry, number = entries[-1], len(entries) - 1
    kind, start, size = (int(entry[f"desc_{name}"]) for name in ("type", "offset", "data_size"))
    if kind == DescType.LEGACY_SAMPLE_RECORD and stream:
        raise TbrwError(
            Status.INVALID_STREAM, f"legacy sample records belong into stream 0, not stream {stream} (3.2.2)"
        )
    if kind == DescType.LEGACY_SAMPLE_RECORD and size != _LEGACY_SIZE:
        raise TbrwError(
            Status.UNSUPPORTED_DATA_SIZE, f"descriptor entry {number}: a legacy sample record has 32 bytes, not {size}"
        )
    problem = check_descriptors(entries, _LARGEST_RECORD)
    for before, other in enumerate(entries[:-1]):
        low, high = int(other["desc_offset"]), int(other["desc_offset"]) + int(other["desc_data_size"])
        if start < high and low < start + size and not _inside_legacy({kind, int(other["desc_type"])}):
            problem = f"descriptor entries {before} and {number} overlap", "desc_offset", start
    if problem is not None:
        reason, field, value = problem
        status = Status.UNEXPECTED_VALUE if field != "desc_data_size" else Status.UNSUPPORTED_DATA_SIZE
        if "exceeds" in reason:
            status = Status.UNSUPPORTED_DATA_SIZE
        raise TbrwError(status, f"stream {stream}: {reason} ({field} = {value})")


def _inside_legacy(kinds: set[int]) -> bool:
    return (
        DescType.LEGACY_SAMPLE_RECORD in kinds
        and len(kinds) == 2
        and not kinds - _IN_LEGACY - {DescType.LEGACY_SAMPLE_RECORD}
    )
