"""The container of a TB5 file, byte by byte: docs/reference/tb5-format.md says the same in words.

Intel never published its own container; this one is lastbranch's and its magic says so. All numbers are little-endian.
A file is a header, two commit slots, and then blocks, block indexes and directories in any order, each at a multiple
of 64. What a committed directory refers to is never written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ...model import MAX_SAMPLES
from .constants import Section, StreamSection, StreamType
from .magic import MAGIC
from .records import STRUCTS, Struct

__all__ = [
    "ALIGNMENT",
    "BATCH_TIMES",
    "BLOCK_BYTES",
    "BLOCK_INDEX",
    "CLOSED",
    "DATA_START",
    "DIRECTORY_ENTRY",
    "HEADER",
    "HEADS",
    "MAGIC",
    "MODEL",
    "SLOT",
    "SLOT_OFFSETS",
    "SMALL_BLOCK_BYTES",
    "STRINGS",
    "VERSION",
    "Entry",
    "Scope",
    "Table",
    "check_record_size",
    "describe",
    "records_of_block",
    "struct_of",
]

VERSION = 1

HEADER = np.dtype([("magic", "S16"), ("version", "<u4"), ("data_start", "<u4"), ("reserved", "<u8", 4), ("crc", "<u4")])
"""At 0; ``crc`` is the CRC-32 of the bytes before it."""
SLOT = np.dtype(
    [
        ("sequence", "<u8"),
        ("directory", "<u8"),
        ("directory_bytes", "<u8"),
        ("end", "<u8"),
        ("flags", "<u4"),
        ("directory_crc", "<u4"),
        ("reserved", "<u4"),
        ("crc", "<u4"),
    ]
)
"""One commit: of two slots the valid one with the larger ``sequence`` is in force, the other is written next."""
SLOT_OFFSETS = (512, 1024)
CLOSED = 1
"""Flag of a slot: the writer closed the file."""
DATA_START = 4096
ALIGNMENT = 64

DIRECTORY_ENTRY = np.dtype(
    [
        ("scope", "<u2"),
        ("section", "<u2"),
        ("part", "<u2"),
        ("reserved", "<u2"),
        ("stream", "<u4"),
        ("record_size", "<u4"),
        ("count", "<u8"),
        ("block_bytes", "<u4"),
        ("blocks", "<u4"),
        ("index", "<u8"),
        ("index_crc", "<u4"),
        ("reserved2", "<u4"),
    ]
)
"""One table: ``blocks`` blocks of ``block_bytes`` (the last may be shorter), listed at ``index``."""
BLOCK_INDEX = np.dtype([("offset", "<u8"), ("check", "<u8"), ("sum", "<u8")])
BLOCK_BYTES = 1 << 22
"""Most bytes that a block of whole records takes; a larger record has a block of its own."""
SMALL_BLOCK_BYTES = 1 << 19
"""The same where blocks are worked on as they come: they stay in the processor's cache."""
_LARGEST_RECORD = 1 << 26


class Scope(IntEnum):
    """What a table belongs to."""

    GLOBAL, STREAM, BIND, STORE = range(4)


BATCH_TIMES = np.dtype([("first_record", "<u8"), ("earliest", "<i8")])
"""For each batch that was written: where it starts, and its earliest time (for reading in time order)."""

STRINGS, MODEL, HEADS = 1, 2, 3
"""Sections of ``Scope.STORE``: string segments (``stream`` is the segment), what the guide has no place for, and copies
of the heads of a stream's records, for whoever needs no branch stacks."""


class Table(NamedTuple):
    """Key of a table. ``section`` is a `Section`, `StreamSection` or, in ``Scope.BIND``, a `StreamType`."""

    scope: Scope
    stream: int
    section: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a table stands."""

    record_size: int
    count: int
    block_bytes: int
    blocks: int
    index: int
    index_crc: int

    @property
    def bytes(self) -> int:
        return self.count * self.record_size

    @property
    def block_records(self) -> int:
        """Records in each block but the last."""
        return self.block_bytes // self.record_size


_PARTS: dict[tuple[Scope, int], tuple[str, ...]] = {
    (Scope.GLOBAL, Section.HARDWARE): (
        "TBRW_SYSTEM", "TBRW_NODE", "TBRW_CPU", "TBRW_CPU_ARCH", "TBRW_CPUID_IA32", "TBRW_CPUID_IA64",
    ),
    (Scope.GLOBAL, Section.SOFTWARE): ("TBRW_HOST", "TBRW_OS", "TBRW_APPLICATION"),
    (Scope.GLOBAL, Section.PROCESS_THREAD): ("TBRW_PID", "TBRW_TID"),
    (Scope.GLOBAL, Section.MODULE): ("TBRW_MODULE",),
    (Scope.GLOBAL, Section.VERSION_INFO): ("TBRW_VERSION_INFO",),
    (Scope.STREAM, StreamSection.EVENT_DESCRIPTION): ("TBRW_EVENT", "TBRW_EVENT_DETAIL"),
    (Scope.STREAM, StreamSection.DATA_DESCRIPTION): ("TBRW_SAMPREC_DESC_ENTRY",),
    (Scope.STREAM, StreamSection.STREAM_INFO): ("TBRW_STREAM_INFO",),
    (Scope.BIND, StreamType.BIND_DATA_INFORMATION): ("DATA_BIND_STRUCT",),
    (Scope.BIND, StreamType.BIND_MODULE_INFORMATION): ("MODULE_BIND_STRUCT",),
    (Scope.BIND, StreamType.BIND_PID_INFORMATION): ("PID_BIND_STRUCT", "TBRW_PID"),
    (Scope.BIND, StreamType.BIND_TID_INFORMATION): ("TID_BIND_STRUCT", "TBRW_TID"),
}  # fmt: skip

CHILDREN = {
    ("TBRW_SYSTEM", "node_array"): "TBRW_NODE",
    ("TBRW_NODE", "cpu_array"): "TBRW_CPU",
    ("TBRW_CPU", "cpu_arch_array"): "TBRW_CPU_ARCH",
    ("TBRW_EVENT", "event_detail_array"): "TBRW_EVENT_DETAIL",
}
"""Pointer field -> the table it counts rows of; cpuid_array is of the 32- or 64-bit table by arch_type."""


def struct_of(key: Table) -> Struct | None:
    """The record type of a table, ``None`` for bytes and for records that descriptors describe."""
    parts = _PARTS.get((key.scope, key.section), ())
    return STRUCTS[parts[key.part]] if key.part < len(parts) else None


def records_of_block(key: Table, record_size: int) -> int:
    """Records in a block: as many as fit, in whole batches of the model where that is several."""
    heads = key.scope is Scope.STORE and key.section == HEADS
    records = max(1, (SMALL_BLOCK_BYTES if heads else BLOCK_BYTES) // record_size)
    return records // MAX_SAMPLES * MAX_SAMPLES or records


def check_record_size(key: Table, size: int) -> None:
    """Raises `ValueError` where records of ``size`` bytes cannot be those of ``key``."""
    struct = struct_of(key)
    if struct is not None and size != struct.size:
        raise ValueError(f"records of {describe(key)} have {struct.size} bytes, not {size}")
    if not 0 < size <= _LARGEST_RECORD:
        raise ValueError(f"{describe(key)}: records of {size} bytes; 1 to {_LARGEST_RECORD} are possible")


_NAMES = {Scope.GLOBAL: Section, Scope.STREAM: StreamSection, Scope.BIND: StreamType}


def describe(key: Table) -> str:
    """The table in words: ``stream 0 data``, ``modules``..."""
    kind = _NAMES.get(key.scope)
    if kind is not None and key.section in set(kind):
        name = kind(key.section).name.lower().replace("_", " ")
    else:
        names = {STRINGS: f"strings {key.stream}", MODEL: "model", HEADS: f"heads of stream {key.stream}"}
        name = names.get(key.section, f"section {key.section}")
    struct = struct_of(key)
    detail = f" ({struct.name})" if struct is not None else f" part {key.part}" if key.part else ""
    owner = {Scope.STREAM: f"stream {key.stream} ", Scope.BIND: f"bind of stream {key.stream}: "}.get(key.scope, "")
    return f"{owner}{name}{detail}"
