"""A perf.data that grows while it is recorded: header, ids and attributes first, then records as the kernel wrote them.

Layout: tools/perf/Documentation/perf.data-file-format.txt and tools/perf/util/header.c of Linux. A file whose recorder
died before `PerfFile.finish` has a data section of size 0: readers go on to the end of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...formats.perfdata.layout import FEATURES, HEADER, MAGIC, RECORDS, SAMPLE_ID_FIELDS

__all__ = ["RECORD", "Described", "PerfFile", "event_desc", "record", "sample_id", "text", "texts"]

RECORD = {name: number for number, name in RECORDS.items()}
"""Types of records by name."""
_ATTR_SIZE = 128
"""PERF_ATTR_SIZE_VER7: what readers before Linux 6.3 accept. Larger only if the fields behind it are in use."""
_HEADER_SIZE = 8 + 8 * len(HEADER)
_SECTION = struct.Struct("=QQ")
_ALIGNED = 64  # strings of header features, NAME_ALIGN


class Described(NamedTuple):
    """One event of the file: name, perf_event_attr, ids of its counters."""

    name: str
    attr: bytes
    ids: Sequence[int]

    @property
    def stored(self) -> bytes:
        """The attribute as short as its contents allow, so that older readers take it."""
        if not any(self.attr[_ATTR_SIZE:]):
            return self.attr[:4] + struct.pack("=I", _ATTR_SIZE) + self.attr[8:_ATTR_SIZE]
        return self.attr


class PerfFile:
    """Writes ``path``. All multi-byte values are in this machine's byte order, as the kernel's own records are."""

    def __init__(self, path: str, events: Sequence[Described]) -> None:
        self.path = path
        self._file = open(path, "wb")  # noqa: SIM115 (closed by `finish` or `close`)
        self._ids_at = _HEADER_SIZE
        attrs = [e.stored for e in events]
        size = max(map(len, attrs))
        attrs = [a.ljust(size, b"\0") for a in attrs]
        ids = [struct.pack(f"={len(e.ids)}Q", *e.ids) for e in events]
        self._attrs = (_HEADER_SIZE + sum(map(len, ids)), len(attrs) * (size + _SECTION.size))
        self._attr_size = size + _SECTION.size
        self._data = sum(self._attrs)
        self._file.write(bytes(_HEADER_SIZE))
        self._file.writelines(ids)
        at = _HEADER_SIZE
        for attr, own in zip(attrs, ids, strict=True):
            self._file.write(attr + _SECTION.pack(at, len(own)))
            at += len(own)
        self._header(0, ())
        self.size = 0
        """Bytes of records so far."""

    def _header(self, size: int, features: Iterable[int]) -> None:
        bits = sum(1 << number for number in features)
        words = [bits >> 64 * i & (1 << 64) - 1 for i in range(4)]
        self._file.seek(0)
        self._file.write(
            MAGIC
            + struct.pack(
                f"={len(HEADER)}Q", _HEADER_SIZE, self._attr_size, *self._attrs, self._data, size, 0, 0, *words
            )
        )
        self._file.seek(0, 2)

    def write(self, records: bytes) -> None:
        """Append whole records."""
        self._file.write(records)
        self.size += len(records)

    def flush(self) -> None:
        """Let others read what was written."""
        self._file.flush()

    def finish(self, features: Mapping[str, bytes]) -> None:
        """Complete and close the file. ``features`` are the bodies of header features by name (`FEATURES`)."""
        numbers = sorted((FEATURES.index(name), body) for name, body in features.items())
        at = self._data + self.size + len(numbers) * _SECTION.size
        for _, body in numbers:
            self._file.write(_SECTION.pack(at, len(body)))
            at += len(body)
        self._file.writelines(body for _, body in numbers)
        self._header(self.size, [number for number, _ in numbers])
        self.close()

    def close(self) -> None:
        self._file.close()


def record(kind: str, body: bytes, misc: int = 0) -> bytes:
    """One record, padded to whole words."""
    body += bytes(-len(body) % 8)
    return struct.pack("=IHH", RECORD[kind], misc, 8 + len(body)) + body


def sample_id(sample_type: int, identifier: int, pid: int = 0, tid: int = 0, time: int = 0) -> bytes:
    """The trailer of a record that is made here."""
    values = {
        "tid": struct.pack("=ii", pid, tid), "time": struct.pack("=Q", time), "id": struct.pack("=Q", identifier),
        "stream_id": bytes(8), "cpu": bytes(8), "identifier": struct.pack("=Q", identifier),
    }  # fmt: skip
    return b"".join(values[name] for bit, name in SAMPLE_ID_FIELDS if sample_type & bit)


# -- bodies of header features


def text(value: str) -> bytes:
    """u32 length, then the string in that many bytes with a NUL in them."""
    raw = value.encode("utf-8", "surrogateescape") + b"\0"
    raw += bytes(-len(raw) % _ALIGNED)
    return struct.pack("=I", len(raw)) + raw


def texts(values: Sequence[str]) -> bytes:
    """u32 count, then the strings."""
    return struct.pack("=I", len(values)) + b"".join(map(text, values))


def event_desc(events: Sequence[Described]) -> bytes:
    """EVENT_DESC: u32 events and attribute size; for each the attribute, u32 ids, its name, the ids."""
    size = max(len(e.stored) for e in events)
    parts = [struct.pack("=II", len(events), size)]
    for e in events:
        parts += [e.stored.ljust(size, b"\0"), struct.pack("=I", len(e.ids)), text(e.name)]
        parts.append(struct.pack(f"={len(e.ids)}Q", *e.ids))
    return b"".join(parts)
