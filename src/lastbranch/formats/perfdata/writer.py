"""Writing perf.data: records, bodies of header features, and the two forms of a file, one that is completed and a pipe.

Layouts: include/uapi/linux/perf_event.h, tools/perf/Documentation/perf.data-file-format.txt and
tools/perf/util/header.c of Linux. All is in this machine's byte order, as the kernel's own records are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .layout import FEATURES, HEADER, MAGIC, MISC, PIPE_HEADER_SIZE, RECORD, SAMPLE_ID_FIELDS

__all__ = [
    "Described", "PerfFile", "SideRecords", "build_id_entry", "clock_data", "event_desc", "number", "numbers",
    "pipe_begin", "pipe_event", "pipe_feature", "record", "text", "texts",
]  # fmt: skip

_ATTR_SIZE = 128
"""PERF_ATTR_SIZE_VER7: what readers before Linux 6.3 accept. Larger only if the fields behind it are in use."""
_HEADER_SIZE = 8 + 8 * len(HEADER)
_SECTION = struct.Struct("=QQ")
_ALIGNED = 64  # strings of header features, NAME_ALIGN
_BUILD_ID = 20  # most bytes of a build id in a record
_LONGEST_NAME = 4095  # PATH_MAX, less its NUL: a record has at most 65,535 bytes
_UPDATE_NAME = 2  # PERF_EVENT_UPDATE__NAME


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


# -- records


def record(kind: str, body: bytes, misc: int = 0) -> bytes:
    """One record of a type of `RECORD`, padded to whole words."""
    body += bytes(-len(body) % 8)
    return struct.pack("=IHH", RECORD[kind], misc, 8 + len(body)) + body


class SideRecords:
    """Records beside the samples as the kernel writes them for an event with sample_id_all.

    ``sample_type`` and ``identifier`` are the event's: they decide the trailer of each record. ``time`` 0 is before the
    recording.
    """

    def __init__(self, sample_type: int, identifier: int) -> None:
        self.sample_type, self.identifier = sample_type, identifier

    def trailer(self, pid: int = 0, tid: int = 0, time: int = 0) -> bytes:
        """The sample_id of a record."""
        values = {
            "tid": struct.pack("=ii", pid, tid), "time": struct.pack("=Q", time),
            "id": struct.pack("=Q", self.identifier), "stream_id": bytes(8), "cpu": bytes(8),
            "identifier": struct.pack("=Q", self.identifier),
        }  # fmt: skip
        return b"".join(values[name] for bit, name in SAMPLE_ID_FIELDS if self.sample_type & bit)

    def fork(self, pid: int, parent: int, tid: int, parent_tid: int, time: int = 0, *, alone: bool = False) -> bytes:
        """``alone``: a task that was there before the recording; its own mappings follow."""
        body = struct.pack("=iiiiQ", pid, parent, tid, parent_tid, 0 if alone else time)
        return record("FORK", body + self.trailer(pid, tid, time), MISC.FORK_EXEC if alone else 0)

    def exit(self, pid: int, tid: int, time: int) -> bytes:
        return record("EXIT", struct.pack("=iiiiQ", pid, pid, tid, tid, time) + self.trailer(pid, tid, time))

    def comm(self, pid: int, tid: int, name: str, time: int = 0, *, exec: bool = False) -> bytes:
        body = struct.pack("=ii", pid, tid) + _name(name) + self.trailer(pid, tid, time)
        return record("COMM", body, MISC.COMM_EXEC if exec else 0)

    def kernel_mmap(self, start: int, size: int, offset: int, name: str) -> bytes:
        """The kernel or one of its modules, ``pid`` -1."""
        body = struct.pack("=iiQQQ", -1, 0, start, size, offset) + _name(name)
        return record("MMAP", body + self.trailer(-1, 0), MISC.KERNEL)

    def mmap2(
        self, pid: int, start: int, end: int, offset: int, name: str, *, prot: int, flags: int,
        build_id: bytes = b"", inode: tuple[int, int, int] = (0, 0, 0), time: int = 0,
    ) -> bytes:  # fmt: skip
        """A mapping of user code; ``inode`` is (major, minor, inode), which a ``build_id`` takes the place of."""
        head = struct.pack("=iiQQQ", pid, pid, start, end - start, offset)
        build_id = build_id[:_BUILD_ID]
        identity, misc = struct.pack("=IIQQ", *inode, 0), MISC.USER
        if build_id:
            identity, misc = struct.pack("=BBH20s", len(build_id), 0, 0, build_id), MISC.USER | MISC.MMAP_BUILD_ID
        body = head + identity + struct.pack("=II", prot, flags) + _name(name) + self.trailer(pid, pid, time)
        return record("MMAP2", body, misc)


def _name(name: str) -> bytes:
    """NUL-terminated, padded to words."""
    raw = name.encode("utf-8", "surrogateescape")[:_LONGEST_NAME] + b"\0"
    return raw + bytes(-len(raw) % 8)


# -- bodies of header features


def text(value: str) -> bytes:
    """u32 length, then the string in that many bytes with a NUL in them."""
    raw = value.encode("utf-8", "surrogateescape") + b"\0"
    raw += bytes(-len(raw) % _ALIGNED)
    return struct.pack("=I", len(raw)) + raw


def texts(values: Sequence[str]) -> bytes:
    """u32 count, then the strings."""
    return struct.pack("=I", len(values)) + b"".join(map(text, values))


def number(value: int) -> bytes:
    """One u64: TOTAL_MEM (KiB), CLOCKID (ns)."""
    return struct.pack("=Q", value)


def numbers(*values: int) -> bytes:
    """u32 each: NRCPUS (available: one more than the highest number of a processor that is present; online)."""
    return struct.pack(f"={len(values)}I", *values)


def clock_data(clock: int, wall: int, at: int) -> bytes:
    """CLOCK_DATA: the wall clock in ns at the moment ``at`` of ``clock`` (clock_gettime(2))."""
    return struct.pack("=IIQQ", 1, clock, wall, at)


def build_id_entry(build_id: bytes, name: str, misc: int) -> bytes:
    """An entry of BUILD_ID: header without a type, s32 pid, 20 bytes, u8 size, 3 unused, name."""
    raw = name.encode("utf-8", "surrogateescape") + b"\0"
    raw += bytes(-len(raw) % _ALIGNED)
    body = struct.pack("=i20sB3x", -1, build_id[:_BUILD_ID], min(len(build_id), _BUILD_ID)) + raw
    return struct.pack("=IHH", 0, misc | MISC.BUILD_ID_SIZE, 8 + len(body)) + body


def event_desc(events: Sequence[Described]) -> bytes:
    """EVENT_DESC: u32 events and attribute size; for each the attribute, u32 ids, its name, the ids."""
    size = max(len(e.stored) for e in events)
    parts = [struct.pack("=II", len(events), size)]
    for e in events:
        parts += [e.stored.ljust(size, b"\0"), struct.pack("=I", len(e.ids)), text(e.name)]
        parts.append(struct.pack(f"={len(e.ids)}Q", *e.ids))
    return b"".join(parts)


# -- a file that is completed


class PerfFile:
    """Writes ``path``: header, ids and attributes first, then records as they come.

    A file whose recorder died before `finish` has a data section of size 0: readers go on to the end of the file.
    """

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
        fields = (_HEADER_SIZE, self._attr_size, *self._attrs, self._data, size, 0, 0, *words)
        self._file.write(MAGIC + struct.pack(f"={len(HEADER)}Q", *fields))
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


# -- the pipe form: all of it is records, and it is whole at any moment


def pipe_begin() -> bytes:
    """The header of a pipe."""
    return MAGIC + struct.pack("=Q", PIPE_HEADER_SIZE)


def pipe_event(event: Described) -> bytes:
    """Records for one event: its attribute with its ids, and its name."""
    ids = event.ids or (0,)
    update = struct.pack("=QQ", _UPDATE_NAME, ids[0]) + _name(event.name)
    return record("HEADER_ATTR", event.stored + struct.pack(f"={len(ids)}Q", *ids)) + record("EVENT_UPDATE", update)


def pipe_feature(name: str, body: bytes) -> bytes:
    """The record of a header feature, one of `FEATURES`."""
    return record("HEADER_FEATURE", struct.pack("=Q", FEATURES.index(name)) + body)
