"""Writing perf.data: records, bodies of header features, and both forms of a file, with final header and as a pipe.

Layouts: include/uapi/linux/perf_event.h, tools/perf/Documentation/perf.data-file-format.txt and
tools/perf/util/header.c of Linux. All is in this machine's byte order, as the kernel's own records are.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...closing import on_failure
from ..fields import Fields, encode
from .layout import FEATURES, HEADER, MAGIC, MISC, MMAP2_BUILD_ID, PIPE_HEADER_SIZE, RECORD, RECORD_FIELDS, SAMPLE_ID
from .record_file import RecordFile

__all__ = [
    "Described",
    "PerfFile",
    "MappedCode",
    "SideRecords",
    "build_id_entry",
    "clock_data",
    "event_desc",
    "number",
    "numbers",
    "pipe_begin",
    "pipe_event",
    "pipe_feature",
    "record",
    "text",
    "texts",
]

_ATTR_SIZE = 128
"""PERF_ATTR_SIZE_VER7: what readers before Linux 6.3 accept. Larger only if later fields are in use."""
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
        """The attribute in the shortest form for its content, so that older readers accept the file."""
        if not any(self.attr[_ATTR_SIZE:]):
            return self.attr[:4] + struct.pack("=I", _ATTR_SIZE) + self.attr[8:_ATTR_SIZE]
        return self.attr


# -- records


def record(kind: str, body: bytes, misc: int = 0) -> bytes:
    """One record of a type of `RECORD`, padded to whole words."""
    body = _pad(body)
    return struct.pack("=IHH", RECORD[kind], misc, 8 + len(body)) + body


class MappedCode(NamedTuple):
    """One mapping of user code, as an MMAP2 record has it."""

    start: int
    end: int
    """The address past it."""
    offset: int
    name: str
    prot: int
    """Bits of mmap(2): read 1, write 2, execute 4."""
    flags: int
    """MAP_SHARED 1, MAP_PRIVATE 2."""
    inode: tuple[int, int, int] = (0, 0, 0)
    """Major and minor number of the device, inode."""


class SideRecords:
    """Records other than samples as the kernel writes them for an event with sample_id_all.

    ``sample_type`` and ``identifier`` are the event's: they decide the trailer of each record. ``time`` 0 is before the
    recording.
    """

    def __init__(self, sample_type: int, identifier: int) -> None:
        self.sample_type, self.identifier = sample_type, identifier

    def trailer(self, pid: int = 0, tid: int = 0, time: int = 0) -> bytes:
        """The sample_id of a record."""
        values = {"pid": pid, "tid": tid, "time": time, "id": self.identifier, "identifier": self.identifier}
        return b"".join(encode(fields, values) for bit, fields in SAMPLE_ID if self.sample_type & bit)

    def _record(self, kind: str, values: dict[str, Any], when: int, misc: int = 0, fields: Fields = ()) -> bytes:
        body = _pad(encode(fields or RECORD_FIELDS[kind], values))
        return record(kind, body + self.trailer(values["pid"], values["tid"], when), misc)

    def fork(self, pid: int, parent: int, tid: int, parent_tid: int, time: int = 0, *, alone: bool = False) -> bytes:
        """``alone``: a task that was there before the recording; its own mappings follow."""
        values = {"pid": pid, "ppid": parent, "tid": tid, "ptid": parent_tid, "time": 0 if alone else time}
        return self._record("FORK", values, time, MISC.FORK_EXEC if alone else 0)

    def exit(self, pid: int, tid: int, time: int) -> bytes:
        return self._record("EXIT", {"pid": pid, "ppid": pid, "tid": tid, "ptid": tid, "time": time}, time)

    def read(self, pid: int, tid: int, value: int, time: int) -> bytes:
        """The count of the event for a thread, where the event has no read_format."""
        return self._record("READ", {"pid": pid, "tid": tid, "values": number(value)}, time)

    def lost(self, count: int, time: int = 0) -> bytes:
        """Records of the event that are not in the file."""
        return record(
            "LOST", encode(RECORD_FIELDS["LOST"], {"id": self.identifier, "lost": count}) + self.trailer(time=time)
        )

    def comm(self, pid: int, tid: int, name: str, time: int = 0, *, exec: bool = False) -> bytes:
        values = {"pid": pid, "tid": tid, "comm": _name(name)}
        return self._record("COMM", values, time, MISC.COMM_EXEC if exec else 0)

    def kernel_mmap(self, start: int, size: int, offset: int, name: str) -> bytes:
        """The kernel or one of its modules, ``pid`` -1."""
        values = {"pid": -1, "tid": 0, "addr": start, "len": size, "pgoff": offset, "filename": _name(name)}
        return self._record("MMAP", values, 0, MISC.KERNEL)

    def mmap2(self, pid: int, mapped: MappedCode, *, build_id: bytes = b"", time: int = 0) -> bytes:
        """A mapping of user code. A ``build_id`` takes the place of the inode."""
        values = {
            "pid": pid,
            "tid": pid,
            "addr": mapped.start,
            "len": mapped.end - mapped.start,
            "pgoff": mapped.offset,
            "prot": mapped.prot,
            "flags": mapped.flags,
            "filename": _name(mapped.name),
            "build_id": build_id,
            "build_id_size": min(len(build_id), _BUILD_ID),
            **dict(zip(("maj", "min", "ino"), mapped.inode, strict=True)),
        }
        if build_id:
            return self._record("MMAP2", values, time, MISC.USER | MISC.MMAP_BUILD_ID, MMAP2_BUILD_ID)
        return self._record("MMAP2", values, time, MISC.USER)


def _name(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")[:_LONGEST_NAME]


def _pad(data: bytes, unit: int = 8) -> bytes:
    return data + bytes(-len(data) % unit)


# -- bodies of header features


def text(value: str) -> bytes:
    """u32 length, then the string in so many bytes, with a NUL."""
    raw = _pad(value.encode("utf-8", "surrogateescape") + b"\0", _ALIGNED)
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
    """An entry of BUILD_ID: a record without a type."""
    values = {"pid": -1, "build_id": build_id, "size": min(len(build_id), _BUILD_ID), "filename": name}
    body = encode(RECORD_FIELDS["HEADER_BUILD_ID"], values)
    head = len(body) - len(name.encode("utf-8", "surrogateescape")) - 1
    body = body[:head] + _pad(body[head:], _ALIGNED)
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
    ``rest``, ``went_on``: where the file goes on if its disk is full (`RecordFile`).
    """

    def __init__(
        self, path: str, events: Sequence[Described], rest: str = "", went_on: Callable[[], None] = lambda: None
    ) -> None:
        self.path = path
        attrs = [e.stored for e in events]
        size = max(map(len, attrs))
        ids = [struct.pack(f"={len(e.ids)}Q", *e.ids) for e in events]
        self._attr_size = size + _SECTION.size
        self._attrs = (_HEADER_SIZE + sum(map(len, ids)), len(attrs) * self._attr_size)
        self._data = sum(self._attrs)
        parts, at = [self._header(0, ()), *ids], _HEADER_SIZE
        for attr, own in zip(attrs, ids, strict=True):
            parts.append(attr.ljust(size, b"\0") + _SECTION.pack(at, len(own)))
            at += len(own)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = RecordFile(os.open(path, flags, 0o666), rest, went_on)
        with on_failure(self.close):
            self._file.write(b"".join(parts))

    def _header(self, size: int, features: Iterable[int]) -> bytes:
        bits = sum(1 << number for number in features)
        words = [bits >> 64 * i & (1 << 64) - 1 for i in range(4)]
        fields = (_HEADER_SIZE, self._attr_size, *self._attrs, self._data, size, 0, 0, *words)
        return MAGIC + struct.pack(f"={len(HEADER)}Q", *fields)

    @property
    def size(self) -> int:
        """Bytes of records in the file."""
        return self._file.size - self._data

    @property
    def full(self) -> bool:
        """Whether no more samples are written: there is no room for them."""
        return self._file.full

    @property
    def dropped(self) -> int:
        """Records for which there was no room."""
        return self._file.dropped

    def write(self, records: bytes) -> None:
        """Append whole records."""
        self._file.write(records)

    def flush(self) -> None:
        """Let others read what was written."""
        self._file.flush()

    def finish(self, features: Mapping[str, bytes], lost: Callable[[int], bytes] = lambda count: b"") -> None:
        """Complete and close the file. ``features`` are the bodies of header features by name (`FEATURES`); on a full
        disk there may be no room for them. ``lost``: the record of so many that are not in the file."""
        numbers = sorted((FEATURES.index(name), body) for name, body in features.items())
        sizes = [len(body) for _, body in numbers]
        self._file.flush()
        self._file.overwrite(
            0, self._header(self.size, ())
        )  # readers of the growing file must not go on into what follows
        self._file.hold(len(sizes) * _SECTION.size + sum(sizes))
        if self._file.dropped:
            self._file.last(lost(self._file.dropped))
        size, at = self.size, self._data + self.size + len(sizes) * _SECTION.size
        self._file.overwrite(0, self._header(size, ()))
        sections = []
        for length in sizes:
            sections.append(_SECTION.pack(at, length))
            at += length
        if self._file.last(b"".join(sections) + b"".join(body for _, body in numbers)):
            self._file.overwrite(0, self._header(size, [number for number, _ in numbers]))
        self.close()

    def close(self) -> None:
        self._file.close()


# -- the pipe form: records only, and the file is whole at any moment


def pipe_begin() -> bytes:
    """The header of a pipe."""
    return MAGIC + struct.pack("=Q", PIPE_HEADER_SIZE)


def pipe_event(event: Described) -> bytes:
    """Records for one event: its attribute with its ids, and its name."""
    ids = event.ids or (0,)
    update = encode(RECORD_FIELDS["EVENT_UPDATE"], {"type": _UPDATE_NAME, "id": ids[0], "data": _name(event.name)})
    return record("HEADER_ATTR", event.stored + struct.pack(f"={len(ids)}Q", *ids)) + record("EVENT_UPDATE", update)


def pipe_feature(name: str, body: bytes) -> bytes:
    """The record of a header feature, one of `FEATURES`."""
    feature = {"feat_id": FEATURES.index(name), "data": body}
    return record("HEADER_FEATURE", encode(RECORD_FIELDS["HEADER_FEATURE"], feature))
